"""How much is measured: the numbers of jobs and the lengths, which the command line sets."""

from __future__ import annotations

from msgspec import Struct


class Scale(Struct, frozen=True, kw_only=True):
    jobs: int = 20_000
    """No-op jobs, and jobs enqueued."""
    limit: float = 40.0
    """Seconds that the no-op jobs may take; a slower scheduler is judged by those that have run until then."""
    instant: int = 10_000
    """Jobs due at one instant."""
    sparse: int = 300
    """Jobs due 10 to 50 ms apart."""
    stored: int = 10_000
    """Jobs whose memory is measured."""
    idle: float = 30.0
    """Seconds for which an idle fleet is watched."""
    overdue: int = 100_000
    """Jobs overdue after an outage."""
    rounds: int = 3


QUICK = Scale(jobs=200, limit=10.0, instant=200, sparse=50, stored=200, idle=3.0, overdue=1_000, rounds=1)
"""Enough to see that all works, in about a minute for each scheduler. The figures mean little."""
