"""Explains a job, or a recurrence: reads the facts from Redis, and asks the workers about a ready job."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from evsched import keys
from evsched.client import spread
from evsched.client.explain import Explanation, explain, is_waiting, missing, named_window, no_explanation
from evsched.client.explain_recurrence import explain_recurrence
from evsched.client.kept_recurrences import find_standing, read_record
from evsched.client.operations import AskWorkers, Operation, send
from evsched.client.spread import Parts
from evsched.errors import JobMissing, StoreRefused
from evsched.jobs.record import JobStatus
from evsched.recurrence.windows import WINDOW_NAME
from evsched.shards import Shards
from evsched.store import server
from evsched.store.client_calls import Facts
from evsched.store.operator_calls import KEY_TYPES
from evsched.store.store import Store
from evsched.worker.slots import FetchPause


def explain_known(shards: Shards, parts: Parts, queue: str, job: str) -> Operation[Explanation]:
    """Explain as `explain_any`.

    Raises:
        JobMissing: there is no such job and no such recurrence.
    """
    found = yield from explain_any(shards, parts, queue, job)
    if found is None:
        raise JobMissing(no_explanation(job, queue))
    return found


def explain_any(shards: Shards, parts: Parts, queue: str, job: str) -> Operation[Explanation | None]:
    """Explain why a job has not run yet, or what the recurrence of this name does next; None if there is neither.

    `parts`: where the job may be.
    """
    store, facts = yield from _find(parts, queue, job)
    status, shard = facts.status, store.queue
    if status is None:
        return (yield from _read_recurrence(store, job))
    types = dict[str, str]()
    if is_waiting(status, facts.now):
        for name in KEY_TYPES:
            types[name] = yield from send(server.kind(keys.root(shard) + name))
    window = yield from window_of(shards, status)
    dispatchers = None if facts.holder is None else (yield from _dispatchers(store))
    asks = status.place == "ready" and facts.counts.get("workers")
    pauses: Sequence[FetchPause | None] = (yield AskWorkers(shard)) if asks else ()
    found = explain(shards.whole(shard), facts, window, types, dispatchers, pauses)
    if not shards.beyond(queue, [shard]):
        return found
    count = shards.counts[queue]
    why = f"; queue {queue} has {count} shards, and {shard} is none of them: evsched queues shard {queue} {count}"
    return structs.replace(found, sentence=found.sentence + why)


def _find(parts: Parts, queue: str, job: str) -> Operation[tuple[Store, Facts]]:
    home, *others = parts.stores
    facts = yield from send(home.explain(job))
    if facts.status is not None:
        return home, facts
    for store in others:
        found = yield from send(store.explain(job))
        if found.status is not None:
            return store, found
    for store in (yield from spread.unknown_parts(parts)):
        found = yield from send(store.explain(job))
        if found.status is not None:
            return store, found
    return Store(queue), facts


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
    """Explain the recurrence of a name; None if there is none. For an occurrence without a job, explain its recurrence.

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
