"""The first screen of the overview: one tile for each thing that can go wrong, green when it does not.

Each query always has a value: if no process reports one, it is 0 (there is none) or `UNKNOWN`. So no tile shows an old
value. tests/service/test_incidents.py causes each incident, and checks that its tile changes colour.
"""

from __future__ import annotations

from collections.abc import Sequence

from panels import UNKNOWN, Panel, Query, Row

OF = 'job=~"$job"'

OVERDUE = f"max by (queue) (evsched_queue_overdue_jobs{{{OF}}})"
PAUSED = f"max by (queue) (evsched_queue_paused{{{OF}}})"
"""Every dispatcher reports the same depths, so use their maximum, not their sum."""

DEAD = f'sum(max by (queue) (evsched_queue_jobs{{{OF}, place="dead"}}'


def grown(metric: str, window: str, within: int) -> str:
    """Return the PromQL of how much a counter has grown within a window.

    For Prometheus, what a new process counts before its first scrape is no increase. So the value is the larger of two:
    the increase, and the sum of the counters of the processes that started `within` the last seconds.
    """
    grew = f"sum(increase({metric}{{{OF}}}[{window}]))"
    began = f"sum({metric}{{{OF}}} and on (job, instance) time() - evsched_start_time_seconds{{{OF}}} < {within})"
    return f"({grew} > {began} or {began} or {grew})"


def tile(
    title: str,
    what: str,
    mend: str,
    query: str,
    *,
    otherwise: float = UNKNOWN,
    unit: str = "short",
    bad: float | None = None,
    warn: float | None = None,
    low_is_bad: bool = False,
    texts: dict[float, str] | None = None,
) -> Panel:
    """Return a tile. `otherwise`: its value if the query finds nothing."""
    shown = dict(texts or {})
    if otherwise == UNKNOWN:
        shown[UNKNOWN] = "unknown"
    queries: Sequence[Query] = [Query(f"{query} or vector({otherwise:g})", title)]
    return Panel(
        title,
        what,
        mend,
        queries,
        unit=unit,
        kind="stat",
        width=4,
        height=4,
        bad=bad,
        warn=warn,
        low_is_bad=low_is_bad,
        texts=shown,
    )


PROCESSES = [
    tile(
        "Redis",
        "`down`: at least one process cannot use Redis.",
        "run `evsched doctor`, and see *Redis up, by process*. No job is lost; jobs start when Redis is back.",
        f"min(evsched_redis_up{{{OF}}})",
        bad=1,
        low_is_bad=True,
        texts={0: "down", 1: "up"},
    ),
    tile(
        "Dispatchers",
        "Dispatchers that Prometheus scrapes. Without one, no job starts, and the panels of queues have no data.",
        "start one with `evsched dispatcher`; its log and its supervisor say why it ended.",
        f"count(sum by (job, instance) (evsched_wakeups_total{{{OF}}}))",
        otherwise=0,
        bad=1,
        low_is_bad=True,
    ),
    tile(
        "Workers",
        "Worker processes that Prometheus scrapes.",
        "start workers, and find out why they ended. *Workers by queue* shows which queue has none.",
        f"count(sum by (job, instance) (evsched_worker_slots{{{OF}}}))",
        otherwise=0,
        bad=1,
        low_is_bad=True,
    ),
    tile(
        "Not answering",
        "Processes that Prometheus cannot scrape: they have ended, or hang.",
        "Prometheus's page *Targets* lists them.",
        f"count(up{{{OF}}} == 0 and on (job) last_over_time(evsched_build_info{{{OF}}}[1h]))",
        otherwise=0,
        bad=1,
    ),
    tile(
        "Restarts, 5 min",
        "Processes that ended and were started again. A release causes a few; a job that kills its process, more.",
        "read the supervisor's log, and the kernel's for out of memory; `evsched dead` shows jobs given up.",
        f"sum(changes(evsched_start_time_seconds{{{OF}}}[5m]))",
        otherwise=0,
        warn=1,
        bad=5,
    ),
    tile(
        "Redis's clock off",
        "How far Redis's clock is from the clocks of the dispatchers' hosts. Redis's clock decides what is due.",
        "synchronise all with NTP. After a jump, see *Clock jumps* and the runbook's section *The clock jumped*.",
        f"max(abs(evsched_redis_clock_ahead_seconds{{{OF}}}) >= 0)",
        unit="s",
        warn=1,
        bad=10,
    ),
]

JOBS = [
    tile(
        "Start lateness, p99",
        "From a job's due time to its handler, by Redis's clock: 99 of 100 jobs start within this; 0 if no job starts.",
        "compare with *Dispatch lateness* below: if that is high too, look at the dispatcher; if not, at the workers.",
        "(histogram_quantile(0.99, sum by (le) "
        f"(rate(evsched_start_lateness_seconds_bucket{{{OF}}}[$__rate_interval]))) >= 0)",
        otherwise=0,
        unit="s",
        warn=0.1,
        bad=1,
    ),
    tile(
        "Overdue",
        "Due jobs that no worker has fetched: on the schedule, in the backlog and in ready.",
        "`evsched explain ID` says why a job waits: for a slot (start more workers), at a limit, or in a pause.",
        f"sum({OVERDUE})",
        warn=100,
        bad=1000,
    ),
    tile(
        "Overdue for",
        "How long the oldest overdue job has been due, without queues that are paused.",
        "a queue does not move, or too slowly: `evsched doctor` says what is missing.",
        f"max(max by (queue) (evsched_queue_overdue_seconds{{{OF}}}) * (1 - {PAUSED}))",
        unit="s",
        warn=10,
        bad=60,
    ),
    tile(
        "Given up, 15 min",
        "How many more jobs are in the dead-letter set than 15 minutes ago.",
        "`evsched dead` shows the reasons; fix the cause, then `evsched dead revive`.",
        f"clamp_min({DEAD})) - ({DEAD} offset 15m)) or vector(0)), 0)",
        warn=1,
        bad=100,
    ),
    tile(
        "Missed, 15 min",
        "Occurrences of recurrences that were skipped.",
        "`evsched recurrences` shows which. No dispatcher ran, the clock was set, or the occurrence before still ran.",
        grown("evsched_recurrences_missed_total", "15m", 900),
        otherwise=0,
        warn=1,
        bad=10,
    ),
    tile(
        "Redis's memory",
        "Used part of maxmemory; 0 if none is set. When it is full, Redis refuses new jobs; existing jobs continue.",
        "raise maxmemory, or keep results and dead jobs for a shorter time.",
        f"max(evsched_redis_memory_used_ratio{{{OF}}} >= 0)",
        unit="percentunit",
        warn=0.8,
        bad=0.95,
    ),
]

AT_A_GLANCE = Row("At a glance", [*PROCESSES, *JOBS])
