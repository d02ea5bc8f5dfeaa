"""The withdrawals: after each new epoch, removes jobs from Redis that have ended, as their rows say.

Redis has such jobs when it was given an older copy of its data, as by a failover to a replica that lags behind or a
restore of a backup. They would run again. One relay walks the jobs that wait or run, a slice at a time, beside the loop
that schedules, which it does not hold up. `evsched_ledger.checked` has the epoch for which that is done.

A job that is due may run before the walk reaches it: docs/ledger.md says what to do if that matters.
"""

from __future__ import annotations

import time
from typing import Final

from psycopg import AsyncConnection

from evsched import events, keys
from evsched.errors import StoreRefused
from evsched.ledger import rows
from evsched.ledger.database import Database
from evsched.ledger.epoch import read_epoch
from evsched.ledger.identity import make_identity, note_checked
from evsched.runtime.loops import Runtime, Wakeup
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.store.store import Store

_SLICE: Final = 500
"""Ids that are read and looked up at once: about 0.3 ms of Redis's time, and 3 ms of the database's."""

_CHANGES: Final = 60
"""Jobs that a call withdraws: about 2 ms of Redis's time."""

_LOCK: Final = "SELECT pg_try_advisory_lock(1702257523, 0)"
"""Held by the relay that walks, until its session ends or it lets go. The number is "evws"."""

_UNLOCK: Final = "SELECT pg_advisory_unlock(1702257523, 0)"


class Withdrawals:
    """One walk for each epoch, by one of the relays.

    `ring` has it look whether a walk is to be made; else it looks after `safety_cap` seconds, since the relay that
    walked may have died.
    """

    def __init__(self, runtime: Runtime, url: str) -> None:
        self._runtime = runtime
        self.database = Database(url, "withdrawals", runtime.emit)
        self._reconnect = Reconnect("withdrawals", runtime.emit)
        self._queues = Reconnects("withdrawals", runtime.emit)
        self._wakeup = Wakeup()
        self.pulse = self._reconnect.pulse

    def ring(self) -> None:
        """Look now, or again after the walk that is under way."""
        self._wakeup.ring()

    def problem(self) -> str | None:
        """Return why Redis failed the last pass; None = it did not."""
        return self._reconnect.reason

    async def run(self) -> None:
        """Walk for ever."""
        try:
            while True:
                rest = 0.0  # after a failure, `_reconnect` or `database` has waited
                async with self._reconnect, self.database:
                    await self.step()
                    rest = self._runtime.times.safety_cap
                self.pulse.expect(rest)
                await self._wakeup.sleep(time.monotonic() + rest)
        finally:
            await self.database.close()

    async def step(self) -> None:
        """Walk through all queues, unless that was done in this epoch, or another relay does it.

        Raises:
            StoreDown, StoreRefused, psycopg.Error: the walk begins again with the next pass.
        """
        connection = await self.database.open()
        noted = await make_identity(connection)
        if noted.checked == noted.epoch or await read_epoch(self._runtime, noted.text) != noted.epoch:
            return
        cursor = await connection.execute(_LOCK)
        if await cursor.fetchone() != (True,):
            return
        try:
            complete = all([await self._walk(connection, queue) for queue in await rows.queues(connection)])
            if complete and await read_epoch(self._runtime, noted.text) == noted.epoch:
                await note_checked(connection, noted.epoch)
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
            self._runtime.emit(events.JobsWithdrawn(queue=store.queue, count=count))
