"""The other way to wait for jobs, without BLMOVE: Redis tells the worker by a message that a job is ready.

A BLMOVE occupies a connection and reads one list, so a worker of many shards would need many connections. The messages
for all its shards on one server arrive on one (`notices.py`). The worker gets them while it is in the sorted set
`idle`: `start` adds it in the same call in which it finds ready empty, and the script that puts a job into ready takes
it out. So it waits in `idle`, or has a message, or asks.
"""

from __future__ import annotations

import asyncio
import contextlib

from evsched import keys
from evsched.errors import StoreError
from evsched.runtime.pulse import Pulse
from evsched.store.workers import Fetched
from evsched.transport.senders import SyncSender
from evsched.worker.fetcher import FetchListener
from evsched.worker.served_queue import ServedQueue


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
