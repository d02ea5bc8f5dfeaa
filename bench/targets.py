"""The project's targets, and whether a run of the benchmark has met them."""

from __future__ import annotations

from typing import Final, NamedTuple

from bench.figures import grid, number
from bench.readings import Reading, Tables, best_peer, cell, growth, ratio, worst

_DISPATCHED: Final = "evsched, jobs dispatched before"
_INLINE: Final = "evsched inline"
_BARE: Final = "bare loop over evsched's scripts"
_CROWD: Final = "jobs that compute for 1 ms, 256 slots"


class Target(NamedTuple):
    """A figure, and its limit: the most that it may be, or with `at_least` the least that it must be."""

    what: str
    limit: float
    unit: str
    reading: Reading
    at_least: bool = False

    def row(self, tables: Tables) -> list[str]:
        """Return the cells: what, target, measured, whether it is met."""
        measured, words = self.reading(tables), f"{'≥' if self.at_least else '≤'} {number(self.limit)} {self.unit}"
        if measured is None:
            return [self.what, words, "-", "-"]
        met = measured >= self.limit if self.at_least else measured <= self.limit
        return [self.what, words, f"{number(measured)} {self.unit}", "yes" if met else "no"]


def _no_op(row: str) -> Reading:
    return cell("throughput", row, "jobs/s")


def _times(spoken: str) -> Reading:
    return ratio(_no_op(_INLINE), best_peer(spoken))


_OF_BARE: Final = ratio(_no_op(_DISPATCHED), _no_op(_BARE))


def _beside(moment: str) -> Reading:
    return cell("recurrences", f"10,000, {moment}", "p99, ms")


_COMPARED: Final = (
    Target("no-op jobs, nothing kept", 60_000, "jobs/s", _no_op(_INLINE), at_least=True),
    Target("the same, times the fastest Python peer", 15, "x", _times("Python"), at_least=True),
    Target("the same, times the fastest Node peer", 2.5, "x", _times("Node"), at_least=True),
    Target("no-op jobs with records, kept for 300 s", 50_000, "jobs/s", _no_op("evsched"), at_least=True),
    Target("these, while the dispatcher is idle, of the bare loop", 0.6, "x", _OF_BARE, at_least=True),
    Target("sparse jobs: lateness p50", 0.75, "ms", cell("sparse", "evsched", "p50, ms")),
    Target("sparse jobs: lateness p99", 2, "ms", cell("sparse", "evsched", "p99, ms")),
    Target("sparse jobs: early", 0, "jobs", cell("sparse", "evsched", "early", max)),
    Target("10,000 jobs due at one instant: last start", 0.25, "s", cell("instant", "evsched", "last start, s")),
    Target("10,000 jobs due at one instant: early", 0, "jobs", cell("instant", "evsched", "early", max)),
    Target("idle: sent to Redis", 0.1, "commands/s", cell("idle", "evsched", "commands/s sent")),
    Target("idle: CPU of dispatcher and worker", 0.1, "%", cell("idle", "evsched", "CPU %")),
    Target("enqueue_many", 100_000, "jobs/s", cell("enqueue", "evsched", "many, jobs/s"), at_least=True),
    Target("enqueue, from 100 tasks", 20_000, "jobs/s", cell("enqueue", "evsched", "single, jobs/s"), at_least=True),
    Target("memory of a scheduled job", 350, "bytes", cell("memory", "evsched", "bytes/job")),
    Target("memory of an inline job", 210, "bytes", cell("memory", "evsched inline", "bytes/job")),
)

_ALONE: Final = (
    Target("flood of far jobs: CPU of a dispatcher", 25, "%", worst("flood", "CPU %")),
    Target("flood of far jobs: script calls of a dispatcher", 100, "calls/s", worst("flood", "script calls/s")),
    Target("flood of far jobs: p99 of due jobs", 10, "ms", worst("flood", "due")),
    Target("1,000,000 scheduled jobs against 1,000: p50", 1.5, "x", growth("scheduled", "p50, ms")),
    Target("1,000,000 scheduled jobs against 1,000: p99", 1.5, "x", growth("scheduled", "p99, ms")),
    Target("100,000 names of queues: sent when idle", 1, "commands/s", worst("names", "idle: commands/s sent")),
    Target("jobs overdue: scripts over 5 ms", 0, "calls", worst("overdue", "scripts over")),
    Target("beside 10,000 recurrences, spread over the minute: p99", 10, "ms", _beside("spread over the minute")),
    Target(
        "the same, while the next are scheduled",
        10,
        "ms",
        _beside("spread over the minute, while the next are scheduled"),
    ),
    Target("the same, all due at one instant", 10, "ms", _beside("due at one instant")),
    Target("a job of priority 9 in a crowd: p50", 64, "ms", cell("overtaking", _CROWD, "priority 9: p50, ms")),
    Target("shares of groups: off by", 10, "%", worst("shares", "off by")),
    Target("killed worker: last start elsewhere", 15, "s", worst("killed", "last start", max)),
    Target("killed worker: lost", 0, "jobs", worst("killed", "lost", max)),
    Target("evsched --version", 0.1, "s", cell("commands", "evsched --version", "s")),
    Target("evsched queues", 0.25, "s", cell("commands", "evsched queues", "s")),
)

_TARGETS: Final = (*_COMPARED, *_ALONE)


def table(tables: Tables) -> str:
    """Return the targets in Markdown, beside the figures of these tables. A dash: they do not have this figure."""
    return grid([["what", "target", "measured", "met"], *(target.row(tables) for target in _TARGETS)])
