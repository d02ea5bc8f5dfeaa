"""Many queues, many workers, many dispatchers: what they cost while idle and for each job, and how late jobs start."""

from __future__ import annotations

from collections.abc import Callable

from bench.crowd import Crowd, crowd
from bench.figures import Figures
from bench.scale import Scale
from bench.stage import stage
from bench.watch import watch


def served(queues: int, workers: int, scale: Scale) -> Figures:
    """Measure one dispatcher, and workers that serve all of the queues."""
    with (
        stage(scale.sparse + scale.instant, queues) as one,
        one.where.evsched("dispatcher") as dispatcher,
        one.workers(workers) as children,
    ):
        pids = [child.pid for child in (dispatcher, *children)]
        one.warm_up()
        return (
            _titled("idle", watch(one.where, pids, scale.idle / 2))
            | _titled("sparse", one.sparse(scale.sparse))
            | _titled("instant", one.burst(scale.instant, pids))
        )


def dispatched(dispatchers: int, scale: Scale) -> Figures:
    """Measure one worker, and dispatchers that share a process, in which their commands are counted."""
    with (
        stage(scale.sparse + scale.instant) as one,
        crowd(one.where, dispatchers) as group,
        one.workers() as children,
    ):
        pids = [group.pid, *(child.pid for child in children)]
        one.warm_up()
        return (
            _titled("idle", watch(one.where, pids, scale.idle / 2))
            | _titled("sparse", _counted(group, scale.sparse, lambda: one.sparse(scale.sparse)))
            | _titled("instant", _counted(group, scale.instant, lambda: one.burst(scale.instant, pids)))
        )


def _counted(group: Crowd, jobs: int, run: Callable[[], Figures]) -> Figures:
    """Measure jobs, and the commands that the dispatchers sent for each."""
    before = sum(group.counts()[:2])
    return {**run(), "commands/job": (sum(group.counts()[:2]) - before) / jobs}


def _titled(title: str, figures: Figures) -> dict[str, float | list[float] | None]:
    return {f"{title}: {name}": value for name, value in figures.items()}
