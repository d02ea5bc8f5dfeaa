"""The metrics ports of worker processes, and the file that lists them for Prometheus (`file_sd_configs`).

The parent reserves the ports, so a worker process that is started again keeps its port. It does not listen: while the
process does not run, a scraper is refused at once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from evsched.config import Config
from evsched.errors import CannotStart
from evsched.telemetry.http import reserve

_EVERY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104
"""Addresses to listen on, but not to connect to: the file has the host's name instead."""


class MetricsPorts:
    """Consecutive ports for `count` processes, beginning with the configured one; no ports if none is configured.

    Raises:
        CannotStart: a port is taken.
    """

    def __init__(self, config: Config, count: int, targets: Path | None) -> None:
        self._host = config.metrics_host
        self._targets = targets
        self._sockets = list[socket.socket]()
        first = config.metrics_port
        try:
            for number in range(0 if first is None else count):
                self._sockets.append(reserve(self._host, first + number if first else 0))
        except CannotStart:
            self._close_sockets()
            raise

    def of(self, number: int) -> socket.socket | None:
        """Return the socket of one process; None = there are no ports."""
        return self._sockets[number] if self._sockets else None

    def write_targets(self, numbers: Iterable[int]) -> None:
        """Write the ports of the processes that should run: Prometheus shows one that died as down, and no others.

        Raises:
            CannotStart: the file cannot be written.
        """
        path = self._targets
        if path is None:
            return
        host = socket.gethostname() if self._host in _EVERY_ADDRESS else self._host
        ports = [self._sockets[number].getsockname()[1] for number in numbers if self._sockets]
        text = msgspec.json.encode([{"targets": [f"{host}:{port}" for port in ports], "labels": {}}])
        try:
            part = path.with_name(f"{path.name}.{os.getpid()}")
            part.write_bytes(text + b"\n")
            part.replace(path)  # so Prometheus never reads half a file
        except OSError as error:
            raise CannotStart(f"metrics targets {path}: {error.strerror}") from None

    def close(self) -> None:
        """Close the ports and delete the file."""
        if self._targets is not None:
            self._targets.unlink(missing_ok=True)
        self._close_sockets()

    def _close_sockets(self) -> None:
        for port in self._sockets:
            port.close()
