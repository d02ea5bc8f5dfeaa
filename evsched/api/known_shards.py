"""How many shards queues have, as the API knows it.

It is read at the start, and again by the first request after a while, so an API that nobody uses asks Redis nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from evsched.client.client import Client
from evsched.client.operations import ONCE_LIMIT, Send
from evsched.errors import StoreDown, StoreRefused
from evsched.shards import NONE, Shards, unread
from evsched.store import server

_KEPT: Final = 1.0
"""Seconds for which the numbers are used. A job runs in the shard in which it is scheduled, and a request that misses
one reads the numbers again. So old numbers do little harm: an id may be in its old home and in its new one."""

_AGAIN: Final = 5.0
"""Seconds until the next read after one that failed: each may hold up requests for a second."""


class KnownShards:
    """Keeps the numbers of a client up to date."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._read_at = -_AGAIN
        self._failed = False
        """Their node did not answer the last read."""
        self._reading: asyncio.Future[None] | None = None

    async def begin(self) -> None:
        """Read the numbers at the start, in case they cannot be read when the first request comes."""
        await self._read()
        self._read_at = -_AGAIN

    async def refresh(self) -> None:
        """Read the numbers, unless they were read just now. If Redis does not say them, those before hold.

        While their node does not answer, they cannot change. If they were never read, jobs go to the queue itself and
        jobs in shards are not seen: lists are not complete, and what changes a whole queue is refused (`spread.whole`).
        """
        if time.monotonic() - self._read_at < (_AGAIN if self._failed else _KEPT):
            return
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        await asyncio.shield(self._reading)  # a request that ends must not cancel the read of the others

    async def _read(self) -> None:
        self._failed = False
        try:
            self._client.shards = Shards(await self._client.perform(Send(server.shards(), limit=ONCE_LIMIT)))
        except StoreRefused:
            pass
        except StoreDown:
            self._failed = True
            if self._client.shards is NONE:
                self._client.shards = unread()
        finally:
            self._read_at, self._reading = time.monotonic(), None
