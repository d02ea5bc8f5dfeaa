"""Checks a cluster as a whole: its slots, its replicas, the versions of its nodes, and where shards are.

Settings and state of each primary are checked by `server_checks.py`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from evsched import keys
from evsched.diagnostics.finding import Finding
from evsched.errors import StoreDown, StoreError
from evsched.shards import Shards, shard
from evsched.store import server
from evsched.transport.address import Host
from evsched.transport.embedded import read_version
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import SLOTS, Topology, slot_of

_CLUSTER: Final = "Redis Cluster"

_CROWD: Final = 2
"""How many times its part of a queue's shards a primary has when they crowd there: names decide, so some have more."""


def no_slots(error: StoreError) -> Finding:
    """Report that no node that answers has a part in a cluster."""
    mend = (
        "name nodes in the URL that belong to the cluster (redis-cli --cluster check HOST:PORT shows them), or give "
        "these nodes their slots: redis-cli --cluster create"
    )
    return Finding("cluster", "fault", str(error), _CLUSTER, mend)


async def unanswered(sender: BatchingSender, nodes: Sequence[Host | None]) -> set[Host]:
    """Return the primaries that do not answer."""
    asked = [node for node in nodes if node is not None]
    replies = await sender.attempt_all([server.info().at(node) for node in asked])
    return {node for node, reply in zip(asked, replies, strict=True) if isinstance(reply, StoreDown)}


async def cluster_checks(sender: BatchingSender, topology: Topology, shards: Shards, down: set[Host]) -> list[Finding]:
    """Check a cluster. `down`: the primaries that do not answer.

    Raises:
        StoreDown, StoreRefused
    """
    owners = await topology.owners()  # then the node that gave them is asked for the rest: others may know fewer slots
    ranges = await sender.send(server.slot_ranges())
    doubtful = [(host, why) for host, why in await topology.doubtful() if host not in down]
    return [
        *without_answer(ranges, down),
        *_doubtful(doubtful),
        *without_owner(ranges),
        *without_replica(ranges),
        *different_versions(await _read_versions(sender, ranges, down)),
        *crowded(shards.counts, owners),
    ]


def _doubtful(hosts: Sequence[tuple[Host, str]]) -> Iterator[Finding]:
    mend = (
        "name another node in the URL, or let it join: redis-cli --cluster add-node; if it has joined, check that its "
        "cluster bus port (16379 for 6379) can be reached by the other nodes, and theirs by it"
    )
    for host, why in hosts:
        what = f"the URL names a node that cannot tell where queues are, so others are asked: {why}"
        yield Finding("cluster-node", "warning", what, _at(host), mend)


def without_answer(ranges: list[server.SlotRange], down: set[Host]) -> Iterator[Finding]:
    """Report the primaries that do not answer, with their slots."""
    promote = "promote one of its replicas: redis-cli -h HOST -p PORT of the replica CLUSTER FAILOVER TAKEOVER"
    for host in sorted(down):
        has_replica = any(one.replicas for one in ranges if one.primary == host)
        mend = f"start it again; if that fails, {promote}" if has_replica else "start it again: it has no replica"
        slots = ", ".join(f"{one.first}-{one.last}" for one in ranges if one.primary == host)
        what = f"primary {_at(host)} of slots {slots} does not answer: its queues stand still, and were not checked"
        yield Finding("cluster-down", "fault", what, _at(host), mend)


def without_owner(ranges: list[server.SlotRange]) -> Iterator[Finding]:
    """Check that each slot has an owner."""
    if missing := SLOTS - sum(one.last + 1 - one.first for one in ranges):
        what = f"{missing} of {SLOTS} slots have no owner: queues in these slots have no Redis"
        mend = "redis-cli --cluster fix HOST:PORT, with one of its nodes"
        yield Finding("cluster-slots", "fault", what, _CLUSTER, mend)


def without_replica(ranges: list[server.SlotRange]) -> Iterator[Finding]:
    """Check that no primary has lost its replicas."""
    replicas = {one.primary: len(one.replicas) for one in ranges}
    lone = sorted(host for host, count in replicas.items() if not count)
    mend = "redis-cli --cluster add-node NEW-HOST:PORT HOST:PORT --cluster-slave --cluster-master-id ID"
    if len(lone) == len(replicas):  # intended, as it is with one Redis
        what = "no primary has a replica: if one is lost, its queues stand still until it is back"
        yield Finding("cluster-replicas", "info", what, _CLUSTER, mend)
        return
    for host in lone:
        what = "this primary has no replica that runs, other primaries have: if it is lost, its queues stand still"
        yield Finding("cluster-replicas", "warning", what, _at(host), mend)


async def _read_versions(sender: BatchingSender, ranges: list[server.SlotRange], down: set[Host]) -> dict[Host, str]:
    """Return the versions of the nodes that answer."""
    nodes = sorted({host for one in ranges for host in (one.primary, *one.replicas) if host[0]} - down)
    read = await asyncio.gather(*(sender.send(server.info().at(node)) for node in nodes), return_exceptions=True)
    found = dict[Host, str]()
    for node, info in zip(nodes, read, strict=True):
        if not isinstance(info, BaseException):
            kind, version, _ = read_version(info)
            found[node] = f"{kind.capitalize()} {version}"
        elif not isinstance(info, StoreError):
            raise info
    return found


def different_versions(versions: Mapping[Host, str]) -> Iterator[Finding]:
    """Check that all nodes have the same version."""
    by_version = defaultdict[str, list[str]](list)
    for host, version in versions.items():
        by_version[version].append(_at(host))
    if len(by_version) > 1:
        listed = "; ".join(f"{version} at {', '.join(nodes)}" for version, nodes in sorted(by_version.items()))
        mend = "install the same version on all nodes: a failover to another version may change what Redis accepts"
        yield Finding("cluster-versions", "warning", f"nodes have different versions: {listed}", _CLUSTER, mend)


def crowded(counts: Mapping[str, int], owners: list[Host | None]) -> Iterator[Finding]:
    """Check that no primary has far more of the shards of a queue than its part."""
    primaries = len({*owners} - {None})
    for queue, count in sorted((queue, count) for queue, count in counts.items() if count):
        part = -(-count // primaries)
        at = Counter(owners[slot_of(keys.root(shard(queue, number)))] for number in range(count))
        host, most = at.most_common(1)[0]
        if host is not None and most >= max(_CROWD * part, part + 2):
            what = (
                f"{most} of the {count} shards of queue {queue} are on one of {primaries} primaries; its part is {part}"
            )
            mend = (
                "another number of shards (evsched queues shard), or move the slots of some (CLUSTER KEYSLOT "
                f"'{keys.root(shard(queue, 0))}' shows the first) to other primaries"
            )
            yield Finding("shards-crowded", "info", what, _at(host), mend)


def _at(host: Host) -> str:
    return f"{host[0]}:{host[1]}"
