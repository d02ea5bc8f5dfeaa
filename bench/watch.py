"""What processes and Redis do while there is no job."""

from __future__ import annotations

import time
from typing import Final

from bench.figures import Figures
from bench.processes import cpu
from bench.server import Server

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
