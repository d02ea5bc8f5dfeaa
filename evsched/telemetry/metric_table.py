"""All metrics of a process, in one table: the name after `evsched_`, what it says, and its labels."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from evsched.telemetry.histogram import LATENESS, RUN


class Metric(Struct, frozen=True):
    """One metric. `bounds` are the upper bounds of a histogram's buckets, in seconds."""

    name: str
    what: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


_QUEUE: Final = ("queue",)

COUNTERS: Final = (
    Metric("jobs_dispatched", "Jobs moved from the schedule to the gate.", _QUEUE),
    Metric("jobs_started", "Runs started.", ("queue", "task")),
    Metric(
        "jobs_finished",
        "Runs ended, by outcome: done, retry, dead, expired, cancelled, deferred or lost.",
        ("queue", "task", "outcome"),
    ),
    Metric("jobs_requeued", "Jobs put back to ready: their worker died, stopped, or was busy.", ("queue", "reason")),
    Metric("wakeups", "Times that a dispatcher checked a schedule, by what woke it.", ("reason",)),
    Metric("wakeups_missed", "Checks by the safety cap that found due jobs: an event had not arrived."),
    Metric("recurrences_missed", "Planned times of recurrences that passed without a job.", _QUEUE),
    Metric("recurrences_broken", "Recurrences that cannot recur: their rule, zone or record is not valid.", _QUEUE),
    Metric("redis_clock_jumps", "Times that Redis's clock was set by a second or more.", ("to",)),
    Metric("leases_lost", "Leases that ended while their worker was alive.", _QUEUE),
    Metric("redis_errors", "Redis commands that failed.", ("kind",)),
)

HISTOGRAMS: Final = (
    Metric("dispatch_lateness_seconds", "From the due to the move to the gate.", _QUEUE, LATENESS),
    Metric("start_lateness_seconds", "From the due to the handler.", _QUEUE, LATENESS),
    Metric("run_seconds", "How long handlers ran.", ("queue", "task"), RUN),
)

OF_QUEUES: Final = (
    Metric("queue_jobs", "Jobs in each place.", ("queue", "place")),
    Metric(
        "queue_oldest_ready_seconds",
        "How long the first job in ready, or in the backlog if ready is empty, has been due.",
        _QUEUE,
    ),
    Metric("queue_overdue_jobs", "Jobs that are due and not fetched: in schedule, backlog and ready.", _QUEUE),
    Metric("queue_overdue_seconds", "How long the first of the overdue jobs has been due.", _QUEUE),
    Metric("next_due_timestamp_seconds", "When the next job on the schedule is due, Unix seconds.", _QUEUE),
    Metric("queue_workers", "Workers that have a lease.", _QUEUE),
    Metric("queue_paused", "1 = the queue is paused.", _QUEUE),
)
"""Gauges that a dispatcher reads from Redis when it is scraped."""

OF_REDIS: Final = (
    Metric("redis_memory_used_ratio", "Used part of Redis's maxmemory; 0 = no maxmemory, NaN = unknown."),
    Metric("redis_clock_ahead_seconds", "Redis's clock minus this host's; NaN = unknown."),
)
"""Gauges that are read in the same way, and are NaN while they are unknown."""

GAUGES: Final = (
    *OF_QUEUES,
    *OF_REDIS,
    Metric("redis_evicted_keys", "Keys that Redis evicted since it started: jobs may be lost."),
    Metric(
        "redis_up",
        "1 = Redis serves all loops of this process, and answered a dispatcher at this scrape (a refused command is no"
        " outage). While it is 0, a dispatcher may leave out the metrics of queues.",
    ),
    Metric("worker_slots", "Slots of this worker, busy or free.", ("state",)),
    Metric("build_info", "Always 1; the label is the version.", ("version",)),
    # What a new process counts before its first scrape is no increase to Prometheus: rules correct that by this time.
    Metric("start_time_seconds", "When this process started, Unix seconds."),
)
