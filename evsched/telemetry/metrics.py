"""Events as Prometheus metrics. No loop counts anything: each figure comes from an event.

A counter that takes a number and labels from one event is described on the event's class. The tables here have the
other metrics of a process: the name after `evsched_`, the help text, and the labels. Labels are names that the operator
chose: queues, and registered tasks. Other names that clients use become `__other__`, so that a client cannot fill
Prometheus with series.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from evsched import events, process_events
from evsched.events import LATENESS, Event, Metric

RUN: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)


class ReadCounter(Collector):
    """A family of counters whose values are read from Redis."""

    def __init__(self, name: str, what: str, labels: Sequence[str]) -> None:
        self._name, self._what, self._labels = name, what, labels
        self._found = dict[tuple[str, ...], float]()

    def set(self, labels: tuple[str, ...], value: float) -> None:
        self._found[labels] = value

    def clear(self) -> None:
        self._found.clear()

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the values that were read last, for a scrape."""
        family = CounterMetricFamily(self._name, self._what, labels=self._labels)
        for labels, value in list(self._found.items()):
            family.add_metric(labels, value)
        return [family]


class Histogram(Collector):
    """A family of histograms, one for each set of label values. Observe from one thread; any may collect."""

    def __init__(self, name: str, what: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name = name
        self._what = what
        self._labels = labels
        self._bounds = bounds
        self._names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
        self._found: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def observe(self, labels: tuple[str, ...], values: Iterable[float]) -> None:
        """Count the values of one set of label values."""
        found = self._found.get(labels)
        if found is None:
            found = self._found[labels] = [0] * len(self._names), [0.0]
        counts, total = found
        bounds = self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total[0] += value

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Return the counts so far, for a scrape."""
        family = HistogramMetricFamily(self._name, self._what, labels=self._labels)
        for labels, (counts, total) in list(self._found.items()):
            running, buckets = 0, list[tuple[str, float]]()
            for name, count in zip(self._names, list(counts), strict=True):
                running += count
                buckets.append((name, running))
            family.add_metric(labels, buckets, total[0])
        return [family]


COUNTERS: Final = (
    Metric("jobs_dispatched", "Jobs moved from the schedule to the gate."),
    Metric("jobs_started", "Runs started.", ("queue", "task")),
    Metric(
        "jobs_finished",
        "Runs ended, by outcome: done, retry, dead, expired, cancelled, deferred, snoozed or lost.",
        ("queue", "task", "outcome"),
    ),
    Metric(
        "jobs_requeued", "Jobs returned to ready because their worker died, stopped or was busy.", ("queue", "reason")
    ),
    Metric(
        "jobs_deferred",
        "Jobs returned to the schedule because they could not begin: their window is closed, the code on disk has no"
        " handler for them, the worker does not know their task, or the app's store does not give their arguments.",
        ("queue", "cause"),
    ),
    Metric("wakeups", "Times that a dispatcher checked a schedule, by cause.", ("reason",)),
    Metric(
        "wakeups_missed",
        "Checks by the safety cap that found due jobs: a keyspace event did not arrive, and the jobs were late.",
        (),
    ),
)
"""The counters that no class of an event describes."""

COUNTED: Final[dict[type[Event], Metric]] = {
    kind: kind.counter
    for module in (events, process_events)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind.counter is not None
}
"""The events that describe their counters, in the order of /metrics."""

HISTOGRAMS: Final = (
    Metric("dispatch_lateness_seconds", "Seconds from a job's due time to its move to the gate.", bounds=LATENESS),
    Metric("start_lateness_seconds", "Seconds from a job's due time to the start of its handler.", bounds=LATENESS),
    Metric("run_seconds", "Seconds that handlers ran.", ("queue", "task"), RUN),
)

OF_QUEUES: Final = (
    Metric("queue_jobs", "Jobs in each place.", ("queue", "place")),
    Metric(
        "queue_oldest_ready_seconds",
        "Seconds for which the first job in ready, or in the backlog if ready is empty, has been due.",
    ),
    Metric("queue_overdue_jobs", "Due jobs that no worker has fetched, in schedule, backlog and ready."),
    Metric("queue_overdue_seconds", "Seconds for which the oldest of the overdue jobs has been due."),
    Metric("next_due_timestamp_seconds", "When the next job on the schedule is due, Unix seconds."),
    Metric("queue_workers", "Workers that have a lease."),
    Metric("queue_paused", "1 = the queue is paused."),
    Metric("queue_batches", "Batches whose home is the queue, and that have not ended."),
    Metric("queue_batch_jobs", "Jobs of these batches that have not ended, in whatever queues they are."),
)
"""Gauges that a dispatcher reads from Redis when it is scraped."""

COUNTED_IN_REDIS: Final = (
    Metric("batches_ended", "Batches that have ended, by outcome: done, failed or cancelled.", ("queue", "outcome")),
)
"""Counters that a dispatcher reads in the same way, so each one has all."""

OF_RECURRENCES: Final = (
    Metric(
        "recurrence_last_success_timestamp_seconds",
        "When a run of the recurrence was last done, Unix seconds.",
        ("queue", "recurrence"),
    ),
    Metric(
        "recurrence_last_due_timestamp_seconds",
        "When the latest run of the recurrence was due, Unix seconds; absent while it is paused or retired.",
        ("queue", "recurrence"),
    ),
)
"""Gauges that are read in the same way."""

OF_REDIS: Final = (
    Metric("redis_memory_used_ratio", "Used part of Redis's maxmemory; 0 = no maxmemory, NaN = unknown.", ()),
    Metric("redis_clock_ahead_seconds", "Redis's clock minus this host's; NaN = unknown.", ()),
)
"""Gauges that are read in the same way; NaN while they are unknown."""

OF_LEDGER: Final = (
    Metric(
        "ledger_waiting_rows", "Rows that are committed and not scheduled, counted up to 10,000; NaN = unknown.", ()
    ),
    Metric("ledger_up", "1 = the database of the ledger serves all loops of this relay; NaN = this is no relay.", ()),
    Metric(
        "ledger_history_up",
        "1 = the database of the ledger serves this writer of the history; NaN = this is no writer.",
        (),
    ),
    Metric("ledger_waiting_seconds", "For how long the oldest of these rows has waited; NaN = unknown.", ()),
)
"""Gauges that a relay reads from the database when it is scraped; NaN in other processes, and while unknown."""

GAUGES: Final = (
    *OF_QUEUES,
    *OF_RECURRENCES,
    *OF_REDIS,
    *OF_LEDGER,
    Metric("redis_evicted_keys", "Keys that Redis evicted since it started: jobs may be lost.", ()),
    Metric(
        "redis_up",
        "1 = Redis serves all loops of this process and, for a dispatcher, answered this scrape; a refused command does"
        " not count. While it is 0, a dispatcher may leave out the metrics of queues.",
        (),
    ),
    Metric("doctor_findings", "Faults and warnings that `evsched doctor --watch` found last.", ("check", "level")),
    Metric("worker_slots", "Slots of this worker, busy or free.", ("state",)),
    Metric("build_info", "Always 1; the label is the version.", ("version",)),
    # Prometheus sees no increase in what a new process counts before its first scrape: alert rules correct for it.
    Metric("start_time_seconds", "When this process started, Unix seconds.", ()),
)


OTHER: Final = "__other__"

QUEUES: Final = 50
"""How many queues have series of their own, about 70 each. Later ones are `__other__`."""

RECURRENCES: Final = 500
"""How many recurrences have series: a client may make any number of them. Later ones have none."""


_RunEnd = (
    events.Retrying | events.JobBuried | events.JobAborted | events.JobSnoozed | events.JobDeferred | events.RunLost
)


class Metrics:
    """The metrics of one process. `on_event` counts its events; `registry` is what a scrape reads.

    `gauges` are the metrics whose values are set at each scrape, by name: telemetry/process_telemetry.py sets those
    of queues and of a worker's slots.
    """

    def __init__(self, version: str, whole: Callable[[str], str] = str) -> None:
        self._whole = whole
        """Returns the queue of which a queue is a shard: shards have no series of their own."""
        self.registry = CollectorRegistry(auto_describe=False)
        self.gauges = {
            one.name: Gauge(f"evsched_{one.name}", one.what, one.labels, registry=self.registry) for one in GAUGES
        }
        self._counters = {
            one.name: Counter(f"evsched_{one.name}", one.what, one.labels, registry=self.registry)
            for one in (*COUNTERS, *COUNTED.values())
        }
        self._histograms = {
            one.name: Histogram(f"evsched_{one.name}", one.what, one.labels, one.bounds) for one in HISTOGRAMS
        }
        self.read_counters = {
            one.name: ReadCounter(f"evsched_{one.name}", one.what, one.labels) for one in COUNTED_IN_REDIS
        }
        for collector in (*self._histograms.values(), *self.read_counters.values()):
            self.registry.register(collector)
        self._children = dict[tuple[str, ...], Counter]()
        self._tasks = set[str]()
        self._queues = dict[str, str]()
        self._recurrences = set[tuple[str, str]]()
        self._down = {"redis_up": set[str](), "ledger_up": set[str](), "ledger_history_up": set[str]()}
        """By gauge, the loops of this process that Redis, or the ledger's database, does not serve; and "scrape"."""
        self.counted = self._table()
        self.counted.update(dict.fromkeys(COUNTED, self._on_counted))
        """The function that counts each kind of event."""
        self.gauges["redis_up"].set(1)
        self.gauges["build_info"].labels(version).set(1)
        self.gauges["start_time_seconds"].set(time.time())
        for one in OF_LEDGER:
            self.gauges[one.name].set(math.nan)
        self.forget()

    def _table(self) -> dict[type[Event], Callable[[Any], object]]:
        return {
            events.WorkerStarted: self._on_worker,
            events.DispatcherStarted: self._on_dispatcher,
            events.QueueFound: lambda event: self._on_queue(event.queue),
            events.Woken: self._on_woken,
            events.Dispatched: self._on_dispatched,
            events.Started: self._on_started,
            events.Completed: self._on_completed,
            events.Retrying: self._on_end,
            events.JobBuried: self._on_end,
            events.JobAborted: self._on_end,
            events.JobSnoozed: self._on_end,
            events.JobDeferred: self._on_deferred,
            events.RunLost: self._on_end,
            events.JobsRequeued: lambda event: self._count(
                "jobs_requeued", event.queue, event.cause, by=len(event.ids)
            ),
            process_events.JobsPutBack: lambda event: self._count("jobs_requeued", event.queue, "died", by=event.count),
            process_events.Examined: self._on_examined,
            process_events.RedisDown: lambda event: self.set_up(event.who, False),
            process_events.RedisUp: lambda event: self.set_up(event.who, True),
            process_events.NodeReleased: lambda event: self.set_up(event.who, True),
            process_events.LedgerStarted: lambda event: self.gauges["ledger_up"].set(1),
            process_events.HistoryStarted: lambda event: self.gauges["ledger_history_up"].set(1),
            process_events.LedgerDown: lambda event: self.set_up(event.who, False, _ledger_gauge(event.who)),
            process_events.LedgerUp: lambda event: self.set_up(event.who, True, _ledger_gauge(event.who)),
        }

    def on_event(self, event: Event) -> None:
        """Count the event, if its kind is counted."""
        count = self.counted.get(type(event))
        if count is not None:
            count(event)

    def set_up(self, who: str, up: bool, gauge: str = "redis_up") -> None:
        """Note whether Redis, or the ledger's database, serves a part of this process."""
        down = self._down[gauge]
        (down.discard if up else down.add)(who)
        self.gauges[gauge].set(not down)

    def forget(self) -> None:
        """Drop the values that were read from Redis, so that old ones do not look current."""
        for one in (*OF_QUEUES, *OF_RECURRENCES):
            self.gauges[one.name].clear()
        for counter in self.read_counters.values():
            counter.clear()
        for one in OF_REDIS:
            self.gauges[one.name].set(math.nan)

    def queue_label(self, queue: str) -> str:
        """Return a queue's label: its name, or `__other__` if there are too many queues."""
        queue = self._whole(queue)
        label = self._queues.get(queue)
        if label is None:
            label = queue if len(self._queues) < QUEUES else OTHER
            if label is not OTHER:
                self._queues[queue] = label
        return label

    def set_recurrence(self, queue: str, recurrence: str, due: float | None, success: float | None) -> None:
        """Set the gauges of a recurrence, unless there are too many. Times in Unix seconds; None = there was none."""
        labels = self.queue_label(queue), recurrence
        if labels not in self._recurrences:
            if len(self._recurrences) >= RECURRENCES or labels[0] is OTHER:
                return
            self._recurrences.add(labels)
        for name, moment in (("last_due", due), ("last_success", success)):
            if moment is not None and math.isfinite(moment):
                self.gauges[f"recurrence_{name}_timestamp_seconds"].labels(*labels).set(moment)

    def _count(self, name: str, queue: str, *labels: str, by: float = 1) -> None:
        """Add to a counter of a queue."""
        # A lookup here takes 0.3 us, `labels` 1.1 us.
        queue = self._whole(queue)
        key = (name, queue, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._counters[name].labels(self.queue_label(queue), *labels)
        child.inc(by)

    def _tally(self, name: str, label: str, by: float = 1) -> None:
        """Add to a counter whose only label is not a queue."""
        self._counters[name].labels(label).inc(by)

    def _task(self, name: str) -> str:
        return name if name in self._tasks else OTHER

    def _by_task(self, tasks: list[str]) -> dict[str, int]:
        if tasks.count(tasks[0]) == len(tasks):  # the usual case, in a tenth of the time
            return {self._task(tasks[0]): len(tasks)}
        return Tally(map(self._task, tasks))

    # Prometheus sees no increase in a series whose first value is 1. So counters that raise an alarm at 1 start at 0.

    def _on_worker(self, event: events.WorkerStarted) -> None:
        self._tasks.update(event.tasks)
        for queue in event.queues:
            self._count("leases_lost", queue, by=0)
            for task in event.tasks:
                self._count("jobs_started", queue, task, by=0)
                for outcome in ("done", "retry", "dead"):
                    self._count("jobs_finished", queue, task, outcome, by=0)

    def _on_dispatcher(self, event: events.DispatcherStarted) -> None:
        for to in ("ahead", "back"):
            self._tally("redis_clock_jumps", to, by=0)
        for reason in get_args(events.Reason):
            self._tally("wakeups", reason, by=0)
        for queue in event.queues:
            self._on_queue(queue)

    def _on_queue(self, queue: str) -> None:
        for name in ("jobs_dispatched", "recurrences_missed", "recurrences_broken", "recurrences_paused"):
            self._count(name, queue, by=0)
        self._count("jobs_requeued", queue, "died", by=0)

    def _on_woken(self, event: events.Woken) -> None:
        self._tally("wakeups", event.reason)
        if event.reason == "safety" and event.found:
            self._counters["wakeups_missed"].inc()

    def _on_dispatched(self, event: events.Dispatched) -> None:
        self._count("jobs_dispatched", event.queue, by=len(event.lateness))
        self._histograms["dispatch_lateness_seconds"].observe((self.queue_label(event.queue),), event.lateness)

    def _on_started(self, event: events.Started) -> None:
        for task, count in self._by_task(event.tasks).items():
            self._count("jobs_started", event.queue, task, by=count)
        self._histograms["start_lateness_seconds"].observe((self.queue_label(event.queue),), event.lateness)

    def _on_completed(self, event: events.Completed) -> None:
        queue = self.queue_label(event.queue)
        named = self._by_task(event.tasks)
        for task, count in named.items():
            self._count("jobs_finished", event.queue, task, "done", by=count)
        if len(named) == 1:
            self._histograms["run_seconds"].observe((queue, next(iter(named))), event.seconds)
            return
        for task, seconds in zip(event.tasks, event.seconds, strict=True):
            self._histograms["run_seconds"].observe((queue, self._task(task)), (seconds,))

    def _on_end(self, event: _RunEnd) -> None:
        task = self._task(event.task)
        self._count("jobs_finished", event.queue, task, event.outcome)
        if (seconds := getattr(event, "seconds", None)) is not None:
            self._histograms["run_seconds"].observe((self.queue_label(event.queue), task), (seconds,))

    def _on_deferred(self, event: events.JobDeferred) -> None:
        self._on_end(event)
        self._count("jobs_deferred", event.queue, event.cause)

    def _on_counted(self, event: Event) -> None:
        """Add to the counter that the event's class describes."""
        counter = COUNTED[type(event)]
        labels = [getattr(event, label) for label in counter.labels]
        add = self._count if counter.labels[0] == "queue" else self._tally
        add(counter.name, *labels, by=getattr(event, "count", 1))
        if isinstance(event, process_events.RunsWritten):
            self._count("ledger_runs_missed", event.queue, by=0)  # Prometheus sees the first increase only from a 0

    def _on_examined(self, event: process_events.Examined) -> None:
        gauge = self.gauges["doctor_findings"]
        gauge.clear()
        for (check, level), count in Tally(zip(event.checks, event.levels, strict=True)).items():
            gauge.labels(check, level).set(count)


def _ledger_gauge(who: str) -> str:
    return "ledger_history_up" if who in ("history", "pruning") else "ledger_up"
