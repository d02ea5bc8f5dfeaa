"""The first screen of the overview: one tile for each thing that can go wrong, green when it does not.

Each query answers at each moment: where nobody tells, with 0 (none is there) or with `UNKNOWN`. So no tile shows what
was so when somebody last told. tests/service/test_incidents.py makes each incident, and sees its tile turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from panels import UNKNOWN, Panel, Query, Row

OF = 'job=~"$job"'

OVERDUE = f"max by (queue) (evsched_queue_overdue_jobs{{{OF}}})"
PAUSED = f"max by (queue) (evsched_queue_paused{{{OF}}})"
"""Every dispatcher tells the same depths: the highest of them, not their sum."""

DEAD = f'sum(max by (queue) (evsched_queue_jobs{{{OF}, place="dead"}}'


def grown(metric: str, window: str, within: int) -> str:
    """Return the PromQL of how much a counter has grown within a window.

    What a new process counts before its first scrape is no increase. So the most is taken of the increase, and of all
    that is told by processes that started `within` so many seconds.
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
    """Return a tile. `otherwise`: what it shows where the query finds nothing."""
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
        "`down`: a process has no Redis.",
        "`evsched doctor`, and *Redis up, by process*; nothing is lost meanwhile, jobs start when it is back.",
        f"min(evsched_redis_up{{{OF}}})",
        bad=1,
        low_is_bad=True,
        texts={0: "down", 1: "up"},
    ),
    tile(
        "Dispatchers",
        "Dispatchers that are scraped. With none nothing starts, and nobody tells what waits.",
        "start one, and see why it ended: `evsched dispatcher`, its log, its supervisor.",
        f"count(sum by (job, instance) (evsched_wakeups_total{{{OF}}}))",
        otherwise=0,
        bad=1,
        low_is_bad=True,
    ),
    tile(
        "Workers",
        "Worker processes that are scraped.",
        "start them, and see why they ended. *Workers by queue* says which queue nobody serves.",
        f"count(sum by (job, instance) (evsched_worker_slots{{{OF}}}))",
        otherwise=0,
        bad=1,
        low_is_bad=True,
    ),
    tile(
        "Not answering",
        "Processes that Prometheus should scrape and cannot: they have ended, or hang.",
        "Prometheus's page *Targets* names them.",
        f"count(up{{{OF}}} == 0 and on (job) last_over_time(evsched_build_info{{{OF}}}[1h]))",
        otherwise=0,
        bad=1,
    ),
    tile(
        "Restarts, 5 min",
        "Processes that ended and were started anew. A release is some; a job that kills its process goes on.",
        "the log of the supervisor, the kernel's for out of memory, and `evsched dead` for a job given up.",
        f"sum(changes(evsched_start_time_seconds{{{OF}}}[5m]))",
        otherwise=0,
        warn=1,
        bad=5,
    ),
    tile(
        "Redis's clock off",
        "How far Redis's clock is from the dispatchers' hosts'. It decides what is due.",
        "set both by NTP. After a jump: *Clock jumps*, and the runbook's section *The clock jumped*.",
        f"max(abs(evsched_redis_clock_ahead_seconds{{{OF}}}) >= 0)",
        unit="s",
        warn=1,
        bad=10,
    ),
]

JOBS = [
    tile(
        "Start lateness, p99",
        "From a job's due to its handler, by Redis's clock: 99 of 100 jobs start within this; 0 when none does.",
        "look at the rows below from the top: jobs late at the gate are the dispatcher's, later ones the workers'.",
        "(histogram_quantile(0.99, sum by (le) "
        f"(rate(evsched_start_lateness_seconds_bucket{{{OF}}}[$__rate_interval]))) >= 0)",
        otherwise=0,
        unit="s",
        warn=0.1,
        bad=1,
    ),
    tile(
        "Overdue",
        "Jobs that are due and not taken: on the schedule, in the backlog and in ready.",
        "more workers or slots, or a limit or a pause that is meant; `evsched explain ID` says which it is.",
        f"sum({OVERDUE})",
        warn=100,
        bad=1000,
    ),
    tile(
        "Overdue for",
        "How long the first of them has been due, but for queues that are paused.",
        "nothing of that queue moves, or too little: `evsched doctor` says who is missing.",
        f"max(max by (queue) (evsched_queue_overdue_seconds{{{OF}}}) * (1 - {PAUSED}))",
        unit="s",
        warn=10,
        bad=60,
    ),
    tile(
        "Given up, 15 min",
        "By how many more jobs lie in dead than 15 minutes ago.",
        "`evsched dead` shows the reasons; mend those, then `evsched dead revive`.",
        f"clamp_min({DEAD})) - ({DEAD} offset 15m)) or vector(0)), 0)",
        warn=1,
        bad=100,
    ),
    tile(
        "Missed, 15 min",
        "Planned times of recurrences that passed without a job.",
        "`evsched recurrences` shows which; dispatchers were away, the clock was set, or the one before still ran.",
        grown("evsched_recurrences_missed_total", "15m", 900),
        otherwise=0,
        warn=1,
        bad=10,
    ),
    tile(
        "Redis's memory",
        "Of maxmemory, 0 when it has none. When it is full Redis refuses new jobs; those that are there run on.",
        "raise maxmemory, or keep results and dead jobs for less long.",
        f"max(evsched_redis_memory_used_ratio{{{OF}}} >= 0)",
        unit="percentunit",
        warn=0.8,
        bad=0.95,
    ),
]

AT_A_GLANCE = Row("At a glance", [*PROCESSES, *JOBS])
