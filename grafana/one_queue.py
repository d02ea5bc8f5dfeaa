"""One queue, and one task or all of its tasks."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard
from panels import Panel, Query, Row, page, queried

OF = 'job=~"$job", queue="$queue"'
TASK = f'{OF}, task=~"$task"'
RATE = "$__rate_interval"


def quantiles(metric: str, labels: str) -> list[Query]:
    """Return the queries of p50, p90 and p99 of a histogram."""
    return [
        Query(f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{{{labels}}}[{RATE}])))", name)
        for share, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
    ]


ROWS = [
    Row(
        "Lateness",
        [
            Panel(
                "Start lateness",
                "From a job's due time to its handler, by Redis's clock, for all tasks of the queue.",
                "if *Dispatch lateness* is low, jobs wait for slots or at a limit of this queue.",
                quantiles("evsched_start_lateness_seconds", OF),
                unit="s",
                bad=1,
            ),
            Panel(
                "Start lateness, all starts",
                "How many jobs started how late.",
                "a second band is a group at its limit, or a priority that waits for higher ones.",
                [Query(f"sum by (le) (increase(evsched_start_lateness_seconds_bucket{{{OF}}}[{RATE}]))", "{{le}}")],
                unit="s",
                kind="heatmap",
            ),
            Panel(
                "Dispatch lateness",
                "From a job's due time to the gate.",
                "see the overview's *Wake-ups by reason*, and Redis's slow log.",
                quantiles("evsched_dispatch_lateness_seconds", OF),
                unit="s",
                bad=0.1,
            ),
        ],
    ),
    Row(
        "Places",
        [
            Panel(
                "Next due",
                "Time until the next job is due.",
                "below zero for longer than a moment: no dispatcher serves this queue.",
                [Query(f"min(evsched_next_due_timestamp_seconds{{{OF}}}) - time()", "next due")],
                unit="s",
                signed=True,
            ),
            Panel(
                "Depth by place",
                "Jobs in each place.",
                "`evsched limit $queue` and `evsched queues` show what holds jobs back.",
                [Query(f"max by (place) (evsched_queue_jobs{{{OF}}})", "{{place}}")],
            ),
            Panel(
                "Longest wait at the front",
                "How long the first job in ready, or in the backlog if ready is empty, has been due.",
                "run `evsched explain ID` for the first job of `evsched jobs --queue $queue`.",
                [
                    Query(f"max(evsched_queue_oldest_ready_seconds{{{OF}}})", "waits"),
                ],
                unit="s",
                bad=60,
            ),
        ],
    ),
    Row(
        "Runs of $task",
        [
            Panel(
                "Throughput",
                "Runs started and runs done, per second.",
                "if started stays above done, see *Outcomes*.",
                [
                    Query(f"sum(rate(evsched_jobs_started_total{{{TASK}}}[{RATE}]))", "started"),
                    Query(f'sum(rate(evsched_jobs_finished_total{{{TASK}, outcome="done"}}[{RATE}]))', "done"),
                ],
                unit="ops",
            ),
            Panel(
                "Run time",
                "How long handlers ran.",
                "a slow task occupies the slots of other tasks: give it a timeout, or a queue of its own.",
                quantiles("evsched_run_seconds", TASK),
                unit="s",
            ),
            Panel(
                "Outcomes",
                "How runs ended, by task, per second.",
                "`evsched dead --queue $queue` shows the reasons of dead jobs.",
                [
                    Query(
                        f"sum by (task, outcome) (rate(evsched_jobs_finished_total{{{TASK}}}[{RATE}]))",
                        "{{task}} {{outcome}}",
                    )
                ],
                unit="ops",
                stacked=True,
            ),
        ],
    ),
    Row(
        "Workers",
        [
            Panel(
                "Workers",
                "Workers that have a lease on this queue; and 1 while it is paused.",
                "none: start one with `evsched worker MODULE:APP --queue $queue`. Paused: `evsched resume $queue`.",
                [
                    Query(f"max(evsched_queue_workers{{{OF}}})", "workers"),
                    Query(f"max(evsched_queue_paused{{{OF}}}) > 0", "paused"),
                ],
            ),
            Panel(
                "Requeued, leases lost",
                "Jobs returned to ready, by reason; and leases that ended while their worker was alive.",
                "`died`: workers are killed. A lost lease: a host hangs, or its network fails.",
                [
                    Query(f"sum by (reason) (increase(evsched_jobs_requeued_total{{{OF}}}[{RATE}]))", "{{reason}}"),
                    Query(f"sum(increase(evsched_leases_lost_total{{{OF}}}[{RATE}]))", "leases lost"),
                ],
            ),
            Panel(
                "Missed occurrences",
                "Occurrences of this queue's recurrences that were skipped; and recurrences that cannot make jobs.",
                "no dispatcher ran, or the occurrence before still ran: `evsched recurrences` shows which. Broken: "
                "`evsched doctor` names the recurrence, and says how to repair it.",
                [
                    Query(f"sum(increase(evsched_recurrences_missed_total{{{OF}}}[{RATE}]))", "missed"),
                    Query(f"sum(increase(evsched_recurrences_broken_total{{{OF}}}[{RATE}]))", "broken"),
                    Query(f"sum(increase(evsched_recurrences_paused_total{{{OF}}}[{RATE}]))", "paused"),
                ],
                bad=1,
            ),
            Panel(
                "Batches",
                "Batches of this queue that have not ended, and their jobs that have not.",
                "if it climbs, batches are not closed, or their jobs do not end: `evsched batches --queue $queue`.",
                [
                    Query(f"max(evsched_queue_batches{{{OF}}})", "batches"),
                    Query(f"max(evsched_queue_batch_jobs{{{OF}}})", "jobs of batches"),
                ],
            ),
            Panel(
                "Ended batches",
                "Batches of this queue that have ended, by outcome.",
                "failed: `evsched batches show ID` names the first failures. Revive them once the cause is gone.",
                [
                    Query(
                        f"max by (outcome) (increase(evsched_batches_ended_total{{{OF}}}[{RATE}]))",
                        "{{outcome}}",
                    )
                ],
            ),
            Panel(
                "Since a recurrence succeeded",
                "How long ago a run of each recurrence of this queue was last done.",
                "longer than its rule says: `evsched recurrences` shows how its last run ended.",
                [
                    Query(
                        f"time() - max by (recurrence) (evsched_recurrence_last_success_timestamp_seconds{{{OF}}})",
                        "{{recurrence}}",
                    )
                ],
                unit="s",
            ),
        ],
    ),
]


def queue() -> Dashboard:
    """Return the dashboard."""
    return page(
        "evsched-queue",
        "evsched: queue",
        "One queue, and one task or all: how late its jobs start, where they wait, how they end.",
        [
            queried("job", "Job", "label_values(evsched_build_info, job)", many=True),
            queried("queue", "Queue", "label_values(evsched_queue_jobs, queue)", many=False),
            queried("task", "Task", 'label_values(evsched_jobs_started_total{queue="$queue"}, task)', many=True),
        ],
        ROWS,
    )
