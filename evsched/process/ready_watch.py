"""The watch over ready: how a parent without worker processes learns that jobs wait, without asking again and again.

For each queue it has a connection on which a BLMOVE waits that leaves the job where it is. It ends for every parent and
worker that waits on the queue. So the parent then pauses, and starts a process only if jobs still wait: no worker has
fetched them. Of several parents the one starts a process that claims it first; the others look again when it has had
time to fetch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from evsched.config import Config
from evsched.errors import StoreError
from evsched.events import Emit
from evsched.runtime.reconnect import Reconnect
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender, BlockingSender

_PAUSE: Final = 0.05
"""Seconds that workers have to fetch a job, at first. A worker that has a free slot takes a millisecond."""

_PAUSE_MOST: Final = 1.0
"""The pause doubles up to this each time that workers have fetched the job: they serve the queue, so this parent is not
needed, and should not cost a command for each of their jobs. A process adds another to it after the same time."""

_CLAIM: Final = 2.0
"""Seconds for which a parent claims the start of a process: longer than a process takes until it fetches."""

_REFUSED_MOST: Final = 5
"""Claims that may be refused in a row. After those, claims do not end: Redis's clock was set back."""


class ReadyWatch:
    """Waits for jobs of queues for which this parent runs no worker process."""

    def __init__(self, config: Config, url: str, emit: Emit) -> None:
        self._config = config
        self._url = url
        self._emit = emit
        self._sender = BatchingSender(url, reply_timeout=config.reply_timeout)

    async def wait(self, queues: Sequence[str]) -> str:
        """Return the first queue whose jobs need a worker process, which this parent is to start."""
        watching = {asyncio.ensure_future(self._watch(Store(queue))): queue for queue in queues}
        try:
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            first = done.pop()
            first.result()
            return watching[first]
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await self._sender.close()

    async def _watch(self, store: Store) -> None:
        """Return when jobs of one queue need a process."""
        reconnect = Reconnect("parent, waiting for jobs", self._emit, store.queue)
        blocking = BlockingSender(self._url, reply_timeout=self._config.reply_timeout)
        pause, refused = _PAUSE, 0
        try:
            while True:
                async with reconnect:
                    began = time.monotonic()
                    if blocking.client is None:
                        await blocking.open()
                        reconnect.passed()  # Redis is back; otherwise reported when the BLMOVE returns
                    if not await self._arrives(store, blocking):
                        continue
                    pause = _PAUSE if time.monotonic() - began > _PAUSE_MOST else pause
                    await asyncio.sleep(pause)
                    if not await self._sender.send(store.is_ready()):
                        pause, refused = min(2 * pause, _PAUSE_MOST), 0
                    elif refused >= _REFUSED_MOST or await self._claim(store):
                        return
                    else:
                        refused += 1
                        await asyncio.sleep(_CLAIM)
        finally:
            await blocking.close()

    async def _arrives(self, store: Store, blocking: BlockingSender) -> bool:
        """Wait for a job, for the probe interval at most: a connection that is half open is then noticed.

        Raises:
            StoreDown, StoreRefused
        """
        block = self._config.probe_interval
        try:
            return await blocking.send(store.await_ready(block), block)
        except StoreError as error:
            if error.kind != "oom":
                raise
            return True  # Redis's memory is full, so it refuses BLMOVE; jobs run all the same

    async def _claim(self, store: Store) -> bool:
        try:
            return await self._sender.send(store.claim_start(_CLAIM))
        except StoreError as error:
            if error.kind != "oom":
                raise
            return True  # nobody can claim it, and the jobs free memory
