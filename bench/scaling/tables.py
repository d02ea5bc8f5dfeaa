"""The tables of what one Redis and a cluster bear. Each row has processes and servers of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from bench.figures import Figures, Table
from bench.scale import Scale
from bench.scaling import enqueue, idle
from bench.scaling.fleet import counted, fleet
from bench.scaling.site import replica

ONE: Final = "one queue"
ONE_IN_CLUSTER: Final = "one queue, three primaries"
SHARDS: Final = "12 shards, one server"
CLUSTER: Final = "12 shards, three primaries"
IN_TURN: Final = "12 shards, three primaries in turn"

PLANNED_SHARDS: Final = 4
"""Shards for each primary of a plan."""

ALONE: Final = "one worker, one dispatcher"
SHARED: Final = "12 workers, one dispatcher"
RESERVED: Final = "12 workers, two dispatchers"
REPLICATED: Final = "one worker, one dispatcher, a replica"

_COST: Final = "Redis µs/job", "script calls/job", "commands/job", "bytes/job", "dispatcher µs/job", "worker µs/job"
_SPEED: Final = (
    *_COST,
    "busiest node, µs/job",
    "busiest node, % of a core",
    "jobs/s here",
    "jobs/s of a whole core, calculated",
)
_RATE: Final = (
    "Redis µs/job",
    "busiest node, % of a core",
    "script calls/job",
    "commands/job",
    "bytes/job",
    "dispatcher µs/job",
    "worker µs/job",
    "p50, ms",
    "p99, ms",
)

_CASES: Final[Mapping[str, Mapping[str, Any]]] = {
    ONE: {},
    ONE_IN_CLUSTER: {"primaries": 3},
    SHARDS: {"shards": 12},
    CLUSTER: {"shards": 12, "primaries": 3},
    IN_TURN: {"shards": 12, "primaries": 3},
}

_GROWTH: Final[Mapping[str, Mapping[str, Any]]] = {
    **{f"beside {count:,} idle queues": {"idle": count} for count in (1_000, 10_000)},
    **{counted(count, "dispatcher"): {"dispatchers": count} for count in (2, 4)},
    **{counted(count, "shard"): {"shards": count} for count in (1, 4, 12, 48)},
    "10 workers": {"workers": 10},
    "12 shards, 4 workers": {"shards": 12, "workers": 4},
    "12 shards, 4 workers with 3 each": {"shards": 12, "workers": 4, "divided": True},
}


def _at_once(scale: Scale, name: str) -> Figures:
    with fleet(scale.instant * 2, **_CASES[name]) as made:
        run = made.in_turn if name == IN_TURN else made.at_once
        return _picked(run(scale.instant * 2), _SPEED)


def _at_rate(scale: Scale, rate: float, case: Mapping[str, Any]) -> Figures:
    with fleet(round(rate * scale.seconds), **case) as made:
        return _picked(made.at_rate(rate, scale.seconds), _RATE)


def _for_now(scale: Scale, case: Mapping[str, Any]) -> Figures:
    with fleet(round(scale.rate * scale.seconds), **case) as made:
        return _picked(made.for_now(scale.rate, scale.seconds), _RATE)


def _grown(scale: Scale, case: Mapping[str, Any]) -> Figures:
    with fleet(round(scale.rate * scale.seconds) + scale.instant, **case) as made:
        rate, burst = made.at_rate(scale.rate, scale.seconds), made.at_once(scale.instant)
    names = "Redis µs/job", "script calls/job"
    return {
        **{f"{name}": rate[name] for name in (*names, "dispatcher µs/job", "worker µs/job", "p50, ms", "p99, ms")},
        **{f"at once: {name}": burst[name] for name in names},
    }


def _with(scale: Scale, *, replicated: bool = False, **case: Any) -> Figures:
    with (
        fleet(scale.instant, shards=PLANNED_SHARDS, **case) as made,
        replica(made.site.nodes[0]) if replicated else nullcontext(),
    ):
        names = "Redis µs/job", "script calls/job", "dispatcher µs/job", "worker µs/job"
        return _picked(made.at_once(scale.instant), names)


def _racing(scale: Scale, workers: int) -> Figures:
    with fleet(round(_FEW * scale.seconds), workers=workers) as made:
        return _picked(made.at_rate(_FEW, scale.seconds), _RATE)


_FEW: Final = 100.0
"""Jobs a second for which many idle workers wait."""


def _picked(figures: Figures, names: tuple[str, ...]) -> Figures:
    return {name: figures[name] for name in names}


def _rates(scale: Scale) -> Table:
    rows = {f"{ONE}, {rate:,.0f}/s": partial(_at_rate, scale, rate, _CASES[ONE]) for rate in rates(scale)}
    for name in (SHARDS, CLUSTER):
        for rate in rates(scale)[1:]:
            rows[f"{name}, {rate:,.0f}/s"] = partial(_at_rate, scale, rate, _CASES[name])
    for name in (ONE, SHARDS):
        rows[f"{name}, {scale.rate:,.0f}/s, enqueued one by one for now"] = partial(_for_now, scale, _CASES[name])
    return Table("Jobs due one after the other", rows, max(1, scale.rounds // 3))


def rates(scale: Scale) -> list[float]:
    """Return the rates: a quarter of the usual one, that, and four times as much."""
    return [scale.rate * part for part in (0.25, 1, 4)]


def tables(scale: Scale) -> dict[str, Table]:
    """Return the tables by their names."""
    few = max(1, scale.rounds // 3)
    one_rate = f"Columns without a name of their own are of {scale.rate:,.0f} jobs/s."
    return {
        "burst": Table(
            f"{scale.instant * 2:,} jobs due at one instant",
            {name: partial(_at_once, scale, name) for name in _CASES},
            scale.rounds,
        ),
        "rates": _rates(scale),
        "fleets": Table(
            "More dispatchers, shards and workers",
            {"one of each": partial(_grown, scale, {}), **{k: partial(_grown, scale, v) for k, v in _GROWTH.items()}},
            few,
            one_rate,
        ),
        "racing": Table(
            f"Workers that wait for {_FEW:,.0f} jobs a second",
            {counted(count, "worker"): partial(_racing, scale, count) for count in (1, 10, scale.idle_workers)},
            few,
        ),
        "stored": Table(
            "To schedule a job, and the memory in which it waits",
            {
                "1,000 at a time": partial(enqueue.stored, scale.jobs, 0, 60, single=False),
                "one by one": partial(enqueue.stored, scale.jobs, 0, 60, single=True),
                "12 shards, 1,000 at a time": partial(enqueue.stored, scale.jobs, 12, 60, single=False),
                "12 shards, one by one": partial(enqueue.stored, scale.jobs, 12, 60, single=True),
                "one by one, payload of 1,000 bytes": partial(enqueue.stored, scale.jobs, 0, 1000, single=True),
            },
            few,
        ),
        "standing-still": Table("Without a job", idle.rows(scale)),
    }


def production(scale: Scale) -> Table:
    """Return the table of what more workers, a reserve, a replica and TLS add to Redis's time for a job."""
    rows = {
        ALONE: partial(_with, scale),
        SHARED: partial(_with, scale, workers=12),
        RESERVED: partial(_with, scale, workers=12, dispatchers=2),
        REPLICATED: partial(_with, scale, replicated=True),
        "one worker, one dispatcher, TLS": partial(_with, scale, tls=True),
    }
    what = f"{scale.instant:,} jobs due at one instant, {PLANNED_SHARDS} shards"
    return Table(f"What a system in production adds: {what}", rows, scale.rounds)
