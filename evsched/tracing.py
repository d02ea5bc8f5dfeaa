"""OpenTelemetry: spans of enqueues and runs, metrics, and a log record for each failed run. Needs the extra `otel`.

    from evsched.tracing import trace

    trace(app)

All of it follows OpenTelemetry's semantic conventions 1.44 for messaging. The context of an enqueue travels in the
job's `meta`, in the two keys of W3C Trace Context. Your program sets up the SDK and its exporters. A signal that it
does not set up costs next to nothing, and without spans nothing is written into `meta`.

The API of log records is still experimental: `opentelemetry._logs` may change in a minor release of OpenTelemetry.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from evsched import __version__
from evsched.app import App
from evsched.client.new_job import Sending
from evsched.errors import ConfigError
from evsched.events import LATENESS
from evsched.execution.failure import message
from evsched.execution.process_pool import HandlerFailed
from evsched.execution.run import Run
from evsched.jobs.retry import class_name
from evsched.jobs.steering import RetryLater, Snooze
from evsched.transport.address import parse

try:
    from opentelemetry._logs import LoggerProvider, SeverityNumber, get_logger
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        StatusCode,
        TracerProvider,
        get_current_span,
        get_tracer,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ConfigError("tracing needs opentelemetry-api 1.38 or newer: pip install 'evsched[otel]'") from error

__all__ = ["trace"]

SpanNames = Literal["task", "queue"]

_SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"

# Not the propagator of OTEL_PROPAGATORS: clients and workers in any language read the payload.
_W3C: Final = TraceContextTextMapPropagator()

_CONTEXT: Final = "traceparent"

_BATCH: Final = "evsched.batch"
"""The key of `meta` in which the id of the job's batch travels: a worker does not know it otherwise."""

_DURATION: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Upper bounds of the buckets of durations, in seconds: those of the conventions."""


def trace(
    app: App,
    provider: TracerProvider | None = None,
    *,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    span_names: SpanNames = "task",
    parent: bool = False,
) -> None:
    """Make spans, metrics and exception records for the enqueues and runs of an app.

    They go to the given providers, else to the global ones. `span_names`: a span is named after its task, such as
    `run send_mail`, or after its queue, such as `run default`, as the conventions have it. The span of a run begins a
    new trace, with a link to the span of the enqueue: a run may come hours later, and there is one for each attempt.
    `parent=True`: it is a child of that span instead, in its trace. It includes all middleware.

    Raises:
        ConfigError: the app is already traced, or `span_names` is not valid.
    """
    if any(isinstance(instrument, _Tracing) for instrument in app.instruments):
        raise ConfigError("the app is already traced: call trace(app) once")
    if span_names not in get_args(SpanNames):
        raise ConfigError(f'span_names is {span_names!r}: give "task" or "queue"')
    by_queue = span_names == "queue"
    app.instrument(_Tracing(app, provider, meter_provider, logger_provider, by_queue=by_queue, parent=parent))


class _Tracing:
    """Makes the spans, metrics and records of one app.

    No set of attributes is changed once it was passed on: an SDK may keep it.
    """

    def __init__(
        self,
        app: App,
        provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        logger_provider: LoggerProvider | None,
        *,
        by_queue: bool,
        parent: bool,
    ) -> None:
        self._app, self._by_queue, self._parent = app, by_queue, parent
        self._tracer = get_tracer("evsched", __version__, provider, _SCHEMA)
        self._logger = get_logger("evsched", __version__, logger_provider, _SCHEMA)
        meter = get_meter("evsched", __version__, meter_provider, _SCHEMA)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Jobs that were sent to Redis."
        )
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Runs that began.")
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of the calls that enqueue.",
            explicit_bucket_boundaries_advisory=_DURATION,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of runs, with their middleware.",
            explicit_bucket_boundaries_advisory=_DURATION,
        )
        self._lateness = meter.create_histogram(
            "evsched.job.lateness",
            "s",
            "Time from the due of a job to the start of its run, by Redis's clock.",
            explicit_bucket_boundaries_advisory=LATENESS,
        )

    def _about(self, operation: str, task: str, queue: str) -> dict[str, Any]:
        """Return the attributes that spans and metrics share. All of them have few values."""
        return {
            "messaging.system": "evsched",
            "messaging.operation.name": operation,
            "messaging.destination.name": queue,
            **({"evsched.task": task} if task else {}),
            **_server(self._app.url),
        }

    def _name(self, operation: str, task: str, queue: str) -> str:
        return f"{operation} {queue if self._by_queue or not task else task}"

    def carried(self, meta: Mapping[str, Any], batch: str) -> dict[str, Any]:
        """Add the context of the current span: that of the enqueue, or in which a batch is opened.

        The caller's entries come first, except for the batch of another job. A context of the caller's own is kept.
        """
        context = dict[str, str]()
        if _CONTEXT not in meta:
            _W3C.inject(context)
        own = {key: value for key, value in meta.items() if key != _BATCH}
        is_traced = batch and get_current_span().get_span_context().is_valid
        return {**context, **({_BATCH: batch} if is_traced else {}), **own}

    @contextmanager
    def sending(self, sending: Sending) -> Generator[None]:
        """Make a span for an enqueue."""
        about = self._about("enqueue", sending.task, sending.queue)
        attributes = {**about, "messaging.operation.type": "send"}
        if sending.many is not None:
            attributes["messaging.batch.message_count"] = sending.many
        if sending.batch:
            attributes["messaging.message.conversation_id"] = sending.batch
        meta = sending.options.get("meta") or {}
        failed, began = dict[str, str](), time.perf_counter()
        with self._tracer.start_as_current_span(
            self._name("enqueue", sending.task, sending.queue),
            # By the conventions, PRODUCER is the span whose context the job carries. A given context is kept.
            kind=SpanKind.CLIENT if _CONTEXT in meta else SpanKind.PRODUCER,
            attributes=attributes,
            links=_links(meta),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                # The caller gets the exception, so there is no record of it.
                failed = {"error.type": class_name(error)}
                _fail(span, failed["error.type"], message(error))
                raise
            finally:
                if sending.many is None and sending.jobs:
                    span.set_attribute("messaging.message.id", sending.jobs[0].id)
                if sending.jobs:
                    self._sent.add(len(sending.jobs), {**about, **failed})
                took = time.perf_counter() - began
                self._operation.record(took, {**about, **failed, "messaging.operation.type": "send"})

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        """Make a span for a run, and a record if it fails."""
        job = run.current
        assert job is not None
        about = self._about("run", job.task, job.queue)
        if run.delivery.queue != job.queue:
            about["messaging.destination.partition.id"] = run.delivery.queue.removeprefix(f"{job.queue}:")
        attributes: dict[str, Any] = {
            **about,
            "messaging.operation.type": "process",
            "messaging.message.id": job.id,
            "evsched.attempt": job.attempt,
            "evsched.lateness": job.lateness,
        }
        if job.worker:  # not in a process of its own
            attributes["messaging.client.id"] = job.worker
        if isinstance(batch := job.meta.get(_BATCH), str):
            attributes["messaging.message.conversation_id"] = batch
        self._consumed.add(1, about)
        self._lateness.record(max(0.0, job.lateness), about)
        began = time.perf_counter()
        with self._tracer.start_as_current_span(
            self._name("run", job.task, job.queue),
            # Never the span that was current when the worker started, such as the lifespan's: it did not cause the run.
            context=_context(job.meta) if self._parent else Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[] if self._parent else _links(job.meta),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            failed, kind = None, dict[str, str]()
            try:
                yield
            except (RetryLater, Snooze) as error:
                # A handler that waits for something has not failed, and must not raise alarms on failed spans.
                name = "evsched.snooze" if isinstance(error, Snooze) else "evsched.retry_later"
                span.set_attribute(name, message(error))
                failed = error
                raise
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                failed = error
                raise
            finally:
                if run.stop_reason is not None:
                    span.set_attribute("evsched.stopped", run.stop_reason)
                if run.has_failed(failed):
                    kind = {"error.type": self._report(span, run, failed, attributes)}
                self._process.record(time.perf_counter() - began, {**about, **kind})
                del failed  # its traceback has this frame

    def _report(self, span: Span, run: Run, error: BaseException | None, attributes: Mapping[str, Any]) -> str:
        """Mark the span of a run as failed, and emit the record of its exception; return its `error.type`.

        The record has the attributes of the span, which may not have been sampled.
        """
        described = {} if error is None else _described(error)
        if run.stop_reason == "timeout":  # a thread may still return, but its result does not count
            kind, reason = "timeout", "it ran longer than its limit"
        else:
            kind, reason = described["exception.type"], described["exception.message"]
        _fail(span, kind, reason)
        if described:
            self._logger.emit(
                timestamp=time.time_ns(),
                event_name="messaging.process.exception",
                severity_number=SeverityNumber.ERROR,
                severity_text="ERROR",
                attributes={**attributes, **described},
            )
        return kind


def _described(error: BaseException) -> dict[str, str]:
    """Return the attributes of an exception. That of another process comes as text."""
    kind, text, stack = class_name(error), message(error), ""
    if isinstance(error, HandlerFailed):
        kind, text, stack = error.error or kind, error.text, error.traceback
    return {
        "exception.type": kind,
        "exception.message": text,
        "exception.stacktrace": stack or "".join(traceback.format_exception(error)),
    }


def _fail(span: Span, kind: str, reason: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, reason)


def _context(meta: Mapping[str, Any]) -> Context:
    """Return the context that a job carries; an empty one if that is not valid."""
    carrier = {key: value for key in _W3C.fields if isinstance(value := meta.get(key), str)}
    return _W3C.extract(carrier, Context())


def _links(meta: Mapping[str, Any]) -> list[Link]:
    """Return the link to the span whose context a job carries; none if that is not valid."""
    context = get_current_span(_context(meta)).get_span_context()
    return [Link(context)] if context.is_valid else []


@lru_cache(8)
def _server(url: str) -> dict[str, str | int]:
    """Return the attributes of the server of a URL; none behind sentinels, which alone know where it is.

    In a cluster, it is the first node of the URL.
    """
    address = parse(url)
    if address.sentinels is not None:
        return {}
    if path := address.options.get("path"):
        return {"server.address": str(path)}
    found = address.nodes[0] if address.nodes else (address.options["host"], address.options["port"])
    return {"server.address": str(found[0]), "server.port": int(found[1])}
