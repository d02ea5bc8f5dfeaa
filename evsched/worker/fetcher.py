"""How a consumer waits for jobs: in BLMOVE, or for a message that a job is ready. Both ways are a `Fetcher`.

BLMOVE moves a job into the worker's list the moment it is ready. But it occupies a connection and reads one list, so a
worker of many shards would need many connections. The messages for all its shards on one server arrive on one
connection (`notices.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol

from evsched import events, keys
from evsched.errors import FULL, StoreError
from evsched.runtime.loops import Pulse
from evsched.runtime.reconnect import Reconnect
from evsched.store.server import unblock
from evsched.store.worker_calls import Fetched
from evsched.transport.senders import DirectSender
from evsched.worker.exchange import ServedQueue
from evsched.worker.slots import QueueShare

_BRIEF: Final = 1.0
"""Seconds that the first BLMOVE after a failure blocks. Short, because only its reply shows that Redis accepts it."""

_UNBLOCK: Final = 0.05
"""Seconds between two tries to end a BLMOVE that waits."""


class FetchListener(Protocol):
    """Receives the reports of a fetcher."""

    def on_fetched(self, job_id: str) -> None:
        """Take over a job that was fetched; it has a slot."""
        ...

    def on_more(self) -> None:
        """Note that ready holds jobs, but no slot was free."""
        ...

    def on_unsure(self) -> None:
        """Note that the worker's list may hold a job that was not reported: a reply was lost."""
        ...


class Fetcher(Protocol):
    """Waits for the jobs of one queue while it is hungry.

    The consumer calls `asks` before it sends an exchange, `answered` when its `start` was answered, and then `feed`.
    """

    full = False
    """Redis's memory is full, so that BLMOVE is refused. Scripts are accepted, and `start` fetches too."""
    notified = False
    """A job is ready, and the worker has not asked for it yet."""

    @property
    def client(self) -> int | None:
        """The id at Redis of the connection that a BLMOVE may block; None = none does."""
        return None

    @property
    def pulses(self) -> list[Pulse]:
        return []

    @property
    def reason(self) -> str | None:
        """Why it gets no jobs; None = it does, or has not tried."""
        ...

    async def run(self) -> None:
        """Wait for jobs until stopped."""
        ...

    def asks(self, room: int) -> bool:
        """Note that `start` will ask for `room` jobs; return whether the worker then waits for a message."""
        return False

    def answered(self, reply: Fetched) -> None:
        """Note the reply of `start`."""

    def found(self, *, waits: bool) -> None:
        """Note whether Redis knows that the worker waits for a message, which it may have lost."""

    async def feed(self, *, hungry: bool) -> None:
        """Set whether to wait for a job: if slots are free and ready was empty.

        Raises:
            StoreDown, StoreRefused
        """
        ...

    def fetch_no_more(self) -> None:
        """Begin no other wait. For any thread; `stop` ends the present one."""
        ...

    async def stop(self) -> None:
        """End the wait. A job that has come meanwhile is handed back."""
        ...


class BlockingFetcher(Fetcher):
    """Waits in BLMOVE, on a connection of its own, and fetches one job after the other."""

    def __init__(self, served: ServedQueue, share: QueueShare, listener: FetchListener) -> None:
        url, timeout = served.runtime.config.url, served.runtime.times.reply_timeout
        self._served = served
        self._share = share
        self._listener = listener
        self._blocking = DirectSender(url, reply_timeout=timeout, near=keys.root(served.queue))
        self.reconnect = Reconnect("worker, fetching", served.runtime.emit, served.queue)
        self._hungry = asyncio.Event()
        self._stopping = False
        self._ended = asyncio.Event()
        self._ended.set()
        """`run` does not run. A queue that was never set up has no run to wait for."""

    @property
    def client(self) -> int | None:
        return self._blocking.client

    @property
    def pulses(self) -> list[Pulse]:
        return [self.reconnect.pulse]

    @property
    def reason(self) -> str | None:
        return self.reconnect.reason

    async def feed(self, *, hungry: bool) -> None:
        if hungry:
            self._hungry.set()
        else:
            self._hungry.clear()

    async def run(self) -> None:
        """Fetch when hungry, until stopped; then cut the connection."""
        times = self._served.runtime.times
        self._ended.clear()
        try:
            while not self._stopping:
                await self._hungry.wait()
                if self._stopping:
                    break
                async with self.reconnect:
                    self.reconnect.pulse.expect(times.probe_interval + times.reply_timeout)
                    await self._fetch()
        finally:
            self._ended.set()
            await self._blocking.close()

    def fetch_no_more(self) -> None:
        self._stopping = True

    async def stop(self) -> None:
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
        await self._served.runtime.sender.send(store.requeue(worker, reason, runs=[(job_id, "")]))
        self._served.runtime.emit(
            events.JobsRequeued(queue=store.queue, worker=worker, ids=[job_id], cause="busy", reason=reason)
        )
        self._listener.on_more()

    async def _block(self) -> str | None:
        """Wait for a job; return its id, None when there was none for as long as a BLMOVE waits."""
        client, block = self._blocking.client, self._served.runtime.times.probe_interval
        if self.reconnect.failures:
            block = min(block, _BRIEF)
        try:
            job_id = await self._blocking.send(self._served.store.fetch(self._served.worker, block), block)
        except StoreError as error:
            self.full = error.kind == FULL
            self._listener.on_unsure()
            # Redis may not have noticed that the connection is gone, and would still serve its BLMOVE.
            await self._served.runtime.sender.send(unblock(client or 0, keys.root(self._served.queue)))
            raise
        self.full = False
        return job_id


class NotifiedFetcher(Fetcher):
    """Waits for messages, which the worker gets while it is in the sorted set `idle`.

    `start` adds it in the same call in which it finds ready empty, and the script that puts a job into ready removes
    it. So the worker waits in `idle`, or has a message, or asks.
    """

    def __init__(self, served: ServedQueue, listener: FetchListener) -> None:
        self._served = served
        self.queue = served.queue
        self.channel = keys.idle(served.queue, served.worker)
        """The channel of the messages."""
        self._listener = listener
        self._hungry = False
        self.waiting = False
        """The worker is in `idle`, as far as it knows."""
        self._declines = False
        """There was no room when it was to ask for that job."""
        self._asked = False
        """The question that was sent last asked to wait."""
        self._stopping = False
        self._stopped = asyncio.Event()
        self._open = False
        """Messages arrive."""
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        return self._reason

    async def feed(self, *, hungry: bool) -> None:
        # Pass on the notice of a job for which there was no room when the worker was to ask. A notice that has come
        # since then is kept: the worker asks first, as it may have room.
        if self._declines:
            await self._decline()
        self._hungry = hungry
        self._ask()

    def _ask(self) -> None:
        if self._hungry and self._open and not self.waiting and not self._stopping:
            self._listener.on_more()

    def asks(self, room: int) -> bool:
        self._declines = self.notified and not room
        if room:
            self.notified = False
        self._asked = room > 0 and self._open and not self._stopping
        return self._asked

    def answered(self, reply: Fetched) -> None:
        self.waiting = reply.waits and not self.notified
        if self._asked and not (reply.waits or reply.jobs or reply.buried):
            self._listener.on_unsure()  # by Redis's list it holds all that it may: there are jobs that it does not know

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
        if not waits and self.waiting:
            self.waiting = False
            self._ask()

    # Called for the subscription.

    def opened(self) -> None:
        """Note that messages arrive from now on. Earlier ones may have been lost."""
        self._open, self._reason, self.waiting = True, None, False
        self._ask()

    def closed(self, reason: str) -> None:
        """Note that no messages arrive."""
        self._open, self._reason, self.waiting = False, reason, False

    async def on_notice(self) -> None:
        """Ask for a job that is ready, or pass it on if the worker stops."""
        self.notified, self.waiting = True, False
        if self._stopping:
            with contextlib.suppress(StoreError):
                await self._decline()
        else:
            self._listener.on_more()

    # Called by the consumer.

    async def run(self) -> None:
        """Wait until stopped, and pass on a notice that has come."""
        await self._stopped.wait()
        with contextlib.suppress(StoreError):
            await self._decline()

    def fetch_no_more(self) -> None:
        self._stopping = True

    async def stop(self) -> None:
        self.fetch_no_more()
        self._stopped.set()
