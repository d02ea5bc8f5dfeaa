"""What sentinels and clusters of the tests share: servers that start and end together, ports, and pauses."""

from __future__ import annotations

import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.patience import PATIENCE


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
    """Return a port that is free now, and that no connection gets by itself before a server takes it.

    The system gives connections, and servers that ask for any port, one from 32768 on.
    """
    while True:
        try:
            with socket.create_server(("127.0.0.1", 20_000 + secrets.randbelow(12_768))) as free:
                return int(free.getsockname()[1])
        except OSError:
            pass  # it is in use


def tls_settings(certificates: Path) -> dict[str, str]:
    """Return the settings of a server for TLS, on a port of its own, with what `make_certificates` has made."""
    files = {"tls_ca_cert_file": "ca.crt", "tls_cert_file": "server.crt", "tls_key_file": "server.key"}
    return {
        "tls_port": str(free_port()),
        "tls_auth_clients": "no",
        **{name: str(certificates / file) for name, file in files.items()},
    }


def pause() -> None:
    """Wait a moment before the next look: neither Sentinel nor a cluster tells when it is ready."""
    time.sleep(0.02)  # noqa: TID251 - what is waited for has a time limit
