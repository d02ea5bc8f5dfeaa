"""The settings of queues that operators make in Redis: calendars, named windows and limits. The ledger keeps copies.

A relay compares them when the stream of ends has a note that one was changed, at each look at all rows, and at the
first look of an epoch before it schedules anything, since a job whose window is missing dies. What Redis has counts: it
is copied, and a copy is deleted whose setting is gone. Only after a loss, what Redis lacks is restored: then the copy
is of another epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import psycopg
from psycopg import AsyncConnection

from evsched.client.client import Client
from evsched.errors import ConfigError, StoreRefused
from evsched.ledger.epoch import read_epoch
from evsched.ledger.identity import read_identity
from evsched.runtime.loops import Runtime
from evsched.store.gate_limits import as_limit
from evsched.store.store import Store

_READ: Final = "SELECT queue, kind, name, value, epoch FROM evsched_setting"

_KEEP: Final = """
INSERT INTO evsched_setting (queue, kind, name, value, epoch) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (queue, kind, name) DO UPDATE SET value = excluded.value, epoch = excluded.epoch
"""

_DELETE: Final = "DELETE FROM evsched_setting WHERE queue = %s AND kind = %s AND name = %s"

_Named = dict[tuple[str, str], str]
"""By kind and name: the value, as Redis has it."""


class KeptSettings:
    """Keeps the settings of the queues that have rows."""

    def __init__(self, runtime: Runtime, client: Client) -> None:
        self._runtime = runtime
        self._client = client

    async def step(self, connection: AsyncConnection, epoch: str, queues: Sequence[str]) -> None:
        """Restore what Redis has lost, and copy what it has. Several relays may do so at once.

        Raises:
            StoreDown, psycopg.Error
        """
        async with connection.transaction() as transaction:
            kept = dict[str, dict[tuple[str, str], tuple[str, str]]]()
            for queue, kind, name, value, of in await (await connection.execute(_READ)).fetchall():
                kept.setdefault(queue, {})[kind, name] = value, of
            for queue in sorted({*queues, *kept}):
                try:
                    await self._compare(connection, epoch, queue, kept.get(queue, {}))
                except StoreRefused:
                    pass  # a key of the wrong type, which `evsched doctor` reports
            if await read_epoch(self._runtime, (await read_identity(connection)).text) != epoch:
                raise psycopg.Rollback(transaction)  # what was missing may have been lost meanwhile

    async def _compare(
        self, connection: AsyncConnection, epoch: str, queue: str, kept: Mapping[tuple[str, str], tuple[str, str]]
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

    async def _read(self, queue: str) -> _Named:
        store, send = Store(queue), self._runtime.sender.send
        calendars, windows, limits = await send(store.all_calendars()), await send(store.windows()), store.limits()
        found: _Named = {("calendar", name): value for name, value in calendars.items()}
        found |= {("window", name): value for name, value in windows.items()}
        for name, value in (await send(limits)).fields().items():
            if value is not None:
                found["limit", name] = as_limit(value)
        return found

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
