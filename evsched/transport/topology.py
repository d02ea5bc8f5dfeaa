"""The topology of a Redis Cluster: which primary owns which slot. One for all connections of a process.

It is read when it is needed, and again when an answer or a lost connection shows that it is out of date. Nothing is
polled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from evsched.errors import StoreDown
from evsched.transport.address import Address, Host, parse
from evsched.transport.ask import Asker
from evsched.transport.call import Word
from evsched.transport.open_links import OpenLinks

Owners = list[Host | None]


class Topology:
    """Knows the owner of each slot."""

    def __init__(self, address: Address) -> None:
        self._seeds = address.nodes
        self._asker: Asker[Owners] = Asker(
            "node of the cluster", address.scheme, address.nodes, address.options, ("CLUSTER", "SLOTS"), _owners
        )
        self._owners: Owners | None = None
        """None = it is to be read."""
        self._primaries = set[Host]()
        """Those that it had when it was read last."""
        self._lost: dict[Host, int] = {}
        """The nodes to which connections were lost, each with the number of that loss: the higher, the later."""
        self._listeners: list[Callable[[], None]] = []
        self.links = OpenLinks()
        """The links to the nodes. Those to a node that is a primary no more are cut."""

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have `changed()` called when the topology is out of date; return what ends that. For any thread."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def lost(self, host: Host | None) -> None:
        """Note that a node does not answer, or no more has what it had."""
        if host is not None:
            self._lost[host] = max(self._lost.values(), default=0) + 1
        self.outdated()

    def outdated(self) -> None:
        """Have it read again before its next use."""
        if self._owners is not None:
            self._owners = None
            for changed in list(self._listeners):
                changed()

    async def owner(self, key: Word | None) -> Host:
        """Return the primary that owns the slot of a key; without a key, any.

        Raises:
            StoreDown: no node answers, or nobody owns the slot.
            StoreRefused: the nodes refuse.
        """
        return self._owner(self._owners or self._read(await self._asker.ask()), key)

    def owner_sync(self, key: Word | None) -> Host:
        """Return the same, without an event loop. Raises as `owner` does."""
        return self._owner(self._owners or self._read(self._asker.ask_sync()), key)

    async def owners(self) -> Owners:
        """Return the owner of each slot. Raises as `owner` does."""
        return self._owners or self._read(await self._asker.ask())

    async def primaries(self) -> list[Host]:
        """Return the nodes that own slots. Raises as `owner` does."""
        await self.owners()
        return sorted(self._primaries)

    def primaries_sync(self) -> list[Host]:
        """Return the same, without an event loop. Raises as `owner` does."""
        if self._owners is None:
            self._read(self._asker.ask_sync())
        return sorted(self._primaries)

    def _read(self, owners: Owners) -> Owners:
        before, self._owners = self._primaries, owners
        self._primaries = {host for host in owners if host is not None}
        for host in before - self._primaries:
            self.links.cut(host)
        # The seeds too: the nodes that are known now may all be gone one day.
        self._asker.hosts = tuple(dict.fromkeys([*self._asker.hosts[:1], *sorted(self._primaries), *self._seeds]))
        return owners

    def _owner(self, owners: Owners, key: Word | None) -> Host:
        found = self._any() if key is None else owners[slot_of(key)]
        if found is None:
            self.outdated()
            what = "any slot" if key is None else f"slot {slot_of(key)}"
            raise StoreDown(f"no node of the cluster owns {what}", kind="clusterdown")
        return found

    def _any(self) -> Host | None:
        """Return a primary: the one that answered last, or the one whose loss is longest ago."""
        first = [host for host in self._asker.hosts if host in self._primaries]
        return min(first, key=lambda host: self._lost.get(host, 0), default=None)


def slot_of(key: Word) -> int:
    """Return the slot of a key."""
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _owners(asked: Host, reply: list[Any]) -> Owners:
    """Read the reply to CLUSTER SLOTS. A node that does not know its own address is the one that was asked."""
    owners: Owners = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, (host, port, *_), *_ in reply:
        at = (host.decode() if host else asked[0], int(port))
        owners[first : last + 1] = [at] * (last + 1 - first)
    return owners


@cache
def topology(url: str) -> Topology | None:
    """Return the topology of a URL, the same for all connections of the process; None if it is no cluster."""
    address = parse(url)
    return Topology(address) if address.nodes else None
