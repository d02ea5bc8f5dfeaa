"""The reload: at SIGHUP, worker processes with the code that is on disk now replace those that run, one by one.

Each new process must be ready before the old one is asked to end. So there is no gap, and at most one process more than
before. If a new one does not become ready, its code is broken: the reload stops, and the processes that have not been
replaced go on.
"""

from __future__ import annotations

import asyncio
import time

from evsched.events import Emit, Reloaded, ReloadFailed, Reloading
from evsched.process.children import Children


class Reload:
    """Replaces the children of a parent when it is asked to; asked again meanwhile, it starts over."""

    def __init__(self, children: Children, emit: Emit) -> None:
        self._children = children
        self._emit = emit
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Ask for a reload."""
        self._asked.set()

    async def run(self) -> None:
        """Reload whenever asked to, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._replace_all()

    async def _replace_all(self) -> None:
        # Without a child, one is started all the same: the new code is tried, and its recurrences are declared.
        began, old = time.monotonic(), self._children.wanted or self._children.current[:1]
        self._emit(Reloading(processes=len(old)))
        for replaced, child in enumerate(old):
            failure = await self._children.replace(child, self._asked)
            if self._asked.is_set():
                return
            if failure is not None:
                self._emit(ReloadFailed(number=child.number, reason=failure, replaced=replaced, processes=len(old)))
                return
        self._emit(Reloaded(processes=len(old), seconds=time.monotonic() - began))
