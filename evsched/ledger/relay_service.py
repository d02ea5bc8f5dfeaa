"""The loops of `evsched ledger run`: a listener, a relay, and the reader of ends."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

import psycopg

from evsched import process_events, shard_map
from evsched.errors import CannotStart, StoreRefused
from evsched.ledger import rows
from evsched.ledger.database import Database, check_server, check_sessions, check_url, transaction
from evsched.ledger.ends import Ends, Withdrawals
from evsched.ledger.epoch import OTHER, check_owner, make_identity
from evsched.ledger.relay import Listener, Relay
from evsched.runtime.loops import Pulse, Runtime, run_loops
from evsched.runtime.reconnect import Reconnect

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
        self._ends = Ends(runtime, self._url)
        self._withdrawals = Withdrawals(runtime, self._url)
        self._relay = Relay(runtime, self._url, self._ends.follow, self._withdrawals.ring)
        self._ends.on_loss = self._relay.ring
        self._ends.on_setting = self._relay.copy_settings
        self._listener = Listener(runtime, self._url, self._relay.ring)

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
        return [self._relay.pulse, self._ends.pulse, self._withdrawals.pulse]

    def problem(self) -> str | None:
        """Return why Redis failed the last pass of a loop; None = it failed none."""
        return self._relay.problem() or self._ends.problem() or self._withdrawals.problem()

    def database_problem(self) -> str | None:
        """Return why the database failed the last pass of a loop, or keeps the relay from its work; None = neither."""
        loops = self._listener, self._relay, self._ends, self._withdrawals
        for database in (self._start, *(loop.database for loop in loops)):
            if database.reason is not None:
                return f"the database of the ledger does not serve: {database.reason}"
        return self._relay.waits if self._started else "the database of the ledger has not answered yet"

    async def run(self, server: str) -> None:
        """Run the loops until cancelled. `server`: which Redis it is.

        Raises:
            CannotStart: PostgreSQL is too old, or behind a pooler in transaction mode; or Redis belongs to the ledger
                of another database.
        """
        self._runtime.emit(process_events.LedgerStarted(server=server, database=await self._find_database()))
        loops = {"listener": self._listener, "relay": self._relay, "ends": self._ends, "withdrawals": self._withdrawals}
        lease = shard_map.follow_lease(self._runtime)
        await run_loops({"lease": lease, **{name: loop.run() for name, loop in loops.items()}})

    async def _find_database(self) -> str:
        """Wait until the database and Redis serve; return which database it is."""
        reconnect = Reconnect("the start", self._runtime.emit)
        found = ""
        try:
            while not found:
                async with reconnect, self._start:
                    await check_sessions(self._url)  # before `open` makes settings
                    connection = await self._start.open()
                    version = check_server(connection)
                    try:
                        await check_owner(self._runtime, (await make_identity(connection)).text)
                    except StoreRefused as error:
                        if error.kind == OTHER:
                            raise CannotStart(str(error)) from None
                        raise
                    found = version
        finally:
            await self._start.close()
        self._started = True
        return found
