"""A request as a handler sees it: its path, query and body are read and checked, and its caller may do this."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct
from starlette.datastructures import Headers

from evsched.api.known_shards import KnownShards
from evsched.api.problem import Problem
from evsched.client.client import Client
from evsched.config import Config
from evsched.store.store import Store

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
        """Return what `ending` returns within so many seconds; None if the server stops, or the caller is `gone`.

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
        """The id of the job."""
        return self.path["id"]

    @property
    def name(self) -> str:
        """The name of the recurrence, calendar or window."""
        return self.path["name"]

    @property
    def store(self) -> Store:
        """The calls of the queue."""
        return self.client.store(self.queue)

    @property
    def stores(self) -> list[Store]:
        """The calls of the queue and of each of its shards."""
        return self.client.stores(self.queue)

    def limit(self, given: int) -> int:
        """Return how many rows to list: those that were asked for, up to the server's limit."""
        return min(given, self.config.api_list_cap)


Request = Asked[Any, Any]
