"""PINGs without pause, in a process and on a connection of their own. The table `overdue` runs this.

A line on stdin asks for the times of all PINGs since the last such line, in milliseconds. Each PING gives two numbers:
its whole time, and that time without the waits of Redis and of this process for a core, which a busy machine causes.
"""

from __future__ import annotations

import select
import sys
import time
from typing import Any, Final

import redis

_EVERY: Final = 0.002
"""Seconds between two PINGs."""


def _waited(pid: int | str) -> float:
    """Return the milliseconds that a process was ready to run and waited for a core."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) / 1e6


def run(url: str) -> None:
    """Run until stdin ends."""
    server: Any = redis.Redis.from_url(url, protocol=2, driver_info=None)
    pid = server.info("server")["process_id"]
    took = list[float]()
    while True:
        if select.select([sys.stdin], [], [], _EVERY)[0]:
            if not sys.stdin.readline():
                return
            print(*took, flush=True)
            took.clear()
        waited, began = _waited(pid) + _waited("self"), time.monotonic()
        server.ping()
        whole = (time.monotonic() - began) * 1e3
        took += (whole, max(0.0, whole - (_waited(pid) + _waited("self") - waited)))


if __name__ == "__main__":
    run(sys.argv[1])
