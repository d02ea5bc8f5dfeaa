"""A Redis Cluster for tests: real servers, on loopback."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from redis.crc import key_slot

from evsched import keys
from evsched.errors import ConfigError
from evsched.transport.embedded import EmbeddedRedis, ServerBinary, find_server
from tests.support.certificates import make_certificates
from tests.support.patience import PATIENCE
from tests.support.topology import Servers, free_port, tls_settings

SLOTS: Final = 16384

JOB: Final = '{"task":"t"}'
"""A payload."""


class Cluster(Servers):
    """Run one, as a context manager: primaries that share the slots evenly, and replicas, dealt to them in turn.

    `certificates`: the folder of those with which the nodes serve TLS too, as `make_certificates` makes them.
    `settings`: of each node.
    """

    def __init__(
        self,
        server: ServerBinary | None = None,
        *,
        primaries: int = 3,
        replicas: int = 0,
        certificates: Path | None = None,
        **settings: str,
    ) -> None:
        self._server = server or find_server()
        self._counts = primaries, replicas
        self._certificates = certificates
        self._settings = settings
        super().__init__()
        self.nodes: list[EmbeddedRedis] = []
        """The primaries, then the replicas."""
        self._ports: list[int] = []
        """Of TLS, by node."""

    @property
    def url(self) -> str:
        return self.url_of("")

    @property
    def server(self) -> ServerBinary:
        """The program of the nodes."""
        return self._server

    @property
    def tls_url(self) -> str:
        """The URL for TLS. The certificates are for the address of the nodes, which name no host."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"rediss+cluster://{hosts}?ssl_ca_certs={self._certificates}/ca.crt"

    def url_of(self, user: str) -> str:
        """Return the URL for one of the users of redis.conf."""
        login = f"{user}:change-me@" if user else ""
        return f"redis+cluster://{login}" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def _start(self) -> None:
        primaries, replicas = self._counts
        for _ in range(primaries + replicas):
            tls = (
                {}
                if self._certificates is None
                else {**tls_settings(self._certificates), "tls_cluster": "yes", "tls_replication": "yes"}
            )
            node = EmbeddedRedis(
                self._server,
                port=free_port(),  # of a node that is killed, no other server may get it
                cluster_enabled="yes",
                cluster_port=str(free_port()),
                cluster_node_timeout="1500",
                cluster_replica_validity_factor="0",
                cluster_require_full_coverage="no",
                repl_diskless_sync_delay="0",
                **self._settings,
                **tls,
            )
            self._ports.append(int(tls.get("tls_port", 0)))
            self.nodes.append(self._stack.enter_context(node))
        clients = [self.client(node) for node in self.nodes]
        share = -(-SLOTS // primaries)
        for number, client in enumerate(clients[:primaries]):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, min((number + 1) * share, SLOTS) - 1)
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        bus = clients[0].config_get("cluster-port")["cluster-port"]
        for client in clients[1:]:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, bus)
        self.until(lambda: all(self._known(client) == len(clients) for client in clients), "the nodes do not meet")
        for number, client in enumerate(clients[primaries:]):
            client.execute_command("CLUSTER", "REPLICATE", self.id_of(self.nodes[number % primaries]))
        self.until_ready()
        # A node serves its own slots before it knows the owners of the others, which it never learns from a dead one.
        self.until(
            lambda: all(f"slots_assigned:{SLOTS}" in client.execute_command("CLUSTER", "INFO") for client in clients),
            "a node does not know the owners of all slots",
        )

    def _known(self, client: Any) -> int:
        lines = client.execute_command("CLUSTER", "NODES").splitlines()
        return len([line for line in lines if "handshake" not in line])

    def until_ready(self) -> None:
        """Wait until all nodes that run agree that the cluster serves."""
        alive = [self.client(node) for node in self.nodes if node.pid]
        self.until(
            lambda: all("cluster_state:ok" in client.execute_command("CLUSTER", "INFO") for client in alive),
            "the cluster does not serve",
        )

    def client(self, node: EmbeddedRedis) -> Any:
        """Return a plain client of one node, which follows no redirection."""
        return redis.Redis(port=node.port or 0, decode_responses=True, protocol=2, driver_info=None)

    def foreign_client(self) -> Any:
        """Return a client that follows redirections, of another kind than ours."""
        return redis.RedisCluster(host="127.0.0.1", port=self.nodes[0].port or 0, decode_responses=True)

    def id_of(self, node: EmbeddedRedis) -> str:
        return self.client(node).execute_command("CLUSTER", "MYID")

    def is_primary(self, node: EmbeddedRedis) -> bool:
        return bool(node.pid) and self.client(node).execute_command("ROLE")[0] == "master"

    def primary(self, queue: str, of: EmbeddedRedis | None = None) -> EmbeddedRedis:
        """Return the node that owns a queue's slot, as the node `of` says, or any that lives."""
        slot = slot_of(queue)
        for first, last, (_, port, *_), *_ in self._slots(of):
            if first <= slot <= last:
                return next(node for node, tls in zip(self.nodes, self._ports, strict=True) if port in (node.port, tls))
        raise AssertionError(f"nobody owns slot {slot}")

    def _slots(self, of: EmbeddedRedis | None) -> list[Any]:
        alive = of or next(node for node in self.nodes if node.pid)
        return self.client(alive).execute_command("CLUSTER", "SLOTS")

    def wait_for_failover(self, old: EmbeddedRedis, queue: str) -> EmbeddedRedis:
        """Wait until another node has a queue and serves, and return it."""

        def is_over() -> bool:
            found = self.primary(queue, of=next(node for node in self.nodes if node.pid and node is not old))
            return found is not old and self.is_primary(found)

        self.until(is_over, "no replica takes the place of the primary")
        return self.primary(queue, of=next(node for node in self.nodes if node.pid and node is not old))

    def wait_for_replicas(self) -> None:
        """Wait until all nodes but the primaries are replicas that a primary serves."""

        def is_served(node: EmbeddedRedis) -> bool:
            replication = self.client(node).info("replication")
            return replication["role"] == "master" or replication["master_link_status"] == "up"

        self.until_ready()
        primaries = self._counts[0]
        self.until(
            lambda: sum(map(self.is_primary, self.nodes)) == primaries and all(map(is_served, self.nodes)),
            "a replica does not reach its primary",
        )

    def begin_to_move(self, queue: str, to: EmbeddedRedis) -> None:
        """Mark the queue's slot as moving to another node; no key has moved yet."""
        slot, source = slot_of(queue), self.primary(queue)
        self.client(to).execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.client(source).execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(to))

    def move_keys(self, source: EmbeddedRedis, to: EmbeddedRedis, names: list[str]) -> None:
        """Move some keys to the node that the slot is moving to."""
        self.client(source).execute_command(
            "MIGRATE", "127.0.0.1", to.port, "", 0, int(1000 * PATIENCE), "KEYS", *names
        )

    def end_move(self, queue: str, to: EmbeddedRedis) -> None:
        """Give the slot to its new owner, when no key is left."""
        slot, name = slot_of(queue), self.id_of(to)
        for node in (to, *(node for node in self.nodes if node is not to and node.pid)):
            if self.is_primary(node):
                self.client(node).execute_command("CLUSTER", "SETSLOT", slot, "NODE", name)
        alive = [node for node in self.nodes if node.pid]  # replicas hear of it from the primaries
        self.until(lambda: all(self.primary(queue, node) is to for node in alive), "all nodes know the new owner")

    def move(self, queue: str, to: EmbeddedRedis) -> None:
        """Move a slot key by key, as `redis-cli --cluster reshard` does; it may have begun."""
        source, slot = self.primary(queue), slot_of(queue)
        self.begin_to_move(queue, to)
        while names := self.client(source).execute_command("CLUSTER", "GETKEYSINSLOT", slot, 5):
            self.move_keys(source, to, names)
        self.end_move(queue, to)


def slot_of(queue: str) -> int:
    """Return the slot of a queue's keys."""
    return key_slot(keys.root(queue).encode())


PLACES: Final = ("one server", pytest.param("cluster", marks=pytest.mark.extra))


@contextmanager
def started(place: str, server: ServerBinary) -> Generator[str]:
    """Start one of PLACES, and yield its URL."""
    with Cluster(server) if place == "cluster" else EmbeddedRedis(server, port=0) as found:
        yield found.url


@contextmanager
def foreign_client(url: str) -> Generator[Any]:
    """Yield a client, of another kind than ours, of all of a Redis or a cluster."""
    client: Any
    if url.startswith("redis+cluster"):
        host, _, port = url.removeprefix("redis+cluster://").partition(",")[0].partition(":")
        # Not `from_url`: the connections of such a client stay open after `close`.
        client = redis.RedisCluster(host=host, port=int(port), decode_responses=True)
    else:
        client = redis.Redis.from_url(url, decode_responses=True)
    with closing(client):
        yield client


def queue_on(cluster: Cluster, node: EmbeddedRedis, prefix: str = "q") -> str:
    """Return a queue of which the node has the slot."""
    return next(name for number in count() if cluster.primary(name := f"{prefix}{number}") is node)


def at(node: EmbeddedRedis) -> str:
    """Return how a finding names a node."""
    return f"at 127.0.0.1:{node.port}"


def schedule(cluster: Cluster, queue: str, due: float = 4e9) -> None:
    """Schedule a job as a foreign client does, with no command but ZADD."""
    cluster.client(cluster.primary(queue)).zadd(keys.schedule(queue), {JOB: due})


@contextmanager
def tls_cluster(certificates: Path, replicas: int = 0) -> Generator[Cluster]:
    """Run a cluster whose nodes serve TLS too; `certificates`: an empty folder for the certificates."""
    make_certificates(certificates, "IP:127.0.0.1")
    try:
        cluster = Cluster(certificates=certificates, replicas=replicas).__enter__()
    except ConfigError as error:
        pytest.skip(f"this server has no TLS: {error}")
    with ExitStack() as stack:
        stack.push(cluster)
        yield cluster
