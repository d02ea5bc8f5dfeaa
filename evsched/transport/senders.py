"""The senders: they put calls on connections, and read the replies.

`BatchingSender` sends the calls of one turn of the event loop in one batch; `DirectSender` sends the calls of one
caller at once, also commands that wait in Redis; `SyncSender` is for programs without an event loop.

A sender sends a call again only if it has certainly not been done: Redis does not know its script, or another node of a
cluster has its queue. All other repetitions are up to the caller, who knows whether a call may be done twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, TypeVar, cast

from redis import exceptions

from evsched.errors import EvschedError, StoreDown, StoreError, StoreRefused
from evsched.transport.address import Host
from evsched.transport.call import Call, T, Word
from evsched.transport.connection import Connection
from evsched.transport.links import finish
from evsched.transport.redis_errors import MOVED, translate
from evsched.transport.servers import Topology, topology


def read_reply(call: Call[T], reply: Any) -> T:
    """Return the value of a reply.

    Raises:
        EvschedError: the reply is an error, or cannot be read; other calls of the same batch are not affected.
    """
    if isinstance(reply, Exception):
        raise translate(reply, call)
    try:
        return call.read(reply)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise StoreRefused(
            f"{call.name}: its reply cannot be read ({type(error).__name__}: {error})", kind="reply"
        ) from error


def value_or_error(call: Call[Any], reply: Any) -> Any:
    """Return the value of a reply, or the error that reading it raised."""
    try:
        return read_reply(call, reply)
    except EvschedError as error:
        return error


W = TypeVar("W")


def _words(connection: Connection, calls: Sequence[Call[Any]]) -> Iterator[tuple[Word, ...]]:
    """Yield what to send for each call, so that they are done in their order.

    A script that Redis may not know yet is sent by its source: by its SHA it would be refused, and done after the calls
    that follow it. Their effect may be that it does nothing, as with a position that is saved before its run ends.
    """
    for at, call in enumerate(calls):
        sha = None if call.script is None else call.script.sha
        is_new = sha is not None and sha not in connection.ran
        if sha is not None:
            connection.ran.add(sha)
        yield call.by_source() if is_new and at < len(calls) - 1 else call.by_sha()


async def _deliver(connection: Connection, calls: Sequence[Call[Any]], reply_timeout: float) -> list[Any]:
    """Send calls in one batch; return their values, with errors in the place of values of calls that failed.

    Raises:
        StoreDown, StoreRefused: the whole batch failed.
    """
    replies = await connection.exchange(list(_words(connection, calls)), reply_timeout)
    unknown = [i for i, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]
    if unknown:
        # A call that waits for the write of one of them has answered before it.
        unknown += [i for i, call in enumerate(calls) if i > unknown[0] and call.name in ("WAIT", "WAITAOF")]
        again = await connection.exchange([calls[i].by_source() for i in unknown], reply_timeout)
        for i, reply in zip(unknown, again, strict=True):
            replies[i] = reply
    return [value_or_error(call, reply) for call, reply in zip(calls, replies, strict=True)]


class DirectSender:
    """A connection for one caller at a time, whose calls are sent at once.

    `near`: in a cluster, a key of the node that is asked.
    """

    def __init__(self, url: str, *, reply_timeout: float = 5.0, near: Word | None = None) -> None:
        self._connection = Connection(url, near=near)
        self._reply_timeout = reply_timeout
        self.client: int | None = None
        """The connection's client id in Redis; None if `open` was not called, or it was closed since."""

    async def open(self) -> None:
        """Connect, and read the connection's client id.

        Raises:
            StoreDown, StoreRefused
        """
        self.client = await self.send(Call(("CLIENT", "ID"), int))

    async def send(self, call: Call[T], block: float = 0.0) -> T:
        """Send a command that Redis answers within `block` seconds; if it does not, the connection is dead.

        Raises:
            StoreDown: Redis may have moved a job all the same: check the list.
        """
        try:
            (reply,) = await self._connection.exchange([call.words], block + self._reply_timeout)
        except BaseException:
            self.client = None
            raise
        return read_reply(call, reply)

    async def attempt_all(self, calls: Sequence[Call[Any]], block: float = 0.0) -> list[Any]:
        """Send calls in one batch; return their values, with errors in the place of values of calls that failed.

        `block`: seconds for which Redis may wait before it answers.

        Raises:
            StoreDown, StoreRefused: the whole batch failed; some of it may have been done.
        """
        return await _deliver(self._connection, calls, block + self._reply_timeout)

    async def close(self) -> None:
        """Close the connection. A later call opens a new one."""
        self.client = None
        await self._connection.close()


class BatchingSender:
    """Sends calls from a program with an event loop. Event loops in several threads may share it.

    Calls that are made within one turn of the loop, or while a batch is on its way, go in one batch: tasks that send at
    the same time share round trips. `short_replies`: a reply that is long is an error.

    In a cluster each call goes to its node, else to the node that has its key `near`; without both to `node`, or any.
    """

    def __init__(
        self, url: str, *, reply_timeout: float = 5.0, short_replies: bool = False, node: Host | None = None
    ) -> None:
        self.url = url
        self._cluster = topology(url)
        self._node = node
        self._short_replies = short_replies
        self._reply_timeout = reply_timeout
        self._of_thread = threading.local()
        """`loop`: the thread's event loop, and `batches`: its calls, by node. A thread may run several loops, one
        after another."""

    async def send(self, call: Call[T]) -> T:
        """Send one call.

        Raises:
            JobError: the script refused.
            StoreDown: Redis cannot be reached or cannot do it now; the call may have been done all the same.
            StoreRefused: Redis refused.
        """
        if self._cluster is None:
            return await self._batches(None).add(call)
        try:
            return await self._batches(await self._host(self._cluster, call)).add(call)
        except StoreDown as error:
            if error.kind != MOVED:
                raise
        # The node has not done it, and the topology is now read again.
        return await self._batches(await self._host(self._cluster, call)).add(call)

    async def send_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send calls in one batch for each node; when all have replies, raise the first error, if there is one."""
        return [await future for future in await self._add_all(calls)]

    async def attempt_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send calls in one batch for each node; return their values, errors in the place of values."""
        try:
            futures = await self._add_all(calls)
        except StoreError as error:  # the nodes cannot be found
            return [error] * len(calls)
        return await asyncio.gather(*futures, return_exceptions=True)

    async def send_and_wait(self, call: Call[T], wait: Call[W]) -> tuple[T, W | EvschedError]:
        """Send a call and, on the same connection, one that waits for its write; an error of the second is returned.

        The connection sends no other calls meanwhile. Raises as `send` does.
        """
        value, waited = await self.attempt_all([call, wait])
        if isinstance(value, EvschedError):
            raise value
        return value, waited

    async def _add_all(self, calls: Sequence[Call[Any]]) -> list[asyncio.Future[Any]]:
        if self._cluster is None:
            batches = self._batches(None)
            return [batches.add(call) for call in calls]
        hosts = [await self._host(self._cluster, call) for call in calls]
        return [self._batches(host).add(call) for host, call in zip(hosts, calls, strict=True)]

    async def nodes(self) -> list[Host | None]:
        """Return the primaries of a cluster, for calls about all of Redis: send such a call `at` each of them.

        Without a cluster there is one node, None.

        Raises:
            StoreDown, StoreRefused
        """
        return [None] if self._cluster is None else [*await self._cluster.primaries()]

    async def node_of(self, key: Word) -> Host | None:
        """Return the one of these nodes that has a key. Raises as `nodes` does."""
        return None if self._cluster is None else await self._cluster.owner(key)

    async def _host(self, cluster: Topology, call: Call[Any]) -> Host:
        """Return the node that a call is for."""
        if call.node is not None:
            return call.node
        if call.near is None and self._node is not None:
            return self._node
        return await cluster.owner(call.near)

    def _batches(self, host: Host | None) -> _Batches:
        mine, loop = self._of_thread, asyncio.get_running_loop()
        if getattr(mine, "loop", None) is not loop:
            mine.loop, mine.batches = loop, {}
        by_host = cast(dict[Host | None, _Batches], mine.batches)
        batches = by_host.get(host)
        if batches is None:
            connection = Connection(self.url, node=host, short_replies=self._short_replies)
            batches = by_host[host] = _Batches(loop, connection, self._reply_timeout)
        return batches

    async def close(self) -> None:
        """Close the connections of this event loop. A later call opens new ones."""
        batches: dict[Host | None, _Batches] = getattr(self._of_thread, "batches", {})
        while batches:
            _, one = batches.popitem()
            await one.close()


class _Batches:
    """The batches of one event loop, and the connection that they are sent on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection, reply_timeout: float) -> None:
        self.loop = loop
        self._connection = connection
        self._reply_timeout = reply_timeout
        self._waiting: list[tuple[Call[Any], asyncio.Future[Any]]] = []
        self._sending: asyncio.Task[None] | None = None

    def add(self, call: Call[T]) -> asyncio.Future[T]:
        """Add a call to the next batch; return the future of its value."""
        future: asyncio.Future[T] = self.loop.create_future()
        # Callers of a failed batch may have been cancelled: nothing awaits their futures then.
        future.add_done_callback(_retrieve)
        self._waiting.append((call, future))
        if self._sending is None:
            self._sending = self.loop.create_task(self._send_waiting())
        return future

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._send(batch)
        finally:
            self._sending = None
            self._cancel_waiting()

    def _cancel_waiting(self) -> None:
        for _, future in self._waiting:
            future.cancel()
        self._waiting = []

    async def _send(self, batch: list[tuple[Call[Any], asyncio.Future[Any]]]) -> None:
        try:
            values = await _deliver(self._connection, [call for call, _ in batch], self._reply_timeout)
        except EvschedError as error:
            failed: Any = error
            values = [failed] * len(batch)
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except BaseException as error:
            # Pass the error to the callers: a caller whose future was only cancelled would end silently.
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            raise
        for (_, future), value in zip(batch, values, strict=True):
            if future.done():
                continue
            if isinstance(value, EvschedError):
                future.set_exception(value)
            else:
                future.set_result(value)

    async def close(self) -> None:
        """Cancel the calls that have no reply yet, and close the connection."""
        if self._sending is not None:
            self._sending.cancel()
        self._cancel_waiting()  # a task that is cancelled before it begins runs no `finally`
        await self._connection.close()


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark the error of a future as seen, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


_IDLE_MOST: Final = 32
"""Connections that a `SyncSender` keeps open for later calls: as many as a busy web process has threads."""


class SyncSender:
    """Sends calls from a program without an event loop. Any number of threads may share it, and it survives a fork.

    Each call has a connection to itself, so a call that waits in Redis holds up no other, and there are at most as many
    connections as calls at the same time. No lock is held: a child that is forked meanwhile would never get it.
    """

    def __init__(self, url: str, *, reply_timeout: float = 5.0) -> None:
        self._url = url
        self._reply_timeout = reply_timeout
        self._cluster = topology(url)
        self._idle: defaultdict[tuple[Host | None, float], list[Connection]] = defaultdict(list)
        """Free connections, by the node of a cluster and their time limit. The one that was used last is used next, so
        that as few as possible are in use."""

    def send(self, call: Call[T], block: float = 0.0, limit: float | None = None) -> T:
        """Send one call, which may wait in Redis for `block` seconds. Raises as `BatchingSender.send` does.

        `limit`: seconds to wait for the reply, if it is not the sender's own `reply_timeout`.
        """
        limit = self._reply_timeout if limit is None else limit
        try:
            return self._send(call, block, limit)
        except StoreDown as error:
            if error.kind != MOVED:
                raise
        return self._send(call, block, limit)

    def send_and_wait(self, call: Call[T], wait: Call[W]) -> tuple[T, W | EvschedError]:
        """Send a call and, on the same connection, one that waits for its write; an error of the second is returned.

        Raises as `send` does.
        """
        value, waited = self._send_all([call, wait], 0.0, self._reply_timeout)
        if isinstance(value, EvschedError):
            raise value
        return value, waited

    def send_all(self, calls: Sequence[Call[T]], limit: float | None = None) -> list[T]:
        """Send calls that change nothing, in one batch to each node in turn; raise the first error, if there is one."""
        limit = self._reply_timeout if limit is None else limit
        try:
            return self._send_batches(calls, limit)
        except StoreDown as error:
            if error.kind != MOVED:
                raise
        return self._send_batches(calls, limit)

    def _send_batches(self, calls: Sequence[Call[Any]], limit: float) -> list[Any]:
        by_host, found = defaultdict[Host | None, list[int]](list), list[Any](calls)
        for at, call in enumerate(calls):
            by_host[call.node or self.node_of(call.near)].append(at)
        for host, places in by_host.items():
            with self._connection(host, limit) as connection:
                values = finish(_deliver(connection, [calls[at] for at in places], limit))
            for at, value in zip(places, values, strict=True):
                if isinstance(value, EvschedError):
                    raise value
                found[at] = value
        return found

    def _send(self, call: Call[T], block: float, limit: float) -> T:
        (value,) = self._send_all([call], block, limit)
        if isinstance(value, EvschedError):
            raise value
        return value

    def _send_all(self, calls: Sequence[Call[Any]], block: float, limit: float) -> list[Any]:
        """Send calls, one after the other, to the node of the first; return their values, errors in place of values."""
        host = calls[0].node or self.node_of(calls[0].near)
        with self._connection(host, limit) as connection:
            return [finish(_deliver(connection, [call], block + limit))[0] for call in calls]

    @contextmanager
    def _connection(self, host: Host | None, limit: float) -> Generator[Connection]:
        """Lend a connection that no other thread uses meanwhile."""
        all_idle = self._idle
        idle = all_idle[host, limit]
        try:
            connection = idle.pop()  # atomic, as is append
        except IndexError:
            connection = Connection(self._url, node=host, blocking=limit)
        try:
            yield connection
        finally:
            if all_idle is self._idle and len(idle) < _IDLE_MOST:
                idle.append(connection)
            else:
                finish(connection.close())

    def nodes(self) -> list[Host | None]:
        return [None] if self._cluster is None else [*finish(self._cluster.primaries(blocking=True))]

    def node_of(self, key: Word | None) -> Host | None:
        """Return the one of these nodes that has a key; without a key, any."""
        return None if self._cluster is None else finish(self._cluster.owner(key, blocking=True))

    def close(self) -> None:
        """Close the connections; those in use close after their call. A later call opens a new one."""
        all_idle, self._idle = self._idle, defaultdict(list)
        for connection in chain.from_iterable(all_idle.values()):
            finish(connection.close())
