"""The page of `evsched top`, as a value: made from the last look at Redis and earlier ones.

Pure: top/collector.py looks, cli/top_commands.py draws. Lengths are in seconds, times in Unix seconds by Redis's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from evsched.store.dispatcher_calls import Lease
from evsched.store.operator_calls import QueueStats, merged
from evsched.transport.address import Host
from evsched.worker.slots import FetchPause
from evsched.worker.status_reporter import Running, WorkerStatus

_SAMPLES: Final = 60
"""Looks whose lateness is kept: at one a second, the last minute."""

_DUE_AT_ONCE: Final = 1e9
"""A job that is later than this (30 years) was due at 0 or -inf, which means "now"."""


class Look(Struct, frozen=True):
    """The data of one look."""

    at: float
    """On the host's monotonic clock."""
    stats: dict[str, QueueStats]
    leases: dict[str, list[Lease]]
    statuses: list[WorkerStatus]
    refused: dict[str, str] = {}
    """Queues that cannot be read, and why."""
    down: list[Host] = []
    """Primaries of a cluster that do not answer."""
    rows: dict[str, list[str]] = {}
    """The queues that are shown, and the queues of which each consists; empty: each queue that was read, by itself."""

    def parts(self) -> dict[str, list[str]]:
        """Return the queues that are shown, by name, with those of which each consists, without those not read."""
        rows = self.rows or {queue: [queue] for queue in self.stats}
        return {queue: parts for queue, parts in sorted(rows.items()) if parts}


class Count(Struct, frozen=True):
    """The totals of a worker for a queue at its last report."""

    at: float
    started: int
    done: int
    failed: int


class Rates(Struct, frozen=True):
    """Jobs per second."""

    started: float = 0.0
    done: float = 0.0
    failed: float = 0.0


class Sample(Struct, frozen=True):
    """The lateness of the jobs that have started since the look before."""

    p50: float
    max: float


class History(Struct, frozen=True):
    """The values with which the next look is compared. Empty before the first look."""

    looks: int = 0
    counts: dict[tuple[str, str], Count] = {}
    """By worker and queue."""
    samples: list[Sample | None] = []
    """The oldest first; None: nothing started."""


class QueueRow(Struct, frozen=True):
    """One queue. `overdue` jobs are a part of `schedule`."""

    queue: str
    schedule: int
    overdue: int
    backlog: int
    ready: int
    processing: int
    dead: int
    workers: int
    next_due: float | None
    paused: float | None
    """Since when."""
    rates: Rates | None
    """None: this is the first look, and a rate needs two."""
    parents: int = 0
    """Parents that stand by: they have no worker process, and start one when a job waits."""
    paused_until: float | None = None
    """When the pause ends by itself."""
    paused_why: str | None = None


class JobRow(Struct, frozen=True):
    """One run; `seconds` since it was fetched."""

    queue: str
    id: str
    task: str
    attempt: int
    seconds: float


class WorkerRow(Struct, frozen=True):
    """One worker that has reported its status, or has a lease."""

    worker: str
    answered: bool
    """False: its event loop is blocked, it hangs, or it has just ended. Its slots are then unknown."""
    slots: int | None
    busy: int
    """Runs; the jobs that it holds, if it has not answered."""
    runs: list[JobRow]
    """The longest first; not all of them if there are many."""
    not_fetching: FetchPause | None = None
    """Why it fetches nothing now, from one of its queues at least; None: it fetches when it has a slot."""


class Down(Struct, frozen=True):
    """Redis is down: the rest of the page shows the last look."""

    seconds: float
    reason: str


class Page(Struct, frozen=True):
    """Everything that is shown."""

    now: float | None
    queues: list[QueueRow]
    rates: Rates | None
    lateness: list[Sample | None]
    """The last minute, the oldest first."""
    workers: list[WorkerRow]
    refused: dict[str, str] = {}
    """Queues that cannot be read, and why: a key of the wrong type, or their primary does not answer."""
    down: Down | None = None
    nodes_down: list[Host] = []
    """Primaries of a cluster that do not answer: queues there may be missing."""


def compose(look: Look, before: History) -> tuple[Page, History]:
    """Return the page of a look, and the values with which the next look is compared."""
    by_queue: dict[str, list[Rates]] = {queue: [] for queue in look.stats}
    late: list[float] = []
    for status in look.statuses:
        known = before.counts.get((status.worker, status.queue))
        if known is not None and status.queue in by_queue:
            by_queue[status.queue].append(_rates(known, status, look.at))
            started = max(status.started - known.started, 0)
            late += status.lateness[-started:] if started else []
    samples = [*before.samples, sample(late)][-_SAMPLES:] if before.looks else []
    rows = look.parts()
    page = Page(
        now=max((queue_stats.now for queue_stats in look.stats.values()), default=None),
        queues=[
            _queue(
                queue,
                merged([look.stats[part] for part in parts]),
                total(one for part in parts for one in by_queue[part]) if before.looks else None,
            )
            for queue, parts in rows.items()
        ],
        rates=total(one for found in by_queue.values() for one in found) if before.looks else None,
        lateness=samples,
        workers=_workers(look),
        refused=look.refused,
        nodes_down=look.down,
    )
    return page, History(before.looks + 1, _counts(look, before), samples)


def sample(lateness: Iterable[float]) -> Sample | None:
    """Return the median and the largest; None without values. The median of an even number is the upper one."""
    known = sorted(late for late in lateness if late < _DUE_AT_ONCE)
    return Sample(known[len(known) // 2], known[-1]) if known else None


def total(parts: Iterable[Rates]) -> Rates:
    rows = list(parts)
    return Rates(sum(r.started for r in rows), sum(r.done for r in rows), sum(r.failed for r in rows))


def _rates(known: Count, status: WorkerStatus, now: float) -> Rates:
    length = now - known.at
    if length <= 0:
        return Rates()
    changes = (status.started - known.started, status.done - known.done, status.failed - known.failed)
    return Rates(*(max(change, 0) / length for change in changes))


def _counts(look: Look, before: History) -> dict[tuple[str, str], Count]:
    """Return the counts by worker. One that has a lease but did not reply this time keeps its last count."""
    leased = {(lease.worker, queue) for queue, leases in look.leases.items() for lease in leases}
    kept = {key: count for key, count in before.counts.items() if key in leased}
    new = {(p.worker, p.queue): Count(look.at, p.started, p.done, p.failed) for p in look.statuses}
    return {**kept, **new}


def _queue(queue: str, stats: QueueStats, rates: Rates | None) -> QueueRow:
    fields: dict[str, Any] = {**asdict(stats), **stats.places, "queue": queue, "overdue": stats.due, "rates": rates}
    return QueueRow(**{name: fields[name] for name in QueueRow.__struct_fields__})


def _workers(look: Look) -> list[WorkerRow]:
    statuses: dict[str, list[WorkerStatus]] = {}
    for status in look.statuses:
        statuses.setdefault(status.worker, []).append(status)
    held: dict[str, int] = {}
    for leases in look.leases.values():
        for lease in leases:
            held[lease.worker] = held.get(lease.worker, 0) + lease.held
    rows = {part: queue for queue, parts in look.parts().items() for part in parts}
    return [
        _answered(worker, statuses[worker], rows)
        if worker in statuses
        else WorkerRow(worker, answered=False, slots=None, busy=held[worker], runs=[])
        for worker in sorted({*statuses, *held})
    ]


def _answered(worker: str, statuses: list[WorkerStatus], rows: Mapping[str, str]) -> WorkerRow:
    runs = [_job(rows.get(status.queue, status.queue), run) for status in statuses for run in status.runs]
    runs.sort(key=lambda job: -job.seconds)
    last = statuses[-1]
    pauses: list[FetchPause] = [status.not_fetching for status in statuses if status.not_fetching is not None]
    return WorkerRow(worker, True, last.slots, last.busy, runs, pauses[0] if pauses else None)


def _job(queue: str, run: Running) -> JobRow:
    return JobRow(queue, run.id, run.task, run.attempt, run.seconds)
