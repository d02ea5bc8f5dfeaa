"""Dispatchers and workers without a job to run. All of them stand still at the same time, each on a Redis of its own.

One by one they would take a quarter of an hour, since a period of what they do is up to 45 s long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache, partial
from typing import Final

from msgspec import Struct

from bench.figures import Figures
from bench.processes import cpu
from bench.scale import Scale
from bench.scaling.fleet import Fleet, counted, fleet
from bench.scaling.site import Counts, total

_SETTLE: Final = 8.0
"""Seconds. What a process does once after its start is not idleness."""


class Standing(Struct, frozen=True):
    """Who stands still: besides the queue that a worker serves, so many queues with a job for a far time."""

    queues: int = 0
    shards: int = 0
    dispatchers: int = 1
    workers: int = 1


def _sizes(scale: Scale) -> Mapping[str, Standing]:
    queues = [max(1, scale.idle_queues // 1000), max(1, scale.idle_queues // 10), scale.idle_queues]
    workers = [1, max(1, scale.idle_workers // 5), scale.idle_workers]
    rows = {f"{count:,} idle queues": Standing(queues=count) for count in queues}
    rows |= {counted(count, "worker"): Standing(workers=count) for count in workers}
    rows |= {counted(count, "dispatcher"): Standing(dispatchers=count) for count in (2, 4)}
    rows |= {counted(count, "shard"): Standing(shards=count) for count in (1, 4, 12, 48)}
    return rows | {"12 shards, 10 workers": Standing(shards=12, workers=10)}


@cache
def _watch(scale: Scale) -> Mapping[str, Figures]:
    with ExitStack() as stack:
        fleets = {name: _start(stack, standing) for name, standing in _sizes(scale).items()}
        time.sleep(_SETTLE)
        before = {name: (one.site.counts(), _cpu(one)) for name, one in fleets.items()}
        time.sleep(scale.idle_seconds)
        return {name: _figures(one, *before[name], scale.idle_seconds) for name, one in fleets.items()}


def _start(stack: ExitStack, standing: Standing) -> Fleet:
    return stack.enter_context(
        fleet(
            0,
            shards=standing.shards,
            dispatchers=standing.dispatchers,
            workers=standing.workers,
            idle=standing.queues,
        )
    )


def _cpu(made: Fleet) -> list[float]:
    return [cpu(*(child.pid for child in group)) for group in (made.dispatchers, made.workers)]


def _figures(made: Fleet, counts: list[Counts], used: list[float], seconds: float) -> Figures:
    done, connections = total(made.site.since(counts)), made.site.connections()
    dispatchers, workers = (now - then for now, then in zip(_cpu(made), used, strict=True))
    return {
        "connections": len(connections),
        "kB each": sum(connections) / len(connections) / 1e3,
        "requests/s": done.requests / seconds,
        "commands/s": done.executed / seconds,
        "Redis, ms/s": done.cpu / seconds * 1e3,
        "dispatchers, ms/s": dispatchers / seconds * 1e3,
        "workers, ms/s": workers / seconds * 1e3,
    }


def rows(scale: Scale) -> Mapping[str, Callable[[], Figures]]:
    """Return the rows: each reads the one measurement of all."""
    return {name: partial(_row, scale, name) for name in _sizes(scale)}


def _row(scale: Scale, name: str) -> Figures:
    return _watch(scale)[name]
