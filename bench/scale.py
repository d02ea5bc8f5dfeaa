"""How much is measured: the numbers of jobs and the lengths, which the command line sets."""

from __future__ import annotations

from typing import Annotated, Final, get_type_hints

from msgspec import Meta, Struct


class Scale(Struct, frozen=True, kw_only=True):
    jobs: Annotated[int, Meta(description="no-op jobs; a quarter of them measure enqueueing")] = 20_000
    limit: Annotated[float, Meta(description="seconds that the no-op jobs may take; later ones do not count")] = 20.0
    instant: Annotated[int, Meta(description="jobs due at one instant")] = 10_000
    sparse: Annotated[int, Meta(description="jobs due 10 to 50 ms apart")] = 300
    stored: Annotated[int, Meta(description="jobs whose memory is measured")] = 10_000
    idle: Annotated[float, Meta(description="seconds for which idle processes are watched")] = 60.0
    overdue: Annotated[int, Meta(description="jobs overdue after an outage")] = 1_000_000
    scheduled: Annotated[int, Meta(description="jobs scheduled for a far time, beside which others are due")] = (
        1_000_000
    )
    queues: Annotated[int, Meta(description="queues that one worker serves")] = 200
    queue_names: Annotated[int, Meta(description="names of queues, most of them empty")] = 100_000
    workers: Annotated[int, Meta(description="worker processes")] = 20
    dispatchers: Annotated[int, Meta(description="dispatchers")] = 50
    payload: Annotated[int, Meta(description="bytes of a large payload")] = 20_000
    recurrences: Annotated[int, Meta(description="recurrences of one minute, beside which other jobs are due")] = 10_000
    rate: Annotated[float, Meta(description="jobs/s that one Redis and a cluster are measured with")] = 2_000.0
    seconds: Annotated[float, Meta(description="seconds for which they are due at that rate")] = 3.0
    idle_queues: Annotated[int, Meta(description="queues that nobody serves")] = 10_000
    idle_workers: Annotated[int, Meta(description="workers that wait for few jobs, or none")] = 50
    idle_seconds: Annotated[float, Meta(description="seconds for which those are watched")] = 45.0
    rows: Annotated[int, Meta(description="rows of the ledger whose jobs Redis loses")] = 1_000_000
    batch: Annotated[int, Meta(description="jobs of one batch; a tenth of them run")] = 1_000_000
    states: Annotated[int, Meta(description="states that are searched in each scene of interleavings")] = 100_000
    points: Annotated[int, Meta(description="crash points of each process, and jumps of each clock")] = 60
    minutes: Annotated[float, Meta(description="minutes of random input for Redis, and for Valkey")] = 30.0
    rounds: Annotated[int, Meta(description="rounds in which all rows take turns")] = 3


QUICK: Final = Scale(
    jobs=200,
    limit=10.0,
    instant=200,
    sparse=50,
    stored=200,
    idle=3.0,
    overdue=1_000,
    scheduled=2_000,
    queues=9,
    queue_names=2_000,
    workers=2,
    dispatchers=4,
    payload=2_000,
    recurrences=100,
    rate=200.0,
    seconds=1.0,
    idle_queues=1_000,
    idle_workers=2,
    idle_seconds=3.0,
    rows=5_000,
    batch=2_000,
    states=500,
    points=4,
    minutes=0.5,
    rounds=1,
)
"""Enough to see that all works, in about ten minutes. The figures mean little."""


def described() -> dict[str, tuple[type[int] | type[float], str]]:
    """Return the type of each field and its description with the default."""
    fields = dict[str, tuple[type[int] | type[float], str]]()
    for name, hint in get_type_hints(Scale, include_extras=True).items():
        default: float = getattr(Scale(), name)
        (meta,) = hint.__metadata__
        fields[name] = type(default), f"{meta.description}; {default:,} unless you say otherwise"
    return fields


def sizes(least: int, most: int, steps: int) -> list[int]:
    """Return sizes from the least to the most, each larger than the one before by about the same factor."""
    ratio = (most / least) ** (1 / (steps - 1))
    return list(dict.fromkeys(round(least * ratio**step) for step in range(steps)))
