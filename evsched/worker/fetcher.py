"""How a consumer waits for jobs: for messages on a connection that all queues on one server share (`notices.py`).

BLMOVE, in which foreign workers wait, occupies a connection and reads one list. And what it moves must be started by
another call, while a message brings the job itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final, Protocol

from evsched import events, keys
from evsched.errors import StoreError
from evsched.store.worker_calls import Fetched, Handed, read_handed
from evsched.worker.exchange import ServedQueue
from evsched.worker.slots import QueueShare

_FRESH: Final = 1 / 7
"""The part of the lease up to which the message of a hand-over may begin its run. The run is this worker's for the
whole lease, and the heartbeat that the run causes comes within another 5/14 of it."""

_SET_BACK: Final = 0.05
"""Seconds by which a message may be newer than it can be, by rounding and jitter. Beyond, Redis's clock was set."""

_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> float:
    """Return the seconds since this machine was started. Unlike the monotonic clock, it counts while suspended."""
    return time.clock_gettime(_BOOT_CLOCK)


async def hand_back_one(served: ServedQueue, job_id: str, run: str) -> None:
    """Hand back a run for which no slot is free.

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

    def on_more(self) -> None:
        """Note that ready holds jobs, but no slot was free."""
        ...

    async def on_handed(self, handed: Handed, age: float | None) -> None:
        """Begin a job that was handed over, `age` seconds ago at most. None = ask first whether it is still ours."""
        ...

    def on_unsure(self) -> None:
        """Note that the worker's list may hold a job that was not reported: a reply was lost."""
        ...


class Fetcher:
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
        self.notified = False
        """A job is ready, and the worker has not asked for it yet."""
        self._slots = share.slots
        self._listener = listener
        self._hungry = False
        self.waiting = False
        """The worker is in `idle`, as far as it knows."""
        self._declines = False
        """There was no room when it was to ask for that job."""
        self._ticket = 0
        """The last ticket. It never comes again in the life of a worker."""
        self._seats: list[int] = []
        """That ticket, while a job may be handed over with it. Who takes it out may begin the job, or return it."""
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
        """Why it gets no jobs; None = it does, or has not tried."""
        return self._reason

    # Called by the consumer: `asks` before it sends an exchange, then `answered`, `settled` and `feed`.

    async def feed(self, *, hungry: bool) -> None:
        """Set whether to wait for a job: if slots are free and ready was empty.

        Raises:
            StoreDown, StoreRefused
        """
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
        """Note that the exchange asks for `room` jobs, and whether it calls `start`; return the ticket for that."""
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
            if self._slots.take_seat():
                self._seats.append(self._ticket)
            self._asked = self._ticket if self._seats else 0
        return self._asked

    def answered(self, reply: Fetched, known: int) -> None:
        """Note the reply of `start`. `known`: how many jobs of the worker's list are known."""
        self._clock = reply.now, self._asked_at
        if not reply.waits:
            self.forget()
        self.waiting = reply.waits and not self.notified and (bool(self._seats) or self._asked == 0)
        if reply.held > known:
            self._listener.on_unsure()

    def settled(self) -> None:
        """Note that the slots of the last question are used, or free again."""
        self._slots.asked -= self._room
        self._room = 0

    def forget(self) -> bool:
        """Take no job that was handed over before. Return whether one could be begun until now."""
        self.waiting = False
        if self.end_seat() is None:
            return False
        self._slots.seats -= 1
        return True

    @property
    def expects(self) -> bool:
        """Whether Redis may send a message, perhaps before the reply to the question has come. For any thread."""
        return self.waiting or bool(self._seats)

    def end_seat(self) -> int | None:
        """Let no message begin a job any more; return the ticket, None = no message could. For any thread."""
        try:
            return self._seats.pop()  # atomic: the event loop and the watch of it may both try
        except IndexError:
            return None

    def seat_ended(self) -> None:
        """Note that `end_seat` was called in another thread, and that the worker waits for no message: ask again."""
        self._slots.seats -= 1
        self.left_idle()

    def left_idle(self) -> None:
        """Note that Redis sends no message: ask again."""
        self.waiting = False
        self._ask()

    async def _decline(self) -> bool:
        return await self._served.runtime.sender.send(self._served.store.decline(self._served.worker))

    async def is_kept(self) -> bool:
        """Return False if Redis has lost that the worker waits.

        Raises:
            StoreDown, StoreRefused
        """
        return await self._served.runtime.sender.send(self._served.store.is_idle(self._served.worker))

    def found(self, *, waits: bool, now: float, sent: float) -> None:
        """Note whether Redis knows that the worker waits for a message, which it may have lost.

        `now`: when Redis answered, by its clock. `sent`: when it was asked, in seconds since boot.
        """
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
            try:
                handed = read_handed(message)
            except ValueError:
                self._listener.on_unsure()
                return
            if handed.ticket == self._ticket and not self._stopping and self.forget():
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
        """Take no other job. For any thread; `stop` ends the wait."""
        self._stopping = True

    def stop(self) -> None:
        """End the wait. A job that was handed over meanwhile is handed back."""
        self.fetch_no_more()
        self._stopped.set()
