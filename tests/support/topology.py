"""The parts that sentinels and clusters of tests share: servers that start and end together, ports, and pauses."""

from __future__ import annotations

import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client

_PROCESSES: Final = 16
"""Test processes that have different ports. Others may run at the same time, so the order is random."""

_number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
_mine = range(20_000 + _number, 32_768, _PROCESSES)
_ports = cycle(secrets.SystemRandom().sample(_mine, len(_mine)))


class Servers(ABC):
    """Servers that belong together, which are started on entry and end at exit, whatever happens."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    @abstractmethod
    def _start(self) -> None:
        """Start them."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; `what` is the failure."""
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, what
            pause()


def free_port() -> int:
    """Return a port that is free now, and that nothing else gets before a server takes it.

    The system gives connections, and servers that ask for any port, one from 32768 on. Each test process has ports of
    its own below, and uses them in turn.
    """
    while True:
        try:
            with socket.create_server(("127.0.0.1", next(_ports))) as free:
                return int(free.getsockname()[1])
        except OSError:
            pass  # it is in use


def copy_data(source: EmbeddedRedis, target: EmbeddedRedis) -> None:
    """Make a running Redis a replica of another one until it has its data, and then a primary again."""
    client, origin = plain_client(target.url), plain_client(source.url)
    origin.config_set("repl-diskless-sync-delay", 0)
    client.replicaof("127.0.0.1", source.port)
    limit = time.monotonic() + PATIENCE
    while client.info("replication")["master_link_status"] != "up":
        assert time.monotonic() < limit, "the replica has not been in sync"
    client.replicaof("NO", "ONE")
    client.close()
    origin.close()


def tls_settings(certificates: Path) -> dict[str, str]:
    """Return the settings of a server for TLS, on a port of its own, with the files of `make_certificates`."""
    files = {"tls_ca_cert_file": "ca.crt", "tls_cert_file": "server.crt", "tls_key_file": "server.key"}
    return {
        "tls_port": str(free_port()),
        "tls_auth_clients": "no",
        **{name: str(certificates / file) for name, file in files.items()},
    }


def pause() -> None:
    """Wait a moment before the next look: neither Sentinel nor a cluster reports when it is ready."""
    time.sleep(0.02)  # noqa: TID251 - what is waited for has a time limit
