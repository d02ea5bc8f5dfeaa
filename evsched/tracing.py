"""Tracing with OpenTelemetry: a span for each enqueue and one for each run, linked. Needs the extra `otel`.

    from evsched.tracing import trace

    trace(app)

The spans follow OpenTelemetry's semantic conventions for messaging. The context of an enqueue travels in the job's
`meta`, in the two keys of W3C Trace Context. Your program sets up the SDK and its exporter; without them the spans are
empty, and nothing is written into `meta`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from evsched import __version__
from evsched.app import App
from evsched.client.new_job import Sending
from evsched.errors import ConfigError
from evsched.execution.run import Run
from evsched.jobs.retry import class_name
from evsched.jobs.steering import RetryLater, Snooze

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        StatusCode,
        Tracer,
        TracerProvider,
        get_current_span,
        get_tracer,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ConfigError(
        "tracing needs opentelemetry-api 1.30 or newer: pip install '.[otel]' in a checkout of evsched"
    ) from error

__all__ = ["trace"]

# Not the propagator of OTEL_PROPAGATORS: clients and workers in any language read the payload.
_W3C: Final = TraceContextTextMapPropagator()

_CONTEXT: Final = "traceparent"


def trace(app: App, provider: TracerProvider | None = None) -> None:
    """Make spans for the enqueues and runs of an app, with the global tracer provider or the given one.

    The span of a run begins a new trace, with a link to the span of the enqueue: a run may come hours later, and there
    is one for each attempt. It includes all middleware.

    Raises:
        ConfigError: the app is already traced.
    """
    if any(isinstance(instrument, _Tracing) for instrument in app.instruments):
        raise ConfigError("the app is already traced: call trace(app) once")
    app.instrument(_Tracing(get_tracer("evsched", __version__, provider)))


class _Tracing:
    """Makes the spans of one app."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def carried(self) -> dict[str, str]:
        """Return the context of the current span, if there is one: that in which a batch is opened."""
        carrier = dict[str, str]()
        _W3C.inject(carrier)
        return carrier

    @contextmanager
    def sending(self, sending: Sending) -> Generator[None]:
        """Make a span for an enqueue, and put its context into the jobs."""
        attributes = _about("enqueue", "send", sending.task, sending.queue)
        if sending.many is not None:
            attributes["messaging.batch.message_count"] = sending.many
        meta = sending.options.get("meta") or {}
        given = _CONTEXT in meta
        with self._tracer.start_as_current_span(
            f"enqueue {sending.task}",
            # By the conventions, PRODUCER is the span whose context the job carries. A given context is kept.
            kind=SpanKind.CLIENT if given else SpanKind.PRODUCER,
            attributes=attributes,
            links=_links(meta),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if not given:
                sending.options = {**sending.options, "meta": {**self.carried(), **meta}}
            try:
                yield
            except Exception as error:
                _fail(span, error, class_name(error), str(error))
                raise
            finally:
                if sending.many is None and sending.jobs:
                    span.set_attribute("messaging.message.id", sending.jobs[0].id)

    async def running(self, run: Run, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a span for a run."""
        job = run.current
        assert job is not None
        with self._tracer.start_as_current_span(
            f"run {job.task}",
            # A root span: the span that was current when the worker started, such as the lifespan's, did not cause it.
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes={
                **_about("run", "process", job.task, job.queue),
                "messaging.message.id": job.id,
                "evsched.attempt": job.attempt,
                "evsched.lateness": job.lateness,
            },
            links=_links(job.meta),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                result = await call()
            except (RetryLater, Snooze) as error:
                # A handler that waits for something has not failed, and must not raise alarms on failed spans.
                span.set_attribute("evsched.snooze" if isinstance(error, Snooze) else "evsched.retry_later", str(error))
                raise
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                _end(span, run, error)
                raise
            _end(span, run, None)
            return result


def _about(operation: str, kind: str, task: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": "evsched",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        "evsched.task": task,
    }


def _end(span: Span, run: Run, error: BaseException | None) -> None:
    """Mark a span as failed if the run has failed."""
    if run.stop_reason is not None:
        span.set_attribute("evsched.stopped", run.stop_reason)
    if run.stop_reason == "timeout":  # a thread may still return, but its result does not count
        _fail(span, error, "timeout", "it ran longer than its limit")
    elif error is not None and run.has_failed(error):
        _fail(span, error, class_name(error), str(error))


def _links(meta: dict[str, Any]) -> list[Link]:
    """Return the link to the context that a job carries; none if that is not a valid context."""
    carrier = {key: value for key in _W3C.fields if isinstance(value := meta.get(key), str)}
    context = get_current_span(_W3C.extract(carrier, Context())).get_span_context()
    return [Link(context)] if context.is_valid else []


def _fail(span: Span, error: BaseException | None, kind: str, reason: str) -> None:
    if error is not None:
        span.record_exception(error)
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, reason)
