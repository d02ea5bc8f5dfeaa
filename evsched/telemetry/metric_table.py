"""All metrics of a process in one table: the name after `evsched_`, the help text, and the labels."""

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
        "Runs ended, by outcome: done, retry, dead, expired, cancelled, deferred, snoozed or lost.",
        ("queue", "task", "outcome"),
    ),
    Metric(
        "jobs_requeued", "Jobs returned to ready because their worker died, stopped or was busy.", ("queue", "reason")
    ),
    Metric(
        "jobs_deferred",
        "Jobs returned to the schedule because they could not begin: their window is closed, the code on disk has no"
        " handler for them, or the worker does not know their task.",
        ("queue", "cause"),
    ),
    Metric("wakeups", "Times that a dispatcher checked a schedule, by what woke it.", ("reason",)),
    Metric(
        "wakeups_missed",
        "Checks by the safety cap that found due jobs: a keyspace event did not arrive, and the jobs were late.",
    ),
    Metric(
        "recurrences_missed",
        "Occurrences of recurrences that were skipped: they were late, or the one before had not ended.",
        _QUEUE,
    ),
    Metric(
        "recurrences_broken", "Recurrences that cannot recur: what they name does not exist, or is not valid.", _QUEUE
    ),
    Metric("recurrences_paused", "Recurrences that were paused, because too many runs in a row had failed.", _QUEUE),
    Metric("redis_clock_jumps", "Times that Redis's clock was set by a second or more.", ("to",)),
    Metric("leases_lost", "Leases that ended while their worker was alive.", _QUEUE),
    Metric("redis_errors", "Redis commands that failed.", ("kind",)),
    Metric(
        "ledger_rows_scheduled",
        "Rows of the ledger that were scheduled: new ones, and restored ones, which had been scheduled before.",
        ("queue", "kind"),
    ),
    Metric("ledger_rows_refused", "Rows of the ledger that could not be scheduled: they are dead.", _QUEUE),
    Metric("ledger_ends_written", "Ends of jobs that were written into their rows.", _QUEUE),
)

HISTOGRAMS: Final = (
    Metric("dispatch_lateness_seconds", "Seconds from a job's due time to its move to the gate.", _QUEUE, LATENESS),
    Metric("start_lateness_seconds", "Seconds from a job's due time to the start of its handler.", _QUEUE, LATENESS),
    Metric("run_seconds", "Seconds that handlers ran.", ("queue", "task"), RUN),
)

OF_QUEUES: Final = (
    Metric("queue_jobs", "Jobs in each place.", ("queue", "place")),
    Metric(
        "queue_oldest_ready_seconds",
        "Seconds for which the first job in ready, or in the backlog if ready is empty, has been due.",
        _QUEUE,
    ),
    Metric("queue_overdue_jobs", "Due jobs that no worker has fetched, in schedule, backlog and ready.", _QUEUE),
    Metric("queue_overdue_seconds", "Seconds for which the oldest of the overdue jobs has been due.", _QUEUE),
    Metric("next_due_timestamp_seconds", "When the next job on the schedule is due, Unix seconds.", _QUEUE),
    Metric("queue_workers", "Workers that have a lease.", _QUEUE),
    Metric("queue_paused", "1 = the queue is paused.", _QUEUE),
)
"""Gauges that a dispatcher reads from Redis when it is scraped."""

OF_REDIS: Final = (
    Metric("redis_memory_used_ratio", "Used part of Redis's maxmemory; 0 = no maxmemory, NaN = unknown."),
    Metric("redis_clock_ahead_seconds", "Redis's clock minus this host's; NaN = unknown."),
)
"""Gauges that are read in the same way; NaN while they are unknown."""

OF_LEDGER: Final = (
    Metric("ledger_waiting_rows", "Rows that are committed and not scheduled, counted up to 10,000; NaN = unknown."),
    Metric("ledger_up", "1 = the database of the ledger serves all loops of this relay; NaN = this is no relay."),
    Metric("ledger_waiting_seconds", "For how long the oldest of these rows has waited; NaN = unknown."),
)
"""Gauges that a relay reads from the database when it is scraped; NaN in other processes, and while unknown."""

GAUGES: Final = (
    *OF_QUEUES,
    *OF_REDIS,
    *OF_LEDGER,
    Metric("redis_evicted_keys", "Keys that Redis evicted since it started: jobs may be lost."),
    Metric(
        "redis_up",
        "1 = Redis serves all loops of this process and, for a dispatcher, answered this scrape; a refused command does"
        " not count. While it is 0, a dispatcher may leave out the metrics of queues.",
    ),
    Metric("doctor_findings", "Faults and warnings that `evsched doctor --watch` found last.", ("check", "level")),
    Metric("worker_slots", "Slots of this worker, busy or free.", ("state",)),
    Metric("build_info", "Always 1; the label is the version.", ("version",)),
    # Prometheus sees no increase in what a new process counts before its first scrape: alert rules correct for it.
    Metric("start_time_seconds", "When this process started, Unix seconds."),
)
