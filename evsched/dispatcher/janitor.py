"""The janitor: it puts back the jobs of dead workers, and has the mover finish interrupted moves between shards.

If a worker that was sent a message about a job does not come, the janitor sends the message to all idle workers.

It judges whether a worker lives, never how long a job takes. An expired lease means "perhaps dead". "Dead" means that
the lease did not move for a heartbeat and a little more while the janitor watched, by this host's monotonic clock. So a
jump of Redis's clock starts no job twice.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from evsched import events, shard_map
from evsched.dispatcher.queue_rounds import QueueRounds
from evsched.errors import StoreError, StoreRefused
from evsched.events import Dispatched, Event, QueueFound, Woken
from evsched.runtime.loops import Runtime, Wakeup, run_loops
from evsched.runtime.reconnect import Reconnects
from evsched.store.dispatcher_calls import Lease
from evsched.store.gate_limits import still_reserved, undivided
from evsched.store.moves import Arrival, MovingBatch
from evsched.store.run_ends import NO_LEASE
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_PATIENCE: Final = 1.3
"""Heartbeats after which a worker that lives has renewed its lease: it renews it one after the reply to the last
renewal, so a round trip later, and its host or Redis may be busy. By default the sum is 6.5 s."""

_BESIDE: Final = 1.0
"""Seconds within which a worker fetches the job that a message named, unless it died or hangs."""

_OPENING: Final = 1.0
"""Seconds between two looks at how much of its limits a new shard may use, until all earlier runs have ended."""


class _WatchedLease(Struct, frozen=True):
    """The end of a lease, and since when it has not changed, by the monotonic clock."""

    end: bytes
    since: float


class Janitor:
    """Watches the leases of the workers of the queues that `served()` returns."""

    def __init__(self, runtime: Runtime, served: Callable[[], list[str]]) -> None:
        self._runtime = runtime
        idle = runtime.times.idle_lease
        self._rounds = QueueRounds("janitor", runtime, served, idle, lambda seen: seen.workers, self.step)
        self.pulse = self._rounds.pulse
        self._mover = Mover(runtime)
        self._seen: dict[tuple[str, str], _WatchedLease] = {}
        self._beside: dict[str, str | None] = {}
        """By queue: the first job in ready, beside workers that wait for a message, when it was looked at last."""

    def on_event(self, event: Event) -> None:
        """Look at a queue within a heartbeat after a step that the safety cap did not cause, and at once if it is new.

        Such a step means that jobs were moved, a gate opened or a worker started. A worker may then fetch a job and die
        before its lease shows that it holds one. The workers of a queue that was just found may have died long ago.
        """
        if not isinstance(event, Dispatched | Woken | QueueFound) or not self._runtime.part.owns(event.queue):
            return
        if isinstance(event, QueueFound):
            self._rounds.add(event.queue)
        elif not isinstance(event, Woken) or event.reason != "safety":
            self._rounds.visit_by(event.queue, time.monotonic() + self._runtime.times.heartbeat)

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            LoopEnded
        """
        await run_loops({"janitor": self._rounds.run(), "mover": self._mover.run()})

    async def step(self, queue: str) -> float:
        """Look at the leases of a queue once, and requeue the jobs of dead workers; return the seconds to the next.

        inf = it has no workers: an event or a glance will say when it has some.

        Raises:
            StoreDown, StoreRefused
        """
        store = Store(queue)
        survey = await self._runtime.sender.send(store.survey())
        now = time.monotonic()
        # Jobs that wait may be fetched at any time, and no step announces it: a worker starts, or a slot becomes free.
        rest = self._runtime.times.idle_lease if survey.leases else float("inf")
        if survey.waits:
            rest = self._runtime.times.lease - _PATIENCE * self._runtime.times.heartbeat
        alive = set[tuple[str, str]]()
        if survey.moving is not None:
            rest = min(rest, max(ABANDONED - survey.moving, self._runtime.times.heartbeat))
            if survey.moving >= ABANDONED:
                self._mover.finish(queue)
        if survey.reserved:
            rest = min(rest, _OPENING)
            self._mover.open_further(queue)
        if survey.beside is not None:
            rest = min(rest, _BESIDE)
            if self._beside.get(queue) == survey.beside:
                await self._runtime.sender.send(store.decline())
        self._beside[queue] = survey.beside
        for lease in survey.leases:
            key = queue, lease.worker
            seen = self._seen.get(key)
            if seen is None or seen.end != lease.end:
                seen = self._seen[key] = _WatchedLease(lease.end, now)
            wait = self._wait(lease, now - seen.since)
            if wait <= 0:
                # A worker that hangs may have a BLMOVE waiting in Redis, which moves a job into its list again.
                times, busy = self._runtime.times, self._busy_lease(lease)
                await self._requeue(store, lease.worker, lease.end, times.probe_of(busy) + times.heartbeat_of(busy))
                rest = min(rest, self._runtime.times.heartbeat)
            else:
                alive.add(key)
                rest = min(rest, wait)
        for key in [key for key in self._seen if key[0] == queue and key not in alive]:
            del self._seen[key]
        for worker in survey.died:
            await self._requeue(store, worker, NO_LEASE)
            rest = min(rest, self._runtime.times.heartbeat)
        return rest

    def _wait(self, lease: Lease, unchanged: float) -> float:
        """Return the seconds after which to look at this lease again; 0 or less = the worker is dead."""
        busy = self._busy_lease(lease)
        heartbeat = self._runtime.times.heartbeat_of(busy)
        if lease.left <= 0:
            return _PATIENCE * heartbeat - unchanged
        if lease.held and lease.left > busy:
            # It fetched a job and never started it, or Redis's clock was set back: the end of its lease says nothing.
            return min(busy - heartbeat - unchanged, heartbeat)
        # Look so early that the lease has been watched for long enough when it ends.
        return max(lease.left - _PATIENCE * heartbeat, min(lease.left, heartbeat))

    def _busy_lease(self, lease: Lease) -> float:
        """Return the lease that a worker has while it holds jobs, as the worker says."""
        return lease.busy or self._runtime.times.lease

    async def _requeue(self, store: Store, worker: str, lease: bytes, watch: float | None = None) -> None:
        """Put back the jobs of a worker; stop if its lease has changed since it was judged.

        `watch`: seconds for which its list is watched from then on.
        """
        reason = f"worker {worker} died or hung: its lease ended"
        emit, queue, rest = self._runtime.emit, store.queue, "more"
        while rest == "more":
            self.pulse.expect()
            call = store.requeue(worker, reason, lease=lease, watch=watch, limit=self._runtime.config.batch)
            done = await self._runtime.sender.send(call)
            rest = done.rest
            if done.ids:
                emit(events.JobsRequeued(queue=queue, worker=worker, ids=done.ids, cause="died", reason=reason))
            for job_id in done.cancelled:
                emit(events.JobAborted(queue=queue, id=job_id))


ABANDONED: Final = 60.0
"""Seconds after which a batch counts as interrupted: it takes a few milliseconds, or 5 s if Redis is down meanwhile."""


class Mover:
    """Finishes the batches that leave some queues, and opens new shards, as the janitor asks.

    `evsched queues shard` moves jobs in batches. If it is interrupted, a batch is on its way until the command is
    repeated. The janitor notices that, and this loop finishes the batch. It is not the janitor's loop, because the
    other shard may be on a node of the cluster that is down, and the leases of workers must not wait for that.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sender = BatchingSender(runtime.config.url)
        """Not shared, because a call that waits for a replica holds up all later ones."""
        self._queues = dict[tuple[str, Callable[[str], Awaitable[None]]], None]()
        """The queues with work to do, each with the method to call."""
        self._wakeup = Wakeup()
        self._failed = Reconnects("mover", runtime.emit)

    def finish(self, queue: str) -> None:
        """Finish the batch that leaves a queue, soon."""
        self._queues[queue, self.step] = None
        self._wakeup.ring()

    def open_further(self, queue: str) -> None:
        """Let a new shard, and the other new ones of its queue, use more of their limits, soon."""
        self._queues[self._runtime.shards.whole(queue), self.settle] = None
        self._wakeup.ring()

    async def run(self) -> None:
        """Finish batches until cancelled. After a failure, the janitor asks again."""
        while True:
            while self._queues:
                queue, do = next(iter(self._queues))
                del self._queues[queue, do]
                try:
                    await do(queue)
                except StoreError as error:
                    self._failed.of(queue).failed(error)
                else:
                    self._failed.of(queue).passed()
            await self._wakeup.sleep(float("inf"))

    async def step(self, queue: str) -> None:
        """Finish the batch that leaves a queue, if there is one.

        Raises:
            StoreDown, StoreRefused
        """
        store, send = Store(queue), self._runtime.sender.send
        batch = (await send(store.depart())).batch
        if batch is None:
            return
        try:
            arrival = await self._arrive(queue, batch)
        finally:
            await self._sender.close()
        done = await send(store.vacate(batch, arrival))
        if done.moved or done.back:
            self._runtime.emit(events.MoveFinished(queue=queue, to=batch.to, moved=done.moved, back=done.back))

    async def settle(self, queue: str) -> None:
        """Let new shards of a queue use what its older parts do not use, as `evsched/client/new_shards.py` does.

        Nothing happens before the number of shards is written: until then, the older parts have all of the limits.

        Raises:
            StoreDown, StoreRefused
        """
        shards, send_all = self._runtime.shards, self._runtime.sender.send_all
        if shards.may_lack(queue):
            await shard_map.learn(self._runtime)
        if (whole := shards.whole(queue)) not in shards.counts:
            return
        stores = [Store(name) for name in shards.all_of(whole)]
        limits = await send_all([store.limits() for store in stores])
        counts = await send_all([store.in_flight() for store in stores])  # by now no part exceeds these limits further
        by_name = {store.queue: found for store, found in zip(stores, limits, strict=True)}
        lacking = undivided(shards, whole, by_name)
        await send_all([Store(name).limit(fields) for name, fields in lacking.items()])
        if not lacking:
            parts = {name: (found, count) for (name, found), count in zip(by_name.items(), counts, strict=True)}
            await send_all([Store(name).reserve(reserved) for name, reserved in still_reserved(parts).items()])

    async def _arrive(self, queue: str, batch: MovingBatch) -> Arrival:
        """Have a batch arrive, and return when that is safe, as `evsched/client/reshard.py` does."""
        to, sender = Store(batch.to), self._sender
        arrive = to.arrive(queue, batch)
        try:
            primary = await sender.send(to.primary())
        except StoreRefused as error:
            if error.kind == "noperm":
                raise
            return await sender.send(arrive)
        wait = primary.safe(batch.to, queue, on_disk=True)
        if wait is None:
            return await sender.send(arrive)
        arrival, safe = await sender.send_and_wait(arrive, wait)
        primary.check_safe(batch.to, safe)
        return arrival
