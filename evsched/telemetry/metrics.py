"""Events as Prometheus metrics. Nothing is counted by hand in a loop: what is here came as an event.

Labels are names that the operator chose: queues, and tasks that are registered. What foreign clients make up is
`__other__`, so that nobody can fill a Prometheus through a schedule.
"""

from __future__ import annotations

import math
import time
from collections import Counter as Tally
from collections.abc import Callable
from typing import Any, Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from evsched import events
from evsched.events import Event
from evsched.telemetry.histogram import LATENESS, RUN, Histogram

OTHER: Final = "__other__"

QUEUES: Final = 50
"""Queues that have series of their own, the first that are heard of; some 70 series each."""


class Metrics:
    """The metrics of one process. `on_event` takes its events; `registry` is what a scrape reads."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._tasks = set[str]()
        self._queues = dict[str, str]()
        self._children = dict[tuple[Any, ...], Counter]()
        self._down = set[str]()

        self._dispatched = self._counter("jobs_dispatched", "Jobs moved from the schedule to the gate.", "queue")
        self._started = self._counter("jobs_started", "Runs begun.", "queue", "task")
        self._finished = self._counter(
            "jobs_finished",
            "Runs ended, by what came of them: done, retry, dead, expired, cancelled, deferred or lost.",
            "queue",
            "task",
            "outcome",
        )
        self._requeued = self._counter(
            "jobs_requeued", "Jobs put back to ready: their worker died, stopped, or was busy.", "queue", "reason"
        )
        self._wakeups = self._counter("wakeups", "Looks of a dispatcher at a schedule, by what woke it.", "reason")
        self._overslept = self._counter(
            "wakeups_missed", "Looks by the safety cap that found due jobs: an event had not arrived."
        )
        self._missed = self._counter(
            "recurrences_missed", "Planned times of recurrences that passed without a job.", "queue"
        )
        self._broken = self._counter(
            "recurrences_broken", "Recurrences that were found unable to recur: a bad rule, zone or record.", "queue"
        )
        self._jumps = self._counter("redis_clock_jumps", "Times that Redis's clock was set, by a second or more.", "to")
        self._lost = self._counter("leases_lost", "Leases that ended while their worker lived.", "queue")
        self._errors = self._counter("redis_errors", "Commands of loops that failed.", "kind")
        self._up = self._gauge(
            "redis_up",
            "1 = Redis serves this process (to refuse a command is no outage): its loops, and a dispatcher's question"
            " at this scrape. While it is 0, a dispatcher may leave the figures of queues out.",
        )
        self._up.set(1)
        self._gauge("build_info", "1, with the version.", "version").labels(version).set(1)
        # What a new process has counted before its first scrape is no increase, for Prometheus. Rules add it by this.
        self._gauge("start_time_seconds", "When this process started, Unix seconds.").set(time.time())

        self._dispatch_lateness = self._histogram(
            "dispatch_lateness_seconds", "From the due to the move to the gate.", LATENESS, "queue"
        )
        self._start_lateness = self._histogram(
            "start_lateness_seconds", "From the due to the handler.", LATENESS, "queue"
        )
        self._run = self._histogram("run_seconds", "How long handlers ran.", RUN, "queue", "task")

        # What its owner sets when a scrape comes: see telemetry/queue_stats.py, and telemetry/process.py for the slots.
        self.queue_jobs = self._gauge("queue_jobs", "Jobs in each place.", "queue", "place")
        self.queue_oldest = self._gauge(
            "queue_oldest_ready_seconds", "How long the front of ready, else of the backlog, has been due.", "queue"
        )
        self.overdue = self._gauge(
            "queue_overdue_jobs", "Jobs that are due and not taken: on the schedule, in the backlog, in ready.", "queue"
        )
        self.overdue_for = self._gauge("queue_overdue_seconds", "How long the first of them has been due.", "queue")
        self.next_due = self._gauge("next_due_timestamp_seconds", "The front of the schedule, Unix seconds.", "queue")
        self.queue_workers = self._gauge("queue_workers", "Workers with a lease.", "queue")
        self.queue_paused = self._gauge("queue_paused", "1 = paused.", "queue")
        self.evicted = self._gauge("redis_evicted_keys", "Keys that Redis evicted since it started: jobs may be lost.")
        self.memory = self._gauge("redis_memory_used_ratio", "Of Redis's maxmemory; 0 = it has none, NaN = not known.")
        self.clock = self._gauge("redis_clock_ahead_seconds", "Redis's clock less this host's; NaN = not known.")
        self.slots = self._gauge("worker_slots", "Room for jobs in this worker.", "state")

        self.forget()

        self._heard: dict[type[Event], Callable[[Any], object]] = {
            events.WorkerStarted: self._on_worker,
            events.DispatcherStarted: self._on_dispatcher,
            events.QueueFound: lambda event: self._on_queue(event.queue),
            events.Woken: self._on_woken,
            events.Dispatched: self._on_dispatched,
            events.Started: self._on_started,
            events.Completed: self._on_completed,
            events.Retrying: lambda event: self._ended(event, "retry"),
            events.JobBuried: lambda event: self._ended(event, event.outcome),
            events.JobAborted: lambda event: self._ended(event, "cancelled"),
            events.JobDeferred: self._on_deferred,
            events.RunLost: self._on_lost_run,
            events.Requeued: lambda event: self._count(self._requeued, event.queue, event.cause, by=len(event.ids)),
            events.Missed: lambda event: self._count(self._missed, event.queue, by=event.count),
            events.RecurrenceBroken: lambda event: self._count(self._broken, event.queue),
            events.ClockJumped: lambda event: self._jumps.labels("ahead" if event.seconds > 0 else "back").inc(),
            events.LeaseLost: lambda event: self._count(self._lost, event.queue),
            events.RedisFailed: lambda event: self._errors.labels(event.kind).inc(),
            events.RedisDown: lambda event: self.tell_up(event.who, False),
            events.RedisUp: lambda event: self.tell_up(event.who, True),
        }

    def on_event(self, event: Event) -> None:
        """Count the event."""
        heard = self._heard.get(type(event))
        if heard is not None:
            heard(event)

    def tell_up(self, who: str, up: bool) -> None:
        """Note whether Redis answers a part of this process."""
        if up:
            self._down.discard(who)
        else:
            self._down.add(who)
        self._up.set(not self._down)

    def forget(self) -> None:
        """Tell nothing of Redis until it is read again: what is not known must not look as it did."""
        depths = self.queue_jobs, self.overdue, self.overdue_for, self.queue_oldest, self.next_due
        for gauge in (*depths, self.queue_workers, self.queue_paused):
            gauge.clear()
        for gauge in (self.memory, self.clock):
            gauge.set(math.nan)

    def queue_label(self, queue: str) -> str:
        """Return the label of a queue: its name, or `__other__` when there are too many."""
        label = self._queues.get(queue)
        if label is None:
            label = queue if len(self._queues) < QUEUES else OTHER
            if label is not OTHER:
                self._queues[queue] = label
        return label

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"evsched_{name}", what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"evsched_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        made = Histogram(f"evsched_{name}", what, labels, bounds)
        self.registry.register(made)
        return made

    def _count(self, counter: Counter, queue: str, *labels: str, by: float = 1) -> None:
        # A child at hand is found in 0.2 us, by labels() in 1.1.
        key = (counter, queue, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = counter.labels(self.queue_label(queue), *labels)
        child.inc(by)

    def _task(self, name: str) -> str:
        return name if name in self._tasks else OTHER

    def _by_task(self, tasks: list[str]) -> dict[str, int]:
        if tasks.count(tasks[0]) == len(tasks):  # most often; a tenth of the time of counting each
            return {self._task(tasks[0]): len(tasks)}
        return Tally(map(self._task, tasks))

    # A series that begins at 1 has not grown, for Prometheus: what alarms on the first of its kind begins at 0.

    def _on_worker(self, event: events.WorkerStarted) -> None:
        self._tasks.update(event.tasks)
        for queue in event.queues:
            self._count(self._lost, queue, by=0)
            for task in event.tasks:
                self._count(self._started, queue, task, by=0)
                for outcome in ("done", "retry", "dead"):
                    self._count(self._finished, queue, task, outcome, by=0)

    def _on_dispatcher(self, event: events.DispatcherStarted) -> None:
        for to in ("ahead", "back"):
            self._jumps.labels(to)
        for reason in get_args(events.Reason):
            self._wakeups.labels(reason)
        for queue in event.queues:
            self._on_queue(queue)

    def _on_queue(self, queue: str) -> None:
        self._count(self._dispatched, queue, by=0)
        self._count(self._missed, queue, by=0)
        self._count(self._broken, queue, by=0)
        self._count(self._requeued, queue, "died", by=0)

    def _on_woken(self, event: events.Woken) -> None:
        self._wakeups.labels(event.reason).inc()
        if event.reason == "safety" and event.found:
            self._overslept.inc()

    def _on_dispatched(self, event: events.Dispatched) -> None:
        self._count(self._dispatched, event.queue, by=len(event.lateness))
        self._dispatch_lateness.observe((self.queue_label(event.queue),), event.lateness)

    def _on_started(self, event: events.Started) -> None:
        for task, count in self._by_task(event.tasks).items():
            self._count(self._started, event.queue, task, by=count)
        self._start_lateness.observe((self.queue_label(event.queue),), event.lateness)

    def _on_completed(self, event: events.Completed) -> None:
        queue = self.queue_label(event.queue)
        named = self._by_task(event.tasks)
        for task, count in named.items():
            self._count(self._finished, event.queue, task, "done", by=count)
        if len(named) == 1:
            self._run.observe((queue, next(iter(named))), event.seconds)
            return
        for task, seconds in zip(event.tasks, event.seconds, strict=True):
            self._run.observe((queue, self._task(task)), (seconds,))

    def _ended(self, event: events.Retrying | events.JobBuried | events.JobAborted, outcome: str) -> None:
        task = self._task(event.task)
        self._count(self._finished, event.queue, task, outcome)
        if event.seconds is not None:
            self._run.observe((self.queue_label(event.queue), task), (event.seconds,))

    def _on_deferred(self, event: events.JobDeferred) -> None:
        self._count(self._finished, event.queue, self._task(event.task), "deferred")

    def _on_lost_run(self, event: events.RunLost) -> None:
        self._count(self._finished, event.queue, self._task(event.task), "lost")
