"""A worker is killed while it runs jobs: when they start again elsewhere, and whether one is lost."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from bench.figures import Failed, Figures, Table
from bench.scale import Scale
from bench.stage import stage

_JOBS: Final = 200
_SECONDS: Final = 5.0
"""Seconds that a job runs, so that all of them run when the worker is killed."""

_LIMIT: Final = 40.0
"""Seconds after which a job that has not started again counts as lost."""


def _kill() -> Figures:
    with stage(_JOBS) as one, one.where.evsched("dispatcher"), one.workers() as (victim,):
        one.warm_up()
        first = one.schedule([0.0] * _JOBS, seconds=_SECONDS)
        if len(one.oracle.wait(first, _JOBS, _SECONDS)) < _JOBS:
            raise Failed("not all jobs ran at the same time")
        killed = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        with one.workers():
            while True:
                again = [at for at in one.oracle.times(first, _JOBS) if at > killed]
                if len(again) == _JOBS or time.time() > killed + _LIMIT:
                    break
                time.sleep(0.02)
    return {"last start elsewhere, s": max(again, default=killed) - killed, "lost": _JOBS - len(again)}


def table(scale: Scale) -> Table:
    """Return the table."""
    return Table("A worker is killed", {f"with {_JOBS} jobs": _kill}, scale.rounds)
