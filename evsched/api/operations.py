"""The table of requests: for each path and method the handler, and the structs that it takes and returns.

The routes and the OpenAPI document are made from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from evsched.api import job_handlers, operator_handlers, queue_handlers, recurrence_handlers
from evsched.api.access import Scope
from evsched.api.replies import (
    Calendars,
    CalendarSet,
    Changed,
    DeadChanged,
    Explained,
    Jobs,
    Outcome,
    QueueCounts,
    QueueLimits,
    QueuePaused,
    QueueResumed,
    Queues,
    Recurrences,
    Reply,
    Resumed,
    Scheduled,
    ScheduledJobs,
    Stopping,
    Triggered,
    Windows,
    WindowSet,
)
from evsched.api.requests import (
    CreateQuery,
    DeadJobs,
    EnqueueJob,
    EnqueueJobs,
    JobsQuery,
    ListQuery,
    NewCalendar,
    NewLimits,
    NewRecurrence,
    NewWindow,
    Pause,
    Reschedule,
    ResultQuery,
)
from evsched.client.recurrence_operations import RecurrenceStatus
from evsched.jobs.record import JobStatus

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

Handler = Callable[[Any], Awaitable[Reply]]
"""Gets what is asked: an `Asked`."""


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path. The name of the handler is its id in the OpenAPI document, its docstring the summary."""

    method: Method
    path: str
    handler: Handler
    replies: Mapping[int, type | None]
    """The type of the body by the status; None = it has none."""
    body: type | None = None
    query: type | None = None
    key: bool = False
    """Whether it takes an Idempotency-Key."""

    @property
    def needs(self) -> Scope:
        """What the token must allow."""
        return "read" if self.method == "GET" else "write"

    @property
    def summary(self) -> str:
        """What it does, in a sentence."""
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def id(self) -> str:
        """Its name in the OpenAPI document."""
        family = self.handler.__module__.rpartition(".")[2].removesuffix("_handlers")
        return f"{family}_{self.handler.__name__}"


_QUEUE: Final = "/v1/queues/{queue}"
_JOB: Final = f"{_QUEUE}/jobs/{{id}}"
_RECURRENCE: Final = f"{_QUEUE}/recurrences/{{name}}"
_CALENDAR: Final = f"{_QUEUE}/calendars/{{name}}"
_WINDOW: Final = f"{_QUEUE}/windows/{{name}}"


def _row(
    method: Method,
    path: str,
    handler: Handler,
    replies: type | Mapping[int, type | None],
    *,
    body: type | None = None,
    query: type | None = None,
    key: bool = False,
) -> Operation:
    """Make a row of the table. `replies`: a type alone is that of the status 200."""
    by_status = {200: replies} if isinstance(replies, type) else replies
    return Operation(method=method, path=path, handler=handler, replies=by_status, body=body, query=query, key=key)


OPERATIONS: Final = (
    _row("GET", "/v1/queues", queue_handlers.list_queues, Queues, query=ListQuery),
    _row("GET", _QUEUE, queue_handlers.count, QueueCounts),
    _row("GET", f"{_QUEUE}/jobs", job_handlers.list_jobs, Jobs, query=JobsQuery),
    _row("POST", f"{_QUEUE}/jobs", job_handlers.enqueue, {201: Scheduled, 200: Scheduled}, body=EnqueueJob, key=True),
    _row(
        "POST",
        f"{_QUEUE}/batches",
        job_handlers.enqueue_many,
        {201: ScheduledJobs, 200: ScheduledJobs},
        body=EnqueueJobs,
        key=True,
    ),
    _row("GET", _JOB, job_handlers.look, JobStatus),
    _row("PATCH", _JOB, job_handlers.reschedule, Scheduled, body=Reschedule),
    _row("DELETE", _JOB, job_handlers.cancel, {204: None, 202: Stopping}),
    _row("GET", f"{_JOB}/explain", job_handlers.explain, Explained),
    _row("GET", f"{_JOB}/result", job_handlers.wait_for_end, {200: Outcome, 202: Outcome}, query=ResultQuery),
    _row("GET", f"{_QUEUE}/recurrences", recurrence_handlers.list_recurrences, Recurrences, query=ListQuery),
    _row("GET", _RECURRENCE, recurrence_handlers.look, RecurrenceStatus),
    _row("PUT", _RECURRENCE, recurrence_handlers.put, {201: Changed, 200: Changed}, body=NewRecurrence),
    _row("DELETE", _RECURRENCE, recurrence_handlers.remove, {204: None}),
    _row("POST", f"{_RECURRENCE}/pause", recurrence_handlers.pause, {204: None}, body=Pause),
    _row("POST", f"{_RECURRENCE}/resume", recurrence_handlers.resume, Resumed),
    _row("POST", f"{_RECURRENCE}/trigger", recurrence_handlers.trigger, {202: Triggered}, key=True),
    _row("POST", f"{_QUEUE}/pause", operator_handlers.pause, QueuePaused, body=Pause, query=CreateQuery),
    _row("POST", f"{_QUEUE}/resume", operator_handlers.resume, QueueResumed),
    _row("GET", f"{_QUEUE}/limits", operator_handlers.limits, QueueLimits),
    _row("PATCH", f"{_QUEUE}/limits", operator_handlers.limit, QueueLimits, body=NewLimits, query=CreateQuery),
    _row("POST", f"{_QUEUE}/dead/revive", operator_handlers.revive, DeadChanged, body=DeadJobs),
    _row("POST", f"{_QUEUE}/dead/drop", operator_handlers.drop, DeadChanged, body=DeadJobs),
    _row("GET", f"{_QUEUE}/calendars", operator_handlers.list_calendars, Calendars),
    _row("PUT", _CALENDAR, operator_handlers.put_calendar, CalendarSet, body=NewCalendar, query=CreateQuery),
    _row("DELETE", _CALENDAR, operator_handlers.remove_calendar, {204: None}),
    _row("GET", f"{_QUEUE}/windows", operator_handlers.list_windows, Windows),
    _row("PUT", _WINDOW, operator_handlers.put_window, WindowSet, body=NewWindow, query=CreateQuery),
    _row("DELETE", _WINDOW, operator_handlers.remove_window, {204: None}),
)
