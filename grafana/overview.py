"""The overview: all queues and processes, from how late jobs start down to Redis, in the order of the state machine."""

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
            "From the due to the handler, by Redis's clock.",
            "compare with *Dispatch lateness*: if that is low, jobs wait for slots or at a limit.",
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
            "How many jobs started how late: a second band far above the first is a group of jobs that waits.",
            "pick the queue on the *Queue* dashboard.",
            [Query(f"sum by (le) (increase(evsched_start_lateness_seconds_bucket{{{OF}}}[{RATE}]))", "{{le}}")],
            unit="s",
            kind="heatmap",
        ),
        Panel(
            "Dispatch lateness",
            "From the due to the gate: the dispatcher's and Redis's share of the lateness.",
            "see *Wake-ups*, Redis's slow log, and whether one host's processors are all in use.",
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
            "How far away the next job of each queue is; below zero, it is due and nobody has moved it.",
            "below zero for longer than a moment: no dispatcher serves this queue, or Redis refuses it.",
            [Query(f"min by (queue) (evsched_next_due_timestamp_seconds{{{OF}}}) - time()", "{{queue}}")],
            unit="s",
            signed=True,
        ),
        Panel(
            "Wake-ups by reason",
            "What made dispatchers look at a schedule. Idle, each looks once in 13 s, to prove its connection.",
            "many by `event`: a client schedules without pause. `reconnect`: the link to Redis breaks.",
            [Query(f"sum by (reason) (rate(evsched_wakeups_total{{{OF}}}[{RATE}]))", "{{reason}}")],
            unit="ops",
            stacked=True,
        ),
        Panel(
            "Missed wake-ups and occurrences",
            "Looks by the safety cap that found due jobs, and planned times of recurrences that passed without a job.",
            "missed wake-ups: keyspace events do not arrive, see `evsched doctor`. Missed occurrences: dispatchers "
            "were away, or the one before still ran.",
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
    "Redis's clock against the dispatchers' hosts', and by their monotonic clocks the times that it was set.",
    "dues follow Redis's clock: what it made due has run. Recurrences go on after it was set back.",
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
            "backlog grows: more comes than is worked off, or a gate is closed. processing alone grows: handlers hang.",
            [Query(f"sum by (place) (max by (queue, place) (evsched_queue_jobs{{{OF}}}))", "{{place}}")],
        ),
        Panel(
            "Overdue by queue",
            "Due and not taken: on the schedule, in the backlog and in ready.",
            "`evsched queues` shows pauses, `evsched limit Q` the limits, `evsched workers` who serves it.",
            [Query(OVERDUE, "{{queue}}")],
            stacked=True,
        ),
        Panel(
            "Longest wait at the front",
            "How long the front of ready, else of the backlog, has been due.",
            "a steady climb: nothing passes. *Workers by queue* tells paused queues.",
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
            "Jobs moved to the gate, runs begun, and runs ended well, in a second.",
            "dispatched above started for long: more workers. Started above done: see *Failures by task*.",
            [
                Query(f"sum(rate(evsched_jobs_dispatched_total{{{OF}}}[{RATE}]))", "dispatched"),
                Query(f"sum(rate(evsched_jobs_started_total{{{OF}}}[{RATE}]))", "started"),
                Query(f'sum(rate(evsched_jobs_finished_total{{{OF}, outcome="done"}}[{RATE}]))', "done"),
            ],
            unit="ops",
        ),
        Panel(
            "Slots",
            "Room for jobs, over all workers.",
            "none free while jobs are overdue: more processes, or a higher --concurrency when handlers mostly wait.",
            [Query(f"sum by (state) (evsched_worker_slots{{{OF}}})", "{{state}}")],
            stacked=True,
            colors={"busy": "orange", "free": "green"},
        ),
        Panel(
            "Workers by queue",
            "Workers that hold a lease, by queue; 1 for each queue that is paused.",
            "none where jobs are due: start one for that queue. Paused: `evsched resume Q`.",
            [
                Query(f"max by (queue) (evsched_queue_workers{{{OF}}})", "{{queue}}"),
                Query(f"max by (queue) (evsched_queue_paused{{{OF}}}) > 0", "{{queue}} is paused"),
            ],
        ),
        Panel(
            "Run time, p99",
            "How long handlers ran.",
            "a climb of one task slows all that share its slots: give it a queue of its own, or a timeout.",
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
            "Jobs put back to ready: their worker died, was stopped, or had no slot.",
            "`died`: processes are killed, see the kernel's log for out of memory; each such run counts as an attempt.",
            [Query(f"sum by (reason) (rate(evsched_jobs_requeued_total{{{OF}}}[{RATE}]))", "{{reason}}")],
            unit="ops",
        ),
        Panel(
            "Leases lost",
            "Workers that were silent for longer than their lease, and live: what they ran was started elsewhere.",
            "a host that swaps or is stopped, or a link that breaks; nothing was written twice.",
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
            "What runs came to.",
            "`lost` and `expired` should be at zero; `deferred` waits for its window.",
            [Query(f"sum by (outcome) (rate(evsched_jobs_finished_total{{{OF}}}[{RATE}]))", "{{outcome}}")],
            unit="ops",
            stacked=True,
            colors={"done": "green", "retry": "orange", "dead": "red", "expired": "purple"},
        ),
        Panel(
            "Failures by task",
            "Runs that failed, by task. `__other__` are names that no worker has registered.",
            "`evsched dead --queue Q` shows the reasons; a retry that succeeds needs nobody.",
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
            "Jobs given up on, kept until they are revived or dropped.",
            "mend what the reasons say, then `evsched dead revive`.",
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
            "1 = the process has Redis.",
            "one process alone: its network. All of them: Redis.",
            [Query(f"evsched_redis_up{{{OF}}}", "{{instance}}")],
        ),
        Panel(
            "Redis errors by kind",
            "Commands of loops that failed; each loop waits up to 1 s between tries.",
            "`oom`: raise maxmemory. `noperm`: the ACL user lacks a right: `evsched doctor`. `readonly`: a failover.",
            [Query(f"sum by (kind) (rate(evsched_redis_errors_total{{{OF}}}[{RATE}]))", "{{kind}}")],
            unit="ops",
        ),
        Panel(
            "Evicted keys, versions",
            "Keys that Redis deleted for want of memory since it started, and the processes of each version.",
            "any eviction may have lost a job: set maxmemory-policy noeviction.",
            [
                Query(f"max(evsched_redis_evicted_keys{{{OF}}})", "evicted"),
                Query(f"count by (version) (evsched_build_info{{{OF}}})", "processes of {{version}}"),
            ],
        ),
    ],
)


def overview() -> Dashboard:
    """Return the dashboard."""
    return page(
        "evsched-overview",
        "evsched: overview",
        "How late jobs start, how much waits, what fails: all queues. Rows in the order in which a job passes.",
        [queried("job", "Job", "label_values(evsched_build_info, job)", many=True)],
        [AT_A_GLANCE, LATENESS, SCHEDULE, GATE, WORKERS, ENDS, REDIS],
    )
