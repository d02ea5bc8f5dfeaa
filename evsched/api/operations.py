"""What can be asked: for each path and method the handler, the token that it needs, and the structs that it takes.

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
from evsched.client.recurrence_status import RecurrenceStatus
from evsched.jobs.job import JobStatus

Handler = Callable[[Any], Awaitable[Reply]]
"""Gets what is asked: an `Asked`."""


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path. The name of the handler is its id in the OpenAPI document, its docstring the summary."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    handler: Handler
    needs: Scope
    replies: Mapping[int, type | None]
    """The type of the body by the status; None = it has none."""
    body: type | None = None
    query: type | None = None
    key: bool = False
    """Whether it takes an Idempotency-Key."""

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

OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/queues",
        handler=queue_handlers.list_queues,
        needs="read",
        query=ListQuery,
        replies={200: Queues},
    ),
    Operation(method="GET", path=_QUEUE, handler=queue_handlers.count, needs="read", replies={200: QueueCounts}),
    Operation(
        method="GET",
        path=f"{_QUEUE}/jobs",
        handler=job_handlers.list_jobs,
        needs="read",
        query=JobsQuery,
        replies={200: Jobs},
    ),
    Operation(
        method="POST",
        path=f"{_QUEUE}/jobs",
        handler=job_handlers.enqueue,
        needs="write",
        body=EnqueueJob,
        key=True,
        replies={201: Scheduled, 200: Scheduled},
    ),
    Operation(
        method="POST",
        path=f"{_QUEUE}/batches",
        handler=job_handlers.enqueue_many,
        needs="write",
        body=EnqueueJobs,
        key=True,
        replies={201: ScheduledJobs, 200: ScheduledJobs},
    ),
    Operation(method="GET", path=_JOB, handler=job_handlers.look, needs="read", replies={200: JobStatus}),
    Operation(
        method="PATCH",
        path=_JOB,
        handler=job_handlers.reschedule,
        needs="write",
        body=Reschedule,
        replies={200: Scheduled},
    ),
    Operation(
        method="DELETE",
        path=_JOB,
        handler=job_handlers.cancel,
        needs="write",
        replies={204: None, 202: Stopping},
    ),
    Operation(
        method="GET",
        path=f"{_JOB}/explain",
        handler=job_handlers.explain,
        needs="read",
        replies={200: Explained},
    ),
    Operation(
        method="GET",
        path=f"{_JOB}/result",
        handler=job_handlers.wait_for_end,
        needs="read",
        query=ResultQuery,
        replies={200: Outcome, 202: Outcome},
    ),
    Operation(
        method="GET",
        path=f"{_QUEUE}/recurrences",
        handler=recurrence_handlers.list_recurrences,
        needs="read",
        query=ListQuery,
        replies={200: Recurrences},
    ),
    Operation(
        method="GET",
        path=_RECURRENCE,
        handler=recurrence_handlers.look,
        needs="read",
        replies={200: RecurrenceStatus},
    ),
    Operation(
        method="PUT",
        path=_RECURRENCE,
        handler=recurrence_handlers.put,
        needs="write",
        body=NewRecurrence,
        replies={201: Changed, 200: Changed},
    ),
    Operation(
        method="DELETE", path=_RECURRENCE, handler=recurrence_handlers.remove, needs="write", replies={204: None}
    ),
    Operation(
        method="POST",
        path=f"{_RECURRENCE}/pause",
        handler=recurrence_handlers.pause,
        needs="write",
        body=Pause,
        replies={204: None},
    ),
    Operation(
        method="POST",
        path=f"{_RECURRENCE}/resume",
        handler=recurrence_handlers.resume,
        needs="write",
        replies={200: Resumed},
    ),
    Operation(
        method="POST",
        path=f"{_RECURRENCE}/trigger",
        handler=recurrence_handlers.trigger,
        needs="write",
        key=True,
        replies={202: Triggered},
    ),
    Operation(
        method="POST",
        path=f"{_QUEUE}/pause",
        handler=operator_handlers.pause,
        needs="write",
        body=Pause,
        query=CreateQuery,
        replies={200: QueuePaused},
    ),
    Operation(
        method="POST",
        path=f"{_QUEUE}/resume",
        handler=operator_handlers.resume,
        needs="write",
        replies={200: QueueResumed},
    ),
    Operation(
        method="GET",
        path=f"{_QUEUE}/limits",
        handler=operator_handlers.limits,
        needs="read",
        replies={200: QueueLimits},
    ),
    Operation(
        method="PATCH",
        path=f"{_QUEUE}/limits",
        handler=operator_handlers.limit,
        needs="write",
        body=NewLimits,
        query=CreateQuery,
        replies={200: QueueLimits},
    ),
    Operation(
        method="POST",
        path=f"{_QUEUE}/dead/revive",
        handler=operator_handlers.revive,
        needs="write",
        body=DeadJobs,
        replies={200: DeadChanged},
    ),
    Operation(
        method="POST",
        path=f"{_QUEUE}/dead/drop",
        handler=operator_handlers.drop,
        needs="write",
        body=DeadJobs,
        replies={200: DeadChanged},
    ),
    Operation(
        method="GET",
        path=f"{_QUEUE}/calendars",
        handler=operator_handlers.list_calendars,
        needs="read",
        replies={200: Calendars},
    ),
    Operation(
        method="PUT",
        path=_CALENDAR,
        handler=operator_handlers.put_calendar,
        needs="write",
        body=NewCalendar,
        query=CreateQuery,
        replies={200: CalendarSet},
    ),
    Operation(
        method="DELETE",
        path=_CALENDAR,
        handler=operator_handlers.remove_calendar,
        needs="write",
        replies={204: None},
    ),
    Operation(
        method="GET",
        path=f"{_QUEUE}/windows",
        handler=operator_handlers.list_windows,
        needs="read",
        replies={200: Windows},
    ),
    Operation(
        method="PUT",
        path=_WINDOW,
        handler=operator_handlers.put_window,
        needs="write",
        body=NewWindow,
        query=CreateQuery,
        replies={200: WindowSet},
    ),
    Operation(
        method="DELETE",
        path=_WINDOW,
        handler=operator_handlers.remove_window,
        needs="write",
        replies={204: None},
    ),
)
