"""Standstill: jobs that are due or ready and do not move. This is how the doctor checks that the system works.

One look cannot tell: every busy system has due jobs on its schedule for some milliseconds. So a queue is looked at
several times, and a finding is reported if every look found it, about the same job. The leases show which workers are
alive, and the channels on which dispatchers receive their canaries show whether a dispatcher is.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from evsched.diagnostics.finding import Finding, Level
from evsched.display import format_duration
from evsched.errors import StoreError, StoreRefused
from evsched.shards import NONE, Shards
from evsched.store import server
from evsched.store.dispatcher_calls import Fronts, Lease
from evsched.store.gate_limits import Limits, read_limits
from evsched.store.many_queues import (
    by_node,
    read_fronts,
    read_glances,
    read_hashes,
    read_queue_stats,
    read_rosters,
    read_surveys,
    without_mistyped,
)
from evsched.store.operator_calls import QueueStats
from evsched.store.recurrence_calls import RosterPart
from evsched.store.store import Store
from evsched.top.collector import ask_status
from evsched.transport.senders import BatchingSender

_WATCH: Final = 2.5
"""Seconds between the first look and the last. A dispatcher leaves a job without a record alone for 2."""

_LOOKS: Final = 6
"""Looks. An id that is scheduled again and again may be at the front by chance once or twice, but not each time."""

_RECOVERED: Final = 30.0
"""Seconds after the end of a lease. A janitor waits for another heartbeat, 5 s, before it puts jobs back."""

_RECURRENCES: Final = 20
"""Recurrences among which the first one with a record is sought."""

_FIRSTS: Final = 250
"""Queues whose first recurrence a call reads."""

_MOVED: Final = 5.0
"""Seconds since the next time of a recurrence. Dispatchers schedule it 15 s ahead, so it is later than it seems."""

_LATE: Final = 10.0
"""Seconds that the first job in ready may have been due. A worker with a free slot fetches it in one round trip."""

_BUSY: Final = 60.0
"""The same while workers run other jobs of the queue: that all slots are busy for a while may be intended."""


class _Look(Struct, frozen=True):
    """The result of one look at a queue."""

    stats: QueueStats
    front: Fronts
    recurs: tuple[str, float] | None
    leases: list[Lease]
    limits: Limits
    dispatchers: int | None
    """How many dispatchers are subscribed on its Redis, for any queue; None if this user may not ask."""
    refusal: StoreError | None
    """Why Redis refuses new jobs; None if it accepts them."""
    pauses: Counter[str]
    """How many workers are quiet, and how many are stopping; empty if they were not asked."""

    @property
    def recurs_on(self) -> bool:
        """Whether a recurrence makes jobs, now or later."""
        return self.recurs is not None and self.recurs[1] != float("inf")

    @property
    def late(self) -> int:
        """How many jobs wait for a worker or at the gate."""
        return self.stats.places["backlog"] + self.stats.places["ready"]

    def late_by(self, moment: float) -> str:
        """Say how long ago something was due; nothing about a due of 0, which means at once."""
        return f", the first was due {format_duration(self.stats.now - moment)} ago" if moment > 0 else ""


_Suspicion = tuple[Finding, object]
"""A finding that is reported if the next looks confirm it, and the facts that must be the same then; None if it is
enough that the next look finds it again."""


async def find_standstill(
    sender: BatchingSender, queues: Sequence[str], shards: Shards = NONE, *, watch: float = _WATCH
) -> list[Finding]:
    """Return the findings about jobs that do not move. It waits, for `watch` seconds, only if a first look finds any.

    Raises:
        StoreDown, StoreRefused
    """

    async def suspect(some: Sequence[str], asked: Sequence[str] = ()) -> dict[str, dict[str, _Suspicion]]:
        looks = await _look(sender, some, asked)
        return {
            queue: {finding.check: (finding, mark) for finding, mark in _suspicions(queue, shards.whole(queue), look)}
            for queue, look in looks.items()
        }

    suspects = await suspect(await _suspicious(sender, queues))
    for left in reversed(range(_LOOKS - 1)):
        suspects = {queue: found for queue, found in suspects.items() if found}
        if not suspects:
            break
        await asyncio.sleep(watch / (_LOOKS - 1))
        # The workers are asked once: when all other looks have found that they fetch nothing.
        now = await suspect([*suspects], [queue for queue in suspects if "not-fetched" in suspects[queue] and not left])
        suspects = {
            queue: {
                check: (finding, mark)
                for check, (finding, mark) in now.get(queue, {}).items()
                if check in before and before[check][1] == mark
            }
            for queue, before in suspects.items()
        }
    found = [finding for of_queue in suspects.values() for finding, _ in of_queue.values()]
    return list(dict.fromkeys(found))  # `no-dispatcher` is the same finding for each queue


async def _suspicious(sender: BatchingSender, queues: Sequence[str]) -> list[str]:
    """Return the queues about which a look may find something; the others need none. A few calls for all queues."""
    send, find_node, found = sender.send, sender.node_of, set[str]()
    recurring: list[str] = []
    seen = await read_glances(send, find_node, queues)
    stats, surveys = await read_queue_stats(send, find_node, queues), await read_surveys(send, find_node, queues)
    for names in await by_node(find_node, queues):
        no_dispatcher = await _count_dispatchers(sender, names[0]) == 0
        for queue in names:
            figures, survey = stats[queue], surveys[queue]
            if isinstance(figures, StoreError) or isinstance(survey, StoreError):
                found.add(queue)  # the look at it says why
                continue
            places, recurs = figures.places, queue in seen and seen[queue].recurs
            waits = figures.due or places["backlog"] or places["ready"]
            undone = (no_dispatcher and places["schedule"]) or any(map(_is_lost, survey.leases))
            unserved = recurs and (no_dispatcher or not (figures.workers or figures.parents))
            if waits or undone or unserved:
                found.add(queue)
            elif recurs:
                recurring.append(queue)
    while recurring:
        parts = [RosterPart(queue, most=1) for queue in recurring]
        read = await read_rosters(send, find_node, parts, (), limit=_FIRSTS)
        for queue, first in read.items():
            if not isinstance(first, StoreError) and first.rows and first.rows[0][1] < first.now - _MOVED:
                found.add(queue)
        recurring = [queue for queue in recurring if queue not in read]
    return [queue for queue in queues if queue in found]


def _is_lost(lease: Lease) -> bool:
    """Return whether a worker is dead, and nobody has put its jobs back."""
    return bool(lease.held) and lease.left < -_RECOVERED


async def _count_dispatchers(sender: BatchingSender, queue: str) -> int | None:
    try:
        return await sender.send(server.dispatchers(queue))
    except StoreRefused as error:
        if error.kind != "noperm":
            raise
        return None


async def _look(sender: BatchingSender, queues: Sequence[str], asked: Sequence[str]) -> dict[str, _Look]:
    """Look at queues, with a few calls for all. A queue that has a key of a wrong type is left out.

    `asked`: the queues whose workers are asked whether they are quiet or stopping.

    Raises:
        StoreDown, StoreRefused
    """
    send, find_node = sender.send, sender.node_of
    fronts = without_mistyped(await read_fronts(send, find_node, queues))
    recurs = without_mistyped(await _first_recorded(sender, queues))
    stats = without_mistyped(await read_queue_stats(send, find_node, queues))
    limits = await read_hashes(send, find_node, [(queue, "limits") for queue in queues], read_limits)
    surveys = without_mistyped(await read_surveys(send, find_node, queues))
    pauses = defaultdict[str, Counter[str]](Counter)
    for status in await ask_status(sender.url, asked) if asked else ():
        if status.not_fetching in ("quiet", "stopping"):
            pauses[status.queue][status.not_fetching] += 1
    found = dict[str, _Look]()
    for names in await by_node(find_node, queues):
        dispatchers, refusal = await _count_dispatchers(sender, names[0]), await _refusal(sender, names[0])
        for queue in names:
            parts = fronts.get(queue), stats.get(queue), surveys.get(queue), limits.get((queue, "limits"))
            front, figures, survey, limited = parts
            if queue in recurs and front and figures and survey and limited:
                found[queue] = _Look(
                    figures, front, recurs[queue], survey.leases, limited, dispatchers, refusal, pauses[queue]
                )
    return {queue: found[queue] for queue in queues if queue in found}


async def _refusal(sender: BatchingSender, queue: str) -> StoreError | None:
    """Return why the Redis of a queue refuses new jobs; None if it accepts them."""
    try:
        await sender.send(Store(queue).enqueue([]))  # writes nothing, and is refused for the same reasons as a new job
    except StoreError as error:
        return error
    return None


async def _first_recorded(
    sender: BatchingSender, queues: Sequence[str]
) -> dict[str, tuple[str, float] | StoreError | None]:
    """Return the first recurrence of each queue that has a record. Other checks report queues without one."""
    found, left = dict[str, tuple[str, float] | StoreError | None](), [*queues]
    while left:
        parts = [RosterPart(queue, most=_RECURRENCES) for queue in left]
        read = await read_rosters(sender.send, sender.node_of, parts, ("rule", "payload"), limit=_FIRSTS)
        for queue, part in read.items():
            if isinstance(part, StoreError):
                found[queue] = part
            else:
                found[queue] = next(((name, at) for name, at, fields in part.rows if fields), None)
        left = [queue for queue in left if queue not in read]
    return found


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _suspicions(queue: str, whole: str, look: _Look) -> Iterator[_Suspicion]:
    """Find what does not move. `whole`: the queue, or that of which it is a shard."""
    yield from _not_dispatched(queue, look)
    yield from _not_recovered(queue, look)
    yield from _held_at_the_gate(queue, whole, look)
    if look.late and look.limits.paused is None:
        yield from _not_fetched(queue, whole, look)
    elif look.recurs_on and not (look.late or look.stats.workers or look.stats.parents):
        yield _no_worker(queue, whole, look, "no worker has a lease on this queue", "warning")


def _not_dispatched(queue: str, look: _Look) -> Iterator[_Suspicion]:
    """Find due jobs and recurrences that no dispatcher moves; or, before any is due, that there is no dispatcher."""
    where, now = f"queue {queue}", look.stats.now
    if look.dispatchers:
        who = f"{_count(look.dispatchers, 'dispatcher')} on this Redis, but none serves this queue"
        mend = "check that a dispatcher's --queue includes this queue, then read its log and its /readyz"
    else:
        who = "no dispatcher moves them" if look.dispatchers is None else "no dispatcher is connected"
        mend = "start one: evsched dispatcher; if one runs, read its log and its /readyz"
    reported = False
    if look.stats.due and look.front.due:
        reported = True
        what = f"{_count(look.stats.due, 'due job')} on the schedule{look.late_by(look.front.due[1])}: {who}"
        yield Finding("not-dispatched", "fault", what, where, mend), (look.front.due, look.front.moved)
    if look.recurs and look.recurs[1] < now - _MOVED:
        reported = True
        if look.dispatchers != 0 and look.refusal is not None and look.refusal.kind == "oom":
            who = "Redis's memory is full, so it refuses new occurrences; the jobs that are there continue"
            mend = "raise it with CONFIG SET maxmemory, or drop dead jobs (evsched dead drop)"
        what = f"recurrence {look.recurs[0]} makes no jobs{look.late_by(look.recurs[1])}: {who}"
        yield Finding("not-recurring", "fault", what, where, mend), look.recurs
    ahead = look.stats.places["schedule"] or look.recurs_on
    if look.dispatchers == 0 and ahead and not reported:
        what = "no dispatcher is connected: scheduled jobs will not start"
        yield Finding("no-dispatcher", "warning", what, "Redis", "start one: evsched dispatcher"), None


def _not_recovered(queue: str, look: _Look) -> Iterator[_Suspicion]:
    """Find jobs of workers whose lease has ended, which no janitor has put back."""
    lost = [*filter(_is_lost, look.leases)]
    if lost:
        jobs, ago = sum(lease.held for lease in lost), format_duration(max(-lease.left for lease in lost))
        dead = _count(len(lost), "dead worker")
        what = f"{_count(jobs, 'job')} of {dead} not put back; the first lease ended {ago} ago"
        mend = "a dispatcher puts them back; start one: evsched dispatcher; if one runs, read its log"
        mark = {(lease.worker, lease.end) for lease in lost}
        yield Finding("not-recovered", "fault", what, f"queue {queue}", mend), mark


def _held_at_the_gate(queue: str, whole: str, look: _Look) -> Iterator[_Suspicion]:
    """Find a gate that lets nothing pass: because of a pause or a limit, or without a reason."""
    where, limits, waiting = f"queue {queue}", look.limits, look.late + look.stats.due
    if waiting and limits.paused is not None and limits.is_paused(look.stats.now):
        since = format_duration(look.stats.now - limits.paused)
        what = f"the queue has been paused for {since}; {_count(waiting, 'due job')} waiting"
        yield Finding("paused", "info", what, where, f"evsched resume {whole}"), None
    elif look.stats.places["backlog"]:
        closed = [group for group, ruled in limits.groups.items() if ruled.get("concurrency", 1) < 1]
        if limits.queue.get("concurrency", 1) < 1:
            what = f"the queue's concurrency limit is 0, so no job starts; {_count(waiting, 'due job')} waiting"
            mend = f"evsched limit {whole} --concurrency N; `none` removes the limit"
            yield Finding("limit-zero", "fault", what, where, mend), None
        elif closed:
            what = f"the concurrency limit of group {closed[0]} is 0, so none of its jobs starts"
            mend = f"evsched limit {whole} --group {shlex.quote(closed[0])} --concurrency N; `none` removes the limit"
            yield Finding("limit-zero", "fault", what, where, mend), None
        elif look.front.waiting and not (look.stats.places["ready"] or limits.queue or limits.groups):
            waiting = _count(look.stats.places["backlog"], "job")
            what = f"{waiting} waiting at the gate, although no limit holds them back"
            mend = f"evsched resume {whole} opens the gate; please report it, this is a bug of evsched"
            yield Finding("gate", "fault", what, where, mend), look.front.waiting


def _not_fetched(queue: str, whole: str, look: _Look) -> Iterator[_Suspicion]:
    """Find jobs that have passed the gate, or wait behind such jobs, and that no worker fetches."""
    where, places, late = f"queue {queue}", look.stats.places, look.stats.oldest
    wait = f"{_count(look.late, 'due job')} waiting{look.late_by(look.stats.now - late)}"
    serve = _serve(whole)
    workers = sum(lease.left > 0 for lease in look.leases)
    paused = "".join(f"; {count} {'is' if count == 1 else 'are'} {pause}" for pause, count in look.pauses.items())
    restart = "restart the quiet workers (see evsched workers), or " if look.pauses["quiet"] else ""
    if not workers and look.stats.parents:
        if look.stats.places["ready"] and late > _LATE:
            standing = _count(look.stats.parents, "parent")
            what = f"{wait}; {standing} standing by (worker --processes 0:N), but starting no worker process"
            mend = (
                "read the log of the parent: its process may not start, or take long to import the app; a parent that "
                "was killed stands by until its registration ends (evsched workers)"
            )
            yield Finding("not-fetched", "fault", what, where, mend), look.front.ready
    elif not workers:
        yield _no_worker(queue, whole, look, f"{wait}, and no worker has a lease on this queue", "fault")
    elif places["processing"] and places["ready"] and late > _BUSY:
        jobs = _count(places["processing"], "job")
        what = f"{wait}; {_count(workers, 'worker')} running {jobs} and fetching no more{paused}"
        mend = (
            f"see their slots in evsched top; evsched explain of a ready job says if they wait for processes; "
            f"{restart}start more workers: {serve}, or raise --concurrency, or --process-pool for tasks on processes"
        )
        yield Finding("not-fetched", "warning", what, where, mend), look.front.ready
    elif not places["processing"] and places["ready"] and late > _LATE:
        idle = f"{_count(workers, 'worker')} with a lease, but running no job of this queue and fetching none"
        mend = f"{restart}start more workers: {serve}"
        if look.pauses.total() < workers:
            mend = f"see in evsched top which hang, and which are busy with other queues; {mend}"
        yield Finding("not-fetched", "fault", f"{wait}; {idle}{paused}", where, mend), look.front.ready


def _serve(queue: str) -> str:
    return f"evsched worker MODULE:APP --queue {queue}"


def _no_worker(queue: str, whole: str, look: _Look, what: str, level: Level) -> _Suspicion:
    """Report that no worker serves a queue, and the recurrences that make jobs there all the same.

    A deploy that gives up a queue leaves them in force: no worker of the new code serves it, so none can stop them.
    """
    mend = f"start one: {_serve(whole)}"
    if queue != whole:
        mend = (
            f"restart the workers of queue {whole}: they serve the shards that there were when they started; or {mend}"
        )
    if look.recurs and look.recurs_on:
        what += f"; its recurrences, such as {look.recurs[0]}, make jobs"
        mend += (
            f"; if no code uses the queue any more, delete them: evsched recurrences prune --queue {queue} --all "
            f"--app NAME, or evsched recurrences remove NAME --queue {queue} if they are not declared in code"
        )
    return Finding("no-worker", level, what, f"queue {queue}", mend), None
