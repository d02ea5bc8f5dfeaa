"""The doctor's findings on the first page of the console. It examines the queues in the background, and slowly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from math import inf
from typing import Any, Final

from evsched.console.page import MeteredClient, Visit
from evsched.diagnostics.finding import Finding
from evsched.diagnostics.queue_checks import broken_recurrences, incomplete_deploys
from evsched.diagnostics.standstill import find_standstill
from evsched.errors import StoreError
from evsched.shards import Shards
from evsched.store.many_queues import read_glances
from evsched.transport.call import Call, T
from evsched.transport.senders import BatchingSender

_EXAMINED_EVERY: Final = 300.0
"""Seconds between two examinations by the doctor."""

_EXAMINING_RATE: Final = 1.0
"""Commands a second of such an examination: half of what an open page may send."""

_LOOKED_AT: Final = 10
"""Jobs of each queue whose tasks it looks for: the next ones that are due."""


class _PacedSender(BatchingSender):
    """Sends a command each second. A doctor that takes longer for many queues is no load."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.commands = 0
        self._next = -inf

    async def send(self, call: Call[T]) -> T:
        await self._pace(1)
        return await super().send(call)

    async def send_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        await self._pace(len(calls))
        return await super().send_all(calls)

    async def _pace(self, commands: int) -> None:
        """Wait until this number of commands may be sent."""
        now = time.monotonic()
        at = max(now, self._next)
        self._next = at + commands / _EXAMINING_RATE
        await asyncio.sleep(at - now)
        self.commands += commands


class DoctorPass:
    """The findings of the doctor, without the audit of all jobs. It is asked in the background, every 5 minutes.

    Its commands count as those of the page that is open meanwhile.
    """

    def __init__(self, url: str) -> None:
        self.found = list[Finding]()
        self._at = -_EXAMINED_EVERY
        self._task: asyncio.Task[None] | None = None
        self._sender = _PacedSender(url)
        self._counted = 0
        """How many of its commands a page has counted."""

    def refresh(self, client: MeteredClient, queues: Sequence[str]) -> None:
        """Ask again, if it is time to."""
        client.commands += self._sender.commands - self._counted
        self._counted = self._sender.commands
        is_over = self._task is None or self._task.done()
        if is_over and time.monotonic() - self._at >= _EXAMINED_EVERY:
            self._at = time.monotonic()
            self._task = asyncio.create_task(self._examine(client.shards, queues))

    async def _examine(self, shards: Shards, queues: Sequence[str]) -> None:
        sender, found = self._sender, list[Finding]()
        for check in (
            lambda: find_standstill(sender, queues, shards),
            lambda: incomplete_deploys(sender, queues, looked_at=_LOOKED_AT),
            lambda: self._broken_recurrences(queues),
        ):
            try:
                found += [one for one in await check() if one.level != "info"]
            except StoreError as error:
                mend = "The counts below are read with other commands."
                found.append(Finding("doctor", "info", f"not everything was examined: {error}", "Redis", mend))
        self.found = found

    async def _broken_recurrences(self, queues: Sequence[str]) -> list[Finding]:
        seen = await read_glances(self._sender.send, self._sender.node_of, queues)
        return await broken_recurrences(self._sender, [name for name in queues if name in seen and seen[name].recurs])

    async def close(self) -> None:
        """End the pass that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._sender.close()


def doctor_pass(visit: Visit) -> DoctorPass:
    """Return the examination that all pages of a console share."""
    memory = visit.console.memory
    if "examined" not in memory:
        memory["examined"] = DoctorPass(visit.console.config.url)
    return memory["examined"]
