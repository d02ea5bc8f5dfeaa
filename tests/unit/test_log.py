"""Events as log lines: every event can be written, and no text of a job controls the terminal."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import logging
import sys
import time
from collections.abc import Generator

import pytest

from evsched import JobLogFilter, events, process_events
from evsched.display import escape, json_text
from evsched.execution.executor import Executor
from evsched.execution.program import Program
from evsched.execution.run import Delivery, Run
from evsched.jobs.current_job import CurrentJob, set_current_job
from evsched.jobs.job import FetchedJob
from evsched.jobs.tasks import Tasks, define
from evsched.telemetry import log


class Terminal(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[Terminal]:
    """Yield the output of the log; afterwards restore the program's own logging."""
    logger = logging.getLogger("evsched")
    before = logger.handlers, logger.level, logger.propagate
    out = Terminal(request.param)
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    log.configure("DEBUG")
    yield out
    logger.handlers, logger.level, logger.propagate = before
    logging.getLogger("aiormq").setLevel(logging.NOTSET)


EVENTS = [
    events.DispatcherStarted(server="7.0.15", queues=["a", "b"]),
    events.QueueFound(queue="q"),
    process_events.ShardsFound(queue="q", count=3),
    process_events.ShardsUnknown(reason="no answer"),
    process_events.DoctorStarted(interval=300.0),
    process_events.ApiStarted(url="http://127.0.0.1:8420"),
    process_events.ConsoleStarted(url="http://127.0.0.1:8421"),
    process_events.LeaseDiffers(given=30.0, lease=14.0),
    process_events.LeaseChanged(lease=30.0),
    process_events.RedisUnsafe(what="the append-only log is off", mend="CONFIG SET appendonly yes"),
    process_events.SubscriptionLost(reason="cut"),
    process_events.NotificationsMissing(mend="set it"),
    process_events.NotificationsProven(),
    events.Retrying(queue="q", id="a", task="t", attempt=1, delay=0.25, reason="attempt 1 of 2: no luck", seconds=0.1),
    events.JobBuried(queue="q", id="a", task="t", attempt=2, reason="no luck", outcome="dead", seconds=0.1),
    events.JobAborted(queue="q", id="a", task="t", attempt=1, seconds=0.1),
    events.JobSnoozed(queue="q", id="a", task="t", attempt=1, reason="snoozed for at least 9.0 s", seconds=0.1),
    events.JobsRequeued(queue="q", worker="w", ids=[f"j{n}" for n in range(30)], cause="died", reason="it died"),
    events.TaskUnknown(queue="q", task="t", reason="unknown task 't'", grace=600.0),
    events.JobDeferred(queue="q", id="a", task="t", due=1.0, cause="task"),
    events.RunLost(queue="q", worker="w", id="a", task="t", attempt=1),
    events.RunLost(queue="q", worker="w", id="a", task="t", attempt=1, end="unknown"),
    events.LeaseLost(queue="q", worker="w", held=2),
    events.RecurrenceDeclared(queue="q", name="r", done="retired"),
    events.PauseOver(queue="q", name="r"),
    events.LimitDeclared(queue="q", limit="concurrency:alice", value="3"),
    events.RevisionOutdated(queue="q", app="a", revision="4", newest="5"),
    events.WorkerStarted(worker="w", queues=["q"], slots=8, tasks=["t"]),
    events.WorkerDraining(worker="w", running=3, shutdown_grace=10.0),
    events.WorkerStopped(worker="w", handed_back=2),
    events.WorkerStuck(worker="w", queue="q", id="a", task="t", attempt=1),
    events.WorkerBlocked(worker="w", queue="q", id="a", task="t", attempt=1, running=["a"]),
    events.WorkerBlocked(worker="w", running=["a"]),
    process_events.ChildNotStarted(number=0, reason="no such file"),
    process_events.ParentWaits(queues=["q"]),
    process_events.ParentWoken(queue="q"),
    process_events.Reloading(processes=2),
    process_events.Reloaded(processes=2, seconds=1.25),
    process_events.ReloadFailed(number=1, reason="ended with 1", replaced=1, processes=2),
    events.RecurrencePaused(queue="q", name="r", why="3 failures in a row"),
    process_events.RedisDown(who="worker", reason="no answer"),
    process_events.RedisUp(who="worker", seconds=1.25),
    process_events.NodeReleased(who="janitor at h:7000", seconds=1.25),
    process_events.CallRefused(who="janitor", queue="q", reason="survey: WRONGTYPE"),
    process_events.CallAccepted(who="janitor", queue="q", seconds=1.25),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_each_event_is_one_line(out: Terminal, event: events.Event) -> None:
    log.Log().on_event(event)
    (line,) = out.getvalue().splitlines()
    assert "{" not in line or not out.isatty()
    if not out.isatty():
        assert json.loads(line)["event"] == type(event).__name__


@pytest.mark.parametrize(
    ("held", "level", "effect"), [(2, "ERROR", ": its jobs are cancelled here"), (0, "WARNING", ", and held no jobs")]
)
def test_a_lost_lease_is_an_error_only_if_the_worker_held_jobs(
    caplog: pytest.LogCaptureFixture, held: int, level: str, effect: str
) -> None:
    log.Log().on_event(events.LeaseLost(queue="q", worker="w", held=held))
    (record,) = caplog.records
    assert record.levelname == level
    assert f"worker w lost its lease on q{effect}" in record.message


def test_frequent_events_have_no_line(out: Terminal) -> None:
    log.Log().on_event(events.Woken(queue="q", reason="event", found=1))
    log.Log().on_event(events.Completed(queue="q", worker="w", ids=["a"], tasks=["t"], seconds=[0.1]))
    assert out.getvalue() == ""


def test_each_start_and_end_of_a_job_has_a_line_when_asked_for(out: Terminal) -> None:
    writer = log.Log(jobs=True)
    writer.on_event(
        events.Started(
            queue="q", worker="w", ids=["a", "b"], tasks=["t", "u\n"], lateness=[0.0012, 3.0], attempts=[1, 2]
        )
    )
    writer.on_event(events.Completed(queue="q", worker="w", ids=["a"], tasks=["t"], seconds=[0.25], attempts=[1]))
    first, second, end = out.getvalue().splitlines()
    assert "job a of q, task t, attempt 1, started 1.2 ms late" in first
    assert "job b of q, task u\\n, attempt 2, started 3000.0 ms late" in second
    assert "job a of q, task t, attempt 1, done in 0.250 s" in end
    if not out.isatty():
        line = json.loads(end)
        assert (line["event"], line["id"], line["task"], line["attempt"], line["seconds"]) == (
            *("Completed", "a", "t", 1),
            0.25,
        )


def test_a_line_that_a_handler_logs_names_its_run(out: Terminal) -> None:
    def run() -> None:
        set_current_job(CurrentJob("job-7", "mail", "send", 2, 1.0, 1.0, 0.0, {}))
        logging.getLogger("evsched.own").info("hello")

    contextvars.copy_context().run(run)
    logging.getLogger("evsched.own").info("outside")
    inside, outside = out.getvalue().splitlines()
    if out.isatty():
        assert inside.endswith("hello [job-7 mail send 2]")
        assert outside.endswith("outside")
    else:
        line = json.loads(inside)
        assert [line[name] for name in ("job_id", "job_queue", "job_task", "job_attempt")] == [
            "job-7",
            "mail",
            "send",
            2,
        ]
        assert "job_id" not in json.loads(outside)


def test_library_log_lines_have_the_default_form_of_the_log(out: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("a_library"), "propagate", False)  # pytest has a handler on the root logger
    logging.getLogger("a_library").info("not this")
    try:
        raise ValueError("no luck\x1b[31m")
    except ValueError:
        logging.getLogger("a_library").exception("it failed")
    assert all(line.isprintable() for line in out.getvalue().splitlines())
    if out.isatty():
        first, *rest = out.getvalue().splitlines()
        assert first.endswith("error    it failed")
        assert "ValueError: no luck\\x1b[31m" in rest[-1]
    else:
        line = json.loads(out.getvalue())
        assert (line["level"], line["message"]) == ("error", "it failed")
        assert "ValueError: no luck" in line["traceback"]


async def test_job_log_filter_knows_the_run_in_tasks_and_threads() -> None:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.addFilter(JobLogFilter())
    handler.setFormatter(logging.Formatter("%(job_id)s %(job_queue)s %(job_task)s %(job_attempt)s %(message)s"))
    logger = logging.getLogger("a_users_own")
    logger.addHandler(handler)
    try:
        tasks = Tasks()

        async def inside() -> None:
            logger.warning("in the loop")

        def thread() -> None:
            logger.warning("in a thread")

        tasks.add(define(inside, name="loop"))
        tasks.add(define(thread, name="thread"))
        executor = Executor(Program(tasks), 1)
        for task in ("loop", "thread"):
            payload = b'{"task":"%s"}' % task.encode()
            run = Run(FetchedJob(f"job-{task}", 3, 1.0, payload), Delivery("q", 1.0, time.monotonic()))
            await asyncio.create_task(executor.run(run))
        logger.warning("outside")
    finally:
        logger.removeHandler(handler)
    assert lines.getvalue().splitlines() == [
        "job-loop q loop 3 in the loop",
        "job-thread q thread 3 in a thread",
        "- - - 0 outside",
    ]


def test_logged_traceback_cannot_control_the_terminal(out: Terminal) -> None:
    traceback = 'Traceback (most recent call last):\n  File "t.py", line 1, in pay\nValueError: no\x1b[31m\n'
    log.Log().on_event(
        events.JobBuried(
            queue="q", id="a", task="t", attempt=2, reason="no luck", outcome="dead", seconds=0.1, traceback=traceback
        )
    )
    log.Log().on_event(
        events.Retrying(
            queue="q", id="a", task="t", attempt=1, delay=0.25, reason="no luck", seconds=0.1, traceback=traceback
        )
    )
    lines = out.getvalue().splitlines()
    if out.isatty():
        assert len(lines) == 8
        assert lines[3] == lines[7] == "  ValueError: no\\x1b[31m"
    else:
        assert [json.loads(line)["traceback"] for line in lines] == [traceback] * 2


def test_control_characters_never_reach_the_line(out: Terminal) -> None:
    log.Log().on_event(
        events.JobBuried(
            queue="q",
            id="bad",
            task="\x1b[2J\r\n\x00",
            attempt=0,
            reason="say \u202e \x9b31m\nERROR forged line",
            outcome="dead",
        )
    )
    (line,) = out.getvalue().splitlines()
    assert line.isprintable()
    assert "forged" in line


def test_a_terminal_shows_eight_of_many_ids_and_json_shows_all(out: Terminal) -> None:
    ids = [f"j{n}" for n in range(30)]
    log.Log().on_event(events.JobsRequeued(queue="q", worker="w", ids=ids, cause="died", reason="it died"))
    if out.isatty():
        assert "j7 and 22 more" in out.getvalue()
    else:
        assert json.loads(out.getvalue())["ids"] == ids


def test_an_outage_that_many_loops_notice_is_logged_once(out: Terminal) -> None:
    writer = log.Log()
    for who in ("worker", "subscription"):
        writer.on_event(process_events.RedisDown(who=who, reason="no answer"))
    for who in ("subscription", "worker"):
        writer.on_event(process_events.RedisUp(who=who, seconds=1.0))
    writer.on_event(process_events.RedisDown(who="worker", reason="no answer"))
    down, up, again = out.getvalue().splitlines()
    assert "Redis is down, as worker found" in down
    assert "Redis is back" in up
    assert "Redis is down" in again


def test_a_node_that_is_given_up_is_not_said_to_be_back(out: Terminal) -> None:
    writer = log.Log()
    for who in ("dispatcher at h:7000", "janitor at h:7000"):
        writer.on_event(process_events.RedisDown(who=who, reason="no answer"))
    for who in ("dispatcher at h:7000", "janitor at h:7000"):
        writer.on_event(process_events.NodeReleased(who=who, seconds=1.0))
    writer.on_event(process_events.RedisDown(who="worker", reason="no answer"))
    down, released, again = out.getvalue().splitlines()
    assert "Redis is down" in down
    assert "janitor at h:7000 has ended, after 1.0 s without Redis" in released
    assert "Redis is down" in again


def test_full_redis_is_logged_once_with_its_remedy(out: Terminal) -> None:
    writer = log.Log()
    for queue in ("a", "b"):
        writer.on_event(
            process_events.CallRefused(who="worker, fetching", queue=queue, reason="BLMOVE: OOM ...", kind="oom")
        )
    for queue in ("b", "a"):
        writer.on_event(process_events.CallAccepted(who="worker, fetching", queue=queue, seconds=2.0, kind="oom"))
    full, over = out.getvalue().splitlines()
    assert "Redis's memory is full (maxmemory), as worker, fetching, queue a found: it refuses new jobs" in full
    assert "CONFIG SET maxmemory, or drop dead jobs" in full
    assert "Redis's memory is not full any more, after 2.0 s" in over


def test_misconf_and_refused_calls_are_not_logged_as_redis_down(out: Terminal) -> None:
    writer = log.Log()
    writer.on_event(process_events.RedisDown(who="worker", reason="start: MISCONF ...", kind="misconf"))
    writer.on_event(process_events.CallRefused(who="janitor", queue="q", reason="survey: WRONGTYPE"))
    full, refused = out.getvalue().splitlines()
    assert "Redis cannot serve now, as worker found: start: MISCONF" in full
    assert "janitor, queue q: Redis refuses" in refused


def test_a_requeue_because_no_slot_is_free_is_not_logged_at_info(out: Terminal) -> None:
    logging.getLogger("evsched").setLevel("INFO")
    log.Log().on_event(events.JobsRequeued(queue="q", worker="w", ids=["a"], cause="busy", reason="no slot was free"))
    assert out.getvalue() == ""


def test_a_process_that_ends_by_itself_is_logged_as_a_warning(out: Terminal) -> None:
    logging.getLogger("evsched").setLevel("WARNING")
    for code in (0, -15, 1, -9):
        log.Log().on_event(process_events.ChildEnded(number=0, pid=7, code=code))
    one, killed = out.getvalue().splitlines()
    assert "ended with 1" in one
    assert "ended with -9" in killed


def test_text_of_a_job_cannot_control_the_terminal() -> None:
    assert escape("a\x1b[31m\nb\u202e") == "a\\x1b[31m\\nb\\u202e"


def test_json_for_a_terminal_is_printable_and_says_the_same() -> None:
    value = {"a": "\x1b\x7f\x9b[31m\u202e\u2028\U000e0001\n", "ü": [1, None]}
    assert json_text(value).isprintable()
    assert json.loads(json_text(value)) == value


@pytest.mark.usefixtures("out")
def test_the_library_of_brokers_logs_nothing_that_the_reasons_of_jobs_say() -> None:
    assert not logging.getLogger("aiormq.connection").isEnabledFor(logging.ERROR)
    assert logging.getLogger("another.library").isEnabledFor(logging.WARNING)
