"""How many shards queues have, as the API knows it.

It is read at the start, and again by the first request after a while, so an API that nobody uses asks Redis nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from evsched.client.client import Client
from evsched.client.operations import once
from evsched.client.spread import read_all_shards
from evsched.errors import ShardsUnread
from evsched.shards import NONE, unread

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
        self._failed: ShardsUnread | None = None
        """Why the last read failed."""
        self._reading: asyncio.Future[None] | None = None

    async def begin(self) -> None:
        """Read the numbers at the start, in case they cannot be read when the first request comes."""
        await self._read()
        self._read_at = -_AGAIN

    async def refresh(self) -> None:
        """Read the numbers, unless they were read just now. If Redis does not say them, those before hold.

        While their node does not answer, they cannot change. If they were never read, a new job of a random id goes to
        the queue itself, lists are not complete, and other requests that may concern a shard are refused (`check`).
        """
        if time.monotonic() - self._read_at < (_AGAIN if self._failed else _KEPT):
            return
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        await asyncio.shield(self._reading)  # a request that ends must not cancel the read of the others

    @property
    def known(self) -> bool:
        """Whether the numbers were ever read, or Redis refused to say them."""
        return self._client.shards.learned is not False

    def check(self) -> None:
        """Refuse what may concern a job in a shard, if the numbers were never read.

        Raises:
            ShardsUnread
        """
        if self._failed is not None and not self.known:
            raise self._failed.with_traceback(None)

    async def _read(self) -> None:
        try:
            found, self._failed = await self._client.run(once(read_all_shards())), None
            if found is not NONE or not self.known:  # NONE: Redis refuses to say them
                self._client.shards = found
        except ShardsUnread as error:
            self._failed = error
            if self._client.shards is NONE:
                self._client.shards = unread()
        finally:
            self._read_at, self._reading = time.monotonic(), None
