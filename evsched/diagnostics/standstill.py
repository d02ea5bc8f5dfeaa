"""Standstill: jobs that are due, or ready, and that nobody moves; the doctor's question whether the system works.

No moment can tell it: due jobs lie on the schedule of every busy system, for milliseconds. So a queue is looked at
several times, and what is told is what was so at each look, about the very same job. Who may be missing is told by the
leases of the workers, and by the channels on which dispatchers hear their canaries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from evsched.diagnostics.finding import Finding
from evsched.durations import format_duration
from evsched.errors import StoreRefused
from evsched.store import server
from evsched.store.limits import Limits
from evsched.store.replies import Lease, QueueStats
from evsched.store.store import Store
from evsched.transport.call import T
from evsched.transport.senders import BatchingSender

_WATCH: Final = 2.5
"""Seconds between the first look and the last: a job whose record has not come is passed over for 2."""

_LOOKS: Final = 6
"""An id that is scheduled again and again may be met at the front by chance once or twice, not each time."""

_RECOVERED: Final = 30.0
"""Seconds after the end of a lease: a janitor watches it for a heartbeat, 5 s, before it puts jobs back."""

_MOVED: Final = 5.0
"""Seconds: a recurrence is moved on 15 s ahead of its time, so one that stands in the past is late by more."""

_LATE: Final = 10.0
"""Seconds for which the front of ready was due: with a free slot it waits for a round trip."""

_BUSY: Final = 60.0
"""The same, where workers run other jobs of the queue: that they have no free slot may be meant, for a while."""


class _Look(Struct, frozen=True):
    """What one look at a queue saw."""

    queue_stats: QueueStats
    due: tuple[str, float] | None
    """The front of the schedule."""
    moved: list[bytes | None]
    """Of its record: an id that is scheduled again and again is at the front each time, and has run each time."""
    waiting: tuple[str, float] | None
    """The front of the backlog."""
    ready: str | None
    recurs: tuple[str, float] | None
    leases: list[Lease]
    limits: Limits
    dispatchers: int | None
    """Of all queues; None = this user may not ask."""

    @property
    def late(self) -> int:
        """How many jobs wait for a worker or at the gate."""
        return self.queue_stats.places["backlog"] + self.queue_stats.places["ready"]

    def late_by(self, moment: float) -> str:
        """Say how long ago something was due; who schedules at 0 means at once."""
        return f", the first for {format_duration(self.queue_stats.now - moment)}" if moment > 0 else ""


class _Suspicion(Struct, frozen=True):
    """What may stand still."""

    finding: Finding
    mark: object = None
    """By what the next look knows that it has not moved; None = that it is so again says enough."""


class Standstill:
    """Watches queues for what does not move."""

    def __init__(self, sender: BatchingSender, queues: Sequence[str], *, watch: float = _WATCH) -> None:
        self._sender = sender
        self._queues = queues
        self._pause = watch / (_LOOKS - 1)

    async def run(self) -> list[Finding]:
        """Return what stands still. It waits only where something seems to.

        Raises:
            StoreDown, StoreRefused
        """
        suspects = {queue: found for queue in self._queues if (found := await self._suspect(queue))}
        for _ in range(_LOOKS - 1):
            suspects = {queue: found for queue, found in suspects.items() if found}
            if not suspects:
                break
            await asyncio.sleep(self._pause)
            for queue, before in suspects.items():
                now = await self._suspect(queue)
                suspects[queue] = {
                    name: now[name] for name in before if name in now and before[name].mark == now[name].mark
                }
        found = [suspicion.finding for of in suspects.values() for suspicion in of.values()]
        return list(dict.fromkeys(found))  # that no dispatcher listens is said once, not for each queue

    async def _suspect(self, queue: str) -> dict[str, _Suspicion]:
        try:
            look = await self._look(queue)
        except StoreRefused as error:
            if "WRONGTYPE" not in str(error):
                raise
            return {}  # the audit names the key
        return {suspicion.finding.check: suspicion for suspicion in _suspicions(queue, look)}

    async def _look(self, queue: str) -> _Look:
        store, send = Store(queue), self._sender.send
        queue_stats, due, waiting, ready, recurs, limits = await self._sender.send_all(
            [
                store.queue_stats(),
                store.front("schedule", 1),
                store.front("backlog", 1),
                store.line(1),
                store.recurrences(0, 1),
                store.limits(),
            ]
        )
        leases = await send(store.survey())
        dispatchers: int | None = None
        try:
            dispatchers = await send(server.dispatchers())
        except StoreRefused as error:
            if error.kind != "noperm":
                raise
        moved = await send(store.moved(due[0][0])) if queue_stats.due and due else []
        return _Look(
            queue_stats, _first(due), moved, _first(waiting), _first(ready), _first(recurs), leases, limits, dispatchers
        )


def _first(found: list[T]) -> T | None:
    return found[0] if found else None


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _suspicions(queue: str, look: _Look) -> Iterator[_Suspicion]:
    yield from _undispatched(queue, look)
    yield from _unrecovered(queue, look)
    yield from _shut(queue, look)
    if look.late and look.limits.paused is None:
        yield from _untaken(queue, look)


def _undispatched(queue: str, look: _Look) -> Iterator[_Suspicion]:
    """Find due jobs and recurrences that no dispatcher moves; or that there is none, while all is ahead."""
    where, now = f"queue {queue}", look.queue_stats.now
    if look.dispatchers:
        who = f"{_count(look.dispatchers, 'dispatcher')} on this Redis, and none moves this queue"
        mend = "does a dispatcher's --queue leave it out? what do its log and its /readyz say?"
    else:
        who = "nobody moves them" if look.dispatchers is None else "no dispatcher listens"
        mend = "start one: evsched dispatcher; if one runs: what do its log and its /readyz say?"
    stands = False
    if look.queue_stats.due and look.due:
        stands = True
        what = f"{_count(look.queue_stats.due, 'due job')} on the schedule{look.late_by(look.due[1])}: {who}"
        yield _Suspicion(Finding("not-dispatched", "fault", what, where, mend), (look.due, look.moved))
    if look.recurs and look.recurs[1] < now - _MOVED:
        stands = True
        what = f"recurrence {look.recurs[0]} is not moved on{look.late_by(look.recurs[1])}: {who}"
        yield _Suspicion(Finding("not-recurring", "fault", what, where, mend), look.recurs)
    ahead = look.queue_stats.places["schedule"] or (look.recurs and look.recurs[1] != float("inf"))
    if look.dispatchers == 0 and ahead and not stands:
        what = "no dispatcher listens: what is scheduled will not start"
        yield _Suspicion(Finding("no-dispatcher", "warning", what, "Redis", "start one: evsched dispatcher"))


def _unrecovered(queue: str, look: _Look) -> Iterator[_Suspicion]:
    """Find what workers hold whose lease has ended, and no janitor puts back."""
    lost = [lease for lease in look.leases if lease.held and lease.left < -_RECOVERED]
    if lost:
        jobs, ago = sum(lease.held for lease in lost), format_duration(max(-lease.left for lease in lost))
        what = f"{_count(jobs, 'job')} held by {_count(len(lost), 'worker')} whose lease has ended, the first {ago} ago"
        mend = "a dispatcher puts them back: start one: evsched dispatcher"
        mark = {(lease.worker, lease.end) for lease in lost}
        yield _Suspicion(Finding("not-recovered", "fault", what, f"queue {queue}", mend), mark)


def _shut(queue: str, look: _Look) -> Iterator[_Suspicion]:
    """Find a gate that lets nothing pass: as somebody rules it, or though nobody does."""
    where, limits, waiting = f"queue {queue}", look.limits, look.late + look.queue_stats.due
    if waiting and limits.paused is not None:
        since = format_duration(look.queue_stats.now - limits.paused)
        what = f"it has been paused for {since}; {_count(waiting, 'due job')} waiting"
        yield _Suspicion(Finding("paused", "info", what, where, f"evsched resume {queue}"))
    elif look.queue_stats.places["backlog"]:
        shut = [group for group, ruled in limits.groups.items() if ruled.get("concurrency", 1) < 1]
        if limits.queue.get("concurrency", 1) < 1:
            what = f"its concurrency limit is 0, so nothing passes; {_count(waiting, 'due job')} waiting"
            mend = f"evsched limit {queue} --concurrency N; none lifts it"
            yield _Suspicion(Finding("limit-zero", "fault", what, where, mend))
        elif shut:
            what = f"the concurrency limit of group {shut[0]} is 0, so none of its jobs passes"
            mend = f"evsched limit {queue} --group {shut[0]} --concurrency N; none lifts it"
            yield _Suspicion(Finding("limit-zero", "fault", what, where, mend))
        elif look.waiting and not (look.queue_stats.places["ready"] or limits.queue or limits.groups):
            waiting = _count(look.queue_stats.places["backlog"], "job")
            what = f"{waiting} at the gate, which nothing closes and nobody opens"
            mend = f"evsched resume {queue} opens it; and tell evsched's maintainers"
            yield _Suspicion(Finding("gate", "fault", what, where, mend), look.waiting)


def _untaken(queue: str, look: _Look) -> Iterator[_Suspicion]:
    """Find jobs that have passed the gate, or wait behind those, and that no worker takes."""
    where, places, late = f"queue {queue}", look.queue_stats.places, look.queue_stats.oldest
    wait = f"{_count(look.late, 'due job')} waiting{look.late_by(look.queue_stats.now - late)}"
    serve = f"evsched worker MODULE:APP --queue {queue}"
    workers = sum(lease.left > 0 for lease in look.leases)
    if not workers:
        what = f"{wait}, and no worker has a lease on this queue"
        yield _Suspicion(Finding("no-worker", "fault", what, where, f"start one: {serve}"))
    elif places["processing"] and places["ready"] and late > _BUSY:
        what = f"{wait}; {_count(workers, 'worker')} running {places['processing']} and taking no more"
        mend = f"evsched top shows their slots; more workers: {serve}, or a higher --concurrency"
        yield _Suspicion(Finding("not-taken", "warning", what, where, mend), look.ready)
    elif not places["processing"] and places["ready"] and late > _LATE:
        what = f"{wait}; {_count(workers, 'worker')} with a lease, holding none of this queue's jobs and taking none"
        mend = f"evsched top shows which do not answer, and which other queues keep busy; more workers: {serve}"
        yield _Suspicion(Finding("not-taken", "fault", what, where, mend), look.ready)
