"""The watch over ready: how a parent without worker processes learns that one is needed, without polling.

For each queue it has a connection on which a BLMOVE waits that leaves the job where it is. It ends for every parent and
worker that waits on the queue. So the parent then pauses, and asks by `stand_by` if jobs still wait: no worker has
fetched them. `stand_by` also says whether Redis has lost what the app declares, and whether a task of the app is
sought: workers that do not know it get its jobs, again and again, and no live worker has it. As a worker sends a
heartbeat, the parent sends `stand_by` from time to time even if no job comes. It keeps the parent registered, so that
operators see that the queue is served.

Of several parents the one starts a process that claims it first; the others look again. The claim lasts until the
process has begun to fetch or has died: until then, the others still see the job. The parent stays registered until a
process fetches: one that does not start must not hide the parent that tries.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from evsched import keys
from evsched.config import Config
from evsched.errors import StoreError
from evsched.events import Emit
from evsched.process.reports import Ready
from evsched.runtime.new_id import new_id
from evsched.runtime.reconnect import Reconnect
from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.store.worker_calls import Need, Stance
from evsched.transport.call import Call
from evsched.transport.senders import BatchingSender, BlockingSender

_PAUSE: Final = 0.05
"""Seconds that workers have to fetch a job, at first. A worker that has a free slot takes a millisecond."""

_PAUSE_MOST: Final = 1.0
"""The pause doubles up to this each time that workers have fetched the job: they serve the queue, so this parent is not
needed, and should not cost a command for each of their jobs. A process adds another to it after the same time."""

_CLAIM: Final = 2.0
"""Seconds for which a parent claims the start of a process. It prolongs the claim, which so ends soon after a parent
that was killed."""

_CLAIM_MOST: Final = 30.0
"""Seconds for which it prolongs it: a process that takes longer may hang, and another host may be quicker."""

_REFUSED: Final = 2.0
"""Seconds after which a parent looks again whose claim was refused."""

_REFUSED_MOST: Final = 20
"""Claims that may be refused in a row. After those, 40 s, claims do not end: Redis's clock was set back."""

_LEAVE: Final = 1.0
"""Seconds that a parent takes at most to remove its registration, which ends by itself."""


class ReadyWatch:
    """Waits until a queue needs a worker process, for a parent without any.

    `last`: what its last process reported. `announced`: returns what is written to Redis of the app, by queue. Use
    `async with`: at its end the parent is no longer registered.
    """

    def __init__(self, config: Config, last: Ready, emit: Emit, announced: Callable[[str], Announced]) -> None:
        self._config = config
        self._last = last
        self._emit = emit
        self._announced = announced
        self._parent = new_id()
        self._sender = BatchingSender(last.url, reply_timeout=config.reply_timeout)

    async def __aenter__(self) -> ReadyWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_LEAVE):
                    await self._sender.send_all([Store(queue).stand_down(self._parent) for queue in self._last.queues])
        finally:
            await self._sender.close()

    async def wait(self, abandon: asyncio.Event) -> tuple[str, Need] | None:
        """Return the first queue that needs a worker process, whose start this parent has claimed, and why.

        `abandon`: when it is set, return None, and claim nothing.
        """
        watching = {asyncio.ensure_future(self._watch(Store(queue))): queue for queue in self._last.queues}
        abandoning = asyncio.ensure_future(abandon.wait())
        try:
            await asyncio.wait([*watching, abandoning], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*watching, abandoning):
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        found: list[tuple[str, Need]] = [(watching[task], task.result()) for task in watching if not task.cancelled()]
        for queue, _ in found if abandon.is_set() else found[1:]:
            await self.end_claim(queue)
        return None if abandon.is_set() else found[0]

    async def keep_claim(self, queue: str, started: Awaitable[object]) -> None:
        """Keep the claim until the process is `started`, or has failed to, and then end it."""
        waiting, store = asyncio.ensure_future(started), Store(queue)
        gives_up = time.monotonic() + _CLAIM_MOST
        try:
            while time.monotonic() < gives_up:
                await asyncio.wait([waiting], timeout=_CLAIM / 2)
                if waiting.done():
                    break
                with contextlib.suppress(StoreError):  # the claim ends by itself
                    await self._sender.send(store.prolong_start(_CLAIM))
        finally:
            waiting.cancel()
        await self.end_claim(queue)

    async def stay(self, serving: Awaitable[object]) -> None:
        """Keep the registration until a process is `serving`, however often it is started."""
        waiting = asyncio.ensure_future(serving)
        try:
            while True:
                await asyncio.wait([waiting], timeout=self._config.idle_heartbeat)
                if waiting.done():
                    return
                with contextlib.suppress(StoreError):  # the next one follows
                    await self._sender.send_all([self._stand_by(Store(queue), claim=0) for queue in self._last.queues])
        finally:
            waiting.cancel()

    async def end_claim(self, queue: str) -> None:
        """End the claim, so that others may start a process."""
        with contextlib.suppress(StoreError):  # it ends by itself
            await self._sender.send(Store(queue).end_start())

    async def _watch(self, store: Store) -> Need:
        """Return when one queue needs a process, and why."""
        reconnect = Reconnect("parent, waiting for jobs", self._emit, store.queue)
        pause, refused, next_look = _PAUSE, 0, 0.0
        async with self._connection(store) as blocking:
            while True:
                async with reconnect:
                    began = time.monotonic()
                    if blocking.client is None:
                        await blocking.open()
                        reconnect.passed()  # Redis is back; otherwise reported when the BLMOVE returns
                    if began < next_look:
                        if await self._arrives(store, blocking, next_look - began):
                            pause = _PAUSE if time.monotonic() - began > _PAUSE_MOST else pause
                            await asyncio.sleep(pause)
                            pause = min(2 * pause, _PAUSE_MOST)
                        elif time.monotonic() < next_look:
                            continue
                    found = await self._sender.send(self._stand_by(store, _CLAIM))
                    next_look = time.monotonic() + self._config.idle_heartbeat
                    if not found.need:
                        refused = 0
                    elif found.claimed or refused >= _REFUSED_MOST:
                        return found.need
                    else:
                        refused, next_look = refused + 1, 0.0
                        await asyncio.sleep(_REFUSED)

    def _stand_by(self, store: Store, claim: float) -> Call[Stance]:
        announced, lease = self._announced(store.queue), self._config.idle_lease
        return store.stand_by(self._parent, announced, lease=lease, claim=claim)

    @contextlib.asynccontextmanager
    async def _connection(self, store: Store) -> AsyncGenerator[BlockingSender]:
        near, timeout = keys.root(store.queue), self._config.reply_timeout
        blocking = BlockingSender(self._last.url, reply_timeout=timeout, near=near)
        try:
            yield blocking
        finally:
            await blocking.close()

    async def _arrives(self, store: Store, blocking: BlockingSender, most: float) -> bool:
        """Wait for a job, for the probe interval at most: a connection that is half open is then noticed.

        Raises:
            StoreDown, StoreRefused
        """
        block = min(self._config.probe_interval, max(most, _PAUSE))
        try:
            return await blocking.send(store.await_ready(block), block)
        except StoreError as error:
            if error.kind != "oom":
                raise
            return True  # Redis's memory is full, so it refuses BLMOVE; jobs run all the same
