"""The replies, as structs, from which the OpenAPI document is made; and the answer to a request that cannot be done.

The latter is a problem (RFC 9457), with a sentence about the error and its remedy.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from evsched import errors
from evsched.batches.node import GraphNode
from evsched.client.history import TaskCounts
from evsched.client.recurrence_operations import RecurrenceStatus
from evsched.jobs.record import Place
from evsched.remote.remote_worker import RemoteJob
from evsched.store.acts import AuditedAct
from evsched.store.batch_calls import BatchState
from evsched.store.history_calls import PastJob
from evsched.store.operator_calls import Match
from evsched.transport.servers import reason

T = TypeVar("T")


class Reply(Struct, Generic[T], frozen=True):
    """A reply whose status depends on the result, or is not the usual one: 200, or 204 without a body."""

    status: HTTPStatus
    body: T | None = None
    headers: Mapping[str, str] = {}


def response(reply: Any) -> Response:
    """Return the response for the result of a handler: a `Reply`, or a struct; None = there is nothing to return."""
    if not isinstance(reply, Reply):
        reply = Reply[Any](HTTPStatus.NO_CONTENT if reply is None else HTTPStatus.OK, reply)
    headers = {"Cache-Control": "no-store", **reply.headers}
    if reply.body is None:
        return Response(None, reply.status, headers)
    return Response(msgspec.json.encode(reply.body), reply.status, headers, "application/json")


class Scheduled(Struct, frozen=True):
    """A job that is on the schedule. `due` in Unix seconds; null = not known, or it is dead and has none."""

    id: str
    queue: str
    due: float | None


class ScheduledJobs(Struct, frozen=True):
    """The jobs of a request, in its order."""

    jobs: list[Scheduled]


class Stopping(Struct, frozen=True):
    """A job that a worker holds, and was asked to stop."""

    id: str
    place: Place


class Signaled(Struct, frozen=True):
    """The effect of a signal. "due": the job waited for it, and goes on. "kept": the job does not wait for it yet.

    "known": a signal of that name had come to the job, and nothing was changed.
    """

    id: str
    signal: str
    done: Literal["due", "kept", "known"]


class Outcome(Struct, frozen=True):
    """How a job has ended: `outcome` is done, dead, expired or cancelled; null = it has not ended."""

    id: str
    outcome: str | None
    result: Any = None
    reason: str | None = None


class Explained(Struct, frozen=True):
    """Why a job has not run yet: a sentence, and the facts behind it, as texts for people."""

    id: str
    sentence: str
    facts: dict[str, str]


class Jobs(Struct, frozen=True):
    """The jobs that were found. `complete`: these are all there are, and all shards of the queue could be read."""

    jobs: list[Match]
    complete: bool


class QueueCounts(Struct, frozen=True, kw_only=True):
    """How many jobs a queue has in each place, and who serves it. Times in Unix seconds."""

    queue: str
    schedule: int
    backlog: int
    ready: int
    processing: int
    dead: int
    overdue: int
    """Jobs on the schedule that are due, but not dispatched yet."""
    oldest: float
    """Seconds for which the first job that waits for a worker has been due."""
    workers: int
    next_due: float | None
    paused: float | None
    """Since when the queue is paused."""
    paused_until: float | None
    """When the pause ends by itself."""
    paused_why: str | None


class QueueScale(Struct, frozen=True, kw_only=True):
    """How many slots the jobs of a queue want, for an autoscaler: of the queue and its shards together."""

    queue: str
    jobs: int
    """How many slots are wanted. Jobs in ready and processing want one; unless the queue is paused, so do due jobs and
    jobs in the backlog, up to its limit of concurrency. Jobs that the limits of their groups hold back want none."""
    due: int
    """Jobs on the schedule that are due, or will be within `lead` seconds."""
    backlog: int
    ready: int
    processing: int
    workers: int
    next_due_in: float | None
    """Seconds until the first job on the schedule is due; 0 if it is due; null if there is none."""


class Queues(Struct, frozen=True):
    """The queues, sorted by name. `complete`: these are all there are, and all could be read with their shards."""

    queues: list[QueueCounts]
    complete: bool


class Recurrences(Struct, frozen=True):
    """The recurrences, the next to recur first. `complete`: these are all there are."""

    recurrences: list[RecurrenceStatus]
    complete: bool


class Changed(Struct, frozen=True):
    """The result of putting a recurrence. A changed one that is paused stays so."""

    name: str
    change: Literal["made", "changed", "same"]
    paused: bool


class Resumed(Struct, frozen=True):
    """Whether a recurrence that was resumed recurs: it does not if the code no longer declares it."""

    name: str
    recurs: bool


class Triggered(Struct, frozen=True):
    """The job of a run that was requested. If it is not `begun`, it waits for the end of another."""

    id: str
    begun: bool


class QueuePaused(Struct, frozen=True):
    """Since when a queue is paused, in Unix seconds."""

    queue: str
    since: float


class QueueResumed(Struct, frozen=True):
    """Since when a queue that was resumed had been paused; null = it was not paused."""

    queue: str
    since: float | None


class QueueLimit(Struct, frozen=True):
    """A limit. `value` null: the code declares it, and it was removed by hand. `group` null: of the whole queue."""

    group: str | None
    limit: str
    value: float | None
    declared: float | None
    """The values in the code."""
    app: str | None


class QueueLimits(Struct, frozen=True):
    """The limits of a queue."""

    queue: str
    limits: list[QueueLimit]


class Acts(Struct, frozen=True):
    """The acts of operators on a queue, the latest first. `complete`: these are all that are kept and match."""

    acts: list[AuditedAct]
    complete: bool


class PastJobs(Struct, frozen=True):
    """Jobs that have ended, the newest first. `cursor`: for the next page; null = there are no more."""

    jobs: list[PastJob]
    cursor: str | None


class PastCounts(Struct, frozen=True):
    """How many jobs of each task have ended, how late they started, and how long they ran."""

    counts: list[TaskCounts]


class DeadChanged(Struct, frozen=True):
    """How many dead jobs were revived or dropped. If it is not `complete`, the same request does the rest."""

    changed: int
    complete: bool


class CalendarDays(Struct, frozen=True):
    """A calendar: its dates and ranges of dates."""

    name: str
    days: list[str]


class Calendars(Struct, frozen=True):
    """The calendars of a queue, sorted by name."""

    calendars: list[CalendarDays]


class CalendarSet(Struct, frozen=True):
    """A calendar that was set, and how many recurrences were planned again."""

    name: str
    planned: int


class NamedWindow(Struct, frozen=True):
    """A named window."""

    name: str
    window: str


class Windows(Struct, frozen=True):
    """The named windows of a queue, sorted by name."""

    windows: list[NamedWindow]


class WindowSet(Struct, frozen=True):
    """A window that was set, and how many jobs that waited for it are checked again."""

    name: str
    checked: int


class BatchName(Struct, frozen=True):
    """A batch, and its home."""

    queue: str
    id: str


class BatchStatus(Struct, frozen=True, kw_only=True):
    """The state and the counts of a batch. Times in Unix seconds."""

    id: str
    queue: str
    """Its home."""
    state: BatchState
    total: int
    """How many jobs it has."""
    open: int
    """How many of them have not ended."""
    done: int
    dead: int
    cancelled: int
    expired: int
    stopped: int
    """Nodes of a graph that do not run since one before them failed."""
    nodes: int
    """How many nodes the graph has; 0 = the batch is not one."""
    created: float
    closed: float | None
    finished: float | None
    stop: str | None
    """"cancelled" or "expired", if its jobs were, or are being, cancelled."""
    complete_on: str
    by: str | None
    tags: list[str]
    parent: BatchName | None
    """The batch in which it counts as one job."""
    paused: float | None
    """Since when it is paused; null = it is not."""
    paused_until: float | None
    """When it is resumed by itself; null = it is not."""
    paused_why: str | None


class Batches(Struct, frozen=True):
    """The batches, the newest first. `cursor`: for the next page; null = there are no more."""

    batches: list[BatchStatus]
    cursor: int | None


class BatchMember(Struct, frozen=True):
    """A job of a batch. `outcome`: `open` = it has not ended."""

    id: str
    queue: str
    outcome: str
    ordinal: int
    batch: bool = False
    """Whether it is no job, but a batch of this id."""


class Members(Struct, frozen=True):
    """The jobs of a batch in the order in which they were added. `cursor`: for the next page; null = no more."""

    jobs: list[BatchMember]
    cursor: int | None


class GraphNodes(Struct, frozen=True):
    """The nodes of a graph, each behind those before it. `cursor`: for the next page; null = no more."""

    nodes: list[GraphNode]
    cursor: int | None


class FetchedJobs(Struct, frozen=True):
    """The jobs that a worker is to run: none if none came. `heartbeat`: how often to send one while it holds jobs."""

    jobs: list[RemoteJob]
    heartbeat: float
    lease: float
    """Seconds after the last heartbeat, or fetch, when its jobs start elsewhere."""


class KeptRuns(Struct, frozen=True):
    """The ids of runs that do not go on: `stop` their work, since the job was cancelled; or they are `lost`.

    A run that is lost is not the worker's any more: forget it.
    """

    stop: list[str]
    lost: list[str]
    heartbeat: float
    lease: float
    """As in the reply to a fetch."""


class Health(Struct, frozen=True):
    """Whether the server is alive or ready; `reason` says why it is not."""

    ok: bool
    reason: str | None = None


MEDIA_TYPE: Final = "application/problem+json"

_AWAY: Final = 2
"""Seconds after which a caller should try again when Redis is down: the call was tried for 5 s already."""

_logger: Final = logging.getLogger("evsched")


class ProblemDetails(Struct, frozen=True, kw_only=True):
    """Why a request was not done (RFC 9457). Programs should look at `code`, people at `detail`."""

    title: str
    status: int
    detail: str
    code: str


class Problem(Exception):
    """Raised wherever a request cannot go on."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, dict(headers or {})

    def response(self) -> Response:
        detail = self.detail.encode(errors="backslashreplace").decode()
        details = ProblemDetails(title=self.status.phrase, status=self.status, detail=detail, code=self.code)
        headers = {"Cache-Control": "no-store", **self.headers}
        return Response(msgspec.json.encode(details), self.status, headers, MEDIA_TYPE)


def invalid(detail: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", detail)


_REFUSALS: Final = (
    (errors.JobExists, HTTPStatus.CONFLICT, "job-exists"),
    (errors.JobRunning, HTTPStatus.CONFLICT, "job-running"),
    (errors.JobChanged, HTTPStatus.CONFLICT, "job-changed"),
    (errors.JobLate, HTTPStatus.CONFLICT, "batch-over"),
    (errors.InUse, HTTPStatus.CONFLICT, "in-use"),
    (errors.RunGone, HTTPStatus.CONFLICT, "run-lost"),
    (errors.JobMissing, HTTPStatus.NOT_FOUND, "not-found"),
    (errors.ConfigError, HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
)
"""The errors whose messages are for the caller."""


async def error_response(request: Request, error: Exception) -> Response:
    """Return the response to a request that was not done. Internal details go to the server's log."""
    match error:
        case Problem():
            return error.response()
        case errors.EvschedError():
            return problem_of(error, reads=request.method in ("GET", "HEAD")).response()
        case HTTPException(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers=headers):
            allowed = re.sub(", ?", " or ", (headers or {}).get("Allow", ""))
            detail = f"{request.method} is not possible here: use {allowed}"
            return Problem(HTTPStatus.METHOD_NOT_ALLOWED, "no-such-method", detail, headers).response()
        case HTTPException():
            status, detail = HTTPStatus(error.status_code), "there is no such path: /openapi.json lists all"
            return Problem(status, "no-such-path", detail).response()
        case ClientDisconnect():
            return Response(None, HTTPStatus.BAD_REQUEST)  # nobody reads it
        case _:  # a bug, whose traceback the server logs
            detail = "the server failed: its log has the reason"
            return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", detail).response()


def problem_of(error: errors.EvschedError, *, reads: bool) -> Problem:
    """Return the problem that an error of evsched is to a caller. `reads`: the request changes nothing."""
    for kind, status, code in _REFUSALS:
        if isinstance(error, kind):
            return Problem(status, code, str(error))
    if isinstance(error, errors.StoreDown):
        _logger.error("a request was not done, since Redis cannot serve now: %s", error)
        why = "Redis cannot serve now" if error.node is None else reason(error)
        detail = why if reads else f"{why}; a write may have been done all the same: look before you repeat it"
        if isinstance(error, errors.ShardsDown):
            detail = str(error)
        elif isinstance(error, errors.ShardsUnread):
            detail = f"{why}, so the numbers of shards of queues cannot be read, and nothing was done"
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "redis-away", detail, {"Retry-After": str(_AWAY)})
    if isinstance(error, errors.StoreRefused):
        _logger.error("Redis refused a request: %s", error)
        detail = (
            "Redis refused this: the log of the server says why; `evsched doctor` finds wrong data and missing rights"
        )
        return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "redis-refused", detail)
    _logger.error("a request failed: %s", error)
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", str(error))
