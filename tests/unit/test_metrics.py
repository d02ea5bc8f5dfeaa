"""Events are counted as metrics, and clients cannot create an unlimited number of series."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Theirs

from evsched import events, process_events
from evsched.telemetry.metrics import LATENESS, QUEUES, Histogram, Metrics
from tests.support.web import Scraped, read

NOT_COUNTED = {
    "only the log needs it": {
        process_events.CallAccepted,
        events.HandlerNotFound,
        process_events.Listening,
        process_events.DoctorStarted,
        process_events.ApiStarted,
        process_events.ConsoleStarted,
        process_events.NotificationsMissing,
        events.MoveFinished,
        process_events.NotificationsProven,
        process_events.ParentWaits,
        process_events.ParentWoken,
        events.PauseOver,
        events.RecurrenceDeclared,
        events.LimitDeclared,
        process_events.LeaseChanged,
        process_events.LeaseDiffers,
        process_events.RedisUnsafe,
        events.RevisionOutdated,
        process_events.ShardsFound,
        process_events.ShardsUnknown,
        events.Rewound,
        process_events.SubscriptionLost,
        events.TaskUnknown,
        events.WorkerDraining,
        events.WorkerQuiet,
        events.WorkerStopped,
    },
    "the process ends, or another one does: whatever starts processes counts restarts": {
        process_events.ChildCannotStart,
        process_events.ChildEnded,
        process_events.ChildKilled,
        process_events.ChildNotStarted,
        process_events.ChildStarted,
        process_events.CodeChanged,
        process_events.DevWaits,
        process_events.EndedAtOnce,
        process_events.EndedByForce,
        process_events.HandlersLeft,
        process_events.ReloadFailed,
        process_events.Reloaded,
        process_events.Reloading,
        events.WorkerBlocked,
        events.WorkerStuck,
    },
    "RedisFailed is counted for each refused call, and Dispatched for each occurrence": {
        process_events.CallRefused,
        events.Recurred,
    },
    "the rows that wait are counted": {process_events.RelayWaits, process_events.RowsSetAside},
    "it is logged, and tried again": {process_events.PruningWaits},
    "only a wrong clock, or an entry by hand, causes it": {process_events.RunsLeftOut},
    "it is part of what a loss of Redis takes": {process_events.JobsWithdrawn},
    "it is for loops and tests": {
        process_events.EpochFound,
        process_events.HistoryStandsBy,
        process_events.HistoryWrites,
        process_events.LedgerPruned,
        process_events.RowsDeclared,
        events.ChoresDone,
        events.ControlOpened,
        events.ReadyDrained,
        events.ReadyLeft,
        process_events.Subscribed,
    },
}
"""The events that no metric counts, by the reason why not."""


def test_each_event_is_counted_or_is_named_here_with_the_reason_why_not() -> None:
    left_out = [event for named in NOT_COUNTED.values() for event in named]
    every = list(events.Event.__subclasses__())
    for kind in every:
        every += kind.__subclasses__()
    emitted = [kind for kind in every if not kind.__subclasses__()]
    assert sorted(event.__name__ for event in [*Metrics("1").counted, *left_out]) == sorted(
        event.__name__ for event in emitted
    )


def page(metrics: Metrics) -> Scraped:
    return Scraped(read(generate_latest(metrics.registry).decode()))


def with_worker(*tasks: str) -> Metrics:
    metrics = Metrics("1")
    metrics.on_event(events.WorkerStarted(worker="w", queues=["q"], slots=8, tasks=list(tasks)))
    return metrics


@given(st.lists(st.floats(0, 1000), max_size=50))
def test_a_batch_is_counted_as_the_library_counts_one_by_one(values: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Histogram("lateness", "how late", ["queue"], LATENESS)
    ours.register(mine)
    mine.observe(("q",), values)
    its = Theirs("lateness", "how late", ["queue"], buckets=LATENESS, registry=theirs).labels("q")
    for value in values:
        its.observe(value)
    left, right = read(generate_latest(ours).decode()), read(generate_latest(theirs).decode())
    assert {name: value for name, value in right.items() if "_created" not in name[0]} == left


def test_runs_are_counted_by_queue_task_and_outcome() -> None:
    metrics = with_worker("mail", "report")
    metrics.on_event(
        events.Started(
            queue="q",
            worker="w",
            ids=["a", "b", "c"],
            tasks=["mail", "report", "made up"],
            lateness=[0.001, 0.004, 7.0],
        )
    )
    metrics.on_event(
        events.Completed(queue="q", worker="w", ids=["a", "b"], tasks=["mail", "report"], seconds=[0.3, 0.01])
    )
    metrics.on_event(events.Retrying(queue="q", id="d", task="mail", attempt=1, delay=2.0, reason="no", seconds=0.2))
    metrics.on_event(
        events.JobBuried(queue="q", id="c", task="made up", attempt=1, reason="unknown task", outcome="dead")
    )
    metrics.on_event(events.JobBuried(queue="q", id="e", task="mail", attempt=1, reason="too late", outcome="expired"))
    metrics.on_event(events.JobAborted(queue="q", id="f", task="mail", attempt=1, seconds=4.0))
    metrics.on_event(events.JobDeferred(queue="q", id="g", task="mail", due=1.0))
    metrics.on_event(events.JobDeferred(queue="q", id="i", task="mial", due=1.0, cause="task"))
    metrics.on_event(events.JobSnoozed(queue="q", id="j", task="mail", attempt=1, reason="snoozed", seconds=0.5))
    metrics.on_event(events.RunLost(queue="q", worker="w", id="h", task="mail", attempt=1))
    scraped = page(metrics)
    assert scraped("jobs_started_total", queue="q", task="mail") == 1
    assert scraped("jobs_started_total", queue="q", task="__other__") == 1
    finished = {
        (task, outcome): scraped("jobs_finished_total", queue="q", task=task, outcome=outcome)
        for task in ("mail", "report", "__other__")
        for outcome in ("done", "retry", "dead", "expired", "cancelled", "deferred", "snoozed", "lost")
    }
    assert {key for key, count in finished.items() if count} == {
        ("mail", "done"),
        ("report", "done"),
        ("mail", "retry"),
        ("__other__", "dead"),
        ("mail", "expired"),
        ("mail", "cancelled"),
        ("mail", "deferred"),
        ("__other__", "deferred"),
        ("mail", "snoozed"),
        ("mail", "lost"),
    }
    causes = {cause: scraped("jobs_deferred_total", queue="q", cause=cause) for cause in ("window", "code", "task")}
    assert causes == {"window": 1, "code": None, "task": 1}
    assert scraped("run_seconds_count", queue="q", task="mail") == 4  # a handler ran
    assert math.isclose(scraped("run_seconds_sum", queue="q", task="mail") or 0, 5.0)
    assert scraped("start_lateness_seconds_bucket", queue="q", le="0.001") == 1
    assert scraped("start_lateness_seconds_bucket", queue="q", le="0.005") == 2
    assert scraped("start_lateness_seconds_count", queue="q") == 3


def test_actions_of_dispatchers_and_janitors_are_counted() -> None:
    metrics = Metrics("1.2")
    metrics.on_event(events.Woken(queue="q", reason="event", found=2))
    metrics.on_event(events.Woken(queue="q", reason="safety", found=0))
    assert page(metrics)("wakeups_missed_total") == 0
    metrics.on_event(events.Woken(queue="q", reason="safety", found=3))
    metrics.on_event(events.Dispatched(queue="q", lateness=[0.0, 400.0]))
    metrics.on_event(events.JobsRequeued(queue="q", worker="w", ids=["a", "b"], cause="died", reason="worker w died"))
    metrics.on_event(events.Missed(queue="q", name="nightly", count=4))
    metrics.on_event(events.RecurrenceBroken(queue="q", name="nightly", reason="its rule"))
    metrics.on_event(events.RecurrencePaused(queue="q", name="nightly", why="3 failures in a row"))
    metrics.on_event(events.LeaseLost(queue="q", worker="w", held=1))
    metrics.on_event(process_events.RedisFailed(kind="timeout"))
    scraped = page(metrics)
    assert scraped("wakeups_total", reason="event") == 1
    assert scraped("wakeups_total", reason="safety") == 2
    assert scraped("wakeups_missed_total") == 1
    assert scraped("jobs_dispatched_total", queue="q") == 2
    assert scraped("dispatch_lateness_seconds_bucket", queue="q", le="300.0") == 1
    assert scraped("jobs_requeued_total", queue="q", reason="died") == 2
    assert scraped("recurrences_missed_total", queue="q") == 4
    assert scraped("recurrences_broken_total", queue="q") == 1
    assert scraped("recurrences_paused_total", queue="q") == 1
    assert scraped("leases_lost_total", queue="q") == 1
    assert scraped("redis_errors_total", kind="timeout") == 1
    assert scraped("build_info", version="1.2") == 1


def test_redis_is_down_until_every_loop_has_it_back() -> None:
    metrics = Metrics("1")
    assert page(metrics)("redis_up") == 1
    metrics.on_event(process_events.RedisDown(who="worker", reason="gone"))
    metrics.on_event(process_events.RedisDown(who="janitor", reason="gone"))
    metrics.on_event(process_events.RedisUp(who="worker", seconds=1.0))
    assert page(metrics)("redis_up") == 0
    metrics.on_event(process_events.NodeReleased(who="janitor", seconds=1.0))
    assert page(metrics)("redis_up") == 1


def test_a_refused_call_does_not_mean_that_redis_is_down() -> None:
    metrics = Metrics("1")
    metrics.on_event(process_events.RedisFailed(kind="wrongtype"))
    metrics.on_event(process_events.CallRefused(who="janitor", queue="q", reason="survey: WRONGTYPE"))
    scraped = page(metrics)
    assert (scraped("redis_up"), scraped("redis_errors_total", kind="wrongtype")) == (1, 1)


def test_names_invented_by_clients_share_one_series() -> None:
    metrics = with_worker("mail")
    for n in range(5000):
        metrics.on_event(events.Started(queue="q", worker="w", ids=["a"], tasks=[f"evil{n}"], lateness=[0.1]))
        metrics.on_event(
            events.JobBuried(queue="q", id="a", task=f"evil{n}", attempt=1, reason="unknown task", outcome="dead")
        )
        metrics.on_event(
            events.Retrying(queue="q", id="b", task=f"evil{n}", attempt=1, delay=1.0, reason="no", seconds=0.1)
        )
    scraped = page(metrics)
    assert scraped("jobs_started_total", queue="q", task="__other__") == 5000
    assert len(scraped) <= 200


def test_queues_beyond_the_limit_share_one_series() -> None:
    metrics = Metrics("1")
    for n in range(5000):
        metrics.on_event(events.Dispatched(queue=f"q{n}", lateness=[0.1]))
    scraped = page(metrics)
    assert len(scraped.labels("jobs_dispatched_total", "queue")) == QUEUES + 1
    assert scraped("jobs_dispatched_total", queue="__other__") == 5000 - QUEUES


def test_findings_metric_shows_the_last_check_of_the_doctor() -> None:
    metrics = with_worker("mail")
    metrics.on_event(
        process_events.Examined(checks=["orphan", "clock", "orphan"], levels=["fault", "warning", "fault"])
    )
    scraped = page(metrics)
    assert scraped("doctor_findings", check="orphan", level="fault") == 2
    assert scraped("doctor_findings", check="clock", level="warning") == 1
    metrics.on_event(process_events.Examined(checks=["clock"], levels=["warning"]))
    scraped = page(metrics)
    assert scraped("doctor_findings", check="orphan", level="fault") is None
    assert scraped("doctor_findings", check="clock", level="warning") == 1
