"""Explains a job, or a recurrence. Reads the facts from Redis, and asks the workers about ready jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from evsched import keys
from evsched.client import spread
from evsched.client.explain import Explanation, explain, is_waiting, missing, named_window
from evsched.client.operations import AskWorkers, Operation, send
from evsched.client.recurrence_operations import find_standing, no_record, read_record
from evsched.client.spread import Parts
from evsched.display import format_duration
from evsched.errors import ConfigError, JobMissing, StoreRefused
from evsched.jobs import groups
from evsched.jobs.record import JobStatus, number, read_member, whole
from evsched.recurrence.look_ahead import Standing, next_time
from evsched.recurrence.windows import WINDOW_NAME, read_window
from evsched.shards import Shards
from evsched.store import server
from evsched.store.batch_calls import BatchRecord
from evsched.store.client_calls import Facts
from evsched.store.operator_calls import KEY_TYPES
from evsched.store.store import Store
from evsched.worker.slots import FetchPause

if TYPE_CHECKING:
    from evsched.worker.status_reporter import WorkerStatus  # slow to import

_SHOWN = ("rule", "zone", "after", "skip", "window", "overlap", "misfire")
"""The fields of the declaration that are listed."""

_OVERDUE = 5.0
"""Seconds after its planned time by which a dispatcher that serves the queue has moved a recurrence on: it does so 15 s
before that time."""


def explain_recurrence(
    name: str,
    queue: str,
    standing: Standing,
    fields: Mapping[str, bytes],
    requests: int,
    now: float,
    dispatchers: int | None = None,
    window: str | None = None,
) -> Explanation:
    """Explain the next step of a recurrence.

    `requests`: how many requested runs wait. `dispatchers`: how many are connected; None = that is not known.
    `window`: the present definition of the window that it names.
    """
    sentence = _why_not(name, queue, fields, now)
    if not sentence:
        sentence = _when(standing, now) + _opening(standing, window or _text(fields, "window"), now)
        if dispatchers == 0:
            sentence += "; but no dispatcher is connected, so nothing starts: start one with `evsched dispatcher`"
    if requests:
        sentence += f"; {requests} requested runs wait" if requests > 1 else "; 1 requested run waits"
    return Explanation(sentence, _list_facts(fields, now))


def _text(fields: Mapping[str, bytes], field: str) -> str:
    return fields.get(field, b"").decode(errors="backslashreplace")


def _why_not(name: str, queue: str, fields: Mapping[str, bytes], now: float) -> str:
    """Return why a recurrence makes no jobs, '' = it does."""
    if not fields:
        return f"it makes no jobs: {no_record(queue, name)}"
    if "retired" in fields:
        return "stopped: the code no longer declares it" + (f"; {_paused(fields, now)}" if "paused" in fields else "")
    if "paused" in fields:
        return f"{_paused(fields, now)}; resume it with `evsched recurrences resume {name} --queue {queue}`"
    return f"it makes no jobs: {_text(fields, 'reason')}" if "reason" in fields else ""


def _paused(fields: Mapping[str, bytes], now: float) -> str:
    since, until = number(fields.get("paused")), number(fields.get("paused_until"))
    sentence = "paused" if since is None else f"paused for {format_duration(max(now - since, 0.0))}"
    if until is not None:
        sentence += f", and for {format_duration(max(until - now, 0.0))} more"
    return f"{sentence}: {_text(fields, 'paused_why')}" if "paused_why" in fields else sentence


def _when(standing: Standing, now: float) -> str:
    next_ = next_time(standing, now)
    if next_ is None and standing.under_way and standing.next < math.inf:
        return "its next occurrence is counted from the end of the run that is under way"
    if next_ is None and standing.next <= 0:
        return "it is about to begin: a dispatcher plans its next occurrence"
    if next_ is None:
        return "it is over: its end or its count is reached, or its rule has no more times"
    if next_ < now - _OVERDUE:
        late = format_duration(now - next_)
        return f"its next occurrence was planned {late} ago, and no dispatcher has made it: `evsched doctor` says why"
    return f"its next occurrence is planned in {format_duration(max(next_ - now, 0.0))}"


def _opening(standing: Standing, window: str, now: float) -> str:
    """Say when the next occurrence can start, if its window is closed at its planned time."""
    next_ = next_time(standing, now)
    if not window or next_ is None or next_ < now - _OVERDUE:
        return ""
    try:
        opens = read_window(window).next_open(next_)
    except ConfigError:
        return ""  # its record has the reason
    if opens is None or opens <= next_:
        return ""
    return f", and starts in {format_duration(max(opens - now, 0.0))}, when its window {window} opens"


def _list_facts(fields: Mapping[str, bytes], now: float) -> dict[str, str]:
    found = {field: _text(fields, field) for field in _SHOWN if fields.get(field)}
    found.update(
        {field: str(whole(fields[field])) for field in ("runs", "done", "failed", "missed") if field in fields}
    )
    if "last_id" in fields:
        ended = number(fields.get("last_finished"))
        ago = "" if ended is None else f", {format_duration(max(now - ended, 0.0))} ago"
        found["last run"] = f"{_text(fields, 'last_id')}: {_text(fields, 'last_outcome')}{ago}"
    return found


def explain_any(shards: Shards, parts: Parts, queue: str, job: str) -> Operation[Explanation | None]:
    """Explain why a job has not run yet, or the next step of the recurrence of this name; None if there is neither.

    `parts`: where the job may be.
    """

    def read(store: Store) -> Operation[Facts | None]:
        facts = yield from send(store.explain(job))
        return None if facts.status is None else facts

    found = yield from spread.search(parts, read)
    if found is None:
        return (yield from _read_recurrence(Store(queue), job))
    store, facts = found
    status, shard = facts.status, store.queue
    assert status is not None
    types = dict[str, str]()
    if is_waiting(status, facts.now):
        for name in KEY_TYPES:
            types[name] = yield from send(server.kind(keys.root(shard) + name))
    window = yield from window_of(shards, status)
    dispatchers = None if facts.holder is None else (yield from _dispatchers(store))
    asks = status.place == "ready" and facts.counts.get("workers")
    workers: Sequence[WorkerStatus] = (yield AskWorkers(shard)) if asks else ()
    pauses: list[FetchPause | None] = [worker.not_fetching for worker in workers]
    free = sum(max(worker.slots - worker.busy, 0) for worker in workers if worker.not_fetching is None)
    batch = yield from _paused_batch(facts)
    explained = explain(shards.whole(shard), facts, window, types, dispatchers, pauses, batch, free)
    if not shards.beyond(queue, [shard]):
        return explained
    count = shards.counts[queue]
    why = f"; queue {queue} has {count} shards, and {shard} is not one of them: evsched queues shard {queue} {count}"
    return structs.replace(explained, sentence=explained.sentence + why)


def _paused_batch(facts: Facts) -> Operation[BatchRecord | None]:
    """Read the batch of a job that its pause holds back; None if none does."""
    member = read_member(facts.status.batch) if facts.status is not None else None
    if member is None or groups.of_batch(f"{member.queue}/{member.batch}") not in facts.limits.batches:
        return None
    return (yield from send(Store(member.queue).batch(member.batch))) if keys.NAME.fullmatch(member.queue) else None


def window_of(shards: Shards, status: JobStatus) -> Operation[str | None]:
    """Return the present definition of the window that a job names; None if it names none, or one that is not there."""
    name = named_window(status)
    try:
        return (yield from send(Store(shards.whole(status.queue)).window(name))) if name else None
    except StoreRefused:  # the reason in the record says that the window cannot be read
        return None


def _dispatchers(store: Store) -> Operation[int | None]:
    try:
        return (yield from send(server.dispatchers(store.queue)))
    except StoreRefused:  # this user may not ask
        return None


def _read_recurrence(store: Store, name: str) -> Operation[Explanation | None]:
    """Explain the recurrence of a name; None if it does not exist.

    An occurrence without a job is explained by its recurrence.

    Raises:
        JobMissing: it is an occurrence's id.
    """
    at = yield from send(store.next_planned(name))
    owner = name if at is not None else name.rpartition("@")[0]
    if at is None and owner:
        at = yield from send(store.next_planned(owner))
    if at is None:
        return None
    fields, requests = (yield from read_record(store, owner)), 0
    try:
        requests = yield from send(store.requests(owner))
    except StoreRefused:  # the key is of another type
        pass
    standing, window = (yield from find_standing(store, at, fields)), None
    named = fields.get("window", b"").decode(errors="backslashreplace")
    if WINDOW_NAME.fullmatch(named):
        try:
            window = yield from send(store.window(named))
        except StoreRefused:
            pass
    now, dispatchers = (yield from send(server.clock(keys.root(store.queue)))), (yield from _dispatchers(store))
    found = explain_recurrence(owner, store.queue, standing, fields, requests, now, dispatchers, window)
    if owner != name:
        raise JobMissing(f"{missing(name, store.queue)}; recurrence {owner}: {found.sentence}")
    return found
