"""The fetcher: the half of a consumer that blocks. BLMOVE moves a job into the worker's list the moment it is ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from evsched import events
from evsched.errors import StoreError
from evsched.runtime.reconnect import Reconnect
from evsched.runtime.runtime import Runtime
from evsched.store.server import unblock
from evsched.store.store import Store
from evsched.transport.senders import BlockingSender, SyncSender
from evsched.worker.slots import Share

_BRIEF: Final = 1.0
"""Seconds that the first BLMOVE after a failure blocks: one that is accepted answers only at its end."""

_UNBLOCK: Final = 0.05
"""Seconds between two tries to end a BLMOVE that waits."""


class Fetcher:
    """Blocks while it is told to be hungry.

    `fetched(id)` gets a job, which has a slot already; None = ready holds one, but no slot was free for it. `unsure()`:
    the worker's list may hold a job that nobody knows of.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        worker: str,
        share: Share,
        *,
        fetched: Callable[[str | None], None],
        unsure: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._worker = worker
        self._share = share
        self._fetched = fetched
        self._unsure = unsure
        self._blocking = BlockingSender(runtime.config.url, reply_timeout=runtime.config.reply_timeout)
        self.reconnect = Reconnect(f"worker, taking from {store.queue}", runtime.emit)
        self.full = False
        """The last BLMOVE was refused, since Redis's memory is full: the scripts go on, and `start` takes jobs too."""
        self._hungry = asyncio.Event()
        self._stopping = False
        self._ended = asyncio.Event()

    def feed(self, *, hungry: bool) -> None:
        """Say whether to block for a job: slots are free and ready was empty."""
        if hungry:
            self._hungry.set()
        else:
            self._hungry.clear()

    async def run(self) -> None:
        """Fetch one job after the other, when hungry, until stopped."""
        try:
            while not self._stopping:
                await self._hungry.wait()
                if self._stopping:
                    break
                async with self.reconnect:
                    self.reconnect.pulse.expect(
                        self._runtime.config.probe_interval + self._runtime.config.reply_timeout
                    )
                    await self._fetch()
        finally:
            self._ended.set()

    def fetch_no_more(self) -> None:
        """Begin no other BLMOVE. For any thread; `stop` ends the one that waits."""
        self._stopping = True

    def unblock_by(self, sender: SyncSender) -> None:
        """End the BLMOVE that waits, from a thread. Raises as `SyncSender.send`."""
        if self._blocking.client is not None:
            sender.send(unblock(self._blocking.client))

    async def stop(self) -> None:
        """Fetch no more; a BLMOVE that waits ends without a job, or its job is handed back."""
        self.fetch_no_more()
        self._hungry.set()
        while not self._ended.is_set():
            # Once may be too early: the BLMOVE travels on another connection, and may arrive after this.
            if self._blocking.client is not None:
                with contextlib.suppress(StoreError):
                    await self._runtime.sender.send(unblock(self._blocking.client))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UNBLOCK):
                    await self._ended.wait()

    async def close(self) -> None:
        """Cut the connection."""
        await self._blocking.close()

    async def _fetch(self) -> None:
        if self._blocking.client is None:
            await self._blocking.open()
            self.reconnect.passed()  # Redis is back: that is not told only when a BLMOVE of 13 s returns
        if self._stopping:
            return
        client, block = self._blocking.client, self._runtime.config.probe_interval
        if self.reconnect.failures:
            block = min(block, _BRIEF)
        try:
            fetched = await self._blocking.send(self._store.fetch(self._worker, block), block)
        except StoreError as error:
            self.full = error.kind == "oom"
            self._unsure()
            # Redis may not have noticed that the connection is gone, and would still serve its BLMOVE.
            await self._runtime.sender.send(unblock(client or 0))
            raise
        self.full = False
        if fetched is None:
            return
        self._hungry.clear()
        if not self._stopping and self._share.reserve_one():
            self._fetched(fetched)
            return
        reason = "no slot was free"
        await self._runtime.sender.send(self._store.requeue(self._worker, reason, ids=[fetched]))
        self._runtime.emit(
            events.Requeued(queue=self._store.queue, worker=self._worker, ids=[fetched], cause="busy", reason=reason)
        )
        self._fetched(None)
