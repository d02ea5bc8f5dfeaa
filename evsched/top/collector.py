"""Collects the data of `evsched top`: the state in Redis, and the status that each worker reports.

Each refresh is one round trip for 100 queues: their stats, their leases, and a status request to the workers of each.
PUBLISH returns how many workers received the request, so the number of replies to wait for is known. In a cluster it
counts those at one node only; there a reply is expected for each lease. It costs nothing while nobody watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

import msgspec

from evsched import keys
from evsched.errors import StoreDown, StoreError, StoreRefused
from evsched.shards import NONE, Shards
from evsched.store import server
from evsched.store.dispatcher_calls import Lease
from evsched.store.many_queues import read_queue_stats, read_surveys, request_statuses
from evsched.store.operator_calls import QueueStats
from evsched.top.snapshot import Down, History, Look, Page, compose
from evsched.transport.address import Host
from evsched.transport.call import Call, T
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import nodes_down, reason
from evsched.transport.subscription import Subscription
from evsched.worker.status_reporter import WorkerStatus

_EVERY: Final = 1.0
"""Seconds between two pages."""

_DEADLINE: Final = 1.5
"""Seconds to wait for Redis: a page that does not change for longer should say why."""

_PATIENCE: Final = 0.5
"""Seconds to wait for the workers' replies: a worker whose event loop is blocked sends none."""

_LONGEST: Final = 128 * 1024
"""The most bytes of a reply that are read. A busy worker sends 13,000, with the longest ids and tasks 80,000; anybody
with the right to publish could send more."""

_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Top:
    """Collects pages about the queues named, else about all queues. Shards are shown as one queue."""

    def __init__(self, url: str, queues: Sequence[str] = ()) -> None:
        self._url = url
        self._sender = BatchingSender(url, reply_timeout=_DEADLINE)
        self._asker = secrets.token_hex(8)
        self._named = list(queues)
        self.commands = 0
        """How many commands were sent, without those of the workers that reply."""
        self._shards = NONE
        self._queues = list[str]()
        """The queues that are shown, and their shards."""
        self._down = set[Host]()
        """The primaries of a cluster that did not answer in this look."""
        self._cursors = dict[Host | None, int]()
        """Where the SCAN of each node for queues continues at the next look."""
        self._channels: dict[bytes, str] = {}
        """The channels subscribed to, and the queue of each."""
        self._subscription: Subscription | None = None
        self._receiving: asyncio.Future[None] | None = None
        self._received: dict[tuple[str, str], WorkerStatus] = {}
        """The replies to the last request, by worker and queue."""
        self._arrived = asyncio.Event()
        """A reply arrived, or the subscription ended."""

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield a page each second, for ever. While Redis is down, the page says so.

        Raises:
            StoreDown: Redis, or each primary of a cluster, is down before the first page.
            StoreRefused: a right is missing, or no queue can be read.
        """
        page, history, since = None, History(), 0.0
        while True:
            begun = time.monotonic()
            try:
                page, history = compose(await self.look(), history)
                since = 0.0
            except StoreDown as error:
                if page is None:
                    raise
                since = since or begun
                page = msgspec.structs.replace(page, down=Down(time.monotonic() - since, str(error)))
            yield page
            await asyncio.sleep(max(begun + _EVERY - time.monotonic(), 0.0))

    async def look(self) -> Look:
        """Collect the data of one page.

        Raises:
            StoreDown, StoreRefused
        """
        self._down.clear()
        await self._find()
        if self._down.issuperset(await self._sender.nodes()):
            raise StoreDown(nodes_down(sorted(self._down)), kind="connection")
        await self._subscribe()
        self._received.clear()
        answers, refused = await self._ask()
        at = time.monotonic()
        await self._wait(sum(expected for _, _, expected in answers.values()))
        return Look(
            at=at,
            stats={queue: queue_stats for queue, (queue_stats, _, _) in answers.items()},
            leases={queue: leases for queue, (_, leases, _) in answers.items()},
            statuses=list(self._received.values()),
            refused=refused,
            down=sorted(self._down),
            rows={
                queue: [part for part in self._shards.all_of(queue) if part in answers]
                for queue in self._named or self._shards.wholes(answers)
                if queue in self._named or not self._is_gone(queue, answers)
            },
        )

    def _is_gone(self, queue: str, answers: Mapping[str, tuple[QueueStats, list[Lease], int]]) -> bool:
        """Return whether this was a shard, and holds no jobs any more."""
        return queue in answers and self._shards.is_beyond(queue) and not any(answers[queue][0].places.values())

    async def _ask(self) -> tuple[dict[str, tuple[QueueStats, list[Lease], int]], dict[str, str]]:
        """Return the stats, leases and expected replies of each queue, and the errors of queues that cannot be read."""
        refused, unreachable = dict[str, str](), dict[str, str]()
        queues = list[str]()
        for queue in self._queues:
            node = await self._sender.node_of(keys.root(queue)) if self._down else None
            if node is not None and node in self._down:  # it need not be waited for once more
                unreachable[queue] = self._note_down(StoreDown(nodes_down([node]), kind="connection", node=node))
            else:
                queues.append(queue)
        send, find_node = self._send, self._sender.node_of
        stats, surveys, asked = await asyncio.gather(
            read_queue_stats(send, find_node, queues),
            read_surveys(send, find_node, queues),
            request_statuses(send, find_node, self._asker, queues),
        )
        by_lease = len(await self._sender.nodes()) > 1
        read = dict[str, tuple[QueueStats, list[Lease], int]]()
        for queue in queues:
            of_queue, survey, count = stats[queue], surveys[queue], asked[queue]
            if isinstance(of_queue, StoreError) or isinstance(survey, StoreError) or isinstance(count, StoreError):
                error = next(one for one in (of_queue, survey, count) if isinstance(one, StoreError))
                if isinstance(error, StoreRefused):
                    refused[queue] = str(error)
                else:
                    unreachable[queue] = self._note_down(error)
                continue
            read[queue] = of_queue, survey.leases, sum(one.left > 0 for one in survey.leases) if by_lease else count
        if refused and not read:
            queue, why = next(iter(refused.items()))
            raise StoreRefused(f"queue {queue}: {why}")
        return read, refused | unreachable

    async def _send(self, call: Call[T]) -> T:
        self.commands += 1
        return await self._sender.send(call)

    def _note_down(self, error: BaseException) -> str:
        """Note the primary of a cluster that does not answer, and return the reason: the page shows the others.

        Raises:
            BaseException: the error, if it is another one.
        """
        if not isinstance(error, StoreDown) or error.node is None:
            raise error
        self._down.add(error.node)
        return reason(error)

    async def _find(self) -> None:
        """Read how many shards queues have and, unless queues are named, which queues there are.

        The set that dispatchers keep names them. A slice of the keys of each node shows queues not found by them yet.
        """
        nodes = [] if self._named else await self._sender.nodes()
        sets = [server.shards()] if self._named else [server.shards(), server.queue_names()]
        scans = [server.scan(self._cursors.get(node, 0)).at(node) for node in nodes]
        self.commands += len(sets) + len(scans)
        replies = await self._sender.attempt_all([*sets, *scans])
        for n, reply in enumerate(replies):
            # Without these two, the known shards are shown as one queue, and the slices find the queues later.
            if isinstance(reply, BaseException) and not (n < len(sets) and isinstance(reply, StoreRefused)):
                self._note_down(reply)
        if not isinstance(replies[0], BaseException):
            self._shards = Shards(replies[0])
        queues = {part for queue in self._named for part in self._shards.all_of(queue)}
        if not self._named and not isinstance(replies[1], BaseException):
            queues.update(replies[1])
        for node, part in zip(nodes, replies[len(sets) :], strict=True):
            if not isinstance(part, BaseException):
                self._cursors[node] = part.next
                queues |= part.queues
        self._queues += sorted(queues.difference(self._queues))

    async def _subscribe(self) -> None:
        """Subscribe to the replies of the workers of all queues."""
        channels = {keys.status_replies(queue, self._asker).encode(): queue for queue in self._queues}
        if self._receiving is not None and not self._receiving.done() and channels == self._channels:
            return
        await self._unsubscribe()
        if channels:
            self.commands += 1
            self._subscription, self._channels = Subscription(self._url), channels
            await self._subscription.open([], [channel.decode() for channel in channels])
            self._receiving = asyncio.ensure_future(self._receive(self._subscription))

    async def _receive(self, subscription: Subscription) -> None:
        try:
            async for channel, message in subscription.messages():
                status = read_status(message)
                if status is not None and status.queue == self._channels[channel]:
                    self._received[status.worker, status.queue] = status
                    self._arrived.set()
        finally:
            self._arrived.set()

    async def _wait(self, expected: int) -> None:
        """Wait for that many replies, within a time limit.

        Raises:
            StoreDown: the connection of the subscription was lost.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while len(self._received) < expected:
                    self._arrived.clear()
                    if self._receiving is not None and self._receiving.done():
                        self._receiving.result()
                    await self._arrived.wait()
        if expected and not self._received:
            # No reply at all: the connection may be half open. The next page opens another.
            await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None
        if self._receiving is not None:
            await asyncio.gather(self._receiving, return_exceptions=True)
            self._receiving = None

    async def close(self) -> None:
        await self._sender.close()
        await self._unsubscribe()


def read_status(message: bytes) -> WorkerStatus | None:
    """Read a worker's status; None if the message is not valid."""
    if len(message) > _LONGEST:
        return None
    try:
        status = msgspec.json.decode(message, type=WorkerStatus)
    except _UNREADABLE:
        return None
    return status if keys.NAME.fullmatch(status.worker) else None


async def ask_status(url: str, queues: Sequence[str]) -> list[WorkerStatus]:
    """Ask the workers of queues for their status; nothing if this user may not ask, or Redis is down."""
    top = Top(url, queues)
    try:
        return (await top.look()).statuses
    except StoreError:
        return []
    finally:
        await top.close()
