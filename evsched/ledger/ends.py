"""The ends: reads how jobs ended, writes it into their rows, and removes jobs that had ended before a loss.

Redis keeps a report, and the record of its job, until `settle`, which is sent when the row's end is committed. A relay
that dies between the two leaves both, and another one does the same again.

After a failover to a replica that lags behind, or a restore of a backup, Redis has jobs again that have ended, and
would run them again. So in each new epoch one relay walks the jobs that wait or run, a slice at a time, and removes
those whose rows have ended, without holding up the loop that schedules. `evsched_ledger.checked` has the epoch of the
last finished walk. A job that is due may run before the walk reaches it: docs/ledger.md says what to do about that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from psycopg import AsyncConnection

from evsched import keys, process_events
from evsched.errors import StoreError, StoreRefused
from evsched.ledger import rows
from evsched.ledger.database import LedgerLoop
from evsched.ledger.epoch import make_identity, read_epoch
from evsched.runtime.loops import Runtime, background, first_of
from evsched.runtime.reconnect import Reconnects
from evsched.store.relay_calls import SETTING, Report, read_ends
from evsched.store.store import Store
from evsched.transport.senders import DirectSender

Notify = Callable[[], object]

_MOST: Final = 500
"""Reports of a queue in one call."""

_INHERITED: Final = 60.0
"""Seconds after which another relay takes over reports that were not settled."""

_ENDED: Final = 3600.0
"""Seconds without a call after which a relay that has nothing to settle is forgotten."""

_STREAM_GONE: Final = ("unblocked", "nogroup")
"""The kinds of the errors that say that a stream was deleted while it was read."""


class Ends(LedgerLoop):
    """Reads the reports of all queues on one connection; `follow` adds queues."""

    def __init__(self, runtime: Runtime, url: str, on_loss: Notify, on_setting: Notify) -> None:
        super().__init__(runtime, url, "ends")
        self._relay = keys.new_id()
        self._queues: list[str] = []
        self._added = asyncio.Event()
        self._inherits_at = 0.0
        """When it next looks for entries that other relays have left, by the monotonic clock."""
        self._blocking = DirectSender(runtime.config.url, reply_timeout=runtime.times.reply_timeout)
        self._on_loss = on_loss
        """Called when a stream was deleted, and when all are there: Redis may have lost its data before."""
        self._on_setting = on_setting
        """Called when an operator has changed a setting of a queue."""

    def follow(self, queues: Sequence[str]) -> None:
        """Read the reports of these queues too."""
        new = [queue for queue in queues if queue not in self._queues]
        if new:
            self._queues += new
            self._added.set()

    async def close(self) -> None:
        await self._blocking.close()
        await super().close()

    async def step(self) -> float:
        """Read and write until a queue is added, or a stream is deleted."""
        self._added.clear()
        queues = list(self._queues)
        if not queues:
            self.pulse.rest()
            await self._added.wait()
            return 0.0
        try:
            await self._begin(queues)
            while await self._wait(queues):
                pass
        except StoreError as error:
            if error.kind not in _STREAM_GONE:
                raise
            self._on_loss()
        return 0.0

    async def _begin(self, queues: Sequence[str]) -> None:
        """Make the missing streams, and settle the entries that were read before."""
        identity = (await make_identity(await self.database.open())).text
        await read_epoch(self._runtime.sender, identity)
        for queue in queues:
            await self._make(queue)
        # Once more: if Redis loses its data from here on, the streams are gone, and to read them fails.
        await read_epoch(self._runtime.sender, identity)
        self._on_loss()
        await self._write(await self._runtime.sender.send(read_ends(queues, self._relay, _MOST, None)))
        await self._inherit(queues)

    async def _make(self, queue: str) -> None:
        try:
            await self._runtime.sender.send(Store(queue).follow_ends())
        except StoreRefused as error:
            if error.kind != "busygroup":
                raise

    async def _inherit(self, queues: Sequence[str]) -> None:
        """Settle the entries that other relays have left, and forget these relays."""
        self._inherits_at = time.monotonic() + _INHERITED
        send = self._runtime.sender.send
        for queue in queues:
            store = Store(queue)
            await self._write({queue: await send(store.inherit_ends(self._relay, _MOST, _INHERITED))})
            for one in await send(store.consumers()):
                if not one.pending and one.idle > _ENDED:
                    await send(store.forget_consumer(one.name))

    async def _wait(self, queues: Sequence[str]) -> bool:
        """Wait for reports, and write them; return False when a queue was added."""
        block = self._runtime.times.probe_interval
        self.pulse.expect(block + self._runtime.times.reply_timeout)
        read = self._blocking.send(read_ends(queues, self._relay, _MOST, block), block)
        # A reply may be lost here: `_begin` reads it again.
        async with background(read, self._added.wait()) as (reading, added):
            await first_of((reading, added))
            if not reading.done():
                return False
        found = reading.result()
        self.reconnect.passed()
        await self._write(found)
        if time.monotonic() >= self._inherits_at:
            await self._inherit(queues)
        return True

    async def _write(self, found: dict[str, list[Report]]) -> None:
        for queue, reports in found.items():
            if reports:
                if any(one.outcome == SETTING for one in reports):
                    self._on_setting()
                count = await rows.write_ends(await self.database.open(), queue, reports)
                self.database.passed()
                await self._runtime.sender.send(Store(queue).settle(reports))
                self._runtime.emit(process_events.EndsWritten(queue=queue, count=count))


_SLICE: Final = 500
"""Ids that are read and looked up at once: about 0.3 ms of Redis's time, and 3 ms of the database's."""

_CHANGES: Final = 60
"""Jobs that a call withdraws: about 2 ms of Redis's time."""

_LOCK: Final = "SELECT pg_try_advisory_lock(1702257523, 0)"
"""Held by the relay that walks, until its session ends or it lets go. The number is "evws"."""

_CHECKED: Final = "UPDATE evsched_ledger SET checked = epoch WHERE epoch = %s"

_UNLOCK: Final = "SELECT pg_advisory_unlock(1702257523, 0)"


class Withdrawals(LedgerLoop):
    """One walk for each epoch, by one of the relays.

    `ring` has it look whether a walk is to be made; else it looks after `safety_cap` seconds, since the relay that
    walked may have died.
    """

    def __init__(self, runtime: Runtime, url: str) -> None:
        super().__init__(runtime, url, "withdrawals")
        self._queues = Reconnects("withdrawals", runtime.emit)

    async def step(self) -> float:
        """Walk through all queues, unless that was done in this epoch, or another relay does it."""
        await self._walk_queues()
        return self._runtime.times.safety_cap

    async def _walk_queues(self) -> None:
        connection = await self.database.open()
        noted = await make_identity(connection)
        if noted.checked == noted.epoch or await read_epoch(self._runtime.sender, noted.text) != noted.epoch:
            return
        if await rows.fetch(connection, _LOCK) != [(True,)]:
            return
        try:
            complete = all([await self._walk(connection, queue) for queue in await rows.queues(connection)])
            if complete and await read_epoch(self._runtime.sender, noted.text) == noted.epoch:
                await connection.execute(_CHECKED, [noted.epoch])
        finally:
            if not connection.closed:
                await connection.execute(_UNLOCK)

    async def _walk(self, connection: AsyncConnection, queue: str) -> bool:
        """Withdraw the jobs of one queue; return whether Redis let it be walked."""
        store, send, reconnect = Store(queue), self._runtime.sender.send, self._queues.of(queue)
        try:
            # In the order in which jobs pass these places, so that a job which moves on meanwhile is still met.
            places = ["schedule", *(f"backlog:{group}" for group in await send(store.throttled())), "backlog", "ready"]
            workers = [lease.worker for lease in (await send(store.survey())).leases]
            places += [f"processing:{worker}" for worker in workers]
            for place in places:
                await self._walk_place(connection, store, place)
        except StoreRefused as error:
            reconnect.refused(error)
            return False
        reconnect.passed()
        return True

    async def _walk_place(self, connection: AsyncConnection, store: Store, place: str) -> None:
        cursor, count = 0, 0
        while True:
            self.pulse.expect()
            cursor, found = await self._runtime.sender.send(store.members(place.encode(), cursor, _SLICE))
            ids = [job_id for one in found if keys.NAME.fullmatch(job_id := one.decode(errors="replace"))]
            ended = await rows.ended(connection, store.queue, ids)
            for at in range(0, len(ended), _CHANGES):
                count += await self._runtime.sender.send(store.withdraw(ended[at : at + _CHANGES]))
            if cursor == 0:
                break
        if count:
            self._runtime.emit(process_events.JobsWithdrawn(queue=store.queue, count=count))
