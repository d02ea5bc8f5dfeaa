"""The doctor as a service: it examines Redis and the queues again and again, and reports what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from evsched import events
from evsched.diagnostics.acl import Role
from evsched.diagnostics.examination import examine
from evsched.diagnostics.finding import Finding, changes
from evsched.runtime.reconnect import Reconnect
from evsched.runtime.runtime import Runtime

OnChanges = Callable[[Sequence[Finding], Sequence[Finding]], object]
"""Gets the findings that are new and those that are gone, after each examination in which there are any."""


class DoctorWatch:
    """Examines every `interval` seconds, counted from the end of the one before."""

    def __init__(self, runtime: Runtime, role: Role | None, interval: float, on_changes: OnChanges) -> None:
        self._runtime = runtime
        self._role: Role | None = role
        self._interval = interval
        self._on_changes = on_changes
        self._reconnect = Reconnect("doctor", runtime.emit)
        self._known = list[Finding]()

    def problem(self) -> str | None:
        """Return why the last examination failed; None = it did not."""
        return self._reconnect.reason

    async def run(self) -> None:
        """Examine for ever."""
        while True:
            rest = 0.0  # after a failure `_reconnect` has waited
            async with self._reconnect:
                await self.step()
                rest = self._interval
            await asyncio.sleep(rest)

    async def step(self) -> None:
        """Examine once.

        Raises:
            StoreDown, StoreRefused: what was found before stays known.
        """
        config = self._runtime.config
        sender, ledger_url = self._runtime.sender, config.ledger_url
        found = (await examine(config.url, sender, config.queues, self._role, ledger_url=ledger_url)).found
        new, gone = changes(self._known, found)
        self._known = found
        problems = [finding for finding in found if finding.level != "info"]
        self._runtime.emit(
            events.Examined(checks=[one.check for one in problems], levels=[one.level for one in problems])
        )
        if new or gone:
            self._on_changes(new, gone)
