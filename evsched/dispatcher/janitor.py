"""The janitor: puts back what dead workers hold.

It judges whether a worker lives, never how long a job takes. An expired lease means "perhaps dead". "Dead" means that
the lease did not move for one heartbeat interval while the janitor watched, by this host's monotonic clock. So a jump
of Redis's clock starts no job twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from evsched import events
from evsched.errors import NO_ENTRY, StoreRefused
from evsched.events import Dispatched, Event, QueueFound, Woken
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.runtime.runtime import Runtime
from evsched.runtime.wakeup import Wakeup
from evsched.store.replies import Lease
from evsched.store.store import Store


class _Seen(Struct, frozen=True):
    end: bytes
    since: float


NO_LEASE: Final = b"none"


class Janitor:
    """Watches the leases of the queues that `queues()` names."""

    def __init__(self, runtime: Runtime, queues: Callable[[], list[str]]) -> None:
        self._runtime = runtime
        self._queues = queues
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("janitor", runtime.emit)
        self._refused = Reconnects("janitor", runtime.emit)
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._gone: dict[tuple[str, str], float] = {}
        """Workers that were judged dead, and until when they are watched all the same. One that hangs may still stand
        in line with a BLMOVE, and Redis would move the very job that was put back into its list again."""
        self._at = 0.0

    def on_event(self, event: Event) -> None:
        """Look within a heartbeat after something happened: a worker may take a job and die before its lease says so.

        That is after a step that an event or a due brought about: jobs were moved on, a gate was opened, a worker has
        begun. Look at once when a queue was found: its workers may have died long ago.
        """
        stirred = isinstance(event, Dispatched) or (isinstance(event, Woken) and event.reason != "safety")
        if stirred or isinstance(event, QueueFound):
            soon = time.monotonic() + (self._runtime.config.heartbeat if stirred else 0.0)
            if soon < self._at:
                self._at = soon
                self._wakeup.ring()

    @property
    def pulse(self) -> Pulse:
        """The pulse of its loop."""
        return self._reconnect.pulse

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._at = float("inf")  # what is heard meanwhile sets it anew
            async with self._reconnect:
                rest = min(
                    [await self._pass(queue) for queue in self._queues()], default=self._runtime.config.idle_heartbeat
                )
                self._at = min(self._at, time.monotonic() + rest)
            if self._reconnect.failures:
                continue
            self.pulse.expect(max(0.0, self._at - time.monotonic()))
            while await self._wakeup.sleep(self._at):
                pass

    async def _pass(self, queue: str) -> float:
        """Look at one queue; one that Redis refuses is looked at again after a heartbeat, and holds no other up.

        Raises:
            StoreDown, StoreRefused: it is not of this queue.
        """
        self.pulse.expect()
        refused = self._refused.of(queue)
        try:
            rest = await self.step(queue)
        except StoreRefused as error:
            if error.kind in NO_ENTRY:
                raise
            refused.failed(error)
            return self._runtime.config.heartbeat
        refused.passed()
        return rest

    async def step(self, queue: str) -> float:
        """Look at one queue's leases once, put back what the dead held; return the seconds to the next look.

        Raises:
            StoreDown, StoreRefused
        """
        store = Store(queue)
        leases, waits = await self._runtime.sender.send_all([store.survey(), store.waits()])
        now = time.monotonic()
        # Jobs that wait are fetched without a step that tells of it: by a worker that begins, or when a slot is free.
        rest = self._runtime.config.lease - self._runtime.config.heartbeat if waits else self._runtime.config.idle_lease
        alive = set[tuple[str, str]]()
        for lease in leases:
            key = queue, lease.worker
            seen = self._seen.get(key)
            if seen is None or seen.end != lease.end:
                seen = self._seen[key] = _Seen(lease.end, now)
            wait = self._verdict(lease, now - seen.since)
            if wait <= 0:
                await self._put_back(store, lease.worker, lease.end)
                self._gone[key] = now + self._runtime.config.probe_interval + self._runtime.config.heartbeat
            else:
                alive.add(key)
                rest = min(rest, wait)
        for key in [key for key in self._seen if key[0] == queue and key not in alive]:
            del self._seen[key]
        for key in [key for key in self._gone if key[0] == queue]:
            if not await self._put_back(store, key[1], NO_LEASE) or self._gone[key] < now:
                del self._gone[key]
            else:
                rest = min(rest, self._runtime.config.heartbeat)
        return rest

    def _verdict(self, lease: Lease, unmoved: float) -> float:
        """Return the seconds after which to look at this lease again; 0 = the worker is dead."""
        config = self._runtime.config
        if lease.left <= 0:
            return config.heartbeat - unmoved
        if lease.held and lease.left > config.lease:
            # It took a job and never started it, or Redis's clock was set back: its lease says nothing.
            return min(config.lease - config.heartbeat - unmoved, config.heartbeat)
        # To have watched for a heartbeat when it ends.
        return max(lease.left - config.heartbeat, min(lease.left, config.heartbeat))

    async def _put_back(self, store: Store, worker: str, lease: bytes) -> bool:
        """Put back what a worker holds, while its lease is the one that was judged; return whether it still was."""
        reason = f"worker {worker} died or hung: its lease ended"
        rest = "more"
        while rest == "more":
            self.pulse.expect()
            rest, ids = await self._runtime.sender.send(
                store.requeue(worker, reason, lease=lease, limit=self._runtime.config.batch)
            )
            if ids:
                self._runtime.emit(
                    events.Requeued(queue=store.queue, worker=worker, ids=ids, cause="died", reason=reason)
                )
        return rest == "all"
