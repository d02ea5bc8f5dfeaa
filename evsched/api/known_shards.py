"""How many shards queues have, as the API knows it.

The first request after a while reads it again, so an API that nobody uses asks Redis nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from evsched.client.client import Client
from evsched.client.operations import Send
from evsched.errors import StoreDown, StoreRefused
from evsched.shards import Shards
from evsched.store import server

_KEPT: Final = 1.0
"""Seconds for which the numbers are used. A job runs in whichever shard it is scheduled, and whoever misses one reads
the numbers anew. So old numbers do little harm: an id may be scheduled twice, in its old home and in its new one."""


class KnownShards:
    """Keeps the numbers of a client up to date."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._read_at = -_KEPT
        self._known = False
        """They were read, or Redis has refused to say them."""
        self._reading: asyncio.Future[None] | None = None

    async def refresh(self) -> None:
        """Read the numbers, unless they were read just now. If Redis does not say them, those before hold.

        Raises:
            StoreDown: they were never read.
        """
        if time.monotonic() - self._read_at < _KEPT:
            return
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        await asyncio.shield(self._reading)  # a request that ends must not cancel the read of the others

    async def _read(self) -> None:
        try:
            self._client.shards = Shards(await self._client.perform(Send(server.shards())))
            self._read_at, self._known = time.monotonic(), True
        except StoreRefused:
            self._read_at, self._known = time.monotonic(), True
        except StoreDown:
            if not self._known:
                raise
        finally:
            self._reading = None
