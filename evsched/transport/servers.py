"""Which server to connect to: the sentinels say where the primary is, and the nodes of a cluster who owns each slot.

Servers are asked one after the other, until one of them gives an answer that is sure. However many loops need the
answer at the same time, the servers are asked once. No connection is kept, except to hear from the sentinels that
another server has become the primary.

The topology of a cluster is one for all connections of a process. It is read when it is needed, and again when an
answer or a lost connection shows that it is out of date. Nothing is polled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

from msgspec import Struct
from redis import exceptions
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from evsched.errors import NO_ENTRY, EvschedError, StoreDown, StoreError, StoreRefused
from evsched.transport.address import Address, Host, Sentinels, parse
from evsched.transport.call import Word
from evsched.transport.links import OpenLinks, SingleFlight, new_link, pack, read_reply_of, secure
from evsched.transport.redis_errors import translate

PATIENCE: Final = 1.0
"""Seconds for one server to answer. An unreachable machine delays the answer of the next one by this much."""

T = TypeVar("T")


class Asker(SingleFlight[T]):
    """Sends commands to servers until one gives an answer that is sure. That one is asked first the next time.

    `who`: what the servers are, for messages. `read` makes the answer of a host and its replies, or raises a
    StoreError; a reply but the first may be an exception. `pace`: that of the `SingleFlight`.
    """

    def __init__(
        self,
        who: str,
        scheme: str,
        hosts: Iterable[Host],
        options: dict[str, Any],
        commands: Sequence[tuple[str, ...]],
        read: Callable[[Host, list[Any]], T],
        pace: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        super().__init__(pace)
        self._who = who
        self._scheme = scheme
        self._options = options
        self._commands = commands
        self._read = read
        self.hosts = tuple(hosts)
        """The servers, in the order in which they are asked."""

    async def ask(self, *, blocking: bool = False) -> T:
        """Return the answer, to a question that others may have asked just before.

        `blocking`: wait for it without an event loop.

        Raises:
            StoreDown: no server answers.
            StoreRefused: the servers that answer refuse, or do not know it.
        """
        return await self.run(self._ask, blocking=blocking)

    def took(self, host: Host, answer: T, began: int) -> None:
        """Note the answer. `began`: how often `outdate` had been called when the first server was asked."""

    def is_sure(self, answer: T) -> bool:
        """Return whether no other server needs to be asked."""
        return True

    def choose(self, answers: Sequence[T]) -> T:
        """Return the best of answers that are not sure."""
        return answers[0]

    async def _ask(self) -> T:
        began, answers, failures = self.outdates, dict[Host, T](), dict[Host, StoreError]()
        for host in self.hosts:
            try:
                answers[host] = self._answer(host, await self._replies(host))
                if self.is_sure(answers[host]):
                    break
            except StoreError as error:
                failures[host] = error
        return self._result(answers, failures, began)

    def _answer(self, host: Host, replies: list[Any]) -> T:
        if isinstance(replies[0], Exception):
            raise self._refused(replies[0])
        return self._read(host, replies)

    def _result(self, answers: dict[Host, T], failures: dict[Host, StoreError], began: int) -> T:
        """Return the last answer if it is sure, or else the best one. Its server is asked first the next time."""
        if not answers:
            raise self._summary(failures)
        host, answer = list(answers.items())[-1]
        if not self.is_sure(answer):
            answer = self.choose(list(answers.values()))
            host = next(host for host, given in answers.items() if given is answer)
        self.hosts = (host, *(other for other in self.hosts if other != host))
        self.took(host, answer, began)
        return answer

    def options(self, host: Host) -> dict[str, Any]:
        """Return the options of a connection to one of the servers."""
        return {**self._options, "host": host[0], "port": host[1], "socket_connect_timeout": PATIENCE}

    async def _replies(self, host: Host) -> list[Any]:
        link = new_link(self._scheme, **self.options(host))
        try:
            secure(link)
            async with asyncio.timeout(PATIENCE):
                await link.connect()
                await link.send_packed_command([pack(words) for words in self._commands], check_health=False)
                return [await read_reply_of(link) for _ in self._commands]
        except TimeoutError:
            raise StoreDown(f"no answer within {PATIENCE:g} s", kind="timeout") from None
        except (exceptions.RedisError, OSError) as error:
            raise self._refused(error) from None
        finally:
            await link.disconnect(nowait=True)

    async def doubts(self, hosts: Iterable[Host], doubt: Callable[[T], str | None]) -> list[tuple[Host, str]]:
        """Ask each of these servers; return the ones in doubt or without an answer, each with the reason."""
        found = list[tuple[Host, str]]()
        for host in hosts:
            try:
                why = doubt(self._answer(host, await self._replies(host)))
            except StoreError as error:
                why = str(error)
            if why is not None:
                found.append((host, why))
        return found

    def _refused(self, error: Exception) -> EvschedError:
        if "unknown command" in str(error):
            return StoreRefused(f"it is not a {self._who}: the URL names another kind of server", kind="refused")
        return translate(error)

    def _summary(self, failures: dict[Host, StoreError]) -> StoreError:
        """Return the error for the failures of all servers. A refusal says more than a server that does not answer."""
        refused = {host: error for host, error in failures.items() if isinstance(error, StoreRefused)}
        listed = "; ".join(f"{host}:{port}: {error}" for (host, port), error in (refused or failures).items())
        if not refused:
            return StoreDown(f"no {self._who} answers: {listed}", kind="connection")
        return StoreRefused(f"each {self._who} refuses: {listed}", kind=next(iter(refused.values())).kind)


_AGAIN: Final = 10.0
"""Seconds until a sentinel that was lost is listened to again. Meanwhile the others are heard."""

_LOGIN: Final = "name the login at the sentinels in the URL: ?sentinel_username=USER&sentinel_password=PASSWORD"


class SentinelAnswer(NamedTuple):
    sentinel: Host
    """The sentinel that gave this answer."""
    primary: Host


class SentinelAsker(Asker[SentinelAnswer]):
    """Asks for host and port of the primary, and listens for its moves."""

    def __init__(self, scheme: str, sentinels: Sentinels) -> None:
        self._name = sentinels.name
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels.name)
        super().__init__("sentinel", scheme, sentinels.hosts, sentinels.options, [words], self._primary)

    def ask_last(self, sentinel: Host) -> None:
        """Ask a sentinel only after the others from now on: its answer has not led to a primary."""
        self.hosts = (*(host for host in self.hosts if host != sentinel), sentinel)
        self.outdate()

    async def doubtful(self, primary: Host) -> list[tuple[Host, str]]:
        """Ask each sentinel; return the sentinels that do not name the primary, with the reason."""

        def doubt(answer: SentinelAnswer) -> str | None:
            named = answer.primary
            return None if named == primary else "it names {}:{} instead of {}:{}".format(*named, *primary)

        return await self.doubts(self.hosts, doubt)

    def _primary(self, sentinel: Host, replies: list[list[bytes] | None]) -> SentinelAnswer:
        (reply,) = replies
        if reply is None:
            raise StoreRefused(
                f"it knows no primary {self._name!r}: `SENTINEL MASTERS` lists the names", kind="sentinel"
            )
        return SentinelAnswer(sentinel, (reply[0].decode(), int(reply[1])))

    def _summary(self, failures: dict[Host, StoreError]) -> StoreError:
        error = super()._summary(failures)
        return StoreRefused(f"{error}; {_LOGIN}", kind=error.kind) if error.kind in NO_ENTRY else error

    async def moves(self, host: Host) -> AsyncIterator[Host]:
        """Yield where the primary is each time that it moves, as one of the sentinels says; for ever.

        A sentinel that is down, or refuses to be listened to, says nothing.
        """
        while True:
            with suppress(StoreError):
                async for message in self._messages(host):
                    name, _, _, at, port = message.decode().split()
                    if name == self._name:
                        yield at, int(port)
            await asyncio.sleep(_AGAIN)

    async def _messages(self, host: Host) -> AsyncIterator[bytes]:
        """Yield the messages of a sentinel about new primaries.

        Raises:
            StoreDown, StoreRefused: when the connection is lost.
        """
        link = new_link(self._scheme, **self.options(host))
        try:
            await link.connect()
            await link.send_command("SUBSCRIBE", "+switch-master", check_health=False)
            while True:
                kind, _, message = cast(list[Any], await link.read_response())
                if kind == b"message":
                    yield message
        except (exceptions.RedisError, OSError) as error:
            raise translate(error) from None
        finally:
            await link.disconnect(nowait=True)


Owners = list[Host | None]

_PACE: Final = 0.05, 1.0
"""Seconds between two questions. Until a replica takes the place of a lost primary, the answer stays the same, and
hundreds of loops want it. While slots move, each answer is another one."""

NO_SLOTS: Final = "clusterdown"
"""The kind of the StoreDown if nodes answer and none of them has a part in a cluster."""


class _View(Struct, frozen=True):
    """The cluster as a node knows it."""

    owners: Owners
    covered: int
    """How many slots have an owner."""
    majority: bool
    """Whether the node hears most of the primaries. One that does not may have been replaced without knowing it."""
    epoch: int
    """The highest configuration epoch that it has heard of: each failover has a higher one."""


class Topology(Asker[_View]):
    """Knows the owner of each slot, from one of the nodes.

    A view is sure if all slots have an owner and its node hears most of the primaries. While it is read again because a
    node was lost, the calls to other nodes go on with the last view: a node does nothing for a slot that it has not.
    """

    def __init__(self, address: Address) -> None:
        commands = [("CLUSTER", "SLOTS"), ("CLUSTER", "NODES")]
        super().__init__("node of the cluster", address.scheme, address.nodes, address.options, commands, _view, _PACE)
        self._seeds = address.nodes
        self._owners: Owners | None = None
        """By the last view; None = not known."""
        self._primaries = set[Host]()
        self._by: Host | None = None
        """The node of that view."""
        self._began = 0
        """How often `outdate` had been called when that node was asked."""
        self._doubts: dict[Host | None, int] = {}
        """The nodes that were lost, each with how often `outdate` had been called then. None = all."""
        self._listeners: list[Callable[[], None]] = []
        self.links = OpenLinks()
        """The links to the nodes. Links to a node that has lost its slots are cut."""

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed()` when the view is out of date or has changed; return a function to end that. Thread-safe."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def lost(self, host: Host | None) -> None:
        """Note that a node does not answer, or has lost slots."""
        if host in self._primaries:  # if not, that has been read
            self._doubt_view()
            self._outdated(host)

    def outdated(self) -> None:
        """Have the view read again before its next use."""
        self._outdated(None)

    def _outdated(self, host: Host | None) -> None:
        known = not self._is_outdated(host)
        self._doubts[host] = self.outdate()
        self.hosts = tuple(self._by_doubt(self.hosts))
        if known:
            self._tell()

    def _tell(self) -> None:
        for changed in list(self._listeners):
            changed()

    def _doubt_view(self) -> None:
        """Have other nodes asked before the one whose view was wrong."""
        if self._by is not None:
            self._doubts[self._by] = max(self._doubts.get(self._by, 0), self._began)
            self.hosts = tuple(self._by_doubt(self.hosts))

    def _is_outdated(self, host: Host | None) -> bool:
        """Return whether a node was lost since the view was read. The view is out of date for its slots."""
        return max(self._doubts.get(host, 0), self._doubts.get(None, 0)) > self._began

    def is_primary(self, host: Host) -> bool:
        """Return whether a node has slots by the last view."""
        return host in self._primaries

    async def owner(self, key: Word | None, *, blocking: bool = False) -> Host:
        """Return the primary that owns the slot of a key; without a key, any. `blocking`: as of `ask`.

        Raises:
            StoreDown: no node answers, or nobody owns the slot.
            StoreRefused: the nodes refuse.
        """
        return self._known_owner(key) or self._owner((await self.ask(blocking=blocking)).owners, key)

    async def owners(self, *, blocking: bool = False) -> Owners:
        """Return the owner of each slot. Raises as `owner` does."""
        return self._known_owners() or (await self.ask(blocking=blocking)).owners

    async def primaries(self, *, blocking: bool = False) -> list[Host]:
        """Return the nodes that own slots. Raises as `owner` does."""
        return sorted({host for host in await self.owners(blocking=blocking) if host is not None})

    async def doubtful(self) -> list[tuple[Host, str]]:
        """Ask each node that the URL names; return the nodes that do not know the cluster, with the reason."""
        why = "it hears less than half of the other primaries"
        return await self.doubts(self._seeds, lambda view: None if view.majority else why)

    def is_sure(self, answer: _View) -> bool:
        """See `Asker`."""
        return answer.majority and answer.covered == SLOTS

    def choose(self, answers: Sequence[_View]) -> _View:
        """See `Asker`."""
        return max(answers, key=lambda view: (view.majority, view.covered, view.epoch))

    def took(self, host: Host, answer: _View, began: int) -> None:
        """See `Asker`."""
        if began < self._began:
            return  # a later one has been read in another thread
        owners, primaries = self._owners, self._primaries
        self._primaries = {owner for owner in answer.owners if owner is not None}
        self._owners, self._by, self._began = answer.owners, host, began
        for old in primaries - self._primaries:
            self.links.cut(old)
        # The seeds too: the nodes that are known now may all be gone one day.
        others = self._by_doubt([*sorted(self._primaries), *self._seeds])
        self.hosts = tuple(dict.fromkeys([host, *others]))
        if owners is not None and owners != self._owners:
            self.hurry()
            self._tell()

    def _summary(self, failures: dict[Host, StoreError]) -> StoreError:
        error = super()._summary(failures)
        if NO_SLOTS not in {failure.kind for failure in failures.values()}:
            return error
        return StoreDown(f"{error}; name nodes in the URL that belong to the cluster", kind=NO_SLOTS)

    def _by_doubt(self, hosts: Sequence[Host]) -> list[Host]:
        return sorted(hosts, key=lambda host: self._doubts.get(host, 0))

    def _known_owners(self) -> Owners | None:
        return None if any(map(self._is_outdated, self._primaries)) else self._owners

    def _known_owner(self, key: Word | None) -> Host | None:
        if self._owners is None:
            return None
        found = self._any() if key is None else self._owners[slot_of(key)]
        return None if found is None or self._is_outdated(found) else found

    def _owner(self, owners: Owners, key: Word | None) -> Host:
        found = self._any() if key is None else owners[slot_of(key)]
        if found is None:
            self._doubt_view()
            what = "any slot" if key is None else f"slot {slot_of(key)}"
            raise StoreDown(f"no node of the cluster owns {what}", kind="clusterdown")
        return found

    def _any(self) -> Host | None:
        """Return a primary: the one that answered last, or the one whose loss is longest ago."""
        return next((host for host in self.hosts if host in self._primaries), None)


def slot_of(key: Word) -> int:
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _view(asked: Host, replies: list[Any]) -> _View:
    """Read the replies to CLUSTER SLOTS and CLUSTER NODES.

    A node that does not know its own address is the one that was asked.

    Raises:
        StoreDown: it knows no slots: `CLUSTER RESET`, a part of `redis-cli --cluster del-node`, makes it forget them.
    """
    slots, nodes = replies
    owners: Owners = [None] * SLOTS
    for first, last, (host, port, *_), *_ in slots:
        at = (host.decode() if host else asked[0], int(port))
        owners[first : last + 1] = [at] * (last + 1 - first)
    covered = SLOTS - owners.count(None)
    if not covered:
        raise StoreDown("this node belongs to no cluster: it was removed, or has not joined yet", kind=NO_SLOTS)
    if isinstance(nodes, Exception):  # a right is missing
        return _View(owners, covered, majority=True, epoch=0)
    # Its columns: id, address, flags, primary, ping sent, pong received, epoch, link, slots.
    primaries = [line for line in (line.split() for line in nodes.decode().splitlines()) if len(line) > 8]
    heard = sum(not {"fail", "fail?"} & {*line[2].split(",")} for line in primaries)
    return _View(owners, covered, heard > len(primaries) / 2, max((int(line[6]) for line in primaries), default=0))


def nodes_down(down: Sequence[Host]) -> str:
    """Return the words that name primaries of a cluster that do not answer."""
    named = ", ".join(f"{host}:{port}" for host, port in down)
    return f"primary {named} does not answer" if len(down) == 1 else f"primaries {named} do not answer"


START_IT: Final = "start it, or fail over to its replica if it has one"
"""The advice about a primary that does not answer."""


def reason(error: StoreError) -> str:
    """Return the words about an error that name the primary which does not answer, if it is that."""
    return str(error) if error.node is None else nodes_down([error.node])


@cache
def topology(url: str) -> Topology | None:
    """Return the topology of a URL, the same for all connections of the process; None if it is not a cluster."""
    address = parse(url)
    return Topology(address) if address.nodes else None
