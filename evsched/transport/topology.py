"""The topology of a Redis Cluster: which primary owns which slot. One for all connections of a process.

It is read when it is needed, and again when an answer or a lost connection shows that it is out of date. Nothing is
polled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from msgspec import Struct
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from evsched.errors import StoreDown, StoreError
from evsched.transport.address import Address, Host, parse
from evsched.transport.ask import Asker
from evsched.transport.call import Word
from evsched.transport.open_links import OpenLinks

Owners = list[Host | None]

_PACE: Final = 0.05, 1.0
"""Seconds between two questions. Until a replica takes the place of a lost primary, the answer stays the same, and
hundreds of loops want it. While slots move, each answer is another one."""

NO_SLOTS: Final = "clusterdown"
"""The kind of the StoreDown if nodes answer and none of them has a part in a cluster."""


class _View(Struct, frozen=True):
    """What a node knows of the cluster."""

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
        """By the last view; None = there was none."""
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
        """Call `changed()` when the view is out of date or has changed; return what ends that. For any thread."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def lost(self, host: Host | None) -> None:
        """Note that a node does not answer, or no longer has what it had."""
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

    async def owner(self, key: Word | None) -> Host:
        """Return the primary that owns the slot of a key; without a key, any.

        Raises:
            StoreDown: no node answers, or nobody owns the slot.
            StoreRefused: the nodes refuse.
        """
        return self._known_owner(key) or self._owner((await self.ask()).owners, key)

    def owner_sync(self, key: Word | None) -> Host:
        """Return the same, without an event loop. Raises as `owner` does."""
        return self._known_owner(key) or self._owner(self.ask_sync().owners, key)

    async def owners(self) -> Owners:
        """Return the owner of each slot. Raises as `owner` does."""
        return self._known_owners() or (await self.ask()).owners

    async def primaries(self) -> list[Host]:
        """Return the nodes that own slots. Raises as `owner` does."""
        return sorted({host for host in await self.owners() if host is not None})

    def primaries_sync(self) -> list[Host]:
        """Return the same, without an event loop. Raises as `owner` does."""
        return sorted({host for host in self._known_owners() or self.ask_sync().owners if host is not None})

    async def doubtful(self) -> list[tuple[Host, str]]:
        """Ask each node that the URL names; return those that do not know the cluster, with the reason."""
        found = list[tuple[Host, str]]()
        for host in self._seeds:
            try:
                if not self._answer(host, await self._replies(host)).majority:
                    found.append((host, "it hears less than half of the other primaries"))
            except StoreError as error:
                found.append((host, str(error)))
        return found

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
    """Return the slot of a key."""
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
"""What to do about a primary that does not answer."""


def reason(error: StoreError) -> str:
    """Return the words about an error that name the primary which does not answer, if it is that."""
    return str(error) if error.node is None else nodes_down([error.node])


@cache
def topology(url: str) -> Topology | None:
    """Return the topology of a URL, the same for all connections of the process; None if it is no cluster."""
    address = parse(url)
    return Topology(address) if address.nodes else None
