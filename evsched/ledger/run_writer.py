"""The history for long: copies the ends of all queues from Redis into the table `evsched_run`, each exactly once.

Redis keeps the last ends of each queue in a stream. One blocking XREAD waits for new entries of all queues; in a
cluster there is one for each slot, since no command reads two of them. The rows and the position behind them are
committed together, so a writer that dies leaves both as they were, and the next one reads the same entries.

A position holds as long as the stream has the entry that it names, with the same content. That is checked on each new
connection, because Redis may have restarted without its last moments. If it does not hold, the whole stream is read
again; rows that are there already are left as they are (run_table.py). After a loss of the stream, its ids go on
upwards (lua/_history.lua).

Any number of processes run; one holds a lock in its session of the database and writes, the others stand by.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from psycopg import AsyncConnection

from evsched import keys, process_events, shard_map
from evsched.errors import WRONG_TYPE, StoreDown, StoreError, StoreRefused
from evsched.ledger.database import Database, LedgerLoop, check_url
from evsched.ledger.epoch import find_database
from evsched.ledger.rows import fetch
from evsched.ledger.run_table import DAY, Position, Pruning, RunTable, positions
from evsched.runtime.loops import Pulse, Runtime, run_loops
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.store import server
from evsched.store.history_calls import HistoryEntry, missed, read_history
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.transport.senders import DirectSender
from evsched.transport.servers import slot_of, topology

_FIRST: Final = "0-0"
"""Before each entry."""

_BATCH: Final = 500
"""Positions that are checked in one batch."""

_ENTRIES: Final = 20_000
"""Entries that one read returns at most, divided among the queues."""

_MOST: Final = 200
"""Entries of one queue in one read; each may have the ends of a batch of jobs."""


class HistoryReader:
    """Reads the histories of some queues on one connection. In a cluster, these are of one slot."""

    def __init__(self, runtime: Runtime, queues: Sequence[str], refused: Reconnects) -> None:
        self.queues = queues
        self.checked = False
        """Whether the positions are known to hold on this connection."""
        self.positions = dict[str, Position]()
        """By queue; a queue of which nothing is written has none."""
        self._last = dict[str, str]()
        """The entry behind which each queue is read. A queue that Redis refuses is left out."""
        self._refused = refused
        # Without a cluster there is one reader, of all queues.
        of = "" if topology(runtime.config.url) is None else queues[0]
        self.reconnect = Reconnect("history", runtime.emit, of)
        self._name = ""
        near = keys.root(queues[0])
        self._sender = DirectSender(runtime.config.url, reply_timeout=runtime.times.reply_timeout, near=near)

    @property
    def limit(self) -> int:
        """Entries of one queue that a read returns at most."""
        return max(10, min(_MOST, _ENTRIES // len(self.queues)))

    async def read(self, block: float, written: Mapping[str, Position]) -> dict[str, list[HistoryEntry]]:
        """Wait for entries, and return them by queue; nothing if there are none, or if Redis fails.

        `written`: the positions, which are needed unless they are `checked`.
        """
        async with self.reconnect:
            try:
                if not self.checked:
                    await self._check(written)
                if self.checked:
                    return await self._read(block)
            except StoreError:
                self.checked = False
                raise
        return {}

    async def _check(self, written: Mapping[str, Position]) -> None:
        """Find out whether the positions hold, and read each queue from there, or else from its first entry.

        Raises:
            StoreDown, StoreRefused
        """
        self.positions, self._last = {**written}, {}
        self._name = f"evsched-history-{secrets.token_hex(4)}"
        naming = server.name_connection(self._name)
        for at in range(0, len(self.queues), _BATCH):
            queues = self.queues[at : at + _BATCH]
            entries = [written[queue].entry if queue in written else _FIRST for queue in queues]
            calls = [Store(queue).ended(entry, count=1) for queue, entry in zip(queues, entries, strict=True)]
            found = await self._send(naming, calls)
            if found is None:
                return
            naming = server.connection_name()
            for queue, entry, there in zip(queues, entries, found, strict=True):
                if isinstance(there, StoreError):
                    self._refused.of(queue).refused(there)
                    continue
                self._refused.of(queue).passed()
                holds = any(Position(one.id, one.digest) == written.get(queue) for one in there.entries)
                self._last[queue] = entry if holds else _FIRST
        self.checked = True

    async def _read(self, block: float) -> dict[str, list[HistoryEntry]]:
        if not self._last:
            await asyncio.sleep(block)
            return {}
        name = server.connection_name()
        # Once before the wait, so that it does not begin on a new connection, and once with it.
        if await self._send(name, []) is None:
            return {}
        found = await self._send(name, [read_history(self._last, self.limit, block)], block)
        if found is None:
            return {}
        if isinstance(found[0], StoreRefused) and found[0].kind == WRONG_TYPE:
            self.checked = False  # the check finds out which queue it is
            return {}
        if isinstance(found[0], StoreError):
            raise found[0]
        return found[0]

    async def _send(self, name: Call[str | None], calls: Sequence[Call[Any]], block: float = 0.0) -> list[Any] | None:
        """Send calls, and return their values or errors; None if the connection is another one than before."""
        found, *replies = await self._sender.attempt_all([name, *calls], block)
        if isinstance(found, StoreError):
            raise found
        self.checked = self.checked and found == self._name
        return replies if found == self._name else None

    def written(self, queue: str, last: HistoryEntry) -> None:
        """Read a queue behind this entry from now on: it is written."""
        self._last[queue] = last.id
        self.positions[queue] = Position(last.id, last.digest)

    async def close(self) -> None:
        await self._sender.close()


_LOCK: Final = "SELECT pg_try_advisory_lock(1702258285, 1)"
"""Held by the process that writes, until its session ends. The number is "evzm"."""

_STAND_BY: Final = 1.0
"""Seconds until a process that stands by tries to get the lock: PostgreSQL notifies nobody when a session ends."""

_COLLECT: Final = 0.2
"""Seconds between two reads, so that a busy queue is written in batches."""

_CHECK: Final = 10
"""Safety caps after which the positions are checked although the connection is the same."""

_READERS: Final = 1000
"""Connections to a cluster."""


class HistoryWriter(LedgerLoop):
    """Reads the histories of all queues, or the queues that the settings name, and writes them."""

    def __init__(self, runtime: Runtime, url: str, keep: float) -> None:
        super().__init__(runtime, url, "history")
        self._table = RunTable(keep, runtime.emit)
        self._writes_on: AsyncConnection | None = None
        """The connection that holds the lock."""
        self._stands_by = False
        self._queues: Sequence[str] = ()
        self._find_at = 0.0
        self._check_at = 0.0
        """When to look for queues, and to check the positions, by the monotonic clock."""
        self._refused = Reconnects("history", runtime.emit)
        self._readers: list[HistoryReader] = []
        self._reading: dict[HistoryReader, asyncio.Task[dict[str, list[HistoryEntry]]]] = {}

    async def step(self) -> float:
        """Wait for entries, and write them; or stand by."""
        connection = await self.database.open()
        if not await self._leads(connection):
            return _STAND_BY
        try:
            await self._find_queues()
            return await self._pass(connection)
        except BaseException:
            await self._forget()
            raise

    async def _leads(self, connection: AsyncConnection) -> bool:
        """Return whether this process writes."""
        if connection is self._writes_on:
            return True
        if await fetch(connection, _LOCK) != [(True,)]:
            if not self._stands_by:
                self._runtime.emit(process_events.HistoryStandsBy())
            self._stands_by = True
            return False
        self._writes_on, self._stands_by = connection, False
        await self._forget()
        self._runtime.emit(process_events.HistoryWrites())
        return True

    async def _find_queues(self) -> None:
        """Look for new queues, once in a safety cap. A queue that is not found any more is read on."""
        now, cap = time.monotonic(), self._runtime.times.safety_cap
        if now >= self._check_at:
            for reader in self._readers:
                reader.checked = False
            self._check_at = now + _CHECK * cap
        if now < self._find_at:
            return
        await shard_map.learn(self._runtime)
        names = shard_map.named(self._runtime) or await self._names()
        parts = (part for name in names for part in self._runtime.shards.all_of(name))
        queues = sorted({*self._queues, *parts})
        if queues != self._queues:
            await self._forget()
            self._queues = queues
        self._find_at = now + cap

    async def _names(self) -> set[str]:
        names, cursor = set[str](), None
        try:
            while cursor != 0:
                cursor, some = await self._runtime.sender.send(server.some_queue_names(cursor or 0))
                names.update(some)
        except StoreDown as error:
            if not self._queues:
                raise
            # In a cluster, another node may have the set: the queues that are known are read on.
            self._runtime.emit(process_events.RedisFailed(kind=error.kind))
        return names

    def _divide(self) -> Iterable[Sequence[str]]:
        """Return the queues of each reader."""
        if topology(self._runtime.config.url) is None:
            return [self._queues] if self._queues else []
        by_slot = dict[int, list[str]]()
        for queue in self._queues:
            by_slot.setdefault(slot_of(keys.root(queue)), []).append(queue)
        return [*by_slot.values()][:_READERS]

    async def _pass(self, connection: AsyncConnection) -> float:
        """Read until one reader has something, and write that; return the seconds until the next pass."""
        block = self._runtime.times.probe_interval
        if not self._readers:
            self._readers = [HistoryReader(self._runtime, queues, self._refused) for queues in self._divide()]
        for reader in self._readers:
            if reader not in self._reading:
                written = {} if reader.checked else await positions(connection, reader.queues)
                self._reading[reader] = asyncio.ensure_future(reader.read(block, written))
        if not self._readers:
            return max(0.0, self._find_at - time.monotonic())
        self.pulse.expect(block + self._runtime.times.reply_timeout)
        done, _ = await asyncio.wait(self._reading.values(), return_when=asyncio.FIRST_COMPLETED)
        full = False
        for reader in [reader for reader, task in self._reading.items() if task in done]:
            found = self._reading.pop(reader).result()
            if found:
                await self._write(connection, reader, found)
                full = full or any(len(entries) >= reader.limit for entries in found.values())
        self.database.passed()
        return 0.0 if full else _COLLECT

    async def _write(
        self, connection: AsyncConnection, reader: HistoryReader, found: Mapping[str, list[HistoryEntry]]
    ) -> None:
        before = dict(reader.positions)
        await self._table.write(connection, found)
        for queue, entries in found.items():
            if lost := missed(before[queue].entry if queue in before else None, entries):
                self._runtime.emit(process_events.RunsMissed(queue=queue, count=lost))
            reader.written(queue, entries[-1])

    async def _forget(self) -> None:
        """Begin with new connections, and check all positions."""
        reading, readers = [*self._reading.values()], self._readers
        self._reading, self._readers = {}, []
        self._table.forget()
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for reader in readers:
            await reader.close()

    def problem(self) -> str | None:
        """Return why Redis failed the last pass, or the last read of each reader; None = it did not."""
        reasons = [reader.reconnect.reason for reader in self._readers]
        return self.reconnect.reason or (next(iter(reasons), None) if all(reasons) else None)

    async def close(self) -> None:
        await self._forget()
        await super().close()


class HistoryService:
    """One process that keeps the history for long.

    `keep`: seconds for which ends, and rows of ended jobs, are kept.

    Raises:
        ConfigError: no database is set.
    """

    def __init__(self, runtime: Runtime, keep: float) -> None:
        self._runtime = runtime
        self._url = check_url(runtime.config.ledger_url)
        self._keep = keep
        self._start = Database(self._url, "history", runtime.emit)
        self._started = False
        self._writer = HistoryWriter(runtime, self._url, keep)
        self._loops = self._writer, Pruning(runtime, self._url, keep)

    @property
    def pulses(self) -> list[Pulse]:
        return [loop.pulse for loop in self._loops]

    def problem(self) -> str | None:
        """Return why Redis does not serve the writer; None = it does."""
        return self._writer.problem()

    def database_problem(self) -> str | None:
        """Return why the database failed the last pass of a loop; None = it failed none."""
        for database in (self._start, *(loop.database for loop in self._loops)):
            if database.reason is not None:
                return f"the database of the ledger does not serve: {database.reason}"
        return None if self._started else "the database of the ledger has not answered yet"

    async def run(self, redis: str) -> None:
        """Run the loops until cancelled. `redis`: which server it is.

        Raises:
            CannotStart: as `find_database`.
        """
        database = await find_database(self._runtime, self._url, self._start)
        self._started = True
        started = process_events.HistoryStarted(server=redis, database=database, days=self._keep / DAY)
        self._runtime.emit(started)
        lease = shard_map.follow_lease(self._runtime)
        await run_loops({"lease": lease, **{loop.who: loop.run() for loop in self._loops}})
