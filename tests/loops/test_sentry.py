"""The integration with Sentry's real SDK, which hands all that it would send to the tests."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

import pytest
import sentry_sdk
import sentry_sdk.traces
from opentelemetry.sdk.trace import TracerProvider
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from evsched import App, GiveUp, JobDead, Retry, RetryLater, Snooze, current_job, events
from evsched.config import Config
from evsched.execution.executor import Executor
from evsched.execution.program import Program
from evsched.execution.run import Delivery, Run
from evsched.jobs.job import FetchedJob, encode
from evsched.sentry import EvschedIntegration, _monitors  # pyright: ignore[reportPrivateUsage]
from evsched.telemetry.log import Log
from evsched.testing import Clock
from evsched.tracing import trace
from evsched.transport.embedded import EmbeddedRedis
from tests.support import failures, heavy
from tests.support.patience import PATIENCE
from tests.support.system import system

ONCE = Retry(attempts=1)


class Sent(Transport):
    """Keeps all that the SDK sends."""

    def __init__(self) -> None:
        super().__init__()
        self._items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            self._items.append((str(item.type), json.loads(item.get_bytes())))

    def of(self, kind: str) -> list[dict[str, Any]]:
        sentry_sdk.flush()
        return [item for found, item in self._items if found == kind]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return self.of("event")

    @property
    def check_ins(self) -> list[tuple[str, str]]:
        """The monitor and the status of each check-in."""
        return [(item["monitor_slug"], item["status"]) for item in self.of("check_in")]

    def spans(self) -> list[dict[str, Any]]:
        """Return all spans in one form, of transactions or streamed: op, name, status, data, and its ids."""
        found = list[dict[str, Any]]()
        for transaction in self.of("transaction"):
            root = transaction["contexts"]["trace"]
            found += [{**root, "name": transaction["transaction"]}, *transaction["spans"]]
            for span in found:
                span.setdefault("name", span.get("description"))
        for item in self.of("span"):
            for span in item["items"]:
                data = {key: value["value"] for key, value in span["attributes"].items()}
                found.append({**span, "op": data["sentry.op"], "data": data})
        return found

    def one(self, op: str) -> dict[str, Any]:
        (span,) = [span for span in self.spans() if span["op"] == op]
        return span


Begin = Callable[..., Sent]


@pytest.fixture
def begin() -> Generator[Begin]:
    """Return a function that starts Sentry's SDK, whose other integrations would change this process."""

    def start(*integrations: Any, **options: Any) -> Sent:
        sent = Sent()
        sentry_sdk.init(
            dsn="http://key@127.0.0.1/1",
            transport=sent,
            integrations=list(integrations) or [EvschedIntegration()],
            default_integrations=False,
            auto_enabling_integrations=False,
            **options,
        )
        return sent

    with sentry_sdk.isolation_scope():
        yield start
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def begin_span(*, streamed: bool) -> Any:
    """Return the span of a request to a web server."""
    if streamed:
        return sentry_sdk.traces.start_span("web", {"sentry.op": "http.server"})
    return sentry_sdk.start_transaction(name="web", op="http.server")


@pytest.mark.parametrize("streamed", [False, True], ids=["transactions", "streamed"])
async def test_a_run_continues_the_trace_of_its_enqueue(
    config: Config, app: App, queue: str, begin: Begin, streamed: bool
) -> None:
    sent = begin(traces_sample_rate=1.0, **({"trace_lifecycle": "stream"} if streamed else {}))

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with system(config, app):
        with begin_span(streamed=streamed):
            job = await double.enqueue(21)
        await job.result(PATIENCE)
    web, published, run, process = (sent.one(op) for op in ("http.server", *PUBLISH_AND_RUN))
    assert len(sent.spans()) == 4
    assert {span["trace_id"] for span in (web, published, run, process)} == {web["trace_id"]}
    parents = [span["parent_span_id"] for span in (published, run, process)]
    assert parents == [span["span_id"] for span in (web, published, run)]
    assert [span["name"] for span in (published, run, process)] == ["double"] * 3
    assert run["status"] == "ok"
    same = {
        "messaging.system": "evsched",
        "messaging.destination.name": queue,
        "messaging.message.id": job.id,
        "messaging.message.body.size": len(b'{"task":"double","args":[21]}'),
    }
    assert same.items() - published["data"].items() == {("messaging.message.body.size", 29)}  # with its meta
    size = published["data"]["messaging.message.body.size"]
    latency = process["data"]["messaging.message.receive.latency"]
    assert 0 <= latency < PATIENCE * 1000
    assert {key: value for key, value in process["data"].items() if key.startswith("messaging.")} == {
        **same,
        "messaging.message.body.size": size,
        "messaging.message.retry.count": 0,
        "messaging.message.receive.latency": latency,
    }


PUBLISH_AND_RUN = "queue.publish", "queue.task.evsched", "queue.process"


@pytest.mark.parametrize("streamed", [False, True], ids=["transactions", "streamed"])
async def test_a_job_without_a_valid_trace_begins_one(config: Config, app: App, begin: Begin, streamed: bool) -> None:
    sent = begin(traces_sample_rate=1.0, **({"trace_lifecycle": "stream"} if streamed else {}))

    @app.task
    async def noop() -> None: ...

    bad: list[Any] = ["", 7, "a-b-c", ["a"], "0" * 32, "\0"]
    async with system(config, app):
        for value in bad:
            await (await noop.using(meta={"sentry-trace": value, "baggage": value}).enqueue()).result(PATIENCE)
    traces = [span["trace_id"] for span in sent.spans() if span["op"] == "queue.process"]
    assert len(set(traces)) == len(bad)
    assert not sent.errors


async def test_the_users_own_trace_and_baggage_are_kept(config: Config, app: App, begin: Begin) -> None:
    begin(traces_sample_rate=1.0)

    @app.task
    async def meta() -> dict[str, Any]:
        return current_job().meta

    given = {"sentry-trace": f"{'a' * 32}-{'b' * 16}-1", "tenant": 7}
    async with system(config, app):
        assert await (await meta.using(meta=given).enqueue()).result(PATIENCE) == given
        found = await (await meta.using(meta={"baggage": "vendor=1"}).enqueue()).result(PATIENCE)
    assert found["baggage"].startswith("vendor=1,sentry-trace_id=")


async def test_each_failed_attempt_is_reported_in_the_scope_of_its_run(
    config: Config, app: App, queue: str, begin: Begin
) -> None:
    sent = begin(traces_sample_rate=1.0)

    @app.task(retry=Retry(attempts=2, interval=0.01, jitter=0))
    async def fail(secret: str) -> None:
        sentry_sdk.set_tag(f"attempt-{current_job().attempt}", "yes")
        sentry_sdk.add_breadcrumb(message=f"attempt {current_job().attempt}")
        if current_job().attempt == 1:
            raise ValueError("no luck")
        raise GiveUp("the account is closed")

    sentry_sdk.add_breadcrumb(message="the program began")
    async with system(config, app):
        job = await fail.enqueue("hush")
        with pytest.raises(JobDead):
            await job.result(PATIENCE)
    first, second = sent.errors
    shown = first["exception"]["values"][-1]
    assert (shown["type"], shown["value"], shown["mechanism"]) == (
        "ValueError",
        "no luck",
        {"type": "evsched", "handled": False},
    )
    assert second["exception"]["values"][-1]["type"] == "GiveUp"
    assert first["contexts"]["evsched"] == {
        "id": job.id,
        "queue": queue,
        "task": "fail",
        "attempt": 1,
        "attempts": 2,
        "args": "[Filtered]",
        "kwargs": "[Filtered]",
    }
    assert first["tags"] == {"evsched.task": "fail", "evsched.queue": queue, "attempt-1": "yes"}
    assert second["tags"].keys() == {"evsched.task", "evsched.queue", "attempt-2"}
    crumbs = [[crumb["message"] for crumb in event["breadcrumbs"]["values"]] for event in (first, second)]
    assert crumbs == [["attempt 1"], ["attempt 2"]]
    runs = [span for span in sent.spans() if span["op"] == "queue.task.evsched"]
    assert [span["status"] for span in runs] == ["internal_error"] * 2
    assert [event["contexts"]["trace"]["trace_id"] for event in (first, second)] == [run["trace_id"] for run in runs]


async def test_only_last_attempts_are_reported_if_the_program_wants_that(
    config: Config, app: App, begin: Begin
) -> None:
    def last_attempts(event: Any, hint: Any) -> Any:  # as in docs/sentry.md
        job = event.get("contexts", {}).get("evsched")
        return None if job and job["attempt"] < job["attempts"] else event

    sent = begin(before_send=last_attempts)

    @app.task(retry=Retry(attempts=3, interval=0.01, jitter=0))
    async def fail() -> None:
        raise ValueError("no luck")

    async with system(config, app):
        with pytest.raises(JobDead):
            await (await fail.enqueue()).result(PATIENCE)
    assert [event["contexts"]["evsched"]["attempt"] for event in sent.errors] == [3]


@pytest.mark.parametrize("streamed", [False, True], ids=["transactions", "streamed"])
async def test_retry_later_and_snooze_are_no_errors(config: Config, app: App, begin: Begin, streamed: bool) -> None:
    sent = begin(traces_sample_rate=1.0, **({"trace_lifecycle": "stream"} if streamed else {}))
    raised = iter([RetryLater(0.01, "not yet"), Snooze(0.01, "not yet")])

    @app.task
    async def wait() -> None:
        for error in raised:
            raise error

    async with system(config, app):
        await (await wait.enqueue()).result(PATIENCE)
    assert not sent.errors
    assert [span["status"] for span in sent.spans() if span["op"] == "queue.task.evsched"] == ["ok"] * 3


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_a_timeout_is_reported_where_the_handler_was(config: Config, app: App, begin: Begin, plain: bool) -> None:
    sent = begin(traces_sample_rate=1.0)

    async def hang() -> None:
        await asyncio.Event().wait()

    def spin() -> None:
        job, wait = current_job(), threading.Event()
        while not job.cancelled:
            wait.wait(0.005)

    task: Any = app.task(name="slow", timeout=0.05, retry=ONCE)(spin if plain else hang)
    async with system(config, app):
        with pytest.raises(JobDead):
            await (await task.enqueue()).result(PATIENCE)
    (event,) = sent.errors
    shown = event["exception"]["values"][-1]
    assert (shown["type"], shown["value"]) == ("TimeoutError", "task slow: it ran longer than its limit, 0.05 s")
    if not plain:
        assert "hang" in [frame["function"] for frame in shown["stacktrace"]["frames"]]
    assert sent.one("queue.task.evsched")["status"] == "deadline_exceeded"


async def test_a_cancelled_job_and_one_of_a_worker_that_stops_are_no_errors(
    config: Config, app: App, begin: Begin
) -> None:
    sent = begin(traces_sample_rate=1.0)

    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with system(config, app) as running:
        job = await hang.enqueue()
        await running.recorder.wait(events.Started)
        await job.cancel()
        await running.recorder.wait(events.JobAborted)
        await hang.enqueue()
        await running.recorder.wait(events.Started, count=2)
    assert not sent.errors
    assert [span["status"] for span in sent.spans() if span["op"] == "queue.task.evsched"] == ["cancelled"] * 2


@pytest.mark.filterwarnings("ignore:The send_default_pii option is deprecated")
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"send_default_pii": True}, True),
        ({"data_collection": {"queues": True}}, True),
        ({"data_collection": {"queues": False}}, False),
    ],
    ids=["pii", "queues", "no queues"],
)
async def test_arguments_are_sent_if_allowed_and_redacted_ones_never(
    config: Config, app: App, begin: Begin, options: dict[str, Any], shown: bool
) -> None:
    sent = begin(**options)

    @app.task(retry=ONCE, redact=("card",))
    async def charge(order: int, card: str, *, note: str) -> None:
        copy = [card]
        raise ValueError(f"order {order} of {len(copy)}")

    @app.task(retry=ONCE)
    async def plain(order: int) -> None:
        raise ValueError(f"order {order}")

    async with system(config, app):
        for job in (await charge.enqueue(71, "4111-1111", note="gift"), await plain.enqueue(72)):
            with pytest.raises(JobDead):
                await job.result(PATIENCE)
    redacted, open_one = sorted(sent.errors, key=lambda event: event["contexts"]["evsched"]["task"])
    context = redacted["contexts"]["evsched"]
    assert (context["args"], context["kwargs"]) == (
        ([71, "[redacted]"], {"note": "gift"}) if shown else ("[Filtered]", "[Filtered]")
    )
    assert "4111" not in json.dumps(redacted)
    frames = open_one["exception"]["values"][-1]["stacktrace"]["frames"]
    assert frames[-1]["vars"] == {"order": "72"}
    assert not any("vars" in frame for frame in frames if frame["module"].startswith("evsched."))


async def test_an_error_of_another_process_has_its_own_class(config: Config, app: App, begin: Begin) -> None:
    sent = begin()
    steer = app.task(on="process", retry=ONCE)(heavy.steer.handler)
    async with system(config, app):
        with pytest.raises(JobDead):
            await (await steer.enqueue("fail")).result(PATIENCE)
    (event,) = sent.errors
    shown = event["exception"]["values"][-1]
    assert shown["type"] == "ValueError"
    assert shown["value"].startswith("no luck (")
    assert "stacktrace" not in shown
    assert "in steer\n" in event["extra"]["traceback"]


async def test_a_dead_job_is_reported_once_and_its_line_in_the_log_if_no_run_was(
    config: Config, app: App, queue: str, begin: Begin, raw: Any
) -> None:
    sent = begin(EvschedIntegration(), LoggingIntegration())

    @app.task(retry=ONCE)
    async def fail() -> None:
        raise ValueError("no luck")

    async with system(config, app) as running:
        running.events.subscribe(Log().on_event)
        await fail.enqueue()
        await running.recorder.wait(events.JobBuried)
        raw.zadd(f"evsched:{{{queue}}}:schedule", {b'{"task":"fail","args":[1,2]}': 0})
        await running.recorder.wait(events.JobBuried, count=2)
    error, line = sent.errors
    assert error["exception"]["values"][-1]["type"] == "ValueError"
    assert "the arguments do not fit" in line["logentry"]["message"]
    assert line["fingerprint"] == ["evsched", "JobBuried", queue, "fail", ""]


@pytest.mark.parametrize("task", ["raises loop", "raises thread", "times_out loop"])
async def test_a_reported_failure_leaves_no_reference(begin: Begin, task: str) -> None:
    begin(traces_sample_rate=1.0)
    program = Program(failures.app.tasks, around=failures.app.program.around)
    gc.collect()
    failures.alive.clear()
    gc.disable()
    try:
        for n in range(5):
            run = Run(FetchedJob(f"{n}", 1, 1.0, encode({"task": task})), Delivery("q", 1.0, 0.0))
            run.work = asyncio.ensure_future(Executor(program, 1).run(run))
            await run.work
        assert program.around
        assert len(failures.alive) <= 1  # its thread may need a moment more to forget the last one
    finally:
        gc.enable()


async def test_sentry_and_opentelemetry_see_the_same_run(config: Config, app: App, begin: Begin) -> None:
    sent = begin(traces_sample_rate=1.0)
    trace(app, TracerProvider(shutdown_on_exit=False))

    @app.task
    async def meta() -> dict[str, Any]:
        return current_job().meta

    async with system(config, app):
        found = await (await meta.enqueue()).result(PATIENCE)
    assert found.keys() == {"traceparent", "sentry-trace", "baggage"}
    assert sent.one("queue.process")["name"] == "meta"


async def test_without_the_integration_nothing_is_sent_or_written(config: Config, app: App, begin: Begin) -> None:
    begin()
    sent = begin(LoggingIntegration())

    @app.task(retry=ONCE)
    async def meta() -> dict[str, Any]:
        return current_job().meta

    @app.task(retry=ONCE)
    async def fail() -> None:
        raise ValueError("no luck")

    async with system(config, app):
        assert await (await meta.enqueue()).result(PATIENCE) == {}
        with pytest.raises(JobDead):
            await (await fail.enqueue()).result(PATIENCE)
    assert not sent.errors


async def test_recurrences_check_in(app: App, own: EmbeddedRedis, begin: Begin) -> None:
    settings: Any = {"report": {"owner": "team:ops"}}
    integration = EvschedIntegration(monitor_recurrences=True, exclude_recurrences=["quiet"], monitor_config=settings)
    sent = begin(integration)
    fails = iter([True, False, True, True, False])

    @app.recurring("0 9 * * *", zone="Europe/Berlin", name="report")
    @app.task(timeout=50, retry=Retry(attempts=2, interval=10, jitter=0))
    async def make_report() -> None:
        if next(fails):
            raise ValueError("no luck")

    @app.recurring(every=timedelta(hours=24))
    @app.task
    async def quiet() -> None: ...

    clock = Clock(app, own.url)
    try:
        await clock.advance(days=3)
        await app.client.enqueue(app.queue, [])
    finally:
        clock.close()
    begun, done, failed = ("report", "in_progress"), ("report", "ok"), ("report", "error")
    assert sent.check_ins == [begun, begun, done, begun, begun, failed, begun, done]
    ids = [item["check_in_id"] for item in sent.of("check_in")]
    assert len(set(ids[:3])) == len(set(ids[3:6])) == 1
    assert ids[0] != ids[3]
    assert sent.of("check_in")[0]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 9 * * *"},
        "timezone": "Europe/Berlin",
        "max_runtime": 3,
        "owner": "team:ops",
    }
    durations = [item["duration"] for item in sent.of("check_in") if item["status"] != "in_progress"]
    assert durations[:2] == [None, None]  # of two attempts: Sentry takes the time since the first check-in
    assert durations[2] >= 0
    assert {*sent.of("check_in")[0].get("contexts", {})} <= {"trace"}


@pytest.mark.parametrize(
    ("options", "schedule"),
    [
        ({"rule": "@daily"}, {"type": "crontab", "value": "0 0 * * *"}),
        ({"rule": "0 30 4 * * mon"}, {"type": "crontab", "value": "30 4 * * mon"}),
        ({"every": 5400}, {"type": "interval", "value": 90, "unit": "minute"}),
        ({"every": 7200}, {"type": "interval", "value": 2, "unit": "hour"}),
        ({"every": 90}, "its interval, 90 s, is not whole minutes"),
        ({"rule": "5 * * * * *"}, "its rule has seconds"),
        ({"rule": "@daily", "window": "mon-fri 09:00-17:00 UTC"}, "it waits for its window"),
        ({"rule": "@daily", "skip": "holidays"}, "on the days of its calendar it makes no jobs"),
        ({"every": 7200, "after": "end"}, "it counts from the end of each run"),
        ({"rule": "@daily", "count": 3}, "it ends"),
    ],
)
def test_a_monitor_has_the_schedule_or_the_log_says_why_not(
    app: App, caplog: pytest.LogCaptureFixture, options: dict[str, Any], schedule: Any
) -> None:
    @app.recurring(**options)
    @app.task(retry=ONCE)
    async def job() -> None: ...

    with caplog.at_level(logging.WARNING):
        found = _monitors(app, EvschedIntegration())
    if isinstance(schedule, str):
        assert not found
        assert f"Sentry does not monitor recurrence job of queue {app.queue}: {schedule}" in caplog.text
    else:
        assert found[app.queue, "job"].config.get("schedule") == schedule
        assert not caplog.records


def test_two_recurrences_never_share_a_monitor(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.recurring("@daily", name="Report.v1", spread=300)
    @app.recurring("@daily", name="report-v1")
    @app.recurring("@daily", name="2030")
    @app.task
    async def job() -> None: ...

    found = _monitors(app, EvschedIntegration())
    assert {name: monitor.slug for (_, name), monitor in found.items()} == {
        "2030": "evsched-2030",
        "report-v1": "report-v1",
    }
    assert f"its monitor would be that of recurrence report-v1 of queue {app.queue}" in caplog.text
