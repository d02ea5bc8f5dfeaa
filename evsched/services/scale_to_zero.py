"""How a parent without worker processes learns that one is needed, without polling: it watches the ready lists.

For each queue it has a connection with a waiting BLMOVE that leaves the job where it is. A job ends the BLMOVE of every
parent and worker that waits on the queue. So the parent then pauses, and asks by `stand_by` whether jobs still wait,
because no worker has fetched them. `stand_by` also says whether Redis has lost the declarations of the app, and whether
a task of the app is *sought*: its jobs go again and again to workers that do not know it, and no live worker has it.
The parent also sends `stand_by` from time to time without a job, as a worker sends a heartbeat. That keeps it
registered, so that operators see that the queue is served.

If there are several parents, the first one to claim the start of a process starts it, and the others look again. The
claim lasts until the process has begun to fetch or has died: until then, the others still see the job. The parent stays
registered until a process fetches: a process that does not start must not hide the parent that tries.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from evsched import keys, shard_map
from evsched.config import Config
from evsched.errors import StoreError
from evsched.events import Emit
from evsched.lease import Times
from evsched.runtime.loops import Runtime, background, first_of
from evsched.runtime.reconnect import Reconnect
from evsched.services.worker_process import WorkerReady
from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.store.worker_calls import Need, Stance
from evsched.transport.call import Call
from evsched.transport.senders import BatchingSender, DirectSender

_PAUSE: Final = 0.05
"""Seconds that workers have to fetch a job, at first. A worker that has a free slot takes a millisecond."""

_PAUSE_MOST: Final = 1.0
"""The pause doubles up to this each time that workers have fetched the job: they serve the queue, so this parent is not
needed, and should not cost a command for each of their jobs. A process adds another to it after the same time."""

_CLAIM: Final = 2.0
"""Seconds for which a parent claims the start of a process. It prolongs the claim, so the claim of a parent that was
killed ends soon."""

_CLAIM_MOST: Final = 30.0
"""Seconds after which it prolongs the claim no more: the process may hang, and another host may be quicker."""

_REFUSED: Final = 2.0
"""Seconds after which a parent whose claim was refused looks again."""

_REFUSED_MOST: Final = 20
"""Claims that may be refused in a row. After those, 40 s, claims do not end: Redis's clock was set back."""

_LEAVE: Final = 1.0
"""Seconds that a parent takes at most to remove its registration, which ends by itself."""


class ReadyWatch:
    """Waits until a queue needs a worker process, for a parent without any.

    `last`: what its last process reported. `announced`: returns the announcements of the app, by queue. Use
    `async with`: at its end the parent is no longer registered.
    """

    def __init__(
        self, config: Config, times: Times, last: WorkerReady, emit: Emit, announced: Callable[[str], Announced]
    ) -> None:
        sender = BatchingSender(last.url, reply_timeout=times.reply_timeout)
        self._runtime = Runtime(config, sender, emit, made_times=times)
        self._last = last
        self._announced = announced
        self._parent = keys.new_id()

    async def __aenter__(self) -> ReadyWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_LEAVE):
                    await self._runtime.sender.send_all(
                        [Store(queue).stand_down(self._parent) for queue in self._last.queues]
                    )
        finally:
            await self._runtime.sender.close()

    async def wait(self, abandon: asyncio.Event) -> tuple[str, Need] | None:
        """Return the first queue that needs a worker process, whose start this parent has claimed, and why.

        `abandon`: when it is set, return None, and claim nothing.
        """
        await shard_map.learn_lease(self._runtime)
        watches = (self._watch(Store(queue)) for queue in self._last.queues)
        async with background(*watches, abandon.wait(), shard_map.follow_lease(self._runtime)) as tasks:
            await first_of(tasks)
        ended = zip(self._last.queues, tasks, strict=False)
        found: list[tuple[str, Need]] = [(queue, task.result()) for queue, task in ended if not task.cancelled()]
        for queue, _ in found if abandon.is_set() else found[1:]:
            await self.end_claim(queue)
        return None if abandon.is_set() else found[0]

    async def hand_over(
        self, queue: str, started: Callable[[], Awaitable[object]], serving: Callable[[], Awaitable[object]]
    ) -> None:
        """Keep the claim until the process has `started`, or failed to, and the registration until it is `serving`.

        Each waits for that. The process may be started several times before it serves.
        """

        def register() -> list[Call[Stance]]:
            return [self._stand_by(Store(queue), claim=0) for queue in self._last.queues]

        async with background(self._repeat(register, self._runtime.times.safety_cap)):
            prolonging = self._repeat(lambda: [Store(queue).prolong_start(_CLAIM)], _CLAIM / 2)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLAIM_MOST), background(prolonging):
                    await started()
            await self.end_claim(queue)
            await serving()

    async def _repeat(self, calls: Callable[[], Sequence[Call[Any]]], every: float) -> None:
        """Send these calls every `every` seconds until cancelled.

        A call that fails is not repeated before its turn: claim and registration last longer than that.
        """
        while True:
            await asyncio.sleep(every)
            with contextlib.suppress(StoreError):
                await self._runtime.sender.send_all(calls())

    async def end_claim(self, queue: str) -> None:
        """End the claim, so that others may start a process."""
        with contextlib.suppress(StoreError):  # it ends by itself
            await self._runtime.sender.send(Store(queue).end_start())

    async def _watch(self, store: Store) -> Need:
        """Return when one queue needs a process, and why."""
        reconnect = Reconnect("parent, waiting for jobs", self._runtime.emit, store.queue)
        pause, refused, next_look = _PAUSE, 0, 0.0
        blocking = DirectSender(
            self._last.url, reply_timeout=self._runtime.times.reply_timeout, near=keys.root(store.queue)
        )
        try:
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
                    found = await self._runtime.sender.send(self._stand_by(store, _CLAIM))
                    next_look = time.monotonic() + self._runtime.times.safety_cap
                    if not found.need:
                        refused = 0
                    elif found.claimed or refused >= _REFUSED_MOST:
                        return found.need
                    else:
                        refused, next_look = refused + 1, 0.0
                        await asyncio.sleep(_REFUSED)
        finally:
            await blocking.close()

    def _stand_by(self, store: Store, claim: float) -> Call[Stance]:
        announced, lease = self._announced(store.queue), self._runtime.times.idle_lease
        return store.stand_by(self._parent, announced, lease=lease, claim=claim)

    async def _arrives(self, store: Store, blocking: DirectSender, most: float) -> bool:
        """Wait for a job, for the probe interval at most: a connection that is half open is then noticed.

        Raises:
            StoreDown, StoreRefused
        """
        block = min(self._runtime.times.probe_interval, max(most, _PAUSE))
        try:
            return await blocking.send(store.await_ready(block), block)
        except StoreError as error:
            if error.kind != "oom":
                raise
            return True  # Redis's memory is full, so it refuses BLMOVE; jobs run all the same
