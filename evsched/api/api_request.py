"""A request as a handler sees it: path, query and body are checked, and its caller may do this.

The API also keeps how many shards queues have: read at the start, and again by the first request after a while, so an
API that nobody uses asks Redis nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct
from starlette.datastructures import Headers

from evsched.api.problem import Problem
from evsched.client.client import Client
from evsched.client.operations import once
from evsched.client.spread import read_all_shards
from evsched.config import Config
from evsched.errors import ShardsUnread
from evsched.shards import NONE, unread
from evsched.store.store import Store

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
        """Refuse a request that may concern a job in a shard, if the numbers of shards were never read.

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


T = TypeVar("T")
Body = TypeVar("Body")
Query = TypeVar("Query")


EXAMINED_MOST: Final = 100_000
"""Jobs that a request with a filter examines at most: about 1.5 s of Redis's time, in slices of 2 ms."""


class Waiters:
    """The requests that wait for the end of a job: each has a connection to Redis of its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._now = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let no request wait any longer, because the server stops."""
        self._stopping.set()

    async def wait(
        self, seconds: float, ending: Coroutine[Any, Any, T], gone: Callable[[], Coroutine[Any, Any, None]]
    ) -> T | None:
        """Return the result of `ending` within this many seconds; None if the server stops, or the caller is `gone`.

        Raises:
            Problem: too many wait.
        """
        if seconds <= 0:
            return await ending
        if self._now >= self._most:
            ending.close()
            detail = "too many requests wait for the end of a job: look again later, or wait for fewer jobs"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-waiting", detail, {"Retry-After": "1"})
        self._now += 1
        work = asyncio.ensure_future(ending)
        others = [asyncio.ensure_future(gone()), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait([work, *others], return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            self._now -= 1
            for task in (work, *others):
                task.cancel()
            await asyncio.gather(work, *others, return_exceptions=True)


class Asked(Struct, Generic[Body, Query], frozen=True, kw_only=True):
    """A request. `base`: the path under which the API is mounted; '' = none."""

    client: Client
    shards: KnownShards
    config: Config
    waiters: Waiters
    base: str
    path: Mapping[str, str]
    headers: Headers
    caller: str
    """A digest of the caller's token; "" = it needs none."""
    gone: Callable[[], Coroutine[Any, Any, None]]
    """Returns when the caller has closed the connection. Only for requests without a body."""
    body: Body
    query: Query

    @property
    def queue(self) -> str:
        return self.path["queue"]

    @property
    def job(self) -> str:
        return self.path["id"]

    @property
    def name(self) -> str:
        return self.path["name"]

    @property
    def store(self) -> Store:
        return self.client.store(self.queue)

    @property
    def stores(self) -> list[Store]:
        """The calls of the queue and of each of its shards."""
        return self.client.stores(self.queue)

    def limit(self, given: int) -> int:
        """Return how many rows to list: as many as were asked for, up to the server's limit."""
        return min(given, self.config.api_list_cap)


Request = Asked[Any, Any]
