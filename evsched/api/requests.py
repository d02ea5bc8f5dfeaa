"""The bodies and queries of requests, as structs. The OpenAPI document is made from them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from evsched.batches.batch_options import EXPIRES, RETENTION
from evsched.client.sweep import Filter
from evsched.client.wire_schema import Group, Length, Priority, Redact, Tag, Tags, Window
from evsched.graphs.plan import NODES_MOST
from evsched.jobs.job import OnConflict, RetryFields
from evsched.jobs.record import Place
from evsched.recurrence.recurrence import Misfire, Overlap
from evsched.remote.remote_worker import WORKER_NAME_MOST, HeldRun

WAIT_MOST: Final = 60
"""Seconds that a request may wait: proxies close connections that are silent for longer."""

Moment = (
    Annotated[float, Meta(description="Unix seconds.")]
    | Annotated[datetime, Meta(tz=True, description="ISO 8601, with an offset.")]
)
NAME_IN_PATH: Final = r"^(\.*[A-Za-z0-9_:@-][A-Za-z0-9._:@-]*|\.{3,})$"
"""The form of a name of which a path is made: not `.` or `..`, which clients take out of paths, even as `%2E`."""

NAME_RULE: Final = "1 to 200 of A-Z a-z 0-9 . _ : @ -, and not . or .."
"""The same in words."""

LONGEST: Final = {"worker": WORKER_NAME_MOST}
"""The most characters of a part of a path, if they are fewer than 200."""

PATH_PARAMETERS: Final = {
    "queue": "the name of a queue",
    "id": "the id of a job",
    "name": "the name of a recurrence, a calendar or a window",
    "batch": "the id of a batch",
    "worker": "the name of a worker",
}


def path_fault(name: str, value: Any) -> str | None:
    """Return why a value cannot be this part of a path; None if it can."""
    most = LONGEST.get(name, 200)
    if isinstance(value, str) and len(value) <= most and re.fullmatch(NAME_IN_PATH, value):
        return None
    return f"{PATH_PARAMETERS[name]} is {NAME_RULE.replace('200', str(most))}"


JobId = Annotated[str, Meta(pattern=NAME_IN_PATH, max_length=200, description="Else a random one.")]
Task = Annotated[str, Meta(min_length=1, description="The name of the task.")]
Delay = Annotated[float, Meta(description="Seconds from now, by Redis's clock. Give `due` or `delay`.")]
Timeout = Annotated[float, Meta(gt=0, description="Seconds that a run may take.")]
Within = Annotated[
    float, Meta(gt=0, description="Seconds in which there is no second job even if the first has ended.")
]
Age = Annotated[Length, Meta(description="Only jobs that were created, or died, at least this many seconds ago.")]

OfTask = Annotated[str, Meta(min_length=1, description="Only jobs of this task.")]
OfGroup = Annotated[str, Meta(min_length=1, description="Only jobs of this group.")]
WithReason = Annotated[str, Meta(min_length=1, description="Only jobs whose reason contains this text.")]
WithError = Annotated[str, Meta(min_length=1, description="Only jobs whose handler raised this class last.")]
WithArguments = Annotated[
    dict[str, Any], Meta(description="Only jobs with these arguments, by name, or by position from 1. A JSON object.")
]
EndedSince = Annotated[Moment, Meta(description="Only jobs that ended then or later.")]
EndedUntil = Annotated[Moment, Meta(description="Only jobs that ended then or earlier.")]
WithTags = Annotated[list[Tag], Meta(description="Only jobs that have all of these tags.")]


class JobFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a job, and of a recurrence for its jobs."""

    task: Task
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    priority: Priority | None = None
    group: Group | None = None
    timeout: Timeout | None = None
    retry: RetryFields | None = None
    retention: Annotated[Length, Meta(description="Seconds for which the result is kept.")] | None = None
    meta: dict[str, Any] | None = None
    tags: Tags | None = None
    redact: Redact | None = None
    window: Window | None = None


class NewJob(JobFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to schedule. An option that is left out has the task's value, or the default."""

    id: JobId | None = None
    due: Moment | None = None
    delay: Delay | None = None
    expires: Moment | None = None
    reply: Annotated[bool, Meta(description="Push the outcome to the job's reply list in Redis.")] = False


class UniqueJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The job's id is made of its task and arguments, or of its task and `key`."""

    key: Annotated[Any, Meta(description="A JSON value instead of the arguments.")] | UnsetType = UNSET
    within: Within | None = None


class UniqueJobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The id of each job is made of its task and arguments."""

    within: Within | None = None


class EnqueueJob(NewJob, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to schedule, and the action if a job of its id has not ended: refuse, `replace` or `keep`."""

    on_conflict: OnConflict | None = None
    unique: UniqueJob | None = None


class EnqueueJobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs to schedule, all or none; `on_conflict` and `unique` apply to each."""

    jobs: Annotated[list[NewJob], Meta(min_length=1)]
    on_conflict: OnConflict | None = None
    unique: UniqueJobs | None = None


InQueue = Annotated[str, Meta(pattern=NAME_IN_PATH, max_length=200, description="Else the home of the batch.")]


class BatchCallback(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job that a batch enqueues: its task gets one argument, an object with the outcome and the counts."""

    task: Task
    queue: InQueue | None = None
    priority: Priority | None = None
    group: Group | None = None
    timeout: Timeout | None = None
    retry: RetryFields | None = None
    retention: Annotated[Length, Meta(description="Seconds for which the result is kept.")] | None = None
    meta: dict[str, Any] | None = None
    tags: Tags | None = None


class NewNode(JobFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of a graph: its job is enqueued when the nodes before it are done (docs/graphs.md)."""

    name: Annotated[str, Meta(min_length=1, max_length=180, description="The id of its job is `ID.name`.")]
    queue: InQueue | None = None
    due: Moment | None = None
    delay: Annotated[float, Meta(description="Seconds from the moment at which it is enqueued.")] | None = None
    expires: Moment | None = None
    after: Annotated[
        str | list[str] | dict[str, str],
        Meta(description="The nodes before it, whose results it gets by their names; an object: by other names."),
    ] = []
    take: Annotated[list[str], Meta(description="It gets only the results of these nodes.")] | None = None
    despite_failure: Annotated[bool, Meta(description="It runs when the nodes before it have ended anyhow.")] = False
    over: Annotated[str, Meta(description="It has a job for each item of this node's result.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=NODES_MOST, description="How many items there may be.")] = 1000


class OpenBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch to open (docs/batches.md)."""

    on_done: BatchCallback | None = None
    on_failed: BatchCallback | None = None
    on_progress: BatchCallback | None = None
    complete_on: Annotated[Literal["done", "all"], Meta(description="Whether dead jobs count as ended, too.")] = "done"
    expires: Annotated[Length, Meta(description="Seconds after which it has failed; null = never.")] | None = EXPIRES
    retention: Annotated[Length, Meta(description="Seconds for which it is kept after its end.")] = RETENTION
    tags: Tags | None = None
    nodes: (
        Annotated[list[NewNode], Meta(min_length=1, description="It is a graph of these nodes, and starts at once.")]
        | None
    ) = None


class BatchJobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs to add to a batch, all of one queue."""

    jobs: Annotated[list[NewJob], Meta(min_length=1)]
    queue: InQueue | None = None
    on_conflict: Annotated[Literal["keep"], Meta(description="An id that is taken is no member.")] | None = None
    unique: UniqueJobs | None = None


class EditJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes of a job. Fields that are left out stay.

    `due`, or `delay` in seconds from now; a `delay` of 0 is now. `args` and `kwargs` stand for all arguments; one that
    is given as `[redacted]` keeps the value that readers do not get.
    """

    due: Moment | None = None
    delay: Delay | None = None
    args: list[Any] | UnsetType = UNSET
    kwargs: dict[str, Any] | UnsetType = UNSET
    priority: Priority | UnsetType | None = UNSET
    group: Group | UnsetType | None = UNSET
    tags: Tags | UnsetType = UNSET
    version: Annotated[str, Meta(description="Of the job as you have read it; if it has another, 409.")] | None = None


class Signal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signal to a job (docs/steps.md). The first one of a name stays."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:@-]{1,100}$", description="The name that the handler waits for.")]
    value: Annotated[Any, Meta(description="The value that the handler gets: JSON of at most 32 KiB.")] = None


class NewRecurrence(JobFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule that makes jobs again and again (docs/recurrence-reference.md)."""

    rule: Annotated[str, Meta(min_length=1, description="Five or six cron fields, @daily and the like, or `every 90`.")]
    zone: Annotated[str, Meta(description="The IANA time zone of the rule.")] = "UTC"
    start: Moment | None = None
    end: Moment | None = None
    count: Annotated[int, Meta(ge=1, description="How many occurrences there are in all.")] | None = None
    spread: Annotated[Length, Meta(description="Seconds by which occurrences are delayed at most.")] = 0.0
    misfire: Annotated[Misfire, Meta(description="What to do about missed occurrences.")] = "once"
    most: Annotated[int, Meta(ge=1, description="How many missed occurrences `all` makes up for.")] = 100
    overlap: Annotated[Overlap, Meta(description="What to do if the occurrence before has not ended.")] = "skip"
    after: Literal["end"] | None = None
    skip: Annotated[str, Meta(description="The calendars on whose days it makes no jobs.")] | None = None
    pause_after: Annotated[int, Meta(ge=1, description="Pause it after this many failures in a row.")] | None = None


class Pause(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Until when a queue, a recurrence or a batch is paused, and why."""

    until: Moment | None = None
    why: Annotated[str, Meta(max_length=500, description="A sentence for people who look at it later.")] = ""


class JobFilter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that must all hold."""

    task: OfTask | None = None
    group: OfGroup | None = None
    reason: WithReason | None = None
    error: WithError | None = None
    tags: WithTags = []
    arguments: WithArguments = {}
    older: Age | None = None
    since: Annotated[Moment, Meta(description="Only jobs that were created, or died, then or later.")] | None = None
    until: Annotated[Moment, Meta(description="Only jobs that were created, or died, then or earlier.")] | None = None


def filter_of(given: JobFilter) -> Filter:
    conditions: dict[str, Any] = {name: getattr(given, name) for name in JobFilter.__struct_fields__}
    return Filter(**conditions)


class DeadJobs(JobFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead jobs: `ids`, or a filter whose conditions must all hold, or `all`."""

    ids: Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(min_length=1)] | None = None
    all: bool = False


class NewLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a queue, or of a group or a task in it. A number sets one, null removes it."""

    group: Annotated[str, Meta(min_length=1, description="`*`: each group that has none of its own.")] | None = None
    task: Task | None = None
    concurrency: Annotated[float, Meta(description="How many jobs may run at once.")] | UnsetType | None = UNSET
    rate: Annotated[float, Meta(description="How many jobs may start in a second.")] | UnsetType | None = UNSET
    burst: Annotated[float, Meta(description="How many jobs of the rate may start at once.")] | UnsetType | None = UNSET
    weight: Annotated[float, Meta(description="A group's share of the queue.")] | UnsetType | None = UNSET


WorkerTasks = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=200)]],
    Meta(min_length=1, max_length=1000, description="The tasks that the worker has, the same in all its requests."),
]
RunToken = Annotated[
    str, Meta(max_length=300, description="The `run` of the job, as the fetch returned it.", examples=["1 1795373.5"])
]
Why = Annotated[str, Meta(description="A sentence, such as the error's class and message.")]
ErrorClass = Annotated[str, Meta(description="The class of the error. At most 200 characters are kept.")]
Traceback = Annotated[str, Meta(description="Where it happened. At most 4 KiB are kept.")]


class FetchJobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs for a worker. One fetch of a worker at a time."""

    tasks: WorkerTasks
    slots: Annotated[int, Meta(ge=1, le=100, description="How many jobs it may hold, with those that it has.")] = 1
    holding: Annotated[
        list[Annotated[str, Meta(max_length=200)]],
        Meta(max_length=100, description="The ids of the jobs that it has. Others that it holds are returned again."),
    ] = []
    wait: Annotated[float, Meta(ge=0, le=WAIT_MOST, description="Seconds to wait for a job.")] = 0.0
    sealed: Annotated[
        bool, Meta(description="The worker opens sealed arguments. If not, jobs that have some are dead.")
    ] = False


class KeepRuns(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A heartbeat: the worker lives, and runs these jobs."""

    tasks: WorkerTasks
    runs: Annotated[list[HeldRun], Meta(max_length=100)] = []


class CompleteRun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a run that is done."""

    run: RunToken
    result: Annotated[Raw, Meta(description="Any JSON of at most 1 MiB; default null.")] = field(
        default_factory=lambda: Raw(b"null")  # a plain default would have to stand in the OpenAPI document
    )


class GiveUpRun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a run whose job is not to run again."""

    run: RunToken
    reason: Why
    error: ErrorClass = ""
    traceback: Traceback = ""


class RetryRun(GiveUpRun, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a run that has failed."""

    delay: Annotated[Length, Meta(description="Seconds to the next attempt, else as the job's policy says.")] | None = (
        None
    )


class NewCalendar(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The days of a calendar."""

    days: Annotated[
        list[Annotated[str, Meta(min_length=1, description="A date, or a range: 2026-04-03..2026-04-06.")]],
        Meta(min_length=1),
    ]


class NewWindow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hours of a window."""

    window: Annotated[str, Meta(min_length=1, description="Such as mon-fri 22:00-06:00 Europe/Berlin.")]


class CreateQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the queue may be a new one."""

    create: Annotated[bool, Meta(description="Do it even if the queue has never been used.")] = False


Limit = Annotated[
    int,
    Meta(
        ge=1, description="How many at most; a number above the server's limit, 1,000 by default, counts as that limit."
    ),
]


class ScaleQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far to look ahead."""

    lead: Annotated[
        float, Meta(ge=0, le=86_400, description="Seconds: a job that is due within them counts as due.")
    ] = 0.0


class ListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much to list."""

    limit: Limit = 100


class BatchesQuery(ListQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which batches to list."""

    cursor: Annotated[int, Meta(ge=0, description="That of the page before.")] = 0


class MembersQuery(ListQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs of a batch to list."""

    cursor: Annotated[int, Meta(ge=0, le=10_000_000, description="That of the page before.")] = 0
    outcome: (
        Annotated[
            Literal["open", "done", "dead", "cancelled", "expired", "stopped", "waiting"],
            Meta(description="Only these; `open`: those that have not ended."),
        ]
        | None
    ) = None


class NodesQuery(ListQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which nodes of a graph to list."""

    cursor: Annotated[int, Meta(ge=0, le=10_000_000, description="That of the page before.")] = 0


class JobsQuery(JobFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs to list."""

    limit: Limit = 100
    place: Place | None = None


class AuditQuery(ListQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which acts of operators to list. All conditions must hold."""

    since: Annotated[Moment, Meta(description="Only acts then or later.")] | None = None
    until: Annotated[Moment, Meta(description="Only acts then or earlier.")] | None = None
    who: Annotated[str, Meta(description="Only acts of this operator.")] | None = None
    act: Annotated[str, Meta(description="Only acts of this name, such as `cancel`.")] | None = None
    id: Annotated[str, Meta(description="Only changes of this job or recurrence.")] | None = None


class HistoryQuery(ListQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which ends of jobs to list. All conditions must hold."""

    cursor: Annotated[str, Meta(description="That of the page before.")] | None = None
    id: Annotated[str, Meta(min_length=1, description="Only the job of this id.")] | None = None
    task: OfTask | None = None
    group: OfGroup | None = None
    outcome: Annotated[Literal["done", "dead", "expired", "cancelled"], Meta(description="Only these.")] | None = None
    tag: Annotated[Tag, Meta(description="Only jobs that have this tag.")] | None = None
    error: WithError | None = None
    since: EndedSince | None = None
    until: EndedUntil | None = None


class CountsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which ends of jobs to count. Whole hours are counted."""

    task: OfTask | None = None
    since: Annotated[EndedSince, Meta(description="Default: 7 days ago.")] | None = None
    until: EndedUntil | None = None


class ResultQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to wait for the end of a job."""

    wait: Annotated[float, Meta(ge=0, le=WAIT_MOST, description="Seconds.")] = 0.0
