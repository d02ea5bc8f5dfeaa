"""The overview of all queues and processes: first how late jobs start, then each step of a job's way, then Redis."""

from __future__ import annotations

from first_screen import AT_A_GLANCE, OF, OVERDUE
from grafana_foundation_sdk.models.dashboard import Dashboard
from panels import Panel, Query, Row, page, queried

RATE = "$__rate_interval"


def quantile(share: float, metric: str) -> str:
    """Return the PromQL of a quantile of a histogram, over all queues."""
    return f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{{{OF}}}[{RATE}])))"


LATENESS = Row(
    "Lateness",
    [
        Panel(
            "Start lateness",
            "From a job's due time to its handler, by Redis's clock.",
            "if *Dispatch lateness* is low, jobs wait for slots or at a limit.",
            [
                Query(quantile(0.5, "evsched_start_lateness_seconds"), "p50"),
                Query(quantile(0.99, "evsched_start_lateness_seconds"), "p99"),
            ],
            unit="s",
            bad=1,
            colors={"p50": "blue", "p99": "orange"},
        ),
        Panel(
            "Start lateness, all starts",
            "How many jobs started how late. A second band far above the first is a set of jobs that waits.",
            "find the queue on the *Queue* dashboard.",
            [Query(f"sum by (le) (increase(evsched_start_lateness_seconds_bucket{{{OF}}}[{RATE}]))", "{{le}}")],
            unit="s",
            kind="heatmap",
        ),
        Panel(
            "Dispatch lateness",
            "From a job's due time to the gate: the share of dispatcher and Redis in the lateness.",
            "see *Wake-ups by reason*, Redis's slow log, and whether a host's processors are all busy.",
            [
                Query(quantile(0.5, "evsched_dispatch_lateness_seconds"), "p50"),
                Query(quantile(0.99, "evsched_dispatch_lateness_seconds"), "p99"),
            ],
            unit="s",
            bad=0.1,
        ),
    ],
)

SCHEDULE = Row(
    "Schedule and dispatchers",
    [
        Panel(
            "Next due",
            "Time until the next job of each queue is due. Below zero: it is due, and no dispatcher has moved it.",
            "below zero for longer than a moment: no dispatcher serves this queue, or Redis refuses it.",
            [Query(f"min by (queue) (evsched_next_due_timestamp_seconds{{{OF}}}) - time()", "{{queue}}")],
            unit="s",
            signed=True,
        ),
        Panel(
            "Wake-ups by reason",
            "Why dispatchers checked a schedule. An idle dispatcher checks once in 13 s, to test its connection.",
            "many by `event`: a client schedules jobs without pause. `reconnect`: the connection to Redis is lost.",
            [Query(f"sum by (reason) (rate(evsched_wakeups_total{{{OF}}}[{RATE}]))", "{{reason}}")],
            unit="ops",
            stacked=True,
        ),
        Panel(
            "Missed wake-ups and occurrences",
            "Checks by the safety cap that found due jobs, and occurrences of recurrences that were skipped.",
            "missed wake-ups: keyspace events do not arrive, see `evsched doctor`. Missed occurrences: no dispatcher "
            "ran, or the occurrence before still ran.",
            [
                Query(f"sum(increase(evsched_wakeups_missed_total{{{OF}}}[{RATE}]))", "wake-ups"),
                Query(
                    f"sum by (queue) (increase(evsched_recurrences_missed_total{{{OF}}}[{RATE}]))",
                    "occurrences, {{queue}}",
                ),
            ],
            bad=1,
        ),
    ],
)

CLOCK = Panel(
    "Clock jumps",
    "How far Redis's clock is ahead of the dispatchers' hosts, and how often it was set.",
    "jobs that became due by a jump have run. Recurrences continue when the clock is set back.",
    [
        Query(f"max by (instance) (evsched_redis_clock_ahead_seconds{{{OF}}})", "ahead, {{instance}}"),
        Query(f"sum by (to) (increase(evsched_redis_clock_jumps_total{{{OF}}}[{RATE}]))", "jumps {{to}}"),
    ],
    unit="s",
    signed=True,
)

GATE = Row(
    "Gate",
    [
        Panel(
            "Depth by place",
            "Jobs in each place, over all queues.",
            "backlog grows: too few workers, or a limit holds jobs back. Only processing grows: handlers hang.",
            [Query(f"sum by (place) (max by (queue, place) (evsched_queue_jobs{{{OF}}}))", "{{place}}")],
        ),
        Panel(
            "Overdue by queue",
            "Due jobs that no worker has fetched: on the schedule, in the backlog and in ready.",
            "`evsched queues` shows pauses, `evsched limit Q` the limits, `evsched workers` the workers.",
            [Query(OVERDUE, "{{queue}}")],
            stacked=True,
        ),
        Panel(
            "Longest wait at the front",
            "How long the first job in ready, or in the backlog if ready is empty, has been due.",
            "if it climbs steadily, no job starts. *Workers by queue* shows paused queues.",
            [Query(f"max by (queue) (evsched_queue_oldest_ready_seconds{{{OF}}})", "{{queue}}")],
            unit="s",
            bad=60,
        ),
    ],
)

WORKERS = Row(
    "Workers",
    [
        Panel(
            "Throughput",
            "Jobs moved to the gate, runs started, and runs done, per second.",
            "dispatched stays above started: start more workers. Started above done: see *Failures by task*.",
            [
                Query(f"sum(rate(evsched_jobs_dispatched_total{{{OF}}}[{RATE}]))", "dispatched"),
                Query(f"sum(rate(evsched_jobs_started_total{{{OF}}}[{RATE}]))", "started"),
                Query(f'sum(rate(evsched_jobs_finished_total{{{OF}, outcome="done"}}[{RATE}]))', "done"),
            ],
            unit="ops",
        ),
        Panel(
            "Slots",
            "Busy and free slots of all workers.",
            "none free while jobs are overdue: start more processes, or raise --concurrency if handlers mostly wait.",
            [Query(f"sum by (state) (evsched_worker_slots{{{OF}}})", "{{state}}")],
            stacked=True,
            colors={"busy": "orange", "free": "green"},
        ),
        Panel(
            "Workers by queue",
            "Workers that have a lease, by queue; and 1 for each paused queue.",
            "no worker where jobs are due: start one for that queue. Paused: `evsched resume Q`.",
            [
                Query(f"max by (queue) (evsched_queue_workers{{{OF}}})", "{{queue}}"),
                Query(f"max by (queue) (evsched_queue_paused{{{OF}}}) > 0", "{{queue}} is paused"),
            ],
        ),
        Panel(
            "Run time, p99",
            "How long handlers ran, by task.",
            "a slow task occupies the slots of other tasks: give it a timeout, or a queue of its own.",
            [
                Query(
                    f"histogram_quantile(0.99, sum by (le, task) (rate(evsched_run_seconds_bucket{{{OF}}}[{RATE}])))",
                    "{{task}}",
                )
            ],
            unit="s",
        ),
        Panel(
            "Requeued",
            "Jobs returned to ready because their worker died, was stopped, or had no free slot.",
            "`died`: processes are killed; see the kernel's log for out of memory. A run that had begun counts.",
            [Query(f"sum by (reason) (rate(evsched_jobs_requeued_total{{{OF}}}[{RATE}]))", "{{reason}}")],
            unit="ops",
        ),
        Panel(
            "Leases lost",
            "Leases that ended while their worker was alive: its jobs were started elsewhere.",
            "a host swaps or was suspended, or its network fails. The result of the older run is discarded.",
            [Query(f"sum by (queue) (increase(evsched_leases_lost_total{{{OF}}}[{RATE}]))", "{{queue}}")],
            bad=1,
        ),
    ],
)

ENDS = Row(
    "Ends",
    [
        Panel(
            "Runs ended, by outcome",
            "How runs ended, per second.",
            "`lost` and `expired` should be zero. `deferred` could not begin yet; `snoozed` asked to run later.",
            [Query(f"sum by (outcome) (rate(evsched_jobs_finished_total{{{OF}}}[{RATE}]))", "{{outcome}}")],
            unit="ops",
            stacked=True,
            colors={"done": "green", "retry": "orange", "dead": "red", "expired": "purple"},
        ),
        Panel(
            "Deferred, by cause",
            "Jobs returned to the schedule because they could not begin. They lose no attempt.",
            "`task`: workers do not know a task. This is normal during a deploy; after it, see `evsched doctor`. "
            "`code`: the code on disk is not what a worker runs. `window`: no action is needed.",
            [Query(f"sum by (cause) (rate(evsched_jobs_deferred_total{{{OF}}}[{RATE}]))", "{{cause}}")],
            unit="ops",
        ),
        Panel(
            "Failures by task",
            "Runs that failed, by task. `__other__` stands for names that no worker has registered.",
            "`evsched dead --queue Q` shows the reasons of dead jobs. A retry that succeeds needs no action.",
            [
                Query(
                    f"sum by (task, outcome) "
                    f'(rate(evsched_jobs_finished_total{{{OF}, outcome=~"retry|dead|expired"}}[{RATE}]))',
                    "{{task}} {{outcome}}",
                )
            ],
            unit="ops",
        ),
        Panel(
            "Dead jobs",
            "Jobs that were given up, kept until they are revived or dropped.",
            "`evsched dead` shows the reasons; fix the cause, then `evsched dead revive`.",
            [
                Query(
                    f'max by (queue) (evsched_queue_jobs{{{OF}, place="dead"}})',
                    "{{queue}}",
                )
            ],
            bad=1,
        ),
    ],
)

REDIS = Row(
    "Redis",
    [
        CLOCK,
        Panel(
            "Redis up, by process",
            "1 = Redis serves the process.",
            "if only one process is down, check its network. If all are, check Redis.",
            [Query(f"evsched_redis_up{{{OF}}}", "{{instance}}")],
        ),
        Panel(
            "Redis errors by kind",
            "Redis commands that failed. A loop waits up to 1 s before it tries again.",
            "`oom`: raise maxmemory. `noperm`: the user lacks a right, see `evsched doctor`. `readonly`: a failover.",
            [Query(f"sum by (kind) (rate(evsched_redis_errors_total{{{OF}}}[{RATE}]))", "{{kind}}")],
            unit="ops",
        ),
        Panel(
            "Findings of the doctor",
            "Faults and warnings that `evsched doctor --watch` found in its last check.",
            "`evsched doctor` says where each is, and how to fix it.",
            [Query(f"max by (check, level) (evsched_doctor_findings{{{OF}}})", "{{level}} {{check}}")],
        ),
        Panel(
            "Evicted keys, versions",
            "Keys that Redis deleted to free memory since it started, and the processes of each version.",
            "any eviction may have lost a job: set maxmemory-policy noeviction.",
            [
                Query(f"max(evsched_redis_evicted_keys{{{OF}}})", "evicted"),
                Query(f"count by (version) (evsched_build_info{{{OF}}})", "processes of {{version}}"),
            ],
        ),
    ],
)


LEDGER = Row(
    "Ledger",
    [
        Panel(
            "Rows that wait",
            "Rows of the ledger that are committed and not scheduled, counted up to 10,000.",
            "`evsched ledger status`, and the logs of the relays: the database or Redis is down, or no relay runs.",
            [Query(f"max(evsched_ledger_waiting_rows{{{OF}}})", "rows")],
        ),
        Panel(
            "Oldest row that waits",
            "For how long the oldest of these rows has been there; after a loss of Redis, since it was inserted.",
            "above a minute for longer than a restore takes: as *Rows that wait*.",
            [Query(f"max(evsched_ledger_waiting_seconds{{{OF}}})", "age")],
            unit="s",
            bad=60,
        ),
        Panel(
            "Rows scheduled, ends written",
            "Rows that relays scheduled, new or restored after a loss of Redis, and ends that they wrote back.",
            "`restored` without a loss: Redis restarts. Ends lag far behind new rows: the database is slow.",
            [
                Query(f"sum by (kind) (rate(evsched_ledger_rows_scheduled_total{{{OF}}}[{RATE}]))", "{{kind}}"),
                Query(f"sum(rate(evsched_ledger_rows_refused_total{{{OF}}}[{RATE}]))", "refused"),
                Query(f"sum(rate(evsched_ledger_ends_written_total{{{OF}}}[{RATE}]))", "ends"),
                Query(f"min(evsched_ledger_up{{{OF}}})", "database up"),
            ],
            unit="ops",
        ),
        Panel(
            "History for long",
            "Ends of jobs that `evsched ledger history` wrote, and ends that Redis no longer had when it read them.",
            "`missed` above 0: no writer ran, or a queue keeps too few ends; `evsched limit Q --history` keeps more.",
            [
                Query(f"sum(rate(evsched_ledger_runs_written_total{{{OF}}}[{RATE}]))", "written"),
                Query(f"sum(rate(evsched_ledger_runs_missed_total{{{OF}}}[{RATE}]))", "missed"),
                Query(f"min(evsched_ledger_history_up{{{OF}}})", "database up"),
            ],
            unit="ops",
        ),
    ],
)


def overview() -> Dashboard:
    """Return the dashboard."""
    return page(
        "evsched-overview",
        "evsched: overview",
        "All queues: how late jobs start, how many wait, what fails. The rows follow the way of a job.",
        [queried("job", "Job", "label_values(evsched_build_info, job)", many=True)],
        [AT_A_GLANCE, LATENESS, SCHEDULE, GATE, WORKERS, ENDS, REDIS, LEDGER],
    )
