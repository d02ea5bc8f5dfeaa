"""The fixtures of the chaos tests: processes that can be killed, and an oracle outside Redis."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from evsched.client.client import SyncClient
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE


class Fleet:
    """Processes of evsched on one Redis, and the oracle."""

    def __init__(self, url: str, oracle: Path) -> None:
        self.url = url
        self.oracle = oracle
        self.children: list[subprocess.Popen[bytes]] = []
        oracle.touch()

    def start(self, *words: str, **settings: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "EVSCHED_URL": self.url, "ORACLE": str(self.oracle), **settings}
        command = [sys.executable, "-m", "evsched", *words, "--log-level", "CRITICAL"]
        child = subprocess.Popen(command, env=environment)
        self.children.append(child)
        return child

    def lines(self) -> list[tuple[str, str, int, int, float]]:
        whole, _, _ = self.oracle.read_text().rpartition("\n")  # the last line may be half written
        rows = [line.split() for line in whole.splitlines()]
        return [(what, job, int(attempt), int(pid), float(at)) for what, job, attempt, pid, at in rows]

    def wait_for_more(self, lines: int) -> int:
        """Wait until the oracle has more than this number of lines; return how many it has."""
        until = time.monotonic() + PATIENCE
        while (now := len(self.lines())) <= lines:
            assert time.monotonic() < until, "no run begins or ends"
            time.sleep(0.1)
        return now

    def stop(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()


@pytest.fixture
def fleet(server: EmbeddedRedis, tmp_path: Path) -> Generator[Fleet]:
    fleet = Fleet(server.url, tmp_path / "oracle")
    yield fleet
    fleet.stop()


@pytest.fixture
def client(server: EmbeddedRedis) -> Generator[SyncClient]:
    client = SyncClient(server.url)
    yield client
    client.close()
