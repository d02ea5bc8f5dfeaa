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
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from evsched import keys
from evsched.diagnostics.finding import Finding
from evsched.display import format_duration
from evsched.errors import ConfigError, StoreError
from evsched.jobs.record import whole
from evsched.jobs.tasks import RESERVED
from evsched.recurrence.look_ahead import check_by_policies
from evsched.recurrence.recurrence import read_declared, read_recurrence
from evsched.shards import Shards
from evsched.store.many_queues import (
    find_slices,
    read_hashes,
    read_queue_stats,
    read_rosters,
    read_surveys,
    without_mistyped,
)
from evsched.store.operator_calls import FindPart, Match, QueueStats, condition
from evsched.store.queue import as_fields, as_texts
from evsched.store.recurrence_calls import RosterPart
from evsched.store.store import Store
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
    return without_mistyped(await read_queue_stats(sender.send, sender.node_of, queues))


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
    surveys = without_mistyped(await read_surveys(sender.send, sender.node_of, [*stats]))
    for queue, survey in surveys.items():
        members.update(lease.worker for lease in survey.leases)
        if stats[queue].parents:
            members.update(parent for parent, _ in await sender.send(Store(queue).parents()))
    planned = [queue for queue in surveys if stats[queue].places["schedule"]]
    for queue, jobs in (await _unknown_tasks(sender, planned, looked_at)).items():
        by_task = groupby(sorted(jobs, key=_task), _task)
        found += [_describe_unknown(queue, task, list(some), stats[queue].now) for task, some in by_task]
    return [*found, *_releases(members)]


_EXAMINED: Final = 300
"""Jobs that a call examines for their tasks: under 3 ms of Redis's time."""


async def _unknown_tasks(sender: BatchingSender, queues: Sequence[str], most: int) -> dict[str, list[Match]]:
    """Return the jobs whose tasks no worker has known, among the next ones of each queue."""
    left, found = {queue: FindPart(queue, f"first {most}") for queue in queues}, dict[str, list[Match]]()
    matching, nodes = condition(unknown=True), sender.node_of
    while left:
        read = await find_slices(sender.send, nodes, "schedule", matching, [*left.values()], limit=_EXAMINED)
        for queue, one in without_mistyped(read).items():
            waiting = [job for job in one.found if job.unknown_since is not None]
            found.setdefault(queue, []).extend(waiting)
            left[queue] = FindPart(queue, ids=one.left)
        left = {queue: part for queue, part in left.items() if queue not in read or part.ids}
    return {queue: jobs for queue, jobs in found.items() if jobs}


def _releases(members: set[str]) -> Iterator[Finding]:
    """Report that workers, and parents that stand by, run several releases. Those of other programs have none."""
    found = Counter(release for member in members if (release := keys.release_of(member)))
    if len(found) > 1:
        what = "workers of several releases run: " + ", ".join(f"{found[name]} of {name}" for name in sorted(found))
        mend = (
            "restart the workers of the older release; `evsched workers` lists them, and docs/upgrade.md has the order"
        )
        yield Finding("releases", "warning", what, "workers", mend)


def _task(job: Match) -> str:
    return (job.task or "?")[:200]


def _describe_unknown(queue: str, task: str, jobs: list[Match], now: float) -> Finding:
    first = min(jobs, key=lambda job: job.unknown_since or now)
    since = format_duration(max(0.0, now - (first.unknown_since or now)))
    count = f"{len(jobs)} job{' waits' if len(jobs) == 1 else 's wait'}"
    what = f"{count} for a worker that knows task {task!r}, the first for {since}: {first.reason}"
    deploy = "do as the reason says" if task.startswith(RESERVED) else "deploy the task to a worker of this queue"
    mend = (
        f"{deploy}; or, if the name is wrong: evsched cancel {first.id} --queue "
        f"{queue}. If no worker has it for EVSCHED_UNKNOWN_TASK_GRACE (10 minutes by default), they are dead"
    )
    return Finding("unknown-task", "warning", what, f"queue {queue}", mend)


_SLICE: Final = 990
"""Names of recurrences that a call reads: about 0.5 ms of Redis's time."""

_PAUSE: Final = 2.0
"""Seconds before a recurrence without a record is checked again: a client may write the record after its ZADD."""


_Texts = dict[str, str]
"""By their names."""


async def broken_recurrences(sender: BatchingSender, queues: Sequence[str], *, pause: float = _PAUSE) -> list[Finding]:
    """Return a finding for each recurrence of the queues that cannot recur. It waits only when a record is missing.

    Raises:
        StoreDown, StoreRefused
    """
    found, missing, send, nodes = list[Finding](), list[tuple[str, str]](), sender.send, sender.node_of
    names = await _read_names(sender, queues)
    kept = [(queue, key) for queue in names for key in ("calendars", "windows", "tasks")]
    texts = await read_hashes(send, nodes, kept, as_texts)
    listed = [(queue, name) for queue, some in names.items() for name in some]
    for at in range(0, len(listed), _RECORDS):
        some = listed[at : at + _RECORDS]
        records = await read_hashes(send, nodes, [(queue, f"recurrence:{name}") for queue, name in some], as_fields)
        for queue, name in some:
            fields = records.get((queue, f"recurrence:{name}"))
            calendars, windows, policies = (texts.get((queue, key), {}) for key in ("calendars", "windows", "tasks"))
            if not fields:
                missing.append((queue, name))
            elif finding := _judge(queue, name, fields, calendars, windows, policies):
                found.append(finding)
        await asyncio.sleep(0)  # a console shows pages meanwhile
    if missing:
        await asyncio.sleep(pause)
    for queue, name in missing:
        if await unless_mistyped(sender.send(Store(queue).recurrence(name))) == {}:
            found.append(_describe(queue, name, f"recurrence {name} has no record"))
    return found


_RECORDS: Final = 500
"""Records of recurrences that are judged one after another."""


async def _read_names(sender: BatchingSender, queues: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the recurrences of each queue that has any."""
    left, found = {queue: RosterPart(queue) for queue in queues}, dict[str, list[str]]()
    while left:
        read = await read_rosters(sender.send, sender.node_of, [*left.values()], (), limit=_SLICE)
        for queue, part in without_mistyped(read).items():
            names = found.setdefault(queue, [])
            names += [name for name, *_ in part.rows]
            left[queue] = RosterPart(queue, len(names))
            if not part.rows or len(names) >= part.total:
                del left[queue]
        for queue, part in read.items():
            if isinstance(part, StoreError):
                del left[queue]
    return {queue: names for queue, names in found.items() if names}


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
