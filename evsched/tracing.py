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
from functools import partial
from typing import Any, Final

from evsched import __version__
from evsched.app import App
from evsched.client.new_job import JobOptions, random_id
from evsched.errors import ConfigError
from evsched.jobs.current_job import CurrentJob
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
    if app.sending is not None:
        raise ConfigError("the app is already traced: call trace(app) once")
    tracer = get_tracer("evsched", __version__, provider)
    app.sending = partial(_send, tracer)
    app.carried = _carried
    app.program.middleware.insert(0, partial(_run, tracer))


def _carried() -> dict[str, str]:
    """Return the context of the current span, if there is one: that in which a batch is opened, for its callbacks."""
    carrier = dict[str, str]()
    _W3C.inject(carrier)
    return carrier


def _about(operation: str, kind: str, task: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": "evsched",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        "evsched.task": task,
    }


@contextmanager
def _send(tracer: Tracer, task: str, queue: str, options: JobOptions, many: int | None) -> Generator[JobOptions]:
    """Make a span for an enqueue, and put its context into the job."""
    attributes = _about("enqueue", "send", task, queue)
    if many is None and options.get("unique") is None:  # the id of a unique job is made of its arguments
        job_id = options.get("id") or random_id()
        options = {**options, "id": job_id}
        attributes["messaging.message.id"] = job_id
    elif many is not None:
        attributes["messaging.batch.message_count"] = many
    meta = options.get("meta") or {}
    given = _CONTEXT in meta
    with tracer.start_as_current_span(
        f"enqueue {task}",
        # By the conventions, PRODUCER is the span whose context the job carries. A given context is kept.
        kind=SpanKind.CLIENT if given else SpanKind.PRODUCER,
        attributes=attributes,
        links=_links(meta),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        if not given:
            carrier = dict[str, str]()
            _W3C.inject(carrier)
            options = {**options, "meta": {**carrier, **meta}}
        try:
            yield options
        except Exception as error:
            _fail(span, error, class_name(error), str(error))
            raise


async def _run(tracer: Tracer, job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a span for a run; a middleware."""
    with tracer.start_as_current_span(
        f"run {job.task}",
        # A root span: the span that was current when the worker started, such as the lifespan's, did not cause the run.
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
            _end(span, job, error)
            raise
        _end(span, job, None)
        return result


def _end(span: Span, job: CurrentJob, error: BaseException | None) -> None:
    """Mark a span as failed if the executor will count the run as failed."""
    if job.stopped is not None:
        span.set_attribute("evsched.stopped", job.stopped)
    if job.stopped == "timeout":  # a thread may still return, but its result does not count
        _fail(span, error, "timeout", "it ran longer than its limit")
    # A run that was cancelled, or whose worker stops, has not failed.
    elif error is not None and job.stopped is None:
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
