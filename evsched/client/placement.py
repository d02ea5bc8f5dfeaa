"""Where the shards of queues lie in a cluster, and which slots to move so that each primary has as many of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from evsched import keys
from evsched.client.operations import Operation, nodes, send
from evsched.shards import Shards
from evsched.store import server
from evsched.store.moves import ClusterPrimary
from evsched.store.store import Store
from evsched.transport.servers import slot_of


class Node(Struct, frozen=True):
    """A primary, and whether its server moves a slot in one atomic step (Valkey 9)."""

    primary: ClusterPrimary
    atomic: bool


class Move(Struct, frozen=True):
    """A slot that is to move, with what it has of a queue."""

    queue: str
    shard: str
    slot: int
    source: str
    to: str
    commands: list[str]
    """What to run for it, in this order."""


def read_nodes() -> Operation[list[Node]]:
    """Return the primaries of a cluster; none, if there is no cluster."""
    found = list[Node]()
    for host in (yield from nodes()):
        if host is None:
            return []
        primary = yield from send(Store("default").primary().at(host))
        facts = yield from send(server.info("server").at(host))
        atomic = int(facts.get("valkey_version", "0").partition(".")[0]) >= 9
        found.append(Node(primary, atomic))
    return sorted(found, key=lambda node: node.primary.address)


def placed(found: Sequence[Node], shards: Shards, queue: str) -> dict[str, list[str]]:
    """Return the shards of a queue, and the queue itself, by the addresses of the primaries that have them."""
    return {node.primary.address: [part for part in shards.all_of(queue) if node.primary.has(part)] for node in found}


def moves(found: Sequence[Node], queue: str, placement: Mapping[str, Sequence[str]]) -> list[Move]:
    """Return the fewest moves after which no primary has two shards more of a queue than another one."""
    by_address = {node.primary.address: node for node in found}
    have, plan = {address: list(parts) for address, parts in placement.items()}, list[Move]()
    while have:
        most, least = max(have, key=lambda at: len(have[at])), min(have, key=lambda at: len(have[at]))
        if len(have[most]) - len(have[least]) < 2:
            break
        part = have[most].pop(0)
        have[least].append(part)
        slot = slot_of(keys.root(part))
        commands = _commands(by_address[most], by_address[least].primary, slot)
        plan.append(Move(queue, part, slot, most, least, commands))
    return plan


def _commands(source: Node, to: ClusterPrimary, slot: int) -> list[str]:
    at_source, at_to = (f"redis-cli -h {host} -p {port} " for host, port in map(_host, (source.primary, to)))
    if source.atomic:
        return [f"{at_source}CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to.id}"]
    return [
        f"{at_to}CLUSTER SETSLOT {slot} IMPORTING {source.primary.id}",
        f"{at_source}CLUSTER SETSLOT {slot} MIGRATING {to.id}",
        f"redis-cli --cluster fix {source.primary.address}",
    ]


def _host(primary: ClusterPrimary) -> tuple[str, str]:
    host, _, port = primary.address.rpartition(":")
    return host, port
