"""Tracing with the real SDK: spans of enqueues and runs with the link between them, metrics, records of exceptions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry._logs import SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor, ReadableLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Metric
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from evsched import (
    App,
    ConfigError,
    EndedBatch,
    GiveUp,
    JobDead,
    JobExists,
    Retry,
    RetryLater,
    Snooze,
    Unique,
    current_job,
    events,
)
from evsched.client.new_job import new_job
from evsched.config import Config
from evsched.execution import instruments
from evsched.tracing import trace
from tests.support import heavy
from tests.support.patience import PATIENCE
from tests.support.system import system

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """An app's spans, metrics, and records of exceptions."""

    def __init__(self, app: App, **options: Any) -> None:
        self._memory = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self._reader = InMemoryMetricReader()
        meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self._records = InMemoryLogRecordExporter()
        loggers = LoggerProvider(shutdown_on_exit=False)
        loggers.add_log_record_processor(SimpleLogRecordProcessor(self._records))
        trace(app, self.provider, meter_provider=meters, logger_provider=loggers, **options)

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans that have ended, in the order in which they did."""
        return [span for span in self._memory.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def records(self) -> list[ReadableLogRecord]:
        return [*self._records.get_finished_logs()]

    def metrics(self) -> dict[str, Metric]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}

    def points(self, name: str) -> list[tuple[dict[str, Any], float]]:
        """Return the attributes of each point of a metric, without those of the server, and its number or count."""
        points = self.metrics()[name].data.data_points
        return [
            (
                {key: value for key, value in (point.attributes or {}).items() if not key.startswith("server.")},
                getattr(point, "count", None) or getattr(point, "value", 0),
            )
            for point in points
        ]


@pytest.fixture
def spans(app: App) -> Traced:
    return Traced(app)


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    """Return the ids of the spans to which a span has links."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Return the ids of a span and its trace."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


async def test_a_run_is_linked_to_its_enqueue_and_begins_a_trace(
    config: Config, app: App, spans: Traced, queue: str
) -> None:
    @app.task
    async def noop() -> None: ...

    tracer = spans.provider.get_tracer("test")
    with tracer.start_as_current_span("ambient") as ambient:
        async with system(config, app) as running:
            job = await noop.enqueue()
            await job.result(PATIENCE)
    sent, run = spans.one("enqueue noop"), spans.one("run noop")
    assert (sent.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert linked(sent) == []
    assert linked(run) == [ids(sent)]
    assert run.parent is None
    assert sent.parent is not None
    assert sent.parent.span_id == ambient.get_span_context().span_id
    assert ids(run)[0] != ids(sent)[0]
    same = {
        "messaging.system": "evsched",
        "messaging.destination.name": queue,
        "messaging.message.id": job.id,
        "evsched.task": "noop",
        **{key: value for key, value in attributes(sent).items() if key.startswith("server.")},
    }
    assert "server.address" in same
    assert attributes(sent) == {**same, "messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
    lateness = attributes(run)["evsched.lateness"]
    assert 0 <= lateness < PATIENCE
    assert attributes(run) == {
        **same,
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.client.id": running.workers[0].id,
        "evsched.attempt": 1,
        "evsched.lateness": lateness,
    }
    assert {span.status.status_code for span in (sent, run)} == {StatusCode.UNSET}
    scope = run.instrumentation_scope
    assert scope is not None
    assert scope.name == "evsched"


async def test_a_unique_job_keeps_its_id_when_it_is_traced(config: Config, app: App, spans: Traced) -> None:
    @app.task
    async def noop() -> None: ...

    once = noop.using(unique=Unique(within=3600), on_conflict="keep")
    async with system(config, app):
        first, second = await once.enqueue(), await once.enqueue()
        await first.result(PATIENCE)
    assert first.id == second.id
    assert {attributes(span)["messaging.message.id"] for span in spans.named("enqueue noop")} == {first.id}
    assert attributes(spans.one("run noop"))["messaging.message.id"] == first.id


async def test_each_attempt_is_a_span_and_a_failed_one_says_so(config: Config, app: App, spans: Traced) -> None:
    @app.task(retry=Retry(attempts=2, interval=0.01, jitter=0))
    async def fail() -> None:
        if current_job().attempt == 1:
            raise ValueError("no luck")
        raise GiveUp("the account is closed")

    async with system(config, app):
        with pytest.raises(JobDead):
            await (await fail.enqueue()).result(PATIENCE)
    runs = spans.named("run fail")
    assert [attributes(run)["evsched.attempt"] for run in runs] == [1, 2]
    assert [linked(run) for run in runs] == [[ids(spans.one("enqueue fail"))]] * 2
    assert ids(runs[0])[0] != ids(runs[1])[0]
    assert [(run.status.status_code, run.status.description) for run in runs] == [
        (StatusCode.ERROR, "no luck"),
        (StatusCode.ERROR, "the account is closed"),
    ]
    assert [attributes(run)["error.type"] for run in runs] == ["ValueError", "evsched.jobs.steering.GiveUp"]
    first, second = [found.log_record for found in spans.records()]  # one for each, and no event of the span
    assert not any(run.events for run in runs)
    assert (first.event_name, first.severity_number) == ("messaging.process.exception", SeverityNumber.ERROR)
    assert [(record.trace_id, record.span_id) for record in (first, second)] == [ids(run) for run in runs]
    described = dict(first.attributes or {})
    stack = str(described.pop("exception.stacktrace"))
    assert stack.endswith("ValueError: no luck\n")
    assert "in fail" in stack
    own = {"exception.type": "ValueError", "exception.message": "no luck"}
    of_span = {key: value for key, value in attributes(runs[0]).items() if key != "error.type"}
    assert described == {**of_span, **own}
    assert (second.attributes or {})["exception.type"] == "evsched.jobs.steering.GiveUp"


@pytest.mark.parametrize(
    ("raised", "attribute", "reason"),
    [
        (RetryLater(0.01, "not yet"), "evsched.retry_later", "not yet"),
        (Snooze(0.01, "not yet"), "evsched.snooze", "snoozed for at least 10 ms: not yet"),
    ],
    ids=["RetryLater", "Snooze"],
)
async def test_retry_later_and_snooze_are_not_span_errors(
    config: Config, app: App, spans: Traced, raised: Exception, attribute: str, reason: str
) -> None:
    @app.task
    async def wait() -> None:
        if current_job().due == current_job().planned:
            raise raised

    async with system(config, app):
        await (await wait.enqueue()).result(PATIENCE)
    first, second = spans.named("run wait")
    assert first.status.status_code is StatusCode.UNSET
    assert attributes(first)[attribute] == reason
    assert not spans.records()
    assert not any("error.type" in found for found, _ in spans.points("messaging.process.duration"))
    assert attribute not in attributes(second)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_a_timeout_is_an_error(config: Config, app: App, spans: Traced, plain: bool) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    def spin() -> None:
        job, wait = current_job(), threading.Event()
        while not job.cancelled:
            wait.wait(0.005)

    task: Any = app.task(name="slow", timeout=0.05, retry=Retry(attempts=1))(spin if plain else hang)
    async with system(config, app):
        with pytest.raises(JobDead, match="timeout"):
            await (await task.enqueue()).result(PATIENCE)
    run = spans.one("run slow")
    assert run.status.status_code is StatusCode.ERROR
    assert (attributes(run)["error.type"], attributes(run)["evsched.stopped"]) == ("timeout", "timeout")
    assert len(spans.records()) == (0 if plain else 1)  # where it was cancelled
    assert [found["error.type"] for found, _ in spans.points("messaging.process.duration")] == ["timeout"]


async def test_a_cancelled_job_has_not_failed(config: Config, app: App, spans: Traced) -> None:
    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with system(config, app) as running:
        job = await hang.enqueue()
        await running.recorder.wait(events.Started)
        await job.cancel()
        await running.recorder.wait(events.JobAborted)
    run = spans.one("run hang")
    assert run.status.status_code is StatusCode.UNSET
    assert attributes(run)["evsched.stopped"] == "cancelled"


async def test_a_job_whose_worker_stops_has_not_failed(config: Config, app: App, spans: Traced) -> None:
    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with system(config, app) as running:
        await hang.enqueue()
        await running.recorder.wait(events.Started)
    run = spans.one("run hang")
    assert run.status.status_code is StatusCode.UNSET
    assert attributes(run)["evsched.stopped"] == "lost"


async def test_a_handler_that_is_cancelled_from_inside_fails(config: Config, app: App, spans: Traced) -> None:
    @app.task(retry=Retry(attempts=1))
    async def inner() -> None:
        raise asyncio.CancelledError

    async with system(config, app):
        with pytest.raises(JobDead):
            await (await inner.enqueue()).result(PATIENCE)
    assert attributes(spans.one("run inner"))["error.type"] == "asyncio.exceptions.CancelledError"


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_a_handlers_own_spans_are_children_of_its_run(
    config: Config, app: App, spans: Traced, plain: bool
) -> None:
    def inner() -> None:
        with spans.provider.get_tracer("test").start_as_current_span("inner"):
            assert otel.get_current_span().is_recording()

    async def inner_too() -> None:
        inner()

    task: Any = app.task(name="outer")(inner if plain else inner_too)
    async with system(config, app):
        await (await task.enqueue()).result(PATIENCE)
    parent = spans.one("inner").parent
    assert parent is not None
    assert (parent.trace_id, parent.span_id) == ids(spans.one("run outer"))


async def test_jobs_enqueued_by_a_handler_belong_to_its_trace(config: Config, app: App, spans: Traced) -> None:
    @app.task
    async def second() -> None: ...

    @app.task
    async def first() -> None:
        await (await second.enqueue()).result(PATIENCE)

    async with system(config, app):
        await (await first.enqueue()).result(PATIENCE)
    sent = spans.one("enqueue second")
    assert ids(sent)[0] == ids(spans.one("run first"))[0]
    assert linked(spans.one("run second")) == [ids(sent)]


async def test_a_middleware_runs_inside_the_span_even_if_it_was_registered_first(config: Config, app: App) -> None:
    @app.middleware
    async def refuse(_job: Any, _call: Any) -> None:
        assert otel.get_current_span().is_recording()
        raise GiveUp("refused")

    @app.task
    async def noop() -> None: ...

    spans = Traced(app)
    async with system(config, app):
        with pytest.raises(JobDead, match="refused"):
            await (await noop.enqueue()).result(PATIENCE)
    assert spans.one("run noop").status.description == "refused"


async def test_a_task_in_a_process_has_a_span_and_a_failure_names_the_error(
    config: Config, app: App, spans: Traced
) -> None:
    double = app.task(on="process")(heavy.double.handler)
    steer = app.task(on="process", retry=Retry(attempts=1))(heavy.steer.handler)
    async with system(config, app):
        assert await (await double.enqueue(21)).result(PATIENCE) == 42
        with pytest.raises(JobDead, match="ValueError"):
            await (await steer.enqueue("fail")).result(PATIENCE)
    assert linked(spans.one("run double")) == [ids(spans.one("enqueue double"))]
    failed = spans.one("run steer")
    assert attributes(failed)["error.type"] == "ValueError"
    assert (failed.status.description or "").startswith("no luck (")
    (found,) = spans.records()
    assert "in steer\n" in str((found.log_record.attributes or {})["exception.stacktrace"])


async def test_an_enqueue_without_an_event_loop_has_a_span(config: Config, app: App, spans: Traced) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    def program() -> int:
        with app.sync() as client:
            return client.enqueue(double.using(id="mine", meta={"tenant": 7}), 21).result(PATIENCE)

    async with system(config, app):
        assert await asyncio.to_thread(program) == 42
    sent = spans.one("enqueue double")
    assert attributes(sent)["messaging.message.id"] == "mine"
    assert linked(spans.one("run double")) == [ids(sent)]


async def test_callback_of_a_batch_is_linked_to_the_span_that_opened_it(
    config: Config, app: App, spans: Traced
) -> None:
    ended, ran = asyncio.Event(), list[str]()

    @app.task
    async def work() -> None: ...

    @app.task
    async def note(batch: EndedBatch) -> None:
        ran.append(current_job().id)
        ended.set()

    async with system(config, app):
        with spans.provider.get_tracer("test").start_as_current_span("import") as opener:
            async with app.batch(on_done=note.using(meta={"tenant": 7})) as batch:
                await batch.add(work)
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        await app.job(ran[0]).result(PATIENCE)
    context = opener.get_span_context()
    assert linked(spans.one("run note")) == [(context.trace_id, context.span_id)]


async def test_a_batch_is_one_span_and_each_job_is_linked_to_it(config: Config, app: App, spans: Traced) -> None:
    @app.task
    async def noop(n: int) -> None: ...

    async with system(config, app):
        jobs = await noop.enqueue_many([(1,), (2,), (3,)])
        for job in jobs:
            await job.result(PATIENCE)
    sent, runs = spans.one("enqueue noop"), spans.named("run noop")
    assert attributes(sent)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(sent)
    assert [linked(run) for run in runs] == [[ids(sent)]] * 3
    assert {attributes(run)["messaging.message.id"] for run in runs} == {job.id for job in jobs}


async def test_the_users_own_meta_is_kept(config: Config, app: App, spans: Traced) -> None:
    @app.task
    async def meta() -> dict[str, Any]:
        return current_job().meta

    async with system(config, app):
        got = await (await meta.using(meta={"tenant": 7}).enqueue()).result(PATIENCE)
        own = await (await meta.using(meta={"traceparent": PARENT}).enqueue()).result(PATIENCE)
    assert got.keys() == {"tenant", "traceparent"}
    assert got["tenant"] == 7
    assert own == {"traceparent": PARENT}
    plain, given_one = spans.named("enqueue meta")
    there = (int(PARENT[3:35], 16), int(PARENT[36:52], 16))
    # By the conventions, a context that the user gives is kept, and the spans are linked to it.
    assert (plain.kind, given_one.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)
    assert linked(given_one) == [there]
    assert linked(spans.named("run meta")[1]) == [there]


async def test_a_vendors_state_travels_with_its_own_context_only(config: Config, app: App, spans: Traced) -> None:
    @app.task
    async def meta() -> dict[str, Any]:
        return current_job().meta

    ambient = otel.SpanContext(1, 2, True, otel.TraceFlags(1), otel.TraceState([("vendor", "1")]))
    async with system(config, app):
        with otel.use_span(otel.NonRecordingSpan(ambient)):
            ours = await meta.enqueue()
            theirs = await meta.using(meta={"traceparent": PARENT}).enqueue()
        assert (await ours.result(PATIENCE))["tracestate"] == "vendor=1"
        assert await theirs.result(PATIENCE) == {"traceparent": PARENT}
    states = {
        attributes(run)["messaging.message.id"]: [link.context.trace_state.to_header() for link in run.links]
        for run in spans.named("run meta")
    }
    assert states == {ours.id: ["vendor=1"], theirs.id: [""]}


@pytest.mark.parametrize(
    ("meta", "links"),
    [
        (b"", 0),
        (f',"meta":{{"traceparent":"{PARENT}","tracestate":"vendor=1"}}'.encode(), 1),
        (b',"meta":{"traceparent":"bad"}', 0),
        (b',"meta":{"traceparent":7,"tracestate":[1,null]}', 0),
        (b',"meta":{"traceparent":["a"],"tracestate":{}}', 0),
        (f',"meta":{{"traceparent":"{PARENT}","tracestate":"=,\\u0000"}}'.encode(), 1),
    ],
    ids=["none", "good", "bad", "number", "list", "bad state"],
)
async def test_foreign_job_runs_with_any_meta(
    config: Config, app: App, spans: Traced, queue: str, raw: Any, meta: bytes, links: int
) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app) as running:
        raw.zadd(f"evsched:{{{queue}}}:schedule", {b'{"task":"noop"' + meta + b"}": 0})
        await running.recorder.wait(events.Completed)
    run = spans.one("run noop")
    assert run.status.status_code is StatusCode.UNSET
    assert len(run.links) == links


async def test_an_enqueue_that_is_refused_is_an_error(config: Config, app: App, spans: Traced) -> None:
    @app.task
    async def noop(n: Any = None) -> None: ...

    async with system(config, app, workers=0):
        await noop.using(id="once", delay=3600).enqueue()
        with pytest.raises(JobExists):
            await noop.using(id="once").enqueue()
        with pytest.raises(ConfigError):
            await noop.enqueue(object())
    good, twice, no_json = spans.named("enqueue noop")
    assert good.status.status_code is StatusCode.UNSET
    assert (twice.status.status_code, attributes(twice)["error.type"]) == (StatusCode.ERROR, "evsched.errors.JobExists")
    assert attributes(no_json)["error.type"] == "evsched.errors.ConfigError"
    assert not spans.records()  # the caller got the exception
    refused = {"evsched.errors.JobExists", "evsched.errors.ConfigError"}
    calls = spans.points("messaging.client.operation.duration")
    assert {found.get("error.type") for found, _ in calls} == {None, *refused}
    assert {found.get("error.type"): count for found, count in spans.points("messaging.client.sent.messages")} == {
        None: 1,
        "evsched.errors.JobExists": 1,  # the one that is no JSON was not sent
    }


async def test_metrics_follow_the_conventions(config: Config, app: App, spans: Traced, queue: str) -> None:
    @app.task(retry=Retry(attempts=1))
    async def half(n: int) -> int:
        return 2 // n

    async with system(config, app):
        jobs = [*await half.enqueue_many([(1,), (2,)]), await half.enqueue(0)]
        for job in jobs[:2]:
            await job.result(PATIENCE)
        with pytest.raises(JobDead):
            await jobs[2].result(PATIENCE)
    same = {"messaging.system": "evsched", "messaging.destination.name": queue, "evsched.task": "half"}
    sent, run = {**same, "messaging.operation.name": "enqueue"}, {**same, "messaging.operation.name": "run"}
    assert spans.points("messaging.client.sent.messages") == [(sent, 3)]
    assert spans.points("messaging.client.operation.duration") == [({**sent, "messaging.operation.type": "send"}, 2)]
    assert spans.points("messaging.client.consumed.messages") == [(run, 3)]
    assert spans.points("evsched.job.lateness") == [(run, 3)]
    ended = spans.points("messaging.process.duration")
    assert sorted(count for _, count in ended) == [1, 2]
    assert ({**run, "error.type": "ZeroDivisionError"}, 1) in ended
    every = spans.metrics()
    assert {metric.unit for metric in every.values()} == {"s", "{message}"}
    for name in ("messaging.client.operation.duration", "messaging.process.duration"):
        data = every[name].data
        assert isinstance(data, Histogram)
        bounds = data.data_points[0].explicit_bounds
        assert tuple(bounds) == (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


async def test_spans_may_be_named_after_the_queue_and_runs_be_children(config: Config, app: App, queue: str) -> None:
    spans = Traced(app, span_names="queue", parent=True)

    @app.task
    async def noop() -> None: ...

    async with system(config, app) as running:
        await (await noop.enqueue()).result(PATIENCE)
        await app.client.enqueue(queue, [new_job("noop", (), {}, {})])
        await running.recorder.wait(events.Completed, count=2)
    sent, (run, alone) = spans.one(f"enqueue {queue}"), spans.named(f"run {queue}")
    assert run.parent is not None
    assert (run.parent.trace_id, run.parent.span_id) == ids(sent)
    assert alone.parent is None
    assert (linked(run), linked(alone)) == ([], [])


def test_a_wrong_name_of_spans_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match=r"span_names is 'job': give \"task\" or \"queue\""):
        trace(app, span_names="job")  # pyright: ignore[reportArgumentType]


async def test_jobs_of_a_batch_have_its_id_and_others_do_not(config: Config, app: App, spans: Traced) -> None:
    @app.task
    async def last() -> None: ...

    @app.task
    async def first() -> None:
        await (await last.using(meta=current_job().meta).enqueue()).result(PATIENCE)

    async with system(config, app):
        async with app.batch() as batch:
            job = await batch.add(first)
        await job.result(PATIENCE)
    key = "messaging.message.conversation_id"
    assert [attributes(spans.one(name)).get(key) for name in ("enqueue first", "run first")] == [batch.id] * 2
    assert [attributes(spans.one(name)).get(key) for name in ("enqueue last", "run last")] == [None] * 2
    assert linked(spans.one("run last")) == linked(spans.one("run first"))  # the handler passed its context on


async def test_runs_of_a_graph_are_linked_to_its_enqueue_and_have_its_id(
    config: Config, app: App, spans: Traced, queue: str
) -> None:
    @app.task
    async def numbers() -> list[int]:
        return [1, 2]

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    async def total(rows: list[int]) -> int:
        return sum(rows)

    graph = app.graph()
    graph.add("numbers", numbers.s())
    graph.each("rows", double.using(meta={"tenant": 7}).s(), over="numbers")
    graph.add("total", total.s(), after="rows")
    chain = app.chain(numbers.using(meta={"traceparent": PARENT}).s(), total.s())

    def program() -> str:
        with app.sync() as client:
            return client.enqueue_graph(chain)

    async with system(config, app):
        with spans.provider.get_tracer("test").start_as_current_span("request") as request:
            enqueued = await graph.enqueue()
        assert await enqueued.result(timeout=PATIENCE) == 6
        chained = await asyncio.to_thread(program)
        await app.known_batch(chained).wait(PATIENCE)
        with pytest.raises(JobExists):
            await app.chain(numbers.s(), id=chained).enqueue()
    sent, of_chain, refused = spans.named(f"enqueue {queue}")
    assert sent.kind is SpanKind.PRODUCER
    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    key = "messaging.message.conversation_id"
    assert [attributes(span)[key] for span in (sent, of_chain)] == [enqueued.id, chained]
    assert attributes(sent)["messaging.batch.message_count"] == 3
    assert "evsched.task" not in attributes(sent)
    assert attributes(refused)["error.type"] == "evsched.errors.JobExists"
    runs = [*spans.named("run numbers")[:1], *spans.named("run double"), *spans.named("run total")[:1]]
    assert len(runs) == 4
    assert [(linked(run), attributes(run)[key]) for run in runs] == [([ids(sent)], enqueued.id)] * 4
    (own,), (total_of_chain,) = spans.named("run numbers")[1:], spans.named("run total")[1:]
    there = (int(PARENT[3:35], 16), int(PARENT[36:52], 16))
    assert [linked(own), linked(total_of_chain)] == [[there], [ids(of_chain)]]
    assert [attributes(run)[key] for run in (own, total_of_chain)] == [chained] * 2


def test_an_app_is_traced_once(app: App, spans: Traced) -> None:
    with pytest.raises(ConfigError, match="already traced"):
        trace(app, spans.provider)


class Raises(SpanProcessor):
    """A span processor that raises, as an exporter does whose queue is closed."""

    def __init__(self, where: str) -> None:
        self._where = where

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._raise_in("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        self._raise_in("on_end")

    def _raise_in(self, where: str) -> None:
        if self._where == where:
            raise RuntimeError(f"{where} raises")


class RaisingRecords(LogRecordProcessor):
    def on_emit(self, log_record: Any) -> None:
        raise RuntimeError("on_emit raises")

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


class RaisingMeasurements(AlwaysOffExemplarFilter):
    def should_sample(self, *args: Any, **kwargs: Any) -> bool:
        raise RuntimeError("should_sample raises")


@pytest.mark.parametrize("where", ["on_start", "on_end", "metrics", "records"])
async def test_an_sdk_that_raises_changes_no_enqueue_and_no_outcome(
    config: Config, app: App, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    spans, loggers = TracerProvider(shutdown_on_exit=False), LoggerProvider(shutdown_on_exit=False)
    exemplars = RaisingMeasurements() if where == "metrics" else None
    meters = MeterProvider([InMemoryMetricReader()], exemplar_filter=exemplars, shutdown_on_exit=False)
    spans.add_span_processor(Raises(where))
    if where == "records":
        loggers.add_log_record_processor(RaisingRecords())
    trace(app, spans, meter_provider=meters, logger_provider=loggers)
    instruments._logged.clear()  # pyright: ignore[reportPrivateUsage]

    @app.task
    async def twice(n: int) -> int:
        return 2 * n

    @app.task
    def plain(n: int) -> int:
        return 2 * n

    @app.task(retry=Retry(attempts=1))
    async def fail() -> None:
        raise ValueError("no luck")

    @app.task(retry=Retry(attempts=2))
    async def later() -> int:
        if current_job().attempt == 1:
            raise RetryLater(0.01, "not yet")
        return 7

    in_process = app.task(on="process")(heavy.double.handler)

    def program() -> int:
        with app.sync() as client:
            return client.enqueue(twice, 21).result(PATIENCE)

    async with system(config, app):
        jobs = [await task.enqueue(21) for task in (twice, plain, in_process)]
        jobs += await twice.enqueue_many([(21,), (21,)])
        async with app.batch() as batch:
            jobs.append(await batch.add(twice, 21))
        assert [await job.result(PATIENCE) for job in jobs] == [42] * 6
        assert await asyncio.to_thread(program) == 42
        assert await (await later.enqueue()).result(PATIENCE) == 7
        with pytest.raises(JobDead, match=r"attempt 1 of 1: ValueError: no luck \(.*in fail\)"):
            await (await fail.enqueue()).result(PATIENCE)
    logged = [record.message for record in caplog.records if "an instrument of the app" in record.message]
    assert len(logged) == 1


async def test_without_an_sdk_nothing_is_written(config: Config, app: App) -> None:
    @app.task
    async def meta() -> dict[str, Any]:
        return current_job().meta

    trace(app, otel.NoOpTracerProvider())
    async with system(config, app):
        assert await (await meta.using(meta={"tenant": 7}).enqueue()).result(PATIENCE) == {"tenant": 7}
