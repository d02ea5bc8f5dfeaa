"""The checks of queues: stray jobs, incomplete deploys, and broken recurrences.

Stray jobs lie in shards beyond the number of shards that their queue has, where no worker serves them. A deploy is
incomplete if workers lack the task of a job, or run another release of evsched. A recurrence is broken if it has a bad
rule, an unknown zone, a calendar or window that does not exist, an unreadable field, no valid payload, or no record. A
dispatcher logs that once, when it reads it; the doctor reports it for as long as it lasts.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from evsched import keys
from evsched.diagnostics.finding import Finding
from evsched.display import format_duration
from evsched.errors import WRONG_TYPE, ConfigError, StoreError, StoreRefused
from evsched.jobs.record import JobStatus, whole
from evsched.jobs.tasks import RESERVED
from evsched.recurrence.look_ahead import check_by_policies
from evsched.recurrence.recurrence import read_declared, read_recurrence
from evsched.shards import Shards
from evsched.store.many_queues import read_queue_stats, read_surveys
from evsched.store.operator_calls import QueueStats
from evsched.store.store import Store
from evsched.transport.call import T
from evsched.transport.redis_errors import unless_mistyped
from evsched.transport.senders import BatchingSender


async def stray_jobs(
    sender: BatchingSender, queues: Sequence[str], shards: Shards, names: Iterable[str]
) -> list[Finding]:
    """Report the jobs in shards of these queues, or of all, beyond the number of shards. `names`: the queues there are.

    Raises:
        StoreDown, StoreRefused
    """
    found, known = list[Finding](), {*names}
    for queue in queues or sorted(shards.counts):
        for name, stats in (await _read_stats(sender, shards.beyond(queue, known))).items():
            if stats.workers or stats.parents:
                continue
            if jobs := sum(stats.places.values()) - stats.places["dead"]:
                count = shards.counts[queue]
                s = "" if jobs == 1 else "s"
                what = f"{jobs} job{s} in a shard that no worker serves: queue {queue} has {count} shards"
                mend = (
                    f"have all programs that enqueue name {count} shards, then move the jobs: evsched queues shard "
                    f"{queue} {count}"
                )
                found.append(Finding("stray-jobs", "warning", what, f"queue {name}", mend))
    return found


async def _read_stats(sender: BatchingSender, queues: Sequence[str]) -> dict[str, QueueStats]:
    """Return the figures of queues. A queue that has a key of a wrong type is left out.

    Raises:
        StoreDown, StoreRefused
    """
    return _without_mistyped(await read_queue_stats(sender.send, sender.node_of, queues))


def _without_mistyped(found: Mapping[str, T | StoreError]) -> dict[str, T]:
    known = dict[str, T]()
    for queue, one in found.items():
        if not isinstance(one, StoreError):
            known[queue] = one
        elif not isinstance(one, StoreRefused) or one.kind != WRONG_TYPE:
            raise one
    return known


_LOOKED_AT: Final = 100
"""Jobs of a queue that are examined: the next ones that are due. Workers offer such a job again within 36 s."""


async def incomplete_deploys(
    sender: BatchingSender, queues: Sequence[str], *, looked_at: int = _LOOKED_AT
) -> list[Finding]:
    """Return a finding for each unknown task among the next jobs of each queue, and one if several releases run.

    Raises:
        StoreDown, StoreRefused
    """
    found, members = list[Finding](), set[str]()
    stats = await _read_stats(sender, queues)
    surveys = _without_mistyped(await read_surveys(sender.send, sender.node_of, [*stats]))
    for queue, survey in surveys.items():
        members.update(lease.worker for lease in survey.leases)
        if stats[queue].places["schedule"]:
            found += await unless_mistyped(_unknown_tasks(sender, queue, stats[queue].now, looked_at)) or []
        if stats[queue].parents:
            members.update(parent for parent, _ in await sender.send(Store(queue).parents()))
    return [*found, *_releases(members)]


async def _unknown_tasks(sender: BatchingSender, queue: str, now: float, most: int) -> list[Finding]:
    store = Store(queue)
    front = await sender.send(store.front("schedule", most))
    ids = [job_id for job_id, _ in front if not job_id.startswith("{")]  # an inline job has not been offered yet
    statuses = await sender.send_all([store.look(job_id) for job_id in ids])
    waiting = [status for status in statuses if status is not None and status.unknown_since is not None]
    by_task = groupby(sorted(waiting, key=_task), _task)
    return [_describe_unknown(queue, task, list(jobs), now) for task, jobs in by_task]


def _releases(members: set[str]) -> Iterator[Finding]:
    """Report that workers, and parents that stand by, run several releases."""
    found = Counter(keys.release_of(member) or "unknown" for member in members)
    if len(found) > 1:
        what = "workers of several releases run: " + ", ".join(f"{found[name]} of {name}" for name in sorted(found))
        mend = (
            "restart the workers of the older release; `evsched workers` lists them, and docs/upgrade.md has the order"
        )
        yield Finding("releases", "warning", what, "workers", mend)


def _task(status: JobStatus) -> str:
    return (status.task or "?")[:200]


def _describe_unknown(queue: str, task: str, jobs: list[JobStatus], now: float) -> Finding:
    first = min(jobs, key=lambda status: status.unknown_since or now)
    since = format_duration(max(0.0, now - (first.unknown_since or now)))
    count = f"{len(jobs)} job{' waits' if len(jobs) == 1 else 's wait'}"
    what = f"{count} for a worker that knows task {task!r}, the first for {since}: {first.reason}"
    deploy = "do as the reason says" if task.startswith(RESERVED) else "deploy the task to a worker of this queue"
    mend = (
        f"{deploy}; or, if the name is wrong: evsched cancel {first.id} --queue "
        f"{queue}. If no worker has it for EVSCHED_UNKNOWN_TASK_GRACE (10 minutes by default), they are dead"
    )
    return Finding("unknown-task", "warning", what, f"queue {queue}", mend)


_SLICE: Final = 250
"""Recurrences that are read in one round trip: about 1 ms of Redis's time."""

_PAUSE: Final = 2.0
"""Seconds before a recurrence without a record is checked again: a client may write the record after its ZADD."""


_Texts = dict[str, str]
"""By their names."""


async def broken_recurrences(sender: BatchingSender, queues: Sequence[str], *, pause: float = _PAUSE) -> list[Finding]:
    """Return a finding for each recurrence of the queues that cannot recur. It waits only when a record is missing.

    Raises:
        StoreDown, StoreRefused
    """
    found, missing = list[Finding](), list[tuple[str, str]]()
    for queue in queues:
        store = Store(queue)
        calendars = await unless_mistyped(sender.send(store.all_calendars())) or {}
        windows = await unless_mistyped(sender.send(store.windows())) or {}
        policies = await unless_mistyped(sender.send(store.all_policies())) or {}
        for name, fields in await _read_all(sender, store):
            if not fields:
                missing.append((queue, name))
            elif finding := _judge(queue, name, fields, calendars, windows, policies):
                found.append(finding)
    if missing:
        await asyncio.sleep(pause)
    for queue, name in missing:
        if await unless_mistyped(sender.send(Store(queue).recurrence(name))) == {}:
            found.append(_describe(queue, name, f"recurrence {name} has no record"))
    return found


async def _read_all(sender: BatchingSender, store: Store) -> list[tuple[str, dict[str, bytes] | None]]:
    """Return the recurrences of a queue with their records; None = the key is of a wrong type."""
    found = list[tuple[str, dict[str, bytes] | None]]()
    while True:
        listed = await unless_mistyped(sender.send(store.recurrences(len(found), _SLICE))) or []
        read = (unless_mistyped(sender.send(store.recurrence(name))) for name, _ in listed)
        found += zip([name for name, _ in listed], await asyncio.gather(*read), strict=True)
        if len(listed) < _SLICE:
            return found


def _judge(
    queue: str, name: str, fields: dict[str, bytes], calendars: _Texts, windows: _Texts, policies: _Texts
) -> Finding | None:
    """Return the finding about a recurrence, if there is one.

    A recurrence whose retries may take longer than its interval is refused by the code, the client and the command
    line; but any client may write one, and a task's policy may change.
    """
    if "retired" in fields:
        return None
    try:
        recurrence = read_recurrence(read_declared(name, fields), calendars, windows)
    except (ConfigError, ValueError, ArithmeticError, OSError) as error:  # all but ConfigError: too large for a date
        return _describe(queue, name, str(error))
    if "paused" in fields and 0 < whole(fields.get("pause_after")) <= whole(fields.get("failing")):
        return _describe_failing(queue, name, fields)
    try:
        check_by_policies(recurrence, policies)
    except ConfigError as error:
        mend = "change the recurrence or the policy of its task: until then occurrences are skipped, or wait"
        return Finding("recurrence-too-frequent", "warning", str(error), f"queue {queue}, {name}", mend)
    return None


def _describe(queue: str, name: str, reason: str) -> Finding:
    root, quoted = keys.root(queue), shlex.quote(name)
    _, there_is_none, command = reason.partition(": evsched ")
    mend = (
        f"replace it: evsched recurrences add {quoted} TASK --rule ... --queue {queue}; or HSET the wrong field of "
        f"{root}recurrence:{name}, then ZADD {root}recurrences 0 {quoted}; or delete it: evsched recurrences remove "
        f"{quoted} --queue {queue}"
    )
    if there_is_none:
        mend = f"evsched {command.replace('--queue QUEUE', f'--queue {queue}')}; or {mend}"
    return Finding("recurrence-broken", "fault", f"it makes no jobs: {reason}", f"queue {queue}, {name}", mend)


def _describe_failing(queue: str, name: str, fields: dict[str, bytes]) -> Finding:
    """Report a recurrence that was paused because its runs failed: someone has to find out why, and resume it."""
    why, last = (fields.get(field, b"").decode(errors="backslashreplace") for field in ("paused_why", "last_id"))
    mend = (
        f"find out why: evsched explain {shlex.quote(last)} --queue {queue}; then: evsched recurrences resume "
        f"{shlex.quote(name)} --queue {queue}"
    )
    return Finding(
        "recurrence-failing", "warning", f"it is paused: {why or 'no reason'}", f"queue {queue}, {name}", mend
    )
