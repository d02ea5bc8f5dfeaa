"""A request as a handler sees it: its path is checked, and its caller may do this.

The API also keeps how many shards queues have: read at the start, and again by the first request after a while, so an
API that nobody uses asks Redis nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import Request

from evsched.api.replies import Problem, invalid
from evsched.client.client import Client
from evsched.client.operations import once
from evsched.client.spread import read_all_shards
from evsched.config import Config
from evsched.errors import ShardsUnread
from evsched.events import Emit
from evsched.remote.remote_worker import RemoteWorker
from evsched.runtime.loops import background, first_of
from evsched.shards import NONE, Shards, unread
from evsched.store.queue import IdempotentRequest
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
        self._reading = asyncio.Lock()

    async def refresh(self) -> None:
        """Read the numbers, unless they were read just now. If Redis does not return them, the last ones hold.

        While their node does not answer, they cannot change. If they were never read, a new job of a random id goes to
        the queue itself, lists are not complete, and other requests that may concern a shard are refused (`check`).
        """
        async with self._reading:
            if time.monotonic() - self._read_at >= (_AGAIN if self._failed else _KEPT):
                await self.read()
                self._read_at = time.monotonic()

    async def read(self) -> None:
        """Read the numbers now. Called at the start, in case they cannot be read when the first request comes."""
        try:
            found, self._failed = await self._client.run(once(read_all_shards())), None
            if found is not NONE or not self.known:  # NONE: Redis refuses to return them
                self._client.shards = found
        except ShardsUnread as error:
            self._failed = error
            if self._client.shards is NONE:
                self._client.shards = unread()

    @property
    def known(self) -> bool:
        """Whether the numbers were ever read, or Redis refused to return them."""
        return self._client.shards.learned is not False

    def check(self) -> None:
        """Refuse a request that may concern a job in a shard, if the numbers of shards were never read.

        Raises:
            ShardsUnread
        """
        if self._failed is not None and not self.known:
            raise self._failed.with_traceback(None)


T = TypeVar("T")

EXAMINED_MOST: Final = 100_000
"""Jobs that a request with a filter examines at most: about 1.5 s of Redis's time, in slices of 2 ms."""


class Waiters:
    """The requests that wait for something, such as the end of a job."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._now = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let no request wait any longer, because the server stops."""
        self._stopping.set()

    async def wait(self, http: Request, ending: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `ending`; None if the server stops, or the caller closes the connection, before it.

        Raises:
            Problem: too many wait.
        """
        if self._now >= self._most:
            ending.close()
            detail = "too many requests wait: ask again later, or start another process of the API"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-waiting", detail, {"Retry-After": "1"})
        self._now += 1
        try:
            async with background(ending, _disconnect(http), self._stopping.wait()) as (work, *others):
                await first_of((work, *others))
                return work.result() if work.done() else None
        finally:
            self._now -= 1


class WaitingFetches(Waiters):
    """The fetches that wait for a job. One at a time of a queue waits in Redis, so a job does not wake them all."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._turns = WeakValueDictionary[str, asyncio.Lock]()

    def turn(self, queue: str) -> asyncio.Lock:
        """Return the lock that a fetch holds while it waits in Redis. The one that came first gets it first."""
        return self._turns.setdefault(queue, asyncio.Lock())


async def _disconnect(http: Request) -> None:
    """Return when the caller of a request whose body has been read has closed the connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def check_served(config: Config, shards: Shards, queue: str) -> None:
    """Refuse a queue that this server does not serve.

    Raises:
        Problem
    """
    if config.queues and not {queue, shards.whole(queue)} & {*config.queues}:
        served = ", ".join(config.queues)
        raise Problem(HTTPStatus.FORBIDDEN, "queue-not-allowed", f"queue {queue} is not served here: only {served}")


class ApiRequest(Struct, frozen=True):
    """A request, and the state of the application that handles it."""

    client: Client
    shards: KnownShards
    config: Config
    waiters: Waiters
    fetches: WaitingFetches
    emit: Emit
    http: Request
    caller: str
    """A digest of the caller's token; "" = it needs none."""

    @property
    def queue(self) -> str:
        return self.http.path_params["queue"]

    @property
    def job(self) -> str:
        return self.http.path_params["id"]

    @property
    def name(self) -> str:
        return self.http.path_params["name"]

    @property
    def worker(self) -> RemoteWorker:
        """The worker that sends the request."""
        return RemoteWorker(self.client, self.config, self.emit, self.queue, self.http.path_params["worker"])

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

    def check_served(self, queue: str) -> None:
        """Refuse a queue of the body that the API does not serve, as one of the path."""
        check_served(self.config, self.client.shards, queue)

    def location(self, path: str) -> dict[str, str]:
        """Return the header with the address of something new. `path`: its path below that of the queue."""
        return {"Location": f"{self.http.scope.get('root_path', '')}/v1/queues/{self.queue}/{path}"}

    def once(self, path: str, body: Any) -> IdempotentRequest | None:
        """Return the key of a request with a digest of the request; None if it has no key. A key belongs to its caller.

        Two requests ask for the same if their paths and the values in their bodies are the same; the order of fields
        and the spaces between them do not count. `path`: below that of the queue.

        Raises:
            Problem: the body is nested too deeply.
        """
        key = idempotency_key(self.http.headers)
        if key is None:
            return None
        try:
            return IdempotentRequest(_digest(key, self.caller), _digest(path, body))
        except RecursionError:
            raise invalid("the body is nested too deeply") from None


_KEY_MOST: Final = 255
"""Characters of a key."""

_DIGITS: Final = 32
"""Hex digits of a digest: 128 bits."""


def idempotency_key(headers: Headers) -> str | None:
    """Return the Idempotency-Key of a request, which is done once, and whose repetitions get the same reply.

    Raises:
        Problem: it is not valid.
    """
    keys = headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1:
        raise Problem(HTTPStatus.BAD_REQUEST, "invalid", "the header Idempotency-Key is there twice: send one")
    key = keys[0].strip().removeprefix('"').removesuffix('"')
    if not 1 <= len(key) <= _KEY_MOST:
        detail = f"Idempotency-Key: send 1 to {_KEY_MOST} characters, such as a UUID"
        raise Problem(HTTPStatus.BAD_REQUEST, "invalid", detail)
    return key


def check_same(request: IdempotentRequest, asked: str) -> None:
    """Refuse a key that an earlier request has used. `asked`: what the first request of the key asked for.

    Raises:
        Problem: that was something else.
    """
    if asked != request.asked:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "key-reused",
            "another request was sent with this Idempotency-Key in the last 24 hours: nothing was done; send a new key "
            "with each new request",
        )


def _digest(*parts: Any) -> str:
    return sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:_DIGITS]
