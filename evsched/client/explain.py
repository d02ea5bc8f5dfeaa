"""Explains why a job has not run yet: in one sentence, with the facts behind it.

There is one function for each place that a job can be in. They return the sentence without the job's id, which
`evsched explain` puts before it. Pure: the caller reads the facts from Redis.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from evsched import keys
from evsched.display import format_duration
from evsched.errors import ConfigError
from evsched.jobs import groups
from evsched.jobs.job import Requeued
from evsched.jobs.record import JobStatus, SignalWait, read_member
from evsched.recurrence.windows import WINDOW_NAME, read_window
from evsched.store.batch_calls import BatchRecord
from evsched.store.client_calls import Facts
from evsched.store.gate_limits import Limits, shown
from evsched.store.operator_calls import KEY_TYPES
from evsched.worker.slots import FetchPause


def in_backlog(gate: str, no_worker: str | None, held: str, status: JobStatus, facts: Facts) -> str:
    """Say why a job waits in the backlog.

    `gate`: "the gate", or that of the job's shard. `no_worker`: the sentence that no worker serves the queue, if so.
    `held`: the sentence that the batch of the job is paused, if so.
    """
    limits, counts = facts.limits, facts.counts
    if paused := paused_at(facts.now, facts):
        return f"{paused}; no worker serves it either" if no_worker else paused
    if held:
        return f"{held}; {no_worker}" if no_worker else held
    if no_worker:
        return f"due, but {no_worker}"
    if facts.parked is not None:  # a limit of this group holds the job back
        return _limited(
            f"{gate} is closed to {groups.describe(facts.parked)}",
            facts,
            limits.of_group(facts.parked),
            counts.get("in_flight_group", 0),
            counts.get("opens_group"),
        )
    most = limits.queue.get("concurrency")
    if "opens" in counts or (most is not None and counts.get("in_flight", 0) >= int(most)):
        own = {name: (name, value) for name, value in limits.queue.items()}
        return _limited(f"{gate} is closed", facts, own, counts.get("in_flight", 0), counts.get("opens"))
    ahead, sharing = counts.get("ahead", 0), counts.get("groups", 1)
    share = ""
    if sharing > 1:
        weight = limits.groups.get(status.group or "", {}).get("weight", 1.0)
        part = f"{weight / max(counts.get('weights', sharing), weight):.0%}"
        gets = f"group {status.group} gets {part}" if status.group else f"jobs without a group get {part}"
        share = f"; {sharing:g} groups share {gate}, and {gets}"
    return f"behind {ahead:g} of {counts.get('waiting', 0):g} jobs in the backlog{share}"


def paused_at(at: float, facts: Facts) -> str:
    """Return the words about the pause of the queue; "" if it is not paused at this time."""
    limits = facts.limits
    if limits.paused is None or not limits.is_paused(max(at, facts.now)):
        return ""
    queue = f"queue {facts.status.queue}" if facts.status else "the queue"
    paused = f"{queue} has been paused for {format_duration(facts.now - limits.paused)}"
    if limits.paused_until is not None:
        paused += f", and is for {format_duration(limits.paused_until - facts.now)} more"
    paused += f" ({limits.paused_why})" if limits.paused_why else ""
    return f"{paused}: resume it with `evsched resume`"


def paused_batch(batch: BatchRecord | None, now: float) -> str:
    """Return the words about the pause of the batch of a job; "" if it is not paused."""
    if batch is None or batch.paused is None:
        return ""
    paused = (
        f"batch {batch.id} of queue {batch.queue} has been paused for {format_duration(max(now - batch.paused, 0))}"
    )
    if batch.paused_until is not None:
        paused += f", and is for {format_duration(max(batch.paused_until - now, 0))} more"
    paused += f" ({batch.paused_why})" if batch.paused_why else ""
    return f"{paused}: resume it with `evsched batches resume {batch.id} --queue {batch.queue}`"


def _limited(
    closed: str, facts: Facts, limits: dict[str, tuple[str, float]], in_flight: float, opens: float | None
) -> str:
    """Say which limit holds the job back. `closed`: "the gate is closed", to a group if it is the group's limit.

    `limits`: the limits in force, with the fields that they come from.
    """
    if opens is not None:
        field, rate = limits.get("rate", ("rate", 0.0))
        wait = format_duration(max(opens - facts.now, 0.0))
        return f"{closed} by the rate limit {rate:g}/s{origin(facts.limits, field)}: it opens in {wait}"
    field, most = limits.get("concurrency", ("", 0.0))
    if in_flight < most or not field:
        return f"{closed} no longer: the job passes when a dispatcher checks the group again"
    return f"{closed} by the concurrency limit: {in_flight:g} of {most:g}{origin(facts.limits, field)}"


def origin(limits: Limits, field: str) -> str:
    """Say where a limit comes from, if an app declares it: from the app's code, or from a change by hand since."""
    declared = limits.declared.get(field)
    if declared is None:
        return ""
    if limits.overruled(field):
        return f" (changed by hand; app {declared.app} declares {declared.value:g})"
    return f" (declared by app {declared.app})"


_RECOVERED: Final = 30.0
"""Seconds after the end of a lease within which a dispatcher that serves the queue has requeued the jobs."""

PAUSES: Final[dict[FetchPause, tuple[str, str]]] = {
    "no process": ("no process of the pool is free", "a process of a worker's pool is free"),
    "lone run": ("a suspect runs alone", "the suspect that runs alone has ended"),
    "busy loop": ("handlers keep the event loop busy", "a worker's event loop is free"),
    "quiet": (
        "it was asked to fetch no more",
        "you start another worker, or restart one that is quiet (`evsched workers` says which)",
    ),
    "stopping": ("it stops", "another worker serves this queue: its present workers are stopping"),
}
"""Why a worker fetches nothing, and when a job starts if it is the same for all workers."""


_AT_ONCE: Final = 1.0
"""A due time below this is no time, but means that the job is due when it is scheduled."""

_GIVEN_UP: Final = "and is dead when no worker has had it for EVSCHED_UNKNOWN_TASK_GRACE (10 minutes by default)"


class Explanation(Struct, frozen=True):
    """Why a job has not run yet."""

    sentence: str
    facts: dict[str, str]
    """By name, as they are shown to a person."""


def no_explanation(job_id: str, queue: str | None, similar: Sequence[str] = ()) -> str:
    """Return the sentence about an id that neither a job nor a recurrence has. `similar`: ids that resemble it."""
    hint = f": did you mean {', '.join(similar)}?" if similar else ""
    return missing(job_id, queue, ", and no recurrence of this name") + hint


def missing(job_id: str, queue: str | None, also: str = "") -> str:
    """Return the sentence about an id that no job has; `queue` None = in no queue. `also`: also not found."""
    where = "any queue" if queue is None else f"queue {queue}"
    return (
        f"no job {job_id} in {where}{also}: it never existed, it was cancelled while it waited, it ended and its "
        "retention is over, or it was scheduled inline (its payload is in the schedule) and gets its id when it is "
        "dispatched"
    )


def named_window(status: JobStatus | None) -> str | None:
    """Return the name of the job's window; None if it has none, or one that is written out in the payload."""
    window = None if status is None else status.window
    return window if window is not None and WINDOW_NAME.fullmatch(window) else None


def opening(status: JobStatus, window: str | None, now: float) -> float | None:
    """Return when a waiting job may start because of its window: not before it is due. None = it has no such moment.

    `window`: the present definition of the window that the job names.
    """
    text = window if named_window(status) else status.window
    at = max(now, status.due or 0.0) if status.place == "schedule" else now
    if text is None or not is_before_its_run(status) or at == math.inf:
        return None
    try:
        return read_window(text).next_open(at)
    except (ConfigError, ValueError, OverflowError):  # a due time that no calendar has
        return None


def is_before_its_run(status: JobStatus) -> bool:
    return status.place in ("schedule", "backlog", "ready")


def explain(
    queue: str,
    facts: Facts,
    window: str | None = None,
    types: Mapping[str, str] | None = None,
    dispatchers: int | None = None,
    pauses: Sequence[FetchPause | None] = (),
    batch: BatchRecord | None = None,
    free: int = 0,
) -> Explanation:
    """Explain why a job has not run yet. It exists: `facts` has its status.

    `queue`: the one that has the job, or of which that one is a shard. `window`: the present definition of the window
    that the job names. `types`: the types of the keys on which the whole queue depends, if they were read.
    `dispatchers`: how many are connected, for any queue; None = not known. `pauses`: for each worker that reports its
    status, why it fetches nothing from the queue; None = it fetches when it has a free slot. `batch`: that of the job,
    if it is paused. `free`: how many slots are free, of those workers that fetch.
    """
    status, held = facts.status, paused_batch(batch, facts.now)
    assert status is not None
    if reason := _wrong_type(status, facts, types or {}):
        return Explanation(reason, _list_facts(queue, status, facts))
    opens = opening(status, window, facts.now)
    listed = _list_facts(queue, status, facts, window, opens)
    if status.place == "schedule" and window is not None and (reason := _outside_window(status, facts, window)):
        return Explanation(reason + _besides(status, facts, opens, held), listed)
    gate, no_worker = "the gate" if status.queue == queue else "the gate of its shard", _no_worker(queue, status, facts)
    sentence = {
        "schedule": _in_schedule,
        "backlog": partial(in_backlog, gate, no_worker, held),
        "ready": partial(_in_ready, no_worker, pauses, free),
        "processing": partial(_in_processing, dispatchers),
        "finished": _finished,
        "dead": _dead,
    }[status.place](status, facts)
    sentence += _last_run(status, facts, sentence) + _next_run(status, facts)
    return Explanation(sentence + _closed(status, facts, opens) + _besides(status, facts, opens, held), listed)


_RUN_ENDS: Final = {
    "failed": "failed",
    "snoozed": "was snoozed",
    "lost": "was lost",
    "lost before it began": "was lost before it began",
    "interrupted": "was handed back",
}


def _last_run(status: JobStatus, facts: Facts, sentence: str) -> str:
    """Return the words about how the last run of a waiting job ended; "" if the sentence says why it did."""
    if not is_before_its_run(status) or not status.runs:
        return ""
    last = status.runs[-1]
    why = last.reason or last.error
    if why and why in sentence:
        return ""
    ended = _RUN_ENDS.get(last.outcome, f"ended as {last.outcome}")
    ago = format_duration(max(facts.now - last.ended, 0.0))
    return f"; its last run {ended} {ago} ago" + (f": {why}" if why else "")


def _next_run(status: JobStatus, facts: Facts) -> str:
    """Return the words about the run that follows this one, if the id was scheduled again meanwhile."""
    if status.again is None or status.place in ("finished", "dead"):
        return ""
    wait = status.again - facts.now
    due = f"is due in {format_duration(wait)}" if wait > 0 else f"has been due for {format_duration(-wait)}"
    if status.again == math.inf:
        due = "is due at +inf"
    elif status.again < _AT_ONCE:
        due = "was due at once"
    return f"; it was scheduled again: the next run waits for the end of this one, and {due}"


def _earliest(status: JobStatus, facts: Facts) -> float:
    """Return when a job may start if it has no window."""
    return max(facts.now, status.due or 0.0) if status.place == "schedule" else facts.now


def _closed(status: JobStatus, facts: Facts, opens: float | None) -> str:
    """Return the words about a window that is closed when the job is due; "" if it is open."""
    at = _earliest(status, facts)
    if opens is None or opens <= at:
        return ""
    when = "now" if at <= facts.now else "then"
    return f"; its window {status.window} is closed {when}, so it can start in {format_duration(opens - facts.now)}"


def _besides(status: JobStatus, facts: Facts, opens: float | None, held: str) -> str:
    """Return the words about other obstacles to a job's start: it expires before, or its queue or batch is paused."""
    start, end = _earliest(status, facts) if opens is None else opens, ""
    if is_before_its_run(status) and status.expires is not None and status.expires < start < math.inf:
        left = status.expires - facts.now
        end += "; it expires before, in " + format_duration(left) if left > 0 else "; it has expired"
    if status.place == "schedule" and (paused := paused_at(start, facts)):
        end += f"; {paused}"
    return f"{end}; {held}" if held and status.place == "schedule" else end


def is_waiting(status: JobStatus | None, now: float) -> bool:
    if status is None or not is_before_its_run(status):
        return False
    return status.place != "schedule" or (status.due or 0.0) <= now


def _wrong_type(status: JobStatus, facts: Facts, types: Mapping[str, str]) -> str | None:
    """If a key of the wrong type makes Redis refuse to move a job that is due, say which key."""
    if not is_waiting(status, facts.now):
        return None
    for name, kind in types.items():
        if kind not in (KEY_TYPES[name], "none"):
            key = keys.root(status.queue) + name
            advice = f"`evsched doctor --queue {status.queue}` says how to fix it"
            what = f"{key} is a {kind}, not a {KEY_TYPES[name]}"
            return f"due, but Redis refuses to move the jobs of this queue: {what}; {advice}"
    return None


def _no_worker(queue: str, status: JobStatus, facts: Facts) -> str | None:
    """If no worker serves the queue, or the shard, say so."""
    if facts.counts.get("workers"):
        return None
    if facts.counts.get("parents"):
        return None  # it starts a process when the job is ready
    if status.queue != queue:
        return (
            f"no worker serves shard {status.queue}: restart the workers of queue {queue}, which serve the shards that "
            f"there were when they started; or start one with `evsched worker MODULE:APP --queue {queue}`"
        )
    return f"no worker serves this queue: start one with `evsched worker MODULE:APP --queue {status.queue}`"


def _in_schedule(status: JobStatus, facts: Facts) -> str:
    wait = (status.due or 0.0) - facts.now
    if status.payload is None and not status.id.startswith("{"):  # an inline job gets its record when it is due
        return "its record is missing: HSET its payload within 2 s of the ZADD"
    if status.waiting is not None and wait > 0:
        return _waiting(status.waiting, status.id, facts.now)
    if wait < -0.5:
        due = "due at once" if (status.due or 0.0) < _AT_ONCE else f"due {format_duration(-wait)} ago"
        return f"{due} and still on the schedule: no dispatcher serves this queue"
    if status.reason and status.reason.startswith("outside its window"):
        return f"{status.reason}: it opens in {format_duration(max(wait, 0.0))}"
    if status.reason and status.reason.startswith("its window"):  # "its window 'nights' cannot be read: ..."
        return f"{status.reason}: it is tried again in {format_duration(max(wait, 0.0))}"
    if status.unknown_since is not None:
        since = format_duration(max(facts.now - status.unknown_since, 0.0))
        again = f"it is offered again in {format_duration(max(wait, 0.0))}"
        return f"workers that fetched it have not known its task for {since}: {status.reason}; {again}, {_GIVEN_UP}"
    if wait == math.inf:
        return "its due time is +inf: it waits for the previous occurrence to end, or was scheduled for never"
    if status.snoozes and (status.reason or "").startswith("snoozed "):
        return f"{status.reason}; due again in {format_duration(max(wait, 0.0))}, and {_times(status.snoozes)} so far"
    again = f"retried after {status.reason}; due again" if status.attempt and status.reason else "due"
    return f"{again} in {format_duration(max(wait, 0.0))}"


def _waiting(waiting: SignalWait, job_id: str, now: float) -> str:
    """Return the sentence about a job that waits for a signal."""
    since = "" if waiting.since is None else f" since {format_duration(max(now - waiting.since, 0.0))} ago"
    until = ", without an end"
    if waiting.until is not None:
        until = f", at most until {format_duration(max(waiting.until - now, 0.0))} from now"
    send = f"`evsched signal {job_id} {waiting.signal}` sends it"
    return f"waits for the signal {waiting.signal}{since}{until}: {send}"


def _times(snoozes: int) -> str:
    return "snoozed once" if snoozes == 1 else f"snoozed {snoozes} times"


def _outside_window(status: JobStatus, facts: Facts, window: str) -> str | None:
    """If a job was deferred because of its window, say when the window opens by its present definition.

    The reason in the record may be about an older definition.
    """
    if not (status.reason or "").startswith("outside its window") or (status.due or 0.0) <= facts.now:
        return None
    due = format_duration((status.due or 0.0) - facts.now)
    try:
        opens = read_window(window).next_open(facts.now)
    except ConfigError as error:
        return f"{error}: it is checked again in {due}"
    if opens is None:
        return f"outside its window {window}, which does not open again within two years: it is checked again in {due}"
    if opens <= facts.now:
        return (
            f"its window {window} is open now, but was closed when the job was deferred: it is checked again in {due}"
        )
    return f"outside its window {window}: it opens in {format_duration(opens - facts.now)}"


def _in_ready(
    no_worker: str | None, pauses: Sequence[FetchPause | None], free: int, status: JobStatus, facts: Facts
) -> str:
    if no_worker:
        return f"ready, but {no_worker}"
    ready = f"ready, behind {facts.counts.get('ahead', 0):g} more: it starts when"
    workers = max(len(pauses), int(facts.counts.get("workers", 0)))
    if not workers:
        return f"{ready} a parent has started a worker process: one stands by, and no process runs yet"
    paused = Counter[FetchPause](pause for pause in pauses if pause is not None)
    for pause, count in paused.items():
        if count == workers:
            return f"{ready} {PAUSES[pause][1]}; until then no worker fetches jobs of this queue"
    sentence = f"{ready} a worker has a free slot"
    if status.reason == Requeued().reason:
        sentence += " and a free process in its pool"
    elif free and not facts.counts.get("idle"):
        slots = "1 slot is" if free == 1 else f"{free} slots are"
        sentence = (
            f"{ready} a worker asks for jobs: {slots} free, but no worker waits for a message of this queue. If this "
            "lasts, `evsched doctor --role worker` says whether workers may receive messages"
        )
    for pause, count in paused.items():
        fetch = "fetches" if count == 1 else "fetch"
        sentence += f"; {count} of {workers} workers {fetch} none now, because {PAUSES[pause][0]}"
    return sentence


def _requeue_after(left: float | None, dispatchers: int | None) -> str:
    """Say who requeues the job of a worker that has no lease, or one that ended `-left` seconds ago."""
    if dispatchers == 0:
        return "no dispatcher is connected to requeue the job: start one with `evsched dispatcher`"
    if left is not None and left < -_RECOVERED:
        return "no dispatcher has requeued the job: check that one serves this queue, and read its log"
    return "a dispatcher that serves this queue requeues the job soon"


def _in_processing(dispatchers: int | None, status: JobStatus, facts: Facts) -> str:
    end = facts.counts.get("lease")
    left = None if end is None else end - facts.now
    if left is None:
        lease = f"which has no lease any more: {_requeue_after(left, dispatchers)}"
    elif left <= 0:
        lease = f"whose lease ended {format_duration(-left)} ago: {_requeue_after(left, dispatchers)}"
    else:
        lease = f"whose lease ends in {format_duration(left)}"
    if status.worker != facts.holder or status.started is None:
        return f"fetched by worker {facts.holder}, {lease}; not started yet"
    stopping = "; it was asked to stop" if status.stopping else ""
    since = format_duration(facts.now - status.started)
    return f"attempt {status.attempt} has run for {since} on worker {facts.holder}, {lease}{stopping}"


def _finished(status: JobStatus, facts: Facts) -> str:
    ago = format_duration(facts.now - (status.finished or facts.now))
    if status.outcome == "cancelled":
        return f"cancelled {ago} ago"
    return f"completed {ago} ago, in attempt {status.attempt}"


def _dead(status: JobStatus, facts: Facts) -> str:
    reason = status.reason or "its record has no reason that can be read"
    if status.finished is None:
        return f"dead: {reason}"
    since = format_duration(facts.now - status.finished)
    return f"expired {since} ago: {reason}" if status.outcome == "expired" else f"dead for {since}: {reason}"


def _list_facts(
    queue: str, status: JobStatus, facts: Facts, window: str | None = None, opens: float | None = None
) -> dict[str, str]:
    """List the facts by which a person can check the sentence. Those of a shard are about the shard alone."""
    of_shard, member = "" if status.queue == queue else " of the shard", read_member(status.batch)
    texts = {
        "place": status.place,
        "queue": queue,
        "shard": status.queue if of_shard else None,
        "task": status.task,
        "group": status.group,
        "reason": status.reason,
        "priority": str(status.priority),
        "attempt": str(status.attempt) if status.attempt else None,
        "snoozes": str(status.snoozes) if status.snoozes else None,
        "steps": ", ".join(status.steps) or None,
        "signals": ", ".join(status.signals) or None,
        "by": status.by,
        "batch": None if member is None else member.words,
        "tags": " ".join(status.tags) or None,
        "window": f"{status.window}: {window}" if window else status.window,
    }
    found = {name: value for name, value in texts.items() if value is not None}
    moments = {name: getattr(status, name) for name in ("created", "due", "expires", "started", "finished", "again")}
    for name, moment in (moments | {"can start": opens}).items():
        if moment == math.inf:
            found[name] = "never"
        elif moment is not None and moment < _AT_ONCE and name in ("due", "again"):
            found[name] = "at once"
        elif moment is not None:
            wait = moment - facts.now
            found[name] = f"in {format_duration(wait)}" if wait >= 0 else f"{format_duration(-wait)} ago"
    for name in ("workers", "parents", "ahead", "waiting", "groups", "in_flight", "in_flight_group"):
        if name in facts.counts:
            found[name] = f"{facts.counts[name]:g}"
    limits = facts.limits
    for name, value in limits.queue.items():
        found[f"limit {name}{of_shard}"] = f"{shown(name, value)}{origin(limits, name)}"
    for whose, group in (("group", status.group), ("task", status.task and f"task:{status.task}")):
        for name, (field, value) in (limits.of_group(group) if group else {}).items():
            limit = f"limit {name} of the {whose}{of_shard and ' in the shard'}"
            found[limit] = shown(name, value) + origin(limits, field)
    return found
