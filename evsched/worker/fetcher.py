"""How a consumer waits for jobs: in BLMOVE, or for a message that a job is ready. Both ways are a `Fetcher`.

BLMOVE moves a job into the worker's list the moment it is ready. But it occupies a connection and reads one list, so a
worker of many shards would need many connections. The messages for all its shards on one server arrive on one
connection (`notices.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final, Protocol

from evsched import events, keys
from evsched.errors import FULL, StoreError
from evsched.runtime.loops import Pulse
from evsched.runtime.reconnect import Reconnect
from evsched.store.server import unblock
from evsched.store.worker_calls import Fetched, Handed, read_handed
from evsched.transport.senders import DirectSender
from evsched.worker.exchange import ServedQueue
from evsched.worker.slots import QueueShare

_BRIEF: Final = 1.0
"""Seconds that the first BLMOVE after a failure blocks. Short, because only its reply shows that Redis accepts it."""

_UNBLOCK: Final = 0.05
"""Seconds between two tries to end a BLMOVE that waits."""

_FRESH: Final = 1 / 7
"""The part of the lease up to which the message of a hand-over may begin its run. The run is this worker's for the
whole lease, and the heartbeat that the run causes comes within another 5/14 of it."""

_SET_BACK: Final = 0.05
"""Seconds by which a message may be newer than it can be, by rounding and jitter. Beyond, Redis's clock was set."""

_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> float:
    """Return the seconds since this machine was started. Unlike the monotonic clock, it counts while suspended."""
    return time.clock_gettime(_BOOT_CLOCK)


async def hand_back_one(served: ServedQueue, job_id: str, run: str = "") -> None:
    """Hand back a job for which no slot is free. `run`: as `start` named it; "" = it has not been started.

    Raises:
        StoreDown, StoreRefused
    """
    store, worker, reason = served.store, served.worker, "no slot was free"
    await served.runtime.sender.send(store.requeue(worker, reason, runs=[(job_id, run)]))
    served.runtime.emit(
        events.JobsRequeued(queue=store.queue, worker=worker, ids=[job_id], cause="busy", reason=reason)
    )


class FetchListener(Protocol):
    """Receives the reports of a fetcher."""

    def on_fetched(self, job_id: str) -> None:
        """Take over a job that was fetched; it has a slot."""
        ...

    def on_more(self) -> None:
        """Note that ready holds jobs, but no slot was free."""
        ...

    async def on_handed(self, handed: Handed, age: float | None) -> None:
        """Begin a job that was handed over, `age` seconds ago at most. None = ask first whether it is still ours."""
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

    def asks(self, room: int, *, starts: bool) -> int | None:
        """Note that the exchange asks for `room` jobs, and whether it calls `start`; return the ticket for that."""
        return None

    def answered(self, reply: Fetched, known: int) -> None:
        """Note the reply of `start`. `known`: how many jobs of the worker's list are known."""

    def settled(self) -> None:
        """Note that the slots of the last question are used, or free again."""

    def found(self, *, waits: bool, now: float, sent: float) -> None:
        """Note whether Redis knows that the worker waits for a message, which it may have lost.

        `now`: when Redis answered, by its clock. `sent`: when it was asked, in seconds since boot.
        """

    def forget(self) -> None:
        """Take no message that was sent before: the worker reads its list, or has lost its lease."""

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
        await hand_back_one(self._served, job_id)
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

    With each question the worker sends a new ticket, and it takes a job that is handed over only with the last one:
    any other job may have been put back since. A ticket ends when the next question is sent, when its message has come,
    when the worker's list is read, and when the subscription or the lease is lost. A job whose message is refused or
    lost is in the worker's list, and the next reply of `start` says that it holds more than is known.
    """

    def __init__(self, served: ServedQueue, share: QueueShare, listener: FetchListener) -> None:
        self._served = served
        self.queue = served.queue
        self.channel = keys.idle(served.queue, served.worker)
        """The channel of the messages."""
        self._slots = share.slots
        self._listener = listener
        self._hungry = False
        self.waiting = False
        """The worker is in `idle`, as far as it knows."""
        self._declines = False
        """There was no room when it was to ask for that job."""
        self._ticket = 0
        """The last ticket. It never comes again in the life of a worker."""
        self._seated = False
        """A job with that ticket may be handed over."""
        self._asked: int | None = None
        """The ticket of the question that was sent last, 0 = it waits for an empty message; None = it does not wait."""
        self._room = 0
        """How many slots are reserved for its reply, until that has come, or is lost."""
        self._asked_at = 0.0
        """When it was sent, in seconds since boot."""
        self._clock: tuple[float, float] | None = None
        """The last known time of Redis's clock, and when Redis was asked for it, in seconds since boot."""
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
            self.notified = self._declines = False
            await self._decline()
        self._hungry = hungry
        self._ask()

    def _ask(self) -> None:
        if self._hungry and self._open and not self.waiting and not self._stopping:
            self._listener.on_more()

    def asks(self, room: int, *, starts: bool) -> int | None:
        self._declines = self.notified and not room
        if room:
            self.notified = False
        if not starts:
            return None
        self.forget()
        self._room = room
        self._slots.asked += room
        self._asked, self._asked_at = None, since_boot()
        if room > 0 and self._open and not self._stopping:
            self._ticket += 1
            self._seated = self._slots.take_seat()
            self._asked = self._ticket if self._seated else 0
        return self._asked

    def answered(self, reply: Fetched, known: int) -> None:
        self._clock = reply.now, self._asked_at
        if not reply.waits:
            self.forget()
        self.waiting = reply.waits and not self.notified and (self._seated or self._asked == 0)
        if reply.held > known:
            self._listener.on_unsure()

    def settled(self) -> None:
        self._slots.asked -= self._room
        self._room = 0

    def forget(self) -> None:
        self._slots.seats -= self._seated
        self._seated = self.waiting = False

    async def _decline(self) -> bool:
        return await self._served.runtime.sender.send(self._served.store.decline(self._served.worker))

    async def is_kept(self) -> bool:
        """Return False if Redis has lost that the worker waits.

        Raises:
            StoreDown, StoreRefused
        """
        return await self._served.runtime.sender.send(self._served.store.is_idle(self._served.worker))

    def found(self, *, waits: bool, now: float, sent: float) -> None:
        if self._clock is None or sent > self._clock[1]:
            self._clock = now, sent
        if not waits:
            self.missed()

    def missed(self) -> None:
        """Note that Redis does not know that the worker waits: ask again, if the worker believes that it does."""
        if self.waiting:
            self.forget()
            self._ask()

    # Called for the subscription.

    def opened(self) -> None:
        """Note that messages arrive from now on. Earlier ones may have been lost."""
        self._open, self._reason = True, None
        self.forget()
        self._listener.on_unsure()
        self._ask()

    def closed(self, reason: str) -> None:
        """Note that no messages arrive."""
        self._open, self._reason = False, reason
        self.forget()

    async def on_notice(self, message: bytes) -> None:
        """Take a job that was handed over; or ask for a job that is ready, or pass it on if the worker stops."""
        if message:
            handed = read_handed(message)
            if self._seated and handed.ticket == self._ticket and not self._stopping:
                self.forget()
                await self._listener.on_handed(handed, self._age(handed.now))
            return
        self.notified = True
        self.forget()
        if self._stopping:
            self.notified = False
            with contextlib.suppress(StoreError):
                await self._decline()
        else:
            self._listener.on_more()

    def _age(self, moment: float) -> float | None:
        """Return how old a message is at most, by Redis's clock; None if it may be too old to prove anything.

        A process may have been stopped, or its machine suspended, while the message waited in its socket.
        """
        if self._clock is None:
            return None
        now, sent = self._clock
        age = now + since_boot() - sent - moment
        return max(0.0, age) if -_SET_BACK <= age <= self._served.runtime.times.lease * _FRESH else None

    # Called by the consumer.

    async def run(self) -> None:
        """Wait until stopped, and wait for no message any more; pass on a notice that has come."""
        await self._stopped.wait()
        waiting = self.waiting
        self.notified = False
        self.forget()
        with contextlib.suppress(StoreError):
            if await self._decline() or not waiting:
                return
        self._listener.on_unsure()  # a job was handed over meanwhile, or that is not known

    def fetch_no_more(self) -> None:
        self._stopping = True

    async def stop(self) -> None:
        self.fetch_no_more()
        self._stopped.set()
