"""A primary, its replicas, and the sentinels that watch them: real servers, on loopback."""

from __future__ import annotations

import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import redis

from evsched.transport.embedded import EmbeddedRedis, ServerBinary, find_server
from evsched.transport.links import BlockingLink
from tests.support.patience import PATIENCE
from tests.support.topology import Servers, free_port, pause, tls_settings

NAME: Final = "mymaster"


def _as_text(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_as_text(one) for one in cast(list[Any], reply)]
    return reply.decode() if isinstance(reply, bytes) else reply


class Sentinels(Servers):
    """Run them, as a context manager.

    `password`: of the default user of the Redis servers. `login`: name and password of the one user of the sentinels.
    `certificates`: a folder of `make_certificates`; all links use TLS then.
    """

    def __init__(
        self,
        server: ServerBinary | None = None,
        *,
        sentinels: int = 3,
        replicas: int = 2,
        password: str = "",
        login: tuple[str, str] | None = None,
        certificates: Path | None = None,
    ) -> None:
        self._server = server or find_server()
        self._password = password
        self._login = login
        self._certificates = certificates
        self._counts = sentinels, replicas
        super().__init__()
        self.servers: list[EmbeddedRedis] = []
        """The first primary, then its replicas."""
        self._ports: list[int] = []
        """Of these servers, as the sentinels know them."""
        self.ports: list[int] = []
        """Of the sentinels."""
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        secret = f":{self._password}@" if self._password else ""
        options = "?sentinel_username={}&sentinel_password={}".format(*self._login) if self._login else ""
        if self._certificates is None:
            return f"redis+sentinel://{secret}{hosts}/{NAME}/0{options}"
        return f"rediss+sentinel://{secret}{hosts}/{NAME}/0?ssl_ca_certs={self._certificates / 'ca.crt'}"

    def _start(self) -> None:
        sentinels, replicas = self._counts
        secret = {"requirepass": self._password, "masterauth": self._password} if self._password else {}
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="evsched-sentinel-")))
        for number in range(1 + replicas):
            first = {} if number == 0 else {"replicaof": f"127.0.0.1 {self._ports[0]}"}
            tls = self._tls()
            # The whole data set is sent at once, not after the 5 s in which more replicas may come.
            settings = {"repl_diskless_sync_delay": "0", **secret, **first, **tls}
            server = self._stack.enter_context(EmbeddedRedis(self._server, port=free_port(), **settings))
            self.servers.append(server)
            self._ports.append(int(tls.get("tls_port", server.port or 0)))
        for number in range(sentinels):
            self._start_sentinel(folder / f"{number}.conf")
        self._wait_until_known(sentinels, replicas)

    def _tls(self) -> dict[str, str]:
        """Return the settings of a server, or a sentinel, for TLS."""
        if self._certificates is None:
            return {}
        return {**tls_settings(self._certificates), "tls_replication": "yes"}

    def _start_sentinel(self, conf: Path) -> None:
        port, tls = free_port(), {name.replace("_", "-"): value for name, value in self._tls().items()}
        users = []
        if self._login is not None:
            users = ["user default off", "user {} on >{} allchannels +@all".format(*self._login)]
            users.append("sentinel sentinel-user {}\nsentinel sentinel-pass {}".format(*self._login))
        auth = [f"sentinel auth-pass {NAME} {self._password}"] if self._password else []
        lines = [
            *([f"port {port}"] if not tls else ["port 0", *map(" ".join, {**tls, "tls-port": str(port)}.items())]),
            "bind 127.0.0.1",
            f"dir {conf.parent}",
            f"logfile {conf}.log",
            f"sentinel monitor {NAME} 127.0.0.1 {self._ports[0]} 2",
            f"sentinel down-after-milliseconds {NAME} 1000",
            f"sentinel failover-timeout {NAME} 4000",
            *auth,
            *users,
        ]
        conf.write_text("\n".join(lines) + "\n")
        process = subprocess.Popen([self._server.path, str(conf), "--sentinel"], stdout=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.processes.append(process)
        self.ports.append(port)

    def start_stale(self, server: EmbeddedRedis) -> int:
        """Start a sentinel that names a server the primary and hears nothing of the others; return its port."""
        conf, port = self.servers[0].folder / f"stale-{free_port()}.conf", free_port()
        deaf = [f"sentinel rename-command {NAME} {word} nothing" for word in ("INFO", "PUBLISH", "SUBSCRIBE")]
        named = f"sentinel monitor {NAME} 127.0.0.1 {server.port} 1"
        conf.write_text("\n".join([f"port {port}", "bind 127.0.0.1", f"dir {conf.parent}", named, *deaf]) + "\n")
        process = subprocess.Popen([self._server.path, str(conf), "--sentinel"], stdout=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        until = time.monotonic() + PATIENCE
        while True:
            with suppress(redis.ConnectionError):
                self.ask(port, "PING")
                return port
            assert time.monotonic() < until, "it does not start"
            pause()

    def _wait_until_known(self, sentinels: int, replicas: int) -> None:
        """Wait until each sentinel knows the others and all replicas: only then they can fail over."""
        until = time.monotonic() + PATIENCE
        for port in self.ports:
            while True:
                with suppress(redis.ConnectionError):
                    words = self.ask(port, "SENTINEL", "MASTER", NAME)
                    state = dict(zip(words[::2], words[1::2], strict=True))
                    others, known = int(state["num-other-sentinels"]), int(state["num-slaves"])
                    if others == sentinels - 1 and known == replicas:
                        break
                assert time.monotonic() < until, "the sentinels do not find each other"
                pause()
        self.wait_for_replicas()

    def wait_for_replicas(self) -> None:
        """Wait until all servers but the primary are replicas that it serves."""
        until, primary = time.monotonic() + PATIENCE, self.primary()
        for server in self.servers:
            while server is not primary and self.client(server).info("replication").get("master_link_status") != "up":
                assert time.monotonic() < until, "a replica does not reach the primary"
                pause()

    def ask(self, port: int, *words: str) -> Any:
        """Send a command to a sentinel."""
        name, password = self._login or (None, None)
        options: Any = {"ssl_ca_certs": str(self._certificates / "ca.crt")} if self._certificates else {}
        scheme = "rediss" if options else "redis"
        # Not a client of redis-py: with TLS 1.3 its pool takes a session ticket for data that was not read.
        link = BlockingLink(scheme, host="127.0.0.1", port=port, username=name, password=password, **options).raw
        try:
            link.connect()
            link.send_command(*words)
            return _as_text(link.read_response())
        finally:
            link.disconnect()

    def client(self, server: EmbeddedRedis) -> Any:
        """Return a plain client of one of the servers."""
        return redis.Redis(
            port=server.port or 0, password=self._password or None, decode_responses=True, protocol=2, driver_info=None
        )

    def primary(self, queue: str = "") -> EmbeddedRedis:
        """Return the server that the sentinels call the primary, which has all queues."""
        for port, process in zip(self.ports, self.processes, strict=True):
            if process.poll() is None:
                _, found = self.ask(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
                return self.servers[self._ports.index(int(found))]
        raise AssertionError("no sentinel is left")

    def wait_for_failover(self, old: EmbeddedRedis, queue: str = "") -> EmbeddedRedis:
        """Wait until another server is the primary, and return it."""
        until = time.monotonic() + PATIENCE
        while (found := self.primary()) is old or self.client(found).info("replication")["role"] != "master":
            assert time.monotonic() < until, "the sentinels do not fail over"
            pause()
        return found

    def order_failover(self) -> None:
        """Order a failover, as an operator does."""
        self.ask(self.ports[0], "SENTINEL", "FAILOVER", NAME)

    def fail_over_behind_a_pause(self, old: EmbeddedRedis) -> EmbeddedRedis:
        """Fail over by the procedure of docs/deploy.md, which loses nothing; return the new primary."""
        client = self.client(old)

        def is_replicated() -> bool:
            state = client.info("replication")
            offsets = [state[f"slave{number}"]["offset"] for number in range(state["connected_slaves"])]
            return set(offsets) == {state["master_repl_offset"]}

        def all_name(port: int) -> bool:
            return all(self.ask(at, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1] == f"{port}" for at in self.ports)

        client.client_pause(60_000, all=False)
        self.until(is_replicated, "the replicas do not follow")
        self.order_failover()
        new = self.wait_for_failover(old)
        self.until(lambda: all_name(new.port or 0), "a sentinel still names the old primary")
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_unpause()
        return new
