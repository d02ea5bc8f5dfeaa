"""The senders: they put calls on connections, and read the answers.

`BatchingSender` sends the calls of one loop turn in one batch; `DirectSender` sends the batch of one caller at once;
`BlockingSender` is for one command that waits; `SyncSender` serves programs without an event loop.

No sender tries again, but for a script that Redis has forgotten. Whether to repeat is the caller's to say, who knows
what a repetition does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from evsched.errors import EvschedError, StoreRefused
from evsched.transport.call import Call, T
from evsched.transport.connection import Connection, SyncConnection, translate, unknown_script


def _read(call: Call[T], reply: Any) -> T:
    """Return what a reply says.

    Raises:
        EvschedError: it is an error, or cannot be read; the latter costs this call alone, and not those sent with it.
    """
    if isinstance(reply, Exception):
        raise translate(reply, call)
    try:
        return call.read(reply)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise StoreRefused(
            f"{call.name}: its reply cannot be read ({type(error).__name__}: {error})", kind="reply"
        ) from error


def _answer(call: Call[Any], reply: Any) -> Any:
    """Return what a reply says, or the error that it is."""
    try:
        return _read(call, reply)
    except EvschedError as error:
        return error


async def _deliver(link: Connection, calls: Sequence[Call[Any]], reply_timeout: float) -> list[Any]:
    """Send calls in one batch; return their values, an error that one of them met standing in its place.

    Raises:
        StoreDown, StoreRefused: the whole batch failed.
    """
    replies = await link.exchange([call.by_sha() for call in calls], reply_timeout)
    unknown = [i for i, reply in enumerate(replies) if unknown_script(reply)]
    if unknown:
        again = await link.exchange([calls[i].by_source() for i in unknown], reply_timeout)
        for i, reply in zip(unknown, again, strict=True):
            replies[i] = reply
    return [_answer(call, reply) for call, reply in zip(calls, replies, strict=True)]


class DirectSender:
    """A connection for one caller at a time, whose calls go at once."""

    def __init__(self, url: str, *, reply_timeout: float = 5.0) -> None:
        self._link = Connection(url)
        self._reply_timeout = reply_timeout

    async def attempt_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send calls together; an error that one of them met stands in its place.

        Raises:
            StoreDown, StoreRefused: the whole batch failed; some of it may have been done.
        """
        return await _deliver(self._link, calls, self._reply_timeout)

    async def close(self) -> None:
        """Cut the connection. A later call opens a new one."""
        await self._link.close()


class BatchingSender:
    """Sends calls from a program with an event loop.

    What is sent within one loop turn, and while a batch is on its way, goes in one batch: tasks that send at the same
    time share round trips.
    """

    def __init__(self, url: str, *, reply_timeout: float = 5.0) -> None:
        self._url = url
        self._reply_timeout = reply_timeout
        self._link: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[tuple[Call[Any], asyncio.Future[Any]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def send(self, call: Call[T]) -> T:
        """Send one call.

        Raises:
            JobError: the script refused.
            StoreDown: Redis cannot do it now; it may have been done all the same.
            StoreRefused: Redis will not do it.
        """
        return await self._queue(call)

    async def send_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send calls together; the first error that any of them met is raised when all have been answered."""
        return [await answer for answer in [self._queue(call) for call in calls]]

    def _queue(self, call: Call[T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # A program may run one event loop after another; a connection belongs to its loop.
            self._loop, self._link, self._sending, self._waiting = loop, Connection(self._url), None, []
        answer: asyncio.Future[T] = loop.create_future()
        # A batch that fails may have callers that were cancelled meanwhile: nobody reads their answers.
        answer.add_done_callback(_retrieve)
        self._waiting.append((call, answer))
        if self._sending is None:
            self._sending = loop.create_task(self._send_waiting())
        return answer

    async def _send_waiting(self) -> None:
        link = self._link
        assert link is not None
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._send_batch(link, batch)
        finally:
            self._sending = None
            for _, answer in self._waiting:
                answer.cancel()
            self._waiting = []

    async def _send_batch(self, link: Connection, batch: list[tuple[Call[Any], asyncio.Future[Any]]]) -> None:
        try:
            answers = await _deliver(link, [call for call, _ in batch], self._reply_timeout)
        except EvschedError as error:
            failed: Any = error
            answers = [failed] * len(batch)
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except BaseException as error:
            # Who waits is told: a loop whose answer was cancelled would end in silence.
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            raise
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, EvschedError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def close(self) -> None:
        """Cut the connection. A later call opens a new one."""
        if self._sending is not None:
            self._sending.cancel()
        if self._link is not None:
            await self._link.close()
        self._loop = None


def _retrieve(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()


class BlockingSender:
    """A connection for commands that wait in Redis. One caller at a time."""

    def __init__(self, url: str, *, reply_timeout: float) -> None:
        self._link = Connection(url)
        self._reply_timeout = reply_timeout
        self.client: int | None = None
        """The connection's number in Redis, for `store.unblock`; None when it is not open."""

    async def open(self) -> None:
        """Connect, and learn the connection's number.

        Raises:
            StoreDown, StoreRefused
        """
        call = Call(("CLIENT", "ID"), int)
        (reply,) = await self._link.exchange([call.words], self._reply_timeout)
        self.client = _read(call, reply)

    async def send(self, call: Call[T], block: float) -> T:
        """Send a call that answers within `block` seconds. When it does not, the connection is dead.

        Raises:
            StoreDown: then Redis may have moved a job all the same; look at the list.
        """
        try:
            (reply,) = await self._link.exchange([call.words], block + self._reply_timeout)
        except BaseException:
            self.client = None
            raise
        return _read(call, reply)

    async def close(self) -> None:
        """Cut the connection."""
        self.client = None
        await self._link.close()


class SyncSender:
    """Sends calls from a program without an event loop. For one thread at a time."""

    def __init__(self, url: str, *, reply_timeout: float = 5.0) -> None:
        self._link = SyncConnection(url, reply_timeout)

    def send(self, call: Call[T], block: float = 0.0) -> T:
        """Send one call, which may wait in Redis for `block` seconds. Raises as `BatchingSender.send` does."""
        reply = self._link.exchange(call.by_sha(), block)
        if unknown_script(reply):
            reply = self._link.exchange(call.by_source(), block)
        return _read(call, reply)

    def close(self) -> None:
        """Cut the connection. A later call opens a new one."""
        self._link.close()
