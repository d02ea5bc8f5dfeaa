"""The tables of growth: for each size a row, whose name is the size."""

from __future__ import annotations

from functools import partial
from typing import Final

from bench.figures import Table
from bench.growth import overdue, payloads
from bench.growth.fleets import dispatched, served
from bench.growth.names import named
from bench.growth.scheduled import beside
from bench.scale import Scale, sizes

_SMALL: Final = 60
"""Bytes of a small payload."""

_FLEET: Final = (
    "Idle: all processes, and commands that all clients send. Sparse: jobs due 10 to 50 ms apart. Instant: {:,} jobs "
    "due at the same instant."
)


def tables(scale: Scale) -> dict[str, Table]:
    """Return the tables by their names."""
    scheduled = sizes(max(1, scale.scheduled // 1000), scale.scheduled, 4)
    queues, workers = sizes(1, scale.queues, 3), sizes(1, scale.workers, 3)
    dispatchers, bytes_ = sizes(1, scale.dispatchers, 3), sizes(_SMALL, scale.payload, 3)
    fleet = _FLEET.format(scale.instant)
    counted = f"{fleet} Commands of a job: those of the dispatchers, which share a process."
    return {
        "scheduled": Table(
            "Scheduled jobs, beside which sparse ones are due",
            {f"{count:,}": partial(beside, count, scale) for count in scheduled},
            scale.rounds,
        ),
        "queues": Table(
            "Queues that one worker serves",
            {f"{count:,}": partial(served, count, 1, scale) for count in queues},
            scale.rounds,
            fleet,
        ),
        "workers": Table(
            "Worker processes",
            {f"{count:,}": partial(served, 1, count, scale) for count in workers},
            scale.rounds,
            fleet,
        ),
        "dispatchers": Table(
            "Dispatchers",
            {f"{count:,}": partial(dispatched, count, scale) for count in dispatchers},
            scale.rounds,
            counted,
        ),
        "payloads": Table(
            "Bytes of the payload of no-op jobs",
            {f"{size:,}": partial(payloads.sized, size, scale) for size in bytes_},
            scale.rounds,
        ),
        "names": Table(
            "Names of queues, of which one in a hundred has a job",
            {
                f"{count:,}": partial(named, count, scale)
                for count in sizes(max(1, scale.queue_names // 100), scale.queue_names, 3)
            },
            note="Idle: a dispatcher and a worker. Beside: jobs of another queue while a fifth as many names are new.",
        ),
        "overdue": overdue.table(scale.overdue),
    }
