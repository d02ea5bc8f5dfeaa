"""The relay: schedules the rows that were committed, and after a loss of Redis all that have not ended.

Any number of relays run; each takes a slice of rows that no other has locked, and commits when Redis has the jobs. A
relay that dies before that leaves the rows as they were, and the next one schedules them again, which changes nothing:
see lua/relay.lua. A listener wakes the relay when PostgreSQL notifies it of a transaction that inserted rows.

The ledger also keeps copies of the settings that operators make in Redis: calendars, named windows and limits. A relay
compares them when the stream of ends reports a change, on each full pass, and in a new epoch before it schedules
anything, since a job whose window is missing becomes dead. Redis has the truth: settings are copied from it, and a copy
is deleted with its setting. Only after a loss, when the copy is of another epoch, are missing settings restored.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import psycopg
from msgspec.structs import replace
from psycopg import AsyncConnection

from evsched import process_events, shard_map
from evsched.client.client import Client
from evsched.errors import ConfigError, StoreError, StoreRefused
from evsched.ledger import rows
from evsched.ledger.database import Database, LedgerLoop, check_url, transaction
from evsched.ledger.delivery import Aside, Lengths, deliver
from evsched.ledger.ends import Ends, Withdrawals
from evsched.ledger.epoch import CONNECTED, Presence, find_database, make_identity, note_epoch, read_epoch
from evsched.ledger.recurrence_rows import RecurrenceRows
from evsched.ledger.rows import Claimed, Refusal, Selection
from evsched.ledger.tables import CHANNEL
from evsched.runtime.loops import Pulse, Runtime, run_loops
from evsched.runtime.reconnect import Reconnects
from evsched.store.gate_limits import as_limit
from evsched.store.store import Store


class Listener(LedgerLoop):
    """Listens on a connection of its own, so that no notification waits for the relay."""

    def __init__(self, runtime: Runtime, url: str, on_change: Callable[[], object]) -> None:
        super().__init__(runtime, url, "listener", f"LISTEN {CHANNEL}")
        self._on_change = on_change

    async def step(self) -> float:
        """Listen until the connection is lost."""
        connection = await self.database.open()
        self._on_change()  # for rows that were committed while nobody listened
        self.database.passed()
        self.pulse.rest()
        async for _ in connection.notifies():
            self._on_change()
        return 0.0


_READ: Final = "SELECT queue, kind, name, value, epoch FROM evsched_setting"

_KEEP: Final = """
INSERT INTO evsched_setting (queue, kind, name, value, epoch) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (queue, kind, name) DO UPDATE SET value = excluded.value, epoch = excluded.epoch
"""

_DELETE: Final = "DELETE FROM evsched_setting WHERE queue = %s AND kind = %s AND name = %s"

_Name = tuple[str, str]
"""The kind and the name of a setting."""


class KeptSettings:
    """Keeps the settings of the queues that have rows."""

    def __init__(self, runtime: Runtime, client: Client) -> None:
        self._runtime = runtime
        self._client = client

    async def step(self, connection: AsyncConnection, epoch: str, queues: Sequence[str]) -> None:
        """Restore lost settings, and copy all others. Several relays may do so at once.

        Raises:
            StoreDown, psycopg.Error
        """
        async with connection.transaction() as transaction:
            kept = defaultdict[str, dict[_Name, tuple[str, str]]](dict)
            for queue, kind, name, value, of in await rows.fetch(connection, _READ):
                kept[queue][kind, name] = value, of
            for queue in sorted({*queues, *kept}):
                try:
                    await self._compare(connection, epoch, queue, kept[queue])
                except StoreRefused:
                    pass  # a key of the wrong type, which `evsched doctor` reports
            if await read_epoch(self._runtime.sender, (await make_identity(connection)).text) != epoch:
                raise psycopg.Rollback(transaction)  # a missing row may have been lost meanwhile

    async def _compare(
        self, connection: AsyncConnection, epoch: str, queue: str, kept: Mapping[_Name, tuple[str, str]]
    ) -> None:
        there = await self._read(queue)
        for (kind, name), (value, of) in kept.items():
            if (kind, name) in there:
                continue
            if of == epoch:
                await connection.execute(_DELETE, [queue, kind, name])
            elif await self._restore(queue, kind, name, value):
                there[kind, name] = value
        for (kind, name), value in there.items():
            if kept.get((kind, name)) != (value, epoch):
                await connection.execute(_KEEP, [queue, kind, name, value, epoch])

    async def _read(self, queue: str) -> dict[_Name, str]:
        """Return the settings that Redis has."""
        store = Store(queue)
        calls = store.all_calendars(), store.windows(), store.limits()
        calendars, windows, limits = await self._runtime.sender.send_all(calls)
        found = {("calendar", name): value for name, value in calendars.items()}
        found |= {("window", name): value for name, value in windows.items()}
        return found | {
            ("limit", name): as_limit(value) for name, value in limits.fields().items() if value is not None
        }

    async def _restore(self, queue: str, kind: str, name: str, value: str) -> bool:
        """Write a setting into Redis; return whether it is still valid."""
        try:
            if kind == "calendar":
                await self._client.set_calendar(queue, name, value)
            elif kind == "window":
                await self._client.set_window(queue, name, value)
            else:
                await self._runtime.sender.send(Store(queue).limit({name: float(value)}))
        except ConfigError:
            return False  # such as a window that does not open any more
        return True


_LOCKED: Final = 0.5
"""Seconds until the next look while rows are locked by another relay: if it dies, nobody is notified."""

_REFUSED: Final = 5.0
"""Seconds for which a queue is left out that Redis refuses, so that the rows of other queues go on."""

_BURST: Final = 5000
"""Rows of one look from which on it takes them in the order of the index of all open rows: it need not sort them."""

_LOOK: Final = 1.0
"""Seconds until the next look while another relay serves another Redis."""

_CHANGES: Final = 60
"""Jobs that a call cancels: about 2 ms of Redis's time."""

_ASYNCHRONOUS: Final = "SET LOCAL synchronous_commit = off"
"""A mark that is lost with the database's last moments is made again. An end that is written later is never older. For
the transaction alone: a pooler must never pass this on to another program."""


class Relay(LedgerLoop):
    """One relay of a process. `ring` has it look now; else it looks after `safety_cap` seconds."""

    def __init__(self, runtime: Runtime, url: str) -> None:
        super().__init__(runtime, url, "relay", CONNECTED)
        self.ends = Ends(runtime, url, self.ring, self.copy_settings)
        self.withdrawals = Withdrawals(runtime, url)
        self._queues = Reconnects("relay", runtime.emit)
        self._recurrences = RecurrenceRows(runtime)
        self._copies = False
        """Whether the settings of queues are to be copied with the next look."""
        self._settings = KeptSettings(runtime, self._recurrences.client)
        self.epoch: str | None = None
        """The last one that Redis had; None = Redis has not been asked yet."""
        self.presence = Presence(runtime.emit)
        self._refused: dict[str, float] = {}
        """Queue -> until when it is left out."""
        self._aside = Aside(runtime.emit)
        self._lengths = Lengths()
        self._seen: rows.Snapshot | None = None
        """All rows that were committed by then were taken, or another relay does it; None = look at all rows."""
        self._seen_on: AsyncConnection | None = None
        """The connection of that look. On another one, the server may be another, with older transactions."""
        self._looked = 0.0
        """When it last looked at all rows, by the monotonic clock."""
        self._limit = rows.Limit(runtime.config.batch)

    def copy_settings(self) -> None:
        """Copy the settings of queues now, because one was changed."""
        self._copies = True
        self.ring()

    async def close(self) -> None:
        await self._recurrences.close()
        await super().close()

    async def step(self) -> float:
        """Schedule all rows that wait, then declare recurrences. The rows of a slice that fails wait as before."""
        connection = await self.database.open()
        queues = await rows.queues(connection)
        self.ends.follow(queues)
        if connection is not self._seen_on or time.monotonic() - self._looked >= self._runtime.times.safety_cap:
            self._seen = None
        taken, compared = 0, ""
        while True:
            selection = await self._select(connection)
            if selection is None:
                return _LOOK
            if self._copies or (selection.unseen is None and compared != selection.epoch):
                self._copies = False
                await self._settings.step(connection, selection.epoch, queues)
                compared = selection.epoch
            seen = await rows.snapshot(connection)
            others = [""] if selection.unseen else await rows.other_epochs(connection, selection.epoch)
            count = sum([await self._slice(selection, other) for other in others])
            if not count:
                break
            taken += count
            if taken > _BURST:
                self._seen = None
            self.pulse.expect()
        while await self._recurrences.step(connection, selection):
            self.pulse.expect()
        if await self._retry(connection, selection):
            return 0.0
        if await rows.any_waiting(connection, selection, others):
            return _LOCKED
        if not selection.avoid:
            self._seen, self._seen_on = seen, connection
            if selection.unseen is None:
                self._looked = time.monotonic()
        return (
            _REFUSED
            if selection.avoid or selection.aside or self._recurrences.aside.rows()
            else self._runtime.times.safety_cap
        )

    async def _retry(self, connection: AsyncConnection, selection: Selection) -> bool:
        """Try one row again that was set aside, now that no other waits; return whether there was one to try.

        If it fails, so does its slice: rows that were inserted meanwhile wait for the next step.
        """
        if (row := self._aside.due()) is None:
            return False
        selection = replace(selection, aside=self._aside.rows(without=row), unseen=None)
        for other in await rows.other_epochs(connection, selection.epoch):
            await self._slice(selection, other)
        self._aside.tried(row)
        return True

    async def _select(self, connection: AsyncConnection) -> Selection | None:
        """Find out the present epoch, and what to take. None: nothing, because another relay serves another Redis.

        The table is read first: if another relay has noted a new epoch there by then, Redis has that, or a later one.
        """
        noted = await make_identity(connection)
        try:
            epoch = await read_epoch(self._runtime.sender, noted.text)
        except StoreError:
            await self.presence.serve(connection, None)
            raise
        # Before it is in the table: nobody may find it there, and no relay that serves it.
        await self.presence.serve(connection, epoch)
        if epoch != self.epoch or (noted.epoch != epoch and await self.presence.is_free(connection, noted.epoch)):
            self.epoch, self._seen = epoch, None
            await note_epoch(connection, epoch, noted.epoch)
            for aside in (self._aside, self._recurrences.aside):
                aside.try_all()
            self._runtime.emit(process_events.EpochFound(epoch=epoch))
            self.withdrawals.ring()
        elif noted.epoch != epoch:
            return None
        self.presence.works()
        now = time.monotonic()
        self._refused = {queue: until for queue, until in self._refused.items() if until > now}
        least = self._runtime.config.critical_only
        return Selection(epoch, least, list(self._refused), self._aside.rows(), self._seen)

    async def _slice(self, selection: Selection, other: str) -> int:
        """Schedule rows of another epoch; return how many there were, also if Redis did not take them."""
        connection, config = await self.database.open(), self._runtime.config
        refused = dict[str, list[Refusal]]()
        async with connection.transaction() as transaction:
            await connection.execute(_ASYNCHRONOUS)
            claimed = await rows.claim(connection, selection, other, self._limit, config.payload_cap)
            for queue, found in claimed.items():
                if (refusals := await self._schedule(queue, found)) is None:
                    refused.clear()
                    raise psycopg.Rollback(transaction)
                refused[queue] = found.refused + refusals
                await rows.refuse(connection, queue, refused[queue])
        for queue, refusals in refused.items():
            if scheduled := len(claimed[queue].jobs) + len(claimed[queue].refused) - len(refusals):
                again = other != ""
                self._runtime.emit(process_events.RowsScheduled(queue=queue, count=scheduled, again=again))
            if refusals:
                first = f"{refusals[0].id}: {refusals[0].reason}"
                self._runtime.emit(process_events.RowsRefused(queue=queue, count=len(refusals), first=first))
        return sum(found.count for found in claimed.values())

    async def _schedule(self, queue: str, found: Claimed) -> list[Refusal] | None:
        """Put jobs on a queue's schedule, and cancel others; return which cannot be scheduled.

        None: Redis refuses this queue, or some of them.
        """
        reconnect, jobs = self._queues.of(queue), found.jobs
        try:
            for at in range(0, len(found.cancelled), _CHANGES):
                await self._runtime.sender.send(Store(queue).cancel_rows(found.cancelled[at : at + _CHANGES]))
            done = await deliver(self._runtime.sender, queue, jobs, self._lengths)
        except StoreRefused as error:
            reconnect.refused(error)
            self._refused[queue] = time.monotonic() + _REFUSED
            return None
        reconnect.passed()
        if done.failed:
            self._aside.add(queue, done.failed)
            return None
        return [Refusal(job.id, job.row, done.refused[job.id]) for job in jobs if job.id in done.refused]


_COUNTED: Final = 10_000
"""Rows that a scrape counts at most, so that it costs little while many wait."""

_SCRAPE: Final = 2.0
"""Seconds that this may take."""


class Service:
    """One process's part of the ledger. Any number run, and each takes work that no other has at the moment.

    Raises:
        ConfigError: no database is set.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._url = check_url(runtime.config.ledger_url)
        self._start = Database(self._url, "the start", runtime.emit)
        self._started = False
        self._clear_at = -math.inf
        """When no row waited, by the monotonic clock."""
        self._relay = Relay(runtime, self._url)
        listener = Listener(runtime, self._url, self._relay.ring)
        self._loops = (listener, self._relay, self._relay.ends, self._relay.withdrawals)

    async def waiting(self) -> tuple[int, float] | None:
        """Return how many rows wait, and for how long the oldest has, for metrics; None if it is not known.

        Redis is not asked, because it may be down: then the rows that it does not get are to be seen.
        """
        now = time.monotonic()
        try:
            async with asyncio.timeout(_SCRAPE), transaction(self._url) as connection:
                found = await rows.backlog(connection, self._relay.epoch, _COUNTED)
        except (psycopg.Error, TimeoutError):
            return None  # the loops report it
        if found.rows == 0:
            self._clear_at = now
        # A row is there when its transaction commits, which may be long after its insert.
        return found.rows, min(found.seconds, now - self._clear_at)

    @property
    def pulses(self) -> list[Pulse]:
        return [loop.pulse for loop in self._loops]

    def problem(self) -> str | None:
        """Return why Redis failed the last pass of a loop; None = it failed none."""
        return next((loop.reconnect.reason for loop in self._loops if loop.reconnect.reason is not None), None)

    def database_problem(self) -> str | None:
        """Return why the database failed the last pass of a loop, or keeps the relay from its work; None = neither."""
        for database in (self._start, *(loop.database for loop in self._loops)):
            if database.reason is not None:
                return f"the database of the ledger does not serve: {database.reason}"
        return self._relay.presence.waits if self._started else "the database of the ledger has not answered yet"

    async def run(self, server: str) -> None:
        """Run the loops until cancelled. `server`: which Redis it is.

        Raises:
            CannotStart: as `find_database`.
        """
        database = await find_database(self._runtime, self._url, self._start)
        self._started = True
        self._runtime.emit(process_events.LedgerStarted(server=server, database=database))
        lease = shard_map.follow_lease(self._runtime)
        await run_loops({"lease": lease, **{loop.who: loop.run() for loop in self._loops}})
