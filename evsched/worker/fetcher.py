"""The fetcher: the half of a consumer that blocks. BLMOVE moves a job into the worker's list the moment it is ready.

The other way to wait for jobs, without BLMOVE: Redis tells the worker by a message that a job is ready.

A BLMOVE occupies a connection and reads one list, so a worker of many shards would need many connections. The messages
for all its shards on one server arrive on one (`notices.py`). The worker gets them while it is in the sorted set
`idle`: `start` adds it in the same call in which it finds ready empty, and the script that puts a job into ready takes
it out. So it waits in `idle`, or has a message, or asks.
"""

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
from evsched.transport.senders import BlockingSender
from evsched.transport.sync_sender import SyncSender
from evsched.worker.exchange import ServedQueue
from evsched.worker.slots import QueueShare

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

    def __init__(self, served: ServedQueue, share: QueueShare, listener: FetchListener) -> None:
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


class IdleWait:
    """Waits for the jobs of one queue while it is hungry."""

    full = False
    """`start` is accepted while Redis's memory is full."""

    def __init__(self, served: ServedQueue, listener: FetchListener) -> None:
        self._served = served
        self.channel = keys.idle(served.queue, served.worker)
        """On which the worker is told."""
        self._listener = listener
        self._hungry = False
        self.waiting = False
        """The worker is in `idle`, as far as it knows."""
        self.notified = False
        """A job is ready, and the worker has not asked for it yet."""
        self._declines = False
        """There was no room when it was to ask for that job."""
        self._asked = False
        """The question that was sent last asked to wait."""
        self._stopping = False
        self._stopped = asyncio.Event()
        self._open = False
        """Messages arrive."""
        self.reason: str | None = None
        """Why none arrive; None = they do, or the subscription is being opened for the first time."""
        self.pulses: list[Pulse] = []
        """It has no loop of its own."""

    def feed(self, *, hungry: bool) -> None:
        """Set whether to wait for a job: if slots are free and ready was empty."""
        self._hungry = hungry
        self._ask()

    def _ask(self) -> None:
        if self._hungry and self._open and not self.waiting and not self._stopping:
            self._listener.on_more()

    def asks(self, room: int) -> bool:
        """Note that the worker asks for so many jobs; return whether it is to wait if it gets fewer."""
        self._declines = self.notified and not room
        if room:
            self.notified = False
        self._asked = room > 0 and self._open and not self._stopping
        return self._asked

    def asked(self, reply: Fetched) -> None:
        """Note whether the worker waits from that question on, unless it was told meanwhile."""
        self.waiting = reply.waits and not self.notified
        if self._asked and not (reply.waits or reply.jobs or reply.buried):
            self._listener.on_unsure()  # by Redis's list it holds all that it may: there are jobs that it does not know

    async def pass_on(self) -> None:
        """Pass on the notice of a job, if there was no room when the worker was to ask for it.

        A notice that has come since then is kept: the worker asks first, as it may have room.

        Raises:
            StoreDown, StoreRefused: the job stays in ready until a worker asks.
        """
        if self._declines:
            await self._decline()

    async def _decline(self) -> None:
        self.notified = self._declines = False
        await self._served.runtime.sender.send(self._served.store.decline(self._served.worker))

    async def is_kept(self) -> bool:
        """Return False if Redis has lost that the worker waits.

        Raises:
            StoreDown, StoreRefused
        """
        return await self._served.runtime.sender.send(self._served.store.is_idle(self._served.worker))

    def found(self, *, waits: bool) -> None:
        """Compare what is known with what was found: Redis may have lost that the worker waits."""
        if not waits and self.waiting:
            self.waiting = False
            self._ask()

    # Called for the subscription.

    def opened(self) -> None:
        """Note that messages arrive from now on. Earlier ones may have been lost."""
        self._open, self.reason, self.waiting = True, None, False
        self._ask()

    def closed(self, reason: str) -> None:
        """Note that no messages arrive."""
        self._open, self.reason, self.waiting = False, reason, False

    async def told(self) -> None:
        """Ask for a job that is ready, or pass it on if the worker stops."""
        self.notified, self.waiting = True, False
        if self._stopping:
            with contextlib.suppress(StoreError):
                await self._decline()
        else:
            self._listener.on_more()

    # Called at the end of the worker.

    async def run(self) -> None:
        """Wait until stopped."""
        await self._stopped.wait()

    def fetch_no_more(self) -> None:
        """Ask for no other job. For any thread."""
        self._stopping = True

    def unblock_from_thread(self, sender: SyncSender) -> None:
        """Do nothing: `requeue` ends the wait, and a worker that gets the message later passes it on."""

    async def stop(self) -> None:
        """Wait no more, and pass on what the worker was told of."""
        self.fetch_no_more()
        self._stopped.set()
        with contextlib.suppress(StoreError):
            await self._decline()

    async def close(self) -> None:
        """Do nothing: the subscription belongs to the worker."""
