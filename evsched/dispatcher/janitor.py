"""The janitor: puts back what dead workers hold.

It judges a worker's life only, never the time that a job takes. A lease that has ended says "perhaps dead"; what says
"dead" is that it did not move for a beat while we watched, by this host's monotonic clock: so that Redis's clock may
jump without a single second start.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from evsched import events
from evsched.config import Config
from evsched.errors import NO_ENTRY, StoreRefused
from evsched.events import Dispatched, Emit, Event, QueueFound, Woken
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Outage, Outages
from evsched.runtime.wakeup import Alarm
from evsched.store.replies import Lease
from evsched.store.store import Store
from evsched.transport.senders import Commands


class _Seen(Struct, frozen=True):
    end: bytes
    since: float


NO_LEASE: Final = b"none"


class Janitor:
    """Watches the leases of the queues that `queues()` names."""

    def __init__(self, config: Config, commands: Commands, emit: Emit, queues: Callable[[], list[str]]) -> None:
        self._config = config
        self._commands = commands
        self._emit = emit
        self._queues = queues
        self._alarm = Alarm()
        self._outage = Outage("janitor", emit)
        self._refused = Outages("janitor", emit)
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._gone: dict[tuple[str, str], float] = {}
        """Workers that were judged dead, and until when they are watched all the same. One that hangs may still stand
        in line with a BLMOVE, and Redis would move the very job that was put back into its list again."""
        self._at = 0.0

    def listen(self, event: Event) -> None:
        """Look within a beat after something happened: a worker may take a job and die before its lease says so.

        That is after a step that an event or a due brought about: jobs were moved on, a gate was opened, a worker has
        begun. Look at once when a queue was found: its workers may have died long ago.
        """
        stirred = isinstance(event, Dispatched) or (isinstance(event, Woken) and event.reason != "safety")
        if stirred or isinstance(event, QueueFound):
            soon = time.monotonic() + (self._config.beat if stirred else 0.0)
            if soon < self._at:
                self._at = soon
                self._alarm.ring()

    @property
    def pulse(self) -> Pulse:
        """The pulse of its loop."""
        return self._outage.pulse

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._at = float("inf")  # what is heard meanwhile sets it anew
            async with self._outage:
                rest = min([await self._pass(queue) for queue in self._queues()], default=self._config.idle_beat)
                self._at = min(self._at, time.monotonic() + rest)
            if self._outage.failures:
                continue
            self.pulse.expect(max(0.0, self._at - time.monotonic()))
            while await self._alarm.sleep(self._at):
                pass

    async def _pass(self, queue: str) -> float:
        """Look at one queue; one that Redis refuses is looked at again after a beat, and holds no other up.

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
            return self._config.beat
        refused.passed()
        return rest

    async def step(self, queue: str) -> float:
        """Look at one queue's leases once, put back what the dead held; return the seconds to the next look.

        Raises:
            StoreDown, StoreRefused
        """
        store = Store(queue)
        leases, waits = await self._commands.send_all([store.survey(), store.waits()])
        now = time.monotonic()
        # Jobs that wait are fetched without a step that tells of it: by a worker that begins, or when a slot is free.
        rest = self._config.lease - self._config.beat if waits else self._config.idle_lease
        alive = set[tuple[str, str]]()
        for lease in leases:
            key = queue, lease.worker
            seen = self._seen.get(key)
            if seen is None or seen.end != lease.end:
                seen = self._seen[key] = _Seen(lease.end, now)
            wait = self._verdict(lease, now - seen.since)
            if wait <= 0:
                await self._put_back(store, lease.worker, lease.end)
                self._gone[key] = now + self._config.probe + self._config.beat
            else:
                alive.add(key)
                rest = min(rest, wait)
        for key in [key for key in self._seen if key[0] == queue and key not in alive]:
            del self._seen[key]
        for key in [key for key in self._gone if key[0] == queue]:
            if not await self._put_back(store, key[1], NO_LEASE) or self._gone[key] < now:
                del self._gone[key]
            else:
                rest = min(rest, self._config.beat)
        return rest

    def _verdict(self, lease: Lease, unmoved: float) -> float:
        """Return the seconds after which to look at this lease again; 0 = the worker is dead."""
        config = self._config
        if lease.left <= 0:
            return config.beat - unmoved
        if lease.held and lease.left > config.lease:
            # It took a job and never started it, or Redis's clock was set back: its lease says nothing.
            return min(config.lease - config.beat - unmoved, config.beat)
        # To have watched for a beat when it ends.
        return max(lease.left - config.beat, min(lease.left, config.beat))

    async def _put_back(self, store: Store, worker: str, lease: bytes) -> bool:
        """Put back what a worker holds, while its lease is the one that was judged; return whether it still was."""
        reason = f"worker {worker} died or hung: its lease ended"
        rest = "more"
        while rest == "more":
            self.pulse.expect()
            rest, ids = await self._commands.send(store.requeue(worker, reason, lease=lease, limit=self._config.batch))
            if ids:
                self._emit(events.Requeued(store.queue, worker, ids, "died", reason))
        return rest == "all"
