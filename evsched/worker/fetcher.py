"""The fetcher: the half of a consumer that blocks. BLMOVE moves a job into the worker's list the moment it is ready."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol

from evsched import events, keys
from evsched.errors import StoreError
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect
from evsched.store.server import unblock
from evsched.store.workers import Fetched
from evsched.transport.senders import BlockingSender, SyncSender
from evsched.worker.served_queue import ServedQueue
from evsched.worker.slots import Share

_BRIEF: Final = 1.0
"""Seconds that the first BLMOVE after a failure blocks. Short, because only its reply shows that Redis accepts it."""

_UNBLOCK: Final = 0.05
"""Seconds between two tries to end a BLMOVE that waits."""


class FetchListener(Protocol):
    """What the fetcher reports."""

    def on_fetched(self, job_id: str) -> None:
        """Take over a job that was fetched; it has a slot."""
        ...

    def on_more(self) -> None:
        """Note that ready holds jobs, but no slot was free."""
        ...

    def on_unsure(self) -> None:
        """Note that the worker's list may hold a job that was not reported: a reply was lost."""
        ...


class Fetcher:
    """Blocks while it is hungry, and fetches one job after the other."""

    notified = False
    """BLMOVE brings the job itself; see `IdleWait`."""

    def __init__(self, served: ServedQueue, share: Share, listener: FetchListener) -> None:
        config = served.runtime.config
        self._served = served
        self._share = share
        self._listener = listener
        self._blocking = BlockingSender(config.url, reply_timeout=config.reply_timeout, near=keys.root(served.queue))
        self.reconnect = Reconnect("worker, fetching", served.runtime.emit, served.queue)
        self.full = False
        """The last BLMOVE was refused, since Redis's memory is full. Scripts are accepted, and `start` fetches too."""
        self._hungry = asyncio.Event()
        self._stopping = False
        self._ended = asyncio.Event()

    @property
    def pulses(self) -> list[Pulse]:
        """The pulse of its loop."""
        return [self.reconnect.pulse]

    @property
    def reason(self) -> str | None:
        """Why it cannot fetch; None = it can."""
        return self.reconnect.reason

    def feed(self, *, hungry: bool) -> None:
        """Set whether to block for a job: if slots are free and ready was empty."""
        if hungry:
            self._hungry.set()
        else:
            self._hungry.clear()

    def asks(self, _room: int) -> bool:
        """Return whether `start` is to have the worker wait for a message: BLMOVE waits instead."""
        return False

    def asked(self, _reply: Fetched) -> None:
        """Do nothing; see `IdleWait`, as for the next two."""

    def found(self, *, waits: bool) -> None:
        """Do nothing."""

    async def pass_on(self) -> None:
        """Do nothing."""

    async def run(self) -> None:
        """Fetch when hungry, until stopped."""
        config = self._served.runtime.config
        try:
            while not self._stopping:
                await self._hungry.wait()
                if self._stopping:
                    break
                async with self.reconnect:
                    self.reconnect.pulse.expect(config.probe_interval + config.reply_timeout)
                    await self._fetch()
        finally:
            self._ended.set()

    def fetch_no_more(self) -> None:
        """Begin no other BLMOVE. For any thread; `stop` ends the one that waits."""
        self._stopping = True

    def unblock_from_thread(self, sender: SyncSender) -> None:
        """End the BLMOVE that waits, from a thread. Raises as `SyncSender.send`."""
        if self._blocking.client is not None:
            sender.send(unblock(self._blocking.client, keys.root(self._served.queue)))

    async def stop(self) -> None:
        """Fetch no more; a BLMOVE that waits ends without a job, or its job is handed back."""
        self.fetch_no_more()
        self._hungry.set()
        while not self._ended.is_set():
            # Once may be too early: the BLMOVE travels on another connection, and may arrive after this.
            if self._blocking.client is not None:
                with contextlib.suppress(StoreError):
                    near = keys.root(self._served.queue)
                    await self._served.runtime.sender.send(unblock(self._blocking.client, near))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UNBLOCK):
                    await self._ended.wait()

    async def close(self) -> None:
        """Cut the connection."""
        await self._blocking.close()

    async def _fetch(self) -> None:
        if self._blocking.client is None:
            await self._blocking.open()
            self.reconnect.passed()  # Redis is back; without this it would be reported when the BLMOVE of 13 s returns
        if self._stopping:
            return
        job_id = await self._block()
        if job_id is None:
            return
        self._hungry.clear()
        if not self._stopping and self._share.reserve_one():
            self._listener.on_fetched(job_id)
            return
        store, worker, reason = self._served.store, self._served.worker, "no slot was free"
        await self._served.runtime.sender.send(store.requeue(worker, reason, ids=[job_id]))
        self._served.runtime.emit(
            events.JobsRequeued(queue=store.queue, worker=worker, ids=[job_id], cause="busy", reason=reason)
        )
        self._listener.on_more()

    async def _block(self) -> str | None:
        """Wait for a job; return its id, None when there was none for as long as a BLMOVE waits."""
        client, block = self._blocking.client, self._served.runtime.config.probe_interval
        if self.reconnect.failures:
            block = min(block, _BRIEF)
        try:
            job_id = await self._blocking.send(self._served.store.fetch(self._served.worker, block), block)
        except StoreError as error:
            self.full = error.kind == "oom"
            self._listener.on_unsure()
            # Redis may not have noticed that the connection is gone, and would still serve its BLMOVE.
            await self._served.runtime.sender.send(unblock(client or 0, keys.root(self._served.queue)))
            raise
        self.full = False
        return job_id
