"""One Redis, or a cluster of primaries, and what its nodes have counted."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from bench.server import Server, server
from tests.support.certificates import make_certificates
from tests.support.cluster import Cluster
from tests.support.topology import tls_settings


class Counts(Struct, frozen=True):
    """What a node has counted since its start, or between two moments. Waits for a core do not count."""

    main: float
    """CPU seconds of its main thread, which runs all commands."""
    cpu: float
    """CPU seconds of all its threads."""
    requests: int
    """How often it read from a connection. Commands that are sent together are one request."""
    scripts: int
    """Script calls."""
    executed: int
    """Commands that it executed, those inside scripts included."""
    sent: int
    """Bytes that it received from clients and sent to them."""

    def since(self, before: Counts) -> Counts:
        """Return what was counted since `before`."""
        return Counts(*(getattr(self, name) - getattr(before, name) for name in self.__struct_fields__))


def total(nodes: Sequence[Counts]) -> Counts:
    """Return what nodes have counted together."""
    return Counts(*(sum(getattr(one, name) for one in nodes) for name in Counts.__struct_fields__))


def _counts(node: Server) -> Counts:
    info: dict[str, Any] = node.redis.info("cpu", "commandstats", "stats")
    calls = {name: found["calls"] for name, found in info.items() if name.startswith("cmdstat_")}
    return Counts(
        main=info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"],
        cpu=info["used_cpu_user"] + info["used_cpu_sys"],
        requests=info["total_reads_processed"],
        scripts=calls.get("cmdstat_evalsha", 0),
        executed=sum(calls.values()) - calls.get("cmdstat_info", 0),
        sent=info["total_net_input_bytes"] + info["total_net_output_bytes"],
    )


class Site:
    """The primaries, and the URL by which evsched finds them."""

    def __init__(self, url: str, nodes: list[Server]) -> None:
        self.url = url
        self.nodes = nodes

    def counts(self) -> list[Counts]:
        """Return what each node has counted."""
        return [_counts(node) for node in self.nodes]

    def since(self, before: Sequence[Counts]) -> list[Counts]:
        """Return what each node has counted since `before`."""
        return [now.since(then) for now, then in zip(self.counts(), before, strict=True)]

    def memory(self) -> int:
        """Return the bytes that the nodes use, without the buffers of their clients."""
        return sum(node.memory() for node in self.nodes)

    def leases(self) -> int:
        """Return how many leases of workers there are, in all queues."""
        return sum(node.redis.zcard(key) for node in self.nodes for key in node.redis.keys("evsched:{*}:leases"))

    def connections(self) -> list[int]:
        """Return the bytes that each connection of a client takes, without our own."""
        found: list[dict[str, str]] = []
        for node in self.nodes:
            ours = str(node.redis.client_id())
            found += [one for one in node.redis.client_list() if one["id"] != ours]
        return [int(one["tot-mem"]) for one in found]


@contextmanager
def replica(of: Server) -> Generator[None]:
    """Run a replica of a server, which has copied its data."""
    with server() as where:
        where.redis.replicaof("127.0.0.1", of.redis.connection_pool.connection_kwargs["port"])
        where.until(lambda: where.redis.info("replication")["master_link_status"] == "up")
        yield


@contextmanager
def site(primaries: int = 0, *, tls: bool = False) -> Generator[Site]:
    """Start a cluster of so many primaries without replicas, or without a number one Redis; end it.

    `tls`: evsched reaches the one Redis through TLS.
    """
    if tls:
        with TemporaryDirectory() as folder:
            make_certificates(Path(folder), "IP:127.0.0.1")
            settings = tls_settings(Path(folder))
            with server(**settings) as where:
                yield Site(f"rediss://127.0.0.1:{settings['tls_port']}/0?ssl_ca_certs={folder}/ca.crt", [where])
    elif primaries:
        with Cluster(primaries=primaries) as cluster:
            yield Site(cluster.url, [Server(node) for node in cluster.nodes])
    else:
        with server() as where:
            yield Site(where.url, [where])
