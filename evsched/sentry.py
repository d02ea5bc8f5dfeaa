"""Sentry: errors of runs, spans for its page of queues, and check-ins for recurrences. Needs the extra `sentry`.

    import sentry_sdk
    from evsched.sentry import EvschedIntegration

    sentry_sdk.init(dsn="...", traces_sample_rate=0.1, integrations=[EvschedIntegration()])

It serves all apps of the process. The trace of an enqueue travels in the job's `meta`, as `sentry-trace` and `baggage`.
It works with both kinds of spans of Sentry's SDK: those of transactions, and streamed ones.
"""

from __future__ import annotations

import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Final, cast

from msgspec import Struct

from evsched import events
from evsched.app import App, instrument_all
from evsched.client.new_job import Sending
from evsched.errors import ConfigError
from evsched.events import JobBuried, Retrying
from evsched.execution.process_pool import HandlerFailed, ProcessDied
from evsched.execution.run import Prepared, Run
from evsched.jobs.current_job import CurrentJob
from evsched.jobs.job import decode_payload
from evsched.jobs.redaction import redacted
from evsched.jobs.retry import kinds_of
from evsched.jobs.steering import GiveUp, Snooze
from evsched.recurrence.cron import parse_rule
from evsched.recurrence.recurrence import Declared, occurrence_id

try:
    import sentry_sdk
    import sentry_sdk.traces
    from sentry_sdk.consts import OP, SPANSTATUS
    from sentry_sdk.crons import MonitorStatus, capture_checkin
    from sentry_sdk.integrations import Integration
    from sentry_sdk.scope import add_global_event_processor, should_send_default_pii
    from sentry_sdk.traces import SegmentNameSource, StreamedSpan
    from sentry_sdk.tracing import Span, TransactionSource
    from sentry_sdk.tracing_utils import has_span_streaming_enabled
    from sentry_sdk.types import Event, Hint, MonitorConfig
    from sentry_sdk.utils import (
        capture_internal_exceptions,
        event_from_exception,
        has_data_collection_enabled,
    )
except ImportError as error:
    raise ConfigError("the integration needs sentry-sdk 2.75 or newer: pip install 'evsched[sentry]'") from error

__all__ = ["EvschedIntegration"]

_log: Final = logging.getLogger("evsched.sentry")

_FILTERED: Final = "[Filtered]"
"""Sentry's SDK writes this for a value that it may not send."""

_TRACE: Final = "sentry-trace"
_BAGGAGE: Final = "baggage"

_CHECK_INS: Final = uuid.UUID("6d0b5c6e-6f0c-4f0b-9d5a-5a1c1d7f2b60")
"""The namespace of the ids of check-ins: all attempts of an occurrence have one."""

_SLUG_MOST: Final = 50
"""Characters of a monitor's slug."""

_UNITS: Final = (("day", 86400), ("hour", 3600), ("minute", 60))

_REPORTED_MOST: Final = 1000
"""Runs that are remembered until their line comes in the log."""


class EvschedIntegration(Integration):
    """Reports jobs to Sentry: give it to `sentry_sdk.init(integrations=[...])`.

    `monitor_recurrences`: also send check-ins for the recurrences that apps declare. `exclude_recurrences`: except for
    these names. `monitor_config`: what Sentry's monitors of some recurrences have besides their schedules, such as
    `{"report": {"owner": "team:ops", "failure_issue_threshold": 2}}`.
    """

    identifier = "evsched"
    origin = "auto.queue.evsched"

    def __init__(
        self,
        *,
        monitor_recurrences: bool = False,
        exclude_recurrences: Sequence[str] = (),
        monitor_config: Mapping[str, MonitorConfig] | None = None,
    ) -> None:
        self.monitor_recurrences = monitor_recurrences
        self.exclude_recurrences = frozenset(exclude_recurrences)
        self.monitor_config = dict(monitor_config or {})

    @staticmethod
    def setup_once() -> None:
        """Give it to all apps; Sentry's SDK calls this once."""
        instrument_all(_Reporting)
        add_global_event_processor(_process)


def _integration() -> EvschedIntegration | None:
    return sentry_sdk.get_client().get_integration(EvschedIntegration)


class _Reporting:
    """Reports the enqueues and runs of one app, while the integration is active."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._monitors: tuple[EvschedIntegration, dict[tuple[str, str], _Monitor]] | None = None
        """The monitors of an integration, by queue and name of the recurrence."""

    def carried(self, meta: Mapping[str, Any], batch: str) -> dict[str, Any]:
        """Add the current trace: that of the enqueue, or in which a batch is opened."""
        return {**meta, **({} if _integration() is None else _headers(meta))}

    def sending(self, sending: Sending) -> AbstractContextManager[None]:
        """Make a span for an enqueue, if there is a trace."""
        return nullcontext() if _integration() is None else _publish(sending)

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        """Make a transaction for a run in a scope of its own, and report its error."""
        integration, job, prepared = _integration(), run.current, run.prepared
        if integration is None or job is None or prepared is None:
            yield
            return
        with sentry_sdk.isolation_scope() as scope, ExitStack() as stack:
            scope.clear_breadcrumbs()
            scope.add_event_processor(partial(_describe, job, prepared))
            check_in, spans = None, list[_AnySpan]()
            failed, began = None, time.perf_counter()
            with capture_internal_exceptions():  # so that none fails the run
                check_in = self._check_in(integration, job)
                if check_in is not None:
                    check_in(MonitorStatus.IN_PROGRESS)
                spans = _begin(stack, run, job)
            try:
                yield
            except BaseException as error:
                failed = error
                raise
            finally:
                with capture_internal_exceptions():
                    status = _status(run, failed)
                    for span in spans:
                        _set_status(span, status)
                    if run.has_failed(failed):
                        _capture(run, job, prepared, failed)
                    ended = _end_of_check_in(run, prepared, failed)
                    if check_in is not None and ended is not None:
                        # Without a duration, Sentry takes the time since the first check-in, that of the first attempt.
                        check_in(ended, duration=time.perf_counter() - began if job.attempt == 1 else None)
                # The exception passes no span, which would count it as an error, whatever it is.
                stack.close()
                del failed  # its traceback has this frame

    def _check_in(self, integration: EvschedIntegration, job: CurrentJob) -> Callable[..., Any] | None:
        """Return the function that sends the check-ins of a job; None if it belongs to no monitored recurrence."""
        if not integration.monitor_recurrences or "@" not in job.id:
            return None
        if self._monitors is None or self._monitors[0] is not integration:
            self._monitors = integration, _monitors(self._app, integration)
        name = job.id.rpartition("@")[0]
        monitor = self._monitors[1].get((job.queue, name))
        if monitor is None or job.id != occurrence_id(name, job.planned):
            return None
        environment = sentry_sdk.get_client().options["environment"]
        check_in_id = uuid.uuid5(_CHECK_INS, f"{environment} {job.queue} {job.id}").hex
        return partial(capture_checkin, monitor.slug, check_in_id, monitor_config=monitor.config)


_AnySpan = Span | StreamedSpan


def _is_streamed() -> bool:
    return has_span_streaming_enabled(sentry_sdk.get_client().options)


def _set(span: _AnySpan, data: Mapping[str, Any]) -> None:
    set_one = span.set_attribute if isinstance(span, StreamedSpan) else span.set_data
    for key, value in data.items():
        set_one(key, value)


def _set_status(span: _AnySpan, status: str) -> None:
    if isinstance(span, StreamedSpan):
        span.status = "ok" if status in (SPANSTATUS.OK, SPANSTATUS.CANCELLED) else "error"
    else:
        span.set_status(status)


def _span(op: str, name: str, **streamed: Any) -> _AnySpan:
    """Make a span below the current one, to be used in a `with`. `streamed`: as of `traces.start_span`."""
    if _is_streamed():
        attributes = {"sentry.op": op, "sentry.origin": EvschedIntegration.origin}
        return sentry_sdk.traces.start_span(name, attributes | streamed.pop("attributes", {}), **streamed)
    return sentry_sdk.start_span(op=op, name=name, origin=EvschedIntegration.origin)


@contextmanager
def _publish(sending: Sending) -> Generator[None]:
    """Make the span of an enqueue, if there is one that it can be part of: Sentry has no such spans by themselves."""
    current = sentry_sdk.traces.get_current_span() if _is_streamed() else sentry_sdk.get_current_span()
    if current is None:
        yield
        return
    with _span(OP.QUEUE_PUBLISH, sending.task or sending.queue) as span:
        _set(span, {"messaging.system": "evsched", "messaging.destination.name": sending.queue})
        try:
            yield
        finally:
            if sending.jobs:
                _set(span, {"messaging.message.body.size": sum(len(job.payload) for job in sending.jobs)})
            if sending.many is not None:
                _set(span, {"messaging.batch.message_count": sending.many})
            elif sending.jobs:
                _set(span, {"messaging.message.id": sending.jobs[0].id})


def _headers(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries of `meta` with the current trace. A trace and the baggage that the caller gives are kept."""
    trace, baggage = sentry_sdk.get_traceparent(), sentry_sdk.get_baggage()
    if _TRACE in meta or not trace:
        return {}
    others = meta.get(_BAGGAGE)
    both = ",".join(part for part in (others if isinstance(others, str) else "", baggage or "") if part)
    return {_TRACE: trace, **({_BAGGAGE: both} if both else {})}


def _begin(stack: ExitStack, run: Run, job: CurrentJob) -> list[_AnySpan]:
    """Begin the spans of a run in a trace: that of its enqueue, or a new one."""
    trace = {key: value for key in (_TRACE, _BAGGAGE) if isinstance(value := job.meta.get(key), str)}
    op, origin = "queue.task.evsched", EvschedIntegration.origin
    if _is_streamed():
        sentry_sdk.traces.continue_trace(trace)
        source = {"sentry.segment.name.source": SegmentNameSource.TASK.value}
        outer = _span(op, job.task, attributes=source, parent_span=None)
    else:
        outer = sentry_sdk.start_transaction(
            sentry_sdk.continue_trace(trace, op=op, name=job.task, source=TransactionSource.TASK, origin=origin)
        )
    spans = [stack.enter_context(outer), stack.enter_context(_span(OP.QUEUE_PROCESS, job.task))]
    _set(
        spans[1],
        {
            "messaging.system": "evsched",
            "messaging.destination.name": job.queue,
            "messaging.message.id": job.id,
            "messaging.message.body.size": len(run.job.payload),
            "messaging.message.retry.count": job.attempt - 1,
            "messaging.message.receive.latency": max(0.0, job.lateness) * 1000,  # Sentry has milliseconds
        },
    )
    return spans


def _status(run: Run, error: BaseException | None) -> str:
    if run.has_failed(error):
        return SPANSTATUS.DEADLINE_EXCEEDED if run.stop_reason == "timeout" else SPANSTATUS.INTERNAL_ERROR
    return SPANSTATUS.OK if run.stop_reason is None else SPANSTATUS.CANCELLED


_reported: Final = dict[tuple[str, str, int], None]()
"""The runs whose errors were reported, and whose line in the log may come; the newest are last."""


def _capture(run: Run, job: CurrentJob, prepared: Prepared, error: BaseException | None) -> None:
    """Report how a run failed."""
    if run.stop_reason == "timeout":
        limit = "" if prepared.timeout is None else f", {prepared.timeout:g} s"
        late = TimeoutError(f"task {job.task}: it ran longer than its limit{limit}")
        error = late.with_traceback(None if error is None else error.__traceback__)
    assert error is not None
    mechanism = {"type": EvschedIntegration.identifier, "handled": False}
    event, hint = event_from_exception(error, sentry_sdk.get_client().options, mechanism)
    if isinstance(error, HandlerFailed) and error.error:
        # The exception of another process comes as text. The stack here is that of evsched.
        shown = _values(event, "exception")[-1]
        shown["module"], _, shown["type"] = error.error.rpartition(".")
        shown["value"] = error.text
        shown.pop("stacktrace", None)
        event["extra"] = {"traceback": error.traceback}
    sentry_sdk.capture_event(event, hint=hint)
    _reported[run.delivery.queue, job.id, job.attempt] = None
    if len(_reported) > _REPORTED_MOST:
        del _reported[next(iter(_reported))]


def _describe(job: CurrentJob, prepared: Prepared, event: Event, hint: Hint) -> Event:
    """Add the job to each event of its run; an event processor."""
    payload, task = prepared.payload, prepared.task
    hidden = task.signature.redacted((*task.redact, *payload.redact), len(payload.args), payload.kwargs)
    arguments: dict[str, Any] = {"args": _FILTERED, "kwargs": _FILTERED}
    if _may_send_arguments():
        arguments = redacted({"args": payload.args, "kwargs": payload.kwargs, "redact": [*hidden]})
    event.setdefault("contexts", {})["evsched"] = {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "attempt": job.attempt,
        "attempts": prepared.policy.attempts,
        "args": arguments["args"],
        "kwargs": arguments["kwargs"],
    }
    event.setdefault("tags", {}).update({"evsched.task": job.task, "evsched.queue": job.queue})
    if hidden:  # the value of an argument may be in any variable
        _remove_variables(event, lambda module: True)
    return event


def _may_send_arguments() -> bool:
    options = sentry_sdk.get_client().options
    if has_data_collection_enabled(options):
        return bool(options["data_collection"]["queues"])
    return should_send_default_pii()


def _process(event: Event, hint: Hint) -> Event | None:
    """Clean an event of any kind; a processor of all events of this process.

    The frames of evsched have arguments of jobs in their variables. And of a run that was reported, the line in
    evsched's log would be a second report.
    """
    if _integration() is None:
        return event
    line = getattr(hint.get("log_record"), "event", None)
    if isinstance(line, JobBuried | Retrying):
        run = line.queue, line.id, line.attempt
        if run in _reported:
            del _reported[run]
            return None
    if isinstance(line, events.Event):
        # The text has the id of a job, so each line would be an issue of its own.
        about = (getattr(line, name, "") for name in ("queue", "task", "name"))
        event["fingerprint"] = ["evsched", type(line).__name__, *map(str, about)]
    _remove_variables(event, lambda module: module == "evsched" or module.startswith("evsched."))
    return event


def _remove_variables(event: Event, of: Callable[[str], bool]) -> None:
    """Remove the local variables from the frames of an event, in some modules."""
    for trace in (event, *_values(event, "exception"), *_values(event, "threads")):
        stack: dict[str, Any] = cast("dict[str, Any]", trace).get("stacktrace") or {}
        frames: list[dict[str, Any]] = stack.get("frames") or []
        for frame in frames:
            if of(frame.get("module") or ""):
                frame.pop("vars", None)


def _values(event: Event, part: str) -> list[dict[str, Any]]:
    """Return the exceptions or threads of an event."""
    found: dict[str, Any] = cast("dict[str, Any]", event).get(part) or {}
    return found.get("values") or []


class _Monitor(Struct, frozen=True):
    """A monitor of Sentry for a recurrence."""

    slug: str
    config: MonitorConfig


def _end_of_check_in(run: Run, prepared: Prepared, error: BaseException | None) -> str | None:
    """Return the status with which a run ends a check-in; None if the job will run again, here or elsewhere."""
    if run.stop_reason == "lost" or isinstance(error, Snooze):
        return None
    if run.stop_reason is None and error is None:
        return MonitorStatus.OK
    policy = prepared.policy
    last = run.stop_reason == "cancelled" or isinstance(error, GiveUp) or run.job.attempt >= policy.attempts
    if not last and policy.by_exception and run.has_failed(error) and run.stop_reason is None and error is not None:
        kinds = error.kinds if isinstance(error, HandlerFailed) else kinds_of(error)
        last = not isinstance(error, ProcessDied) and bool(policy.refusal(kinds))
    return MonitorStatus.ERROR if last else None


def _monitors(app: App, integration: EvschedIntegration) -> dict[tuple[str, str], _Monitor]:
    """Return the monitors of the recurrences that an app declares, by queue and name. Name the others in the log."""
    found, slugs = dict[tuple[str, str], _Monitor](), dict[str, str]()
    for queue, one in app.program.recurrences:
        if one.name in integration.exclude_recurrences:
            continue
        slug = _slug(one.name)
        try:
            if slug in slugs:
                raise ConfigError(f"its monitor would be that of {slugs[slug]}, {slug}: give it another name")
            config = _config(app, one)
        except ConfigError as error:
            _log.warning("Sentry does not monitor recurrence %s of queue %s: %s", one.name, queue, error)
            continue
        slugs[slug] = f"recurrence {one.name} of queue {queue}"
        found[queue, one.name] = _Monitor(slug, {**config, **integration.monitor_config.get(one.name, {})})
    return found


def _slug(name: str) -> str:
    """Return the slug of a monitor: lower case letters, digits, - and _, but not only digits."""
    slug = re.sub("[^a-z0-9_-]+", "-", name.lower()).strip("-")[:_SLUG_MOST]
    return f"evsched-{slug}" if not slug or slug.isdecimal() else slug


def _config(app: App, one: Declared) -> MonitorConfig:
    """Return a recurrence as Sentry's monitor has it.

    Raises:
        ConfigError: Sentry could not know when it is late; the message says why.
    """
    payload = decode_payload(one.payload)
    for has, why in (
        (one.skip, "on the days of its calendar it makes no jobs, and Sentry knows no calendars"),
        (one.window or payload.window, "it waits for its window, and Sentry knows no windows"),
        (one.after, "it counts from the end of each run, and Sentry counts from the start"),
        (one.end or one.count, "it ends, and Sentry would wait for it after that"),
    ):
        if has:
            raise ConfigError(why)
    config = cast("MonitorConfig", {"schedule": _schedule(one), "timezone": one.zone})
    if one.spread:
        config["checkin_margin"] = math.ceil(one.spread / 60) + 1  # Sentry's own is a minute
    task = app.tasks.get(payload.task)
    if task is not None and task.timeout is not None:
        whole = task.retry.attempts * task.timeout + task.retry.worst_case()
        config["max_runtime"] = math.ceil(whole / 60)
    return config


def _schedule(one: Declared) -> dict[str, Any]:
    rule = parse_rule(one.rule, one.zone)
    if rule.cron is None:
        for unit, seconds in _UNITS:
            if rule.every % seconds == 0:
                return {"type": "interval", "value": int(rule.every // seconds), "unit": unit}
        raise ConfigError(f"its interval, {rule.every:g} s, is not whole minutes, and Sentry has no seconds")
    fields = rule.cron.split()
    if len(fields) == 6:
        if fields[0] != "0":
            raise ConfigError("its rule has seconds, and Sentry's have none")
        fields = fields[1:]
    return {"type": "crontab", "value": " ".join(fields)}
