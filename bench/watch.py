"""What processes and Redis do while there is no job."""

from __future__ import annotations

import time
from typing import Final

from bench.figures import Figures, Table
from bench.processes import cpu
from bench.scale import Scale
from bench.server import Server, server

_SETTLE: Final = 6.0
"""Seconds. What a process does once after its start is not idleness."""


def watch(where: Server, pids: list[int], seconds: float) -> Figures:
    """Let processes settle, and watch them for so many seconds."""
    time.sleep(_SETTLE)
    executed, used, redis = where.executed(), cpu(*pids), cpu(where.pid)
    sent = where.sent(seconds)
    executed, used, redis = where.executed() - executed, cpu(*pids) - used, cpu(where.pid) - redis
    return {
        "commands/s sent": sent / seconds,
        "commands/s executed": executed / seconds,
        "CPU %": used / seconds * 100,
        "CPU % of Redis": redis / seconds * 100,
    }


def _commands(seconds: float) -> Figures:
    with server() as where, where.fleet():
        time.sleep(_SETTLE)
        return dict(where.sent_by_name(seconds).most_common())


def commands(scale: Scale) -> Table:
    """Return the table of the commands that an idle dispatcher and an idle worker send."""
    seconds = 5 * scale.idle  # some are sent once in minutes
    return Table(
        f"Commands of idle processes in {seconds:g} s", {"a dispatcher and a worker": lambda: _commands(seconds)}
    )
