"""The janitor: puts back what dead workers hold, and has moves between shards finished that were interrupted.

It also tells all idle workers of a job if the one that was told did not come.

It judges whether a worker lives, never how long a job takes. An expired lease means "perhaps dead". "Dead" means that
the lease did not move for one heartbeat interval while the janitor watched, by this host's monotonic clock. So a jump
of Redis's clock starts no job twice.
"""

from __future__ import annotations

import time
from typing import Final

from msgspec import Struct

from evsched import events
from evsched.dispatcher.mover import ABANDONED, Mover
from evsched.dispatcher.queue_search import Search
from evsched.dispatcher.served_queues import ServedQueues
from evsched.errors import StoreError
from evsched.events import Dispatched, Event, QueueFound, Woken
from evsched.runtime.loops import run_loops
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.runtime.runtime import Runtime
from evsched.runtime.timetable import Timetable
from evsched.runtime.wakeup import Wakeup
from evsched.store.dispatcher_calls import Lease
from evsched.store.store import Store

_NO_LEASE: Final = b"none"
"""What `requeue` takes for the lease of a worker that has none."""


_BESIDE: Final = 1.0
"""Seconds after which a worker that was told of a job has come, unless it died or hangs."""

_OPENING: Final = 1.0
"""Seconds between two looks at what a new shard may use of its limits: until the runs have ended that began before."""


class _Seen(Struct, frozen=True):
    """The end of a lease, and since when it has not changed, by the monotonic clock."""

    end: bytes
    since: float


class Janitor:
    """Watches the leases of the workers of the queues that are served."""

    def __init__(self, runtime: Runtime, served: ServedQueues) -> None:
        self._runtime = runtime
        self._search = Search(runtime, served, runtime.config.idle_lease, lambda seen: seen.workers)
        self._queues = Timetable[str]()
        """When to look at the queues that have workers."""
        self._mover = Mover(runtime)
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("janitor", runtime.emit)
        self._refused = Reconnects("janitor", runtime.emit)
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._judged_dead: dict[tuple[str, str], float] = {}
        """Workers that were judged dead, each with the time until which its list is still watched. A worker that hangs
        may still have a BLMOVE waiting in Redis, which can move a job that was put back into that list again."""
        self._beside: dict[str, str] = {}
        """By queue: the first job in ready, beside workers that wait for a message, when it was looked at last."""

    def on_event(self, event: Event) -> None:
        """Look at a queue within a heartbeat after a step that the safety cap did not cause, and at once if it is new.

        Such a step means that jobs were moved, a gate opened or a worker started. A worker may then fetch a job and die
        before its lease shows that it holds one. The workers of a queue that was just found may have died long ago.
        """
        if not isinstance(event, Dispatched | Woken | QueueFound) or not self._runtime.part.owns(event.queue):
            return
        sooner = isinstance(event, QueueFound)
        if sooner:
            self._search.add(event.queue)
        elif not isinstance(event, Woken) or event.reason != "safety":
            sooner = self._queues.bring_forward(event.queue, time.monotonic() + self._runtime.config.heartbeat)
        if sooner:
            self._wakeup.ring()

    @property
    def pulse(self) -> Pulse:
        """The pulse of its loop."""
        return self._reconnect.pulse

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            LoopEnded
        """
        await run_loops({"janitor": self._watch(), "mover": self._mover.run()})

    async def _watch(self) -> None:
        while True:
            async with self._reconnect:
                await self._look()
            if self._reconnect.failures:
                continue
            while (at := self._next()) > (now := time.monotonic()):
                self.pulse.expect(at - now)
                await self._wakeup.sleep(at)

    def _next(self) -> float:
        return min(self._search.at(), self._queues.next())

    async def _look(self) -> None:
        """Look at the queues for which it is time.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        if self._search.at() <= time.monotonic():
            for queue in await self._search.find(self._queues):
                self._queues.bring_forward(queue, 0.0)
        while (queue := self._queues.take(time.monotonic())) is not None:
            rest = 0.0
            try:
                rest = await self._pass(queue)
            finally:  # an event that arrived during the pass may have made it earlier
                self._queues.bring_forward(queue, time.monotonic() + rest)

    async def _pass(self, queue: str) -> float:
        """Look at a queue; return the seconds until the next look.

        If this queue alone fails, it is looked at again after a heartbeat, and the others go on.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        self.pulse.expect()
        reconnect = self._refused.of(queue)
        try:
            rest = await self.step(queue)
        except StoreError as error:
            reconnect.refused(error)
            return self._runtime.config.heartbeat
        reconnect.passed()
        return rest

    async def step(self, queue: str) -> float:
        """Look at the leases of a queue once, and put back what dead workers hold; return the seconds to the next look.

        inf = it has no workers: an event, or the search, will say when it has some.

        Raises:
            StoreDown, StoreRefused
        """
        store = Store(queue)
        survey, waits = await self._runtime.sender.send_all([store.survey(), store.waits()])
        now = time.monotonic()
        # Jobs that wait may be fetched at any time, and no step announces it: a worker starts, or a slot becomes free.
        rest = self._runtime.config.idle_lease if survey.leases else float("inf")
        if waits:
            rest = self._runtime.config.lease - self._runtime.config.heartbeat
        alive = set[tuple[str, str]]()
        if survey.moving is not None:
            rest = min(rest, max(ABANDONED - survey.moving, self._runtime.config.heartbeat))
            if survey.moving >= ABANDONED:
                self._mover.finish(queue)
        if survey.reserved:
            rest = min(rest, _OPENING)
            self._mover.open_further(queue)
        if survey.beside is not None:
            rest = min(rest, _BESIDE)
            if self._beside.get(queue) == survey.beside:
                await self._runtime.sender.send(store.decline())
        self._note_beside(queue, survey.beside)
        for lease in survey.leases:
            key = queue, lease.worker
            seen = self._seen.get(key)
            if seen is None or seen.end != lease.end:
                seen = self._seen[key] = _Seen(lease.end, now)
            wait = self._wait(lease, now - seen.since)
            if wait <= 0:
                await self._requeue(store, lease.worker, lease.end)
                self._judged_dead[key] = now + self._runtime.config.probe_interval + self._runtime.config.heartbeat
            else:
                alive.add(key)
                rest = min(rest, wait)
        for key in [key for key in self._seen if key[0] == queue and key not in alive]:
            del self._seen[key]
        for key in [key for key in self._judged_dead if key[0] == queue]:
            if not await self._requeue(store, key[1], _NO_LEASE) or self._judged_dead[key] < now:
                del self._judged_dead[key]
            else:
                rest = min(rest, self._runtime.config.heartbeat)
        return rest

    def _note_beside(self, queue: str, job: str | None) -> None:
        if job is None:
            self._beside.pop(queue, None)
        else:
            self._beside[queue] = job

    def _wait(self, lease: Lease, unchanged: float) -> float:
        """Return the seconds after which to look at this lease again; 0 or less = the worker is dead."""
        config = self._runtime.config
        if lease.left <= 0:
            return config.heartbeat - unchanged
        if lease.held and lease.left > config.lease:
            # It fetched a job and never started it, or Redis's clock was set back: the end of its lease says nothing.
            return min(config.lease - config.heartbeat - unchanged, config.heartbeat)
        # Look a heartbeat before the lease ends: it has then been watched for long enough when it does.
        return max(lease.left - config.heartbeat, min(lease.left, config.heartbeat))

    async def _requeue(self, store: Store, worker: str, lease: bytes) -> bool:
        """Put back what a worker holds. If its lease has changed since it was judged, stop and return False."""
        reason = f"worker {worker} died or hung: its lease ended"
        emit, queue, rest = self._runtime.emit, store.queue, "more"
        while rest == "more":
            self.pulse.expect()
            call = store.requeue(worker, reason, lease=lease, limit=self._runtime.config.batch)
            done = await self._runtime.sender.send(call)
            rest = done.rest
            if done.ids:
                emit(events.JobsRequeued(queue=queue, worker=worker, ids=done.ids, cause="died", reason=reason))
            for job_id in done.cancelled:
                emit(events.JobAborted(queue=queue, id=job_id))
        return rest == "all"
