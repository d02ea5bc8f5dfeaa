"""The commands about jobs that have ended: the history, and its counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final, TypeVar

from cyclopts import App, Parameter

import evsched
from evsched.cli import ledger_rows
from evsched.cli.command_client import client, note_unknown
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Queues, Url, check_limit, check_queues, whole
from evsched.cli.output import Column, Moment, listing
from evsched.cli.queue_commands import Reading, each, report
from evsched.client import history as job_history
from evsched.client.history import HistoryFilter, TaskCounts
from evsched.client.operations import Operation
from evsched.client.option_values import Past
from evsched.client.time_texts import parse_past
from evsched.display import format_duration
from evsched.errors import ConfigError
from evsched.store.history_calls import PastJob
from evsched.store.store import Store
from evsched.transport.address import Host

T = TypeVar("T")

app = App(name="history", version=evsched.__version__)

_ENDS: Final = (
    Column("ended"),
    Column("queue", 3),
    Column("id"),
    Column("task", 1),
    Column("outcome"),
    Column("late", 4),
    Column("took", 2),
    Column("attempt", 5),
    Column("group", 6),
    Column("tags", 7),
    Column("worker", 9),
    Column("by", 10),
    Column("error", 8, prose=True),
)

_COUNTS: Final = (
    Column("queue"),
    Column("task"),
    Column("ended"),
    Column("done", 1),
    Column("dead", 1),
    Column("expired", 2),
    Column("cancelled", 2),
    Column("late p50", 3),
    Column("late p99", 3),
    Column("run p50", 4),
    Column("run p99", 4),
)

Task = Annotated[str | None, Parameter(help="Only jobs of this task.")]
Since = Annotated[
    str | None,
    Parameter(
        help="Only jobs that ended then or later: 2h for two hours ago, 14:00 for the latest 14:00, 2030-01-31T09:00, "
        "or Unix seconds."
    ),
]
Until = Annotated[str | None, Parameter(help="Only jobs that ended then or earlier; a time as of --since.")]


def _past(text: str | None) -> Past | None:
    return None if text is None else parse_past(text)


@app.default
@app.command(name="list")
def history(
    *,
    id: Annotated[str | None, Parameter(help="Only the job of this id.")] = None,  # noqa: A002
    task: Task = None,
    group: Annotated[str | None, Parameter(help="Only jobs of this group.")] = None,
    outcome: Annotated[str | None, Parameter(help="done, dead, expired or cancelled.")] = None,
    tag: Annotated[
        list[str] | None,
        Parameter(negative="", help="Only jobs that have this tag; repeat the flag for jobs that have all of several."),
    ] = None,
    error: Annotated[
        str | None,
        Parameter(help="Only jobs whose handler raised this class last: Timeout, or requests.exceptions.Timeout."),
    ] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, Parameter(converter=whole, help="How many jobs to list at most.")] = 50,
    queue: Queues = None,
    json: Json = False,
    url: Url = None,
) -> int:
    """List the jobs that have ended, the newest first.

    A queue keeps about its last 10,000 ends, until a day after the last one, unless `evsched limit Q --history` or the
    code says otherwise. If EVSCHED_LEDGER_URL is set and `evsched ledger history` runs, older ends are found in the
    ledger too. A job that was revived has ended more than once. late, took: until a worker got the job, and from then
    on.

    Examples: evsched history --outcome dead --since 2h; evsched history --id report-17
    """
    check_limit(limit)
    check_queues(queue)
    first, last = _past(since), _past(until)
    try:
        matching = HistoryFilter(
            id=id,
            task=task,
            group=group,
            outcome=outcome,
            tag=tuple(tag or ()),
            error=error,
            since=first,
            until=last,
        )
    except ConfigError as wrong:
        raise UsageError(f"--{wrong}") from None

    def search(stores: Sequence[Store], ledger: Any) -> Operation[list[PastJob]]:
        return (yield from job_history.search(stores, matching, limit, ledger=ledger)).jobs

    read, down, unknown = _each(url, queue, search)
    found = sorted((job for one in read for job in one.found or ()), key=lambda job: -job.ended)[:limit]
    listing(
        json, found, _ENDS, map(_row, found), "no job has ended that matches, or the history does not reach back to it"
    )
    return report((one.problem for one in read), down) or unknown


def _each(
    url: str | None, queues: list[str] | None, read: Callable[[Sequence[Store], Any], Operation[list[T]]]
) -> tuple[list[Reading[list[T]]], list[Host], int]:
    """Read the history of each queue, from the ledger too; also return the exit code for queues that nobody knows."""

    def work(ledger: Any) -> tuple[list[Reading[list[T]]], list[Host], int]:
        with client(url) as redis:
            more = ledger_rows.queues_written(ledger)
            found, down = each(redis, queues, lambda stores: read(stores, ledger), past=True, more=more)
            empty = [one.queue for one in found if queues and not one.found and one.queue not in more]
            return found, down, note_unknown(redis, empty)

    return ledger_rows.search(url, work)


def _row(job: PastJob) -> tuple[object, ...]:
    late = took = ""
    if job.due is not None and job.started is not None:
        late, took = (
            format_duration(max(0.0, job.started - job.due)),
            format_duration(max(0.0, job.ended - job.started)),
        )
    names = job.id, job.task, job.outcome
    more = job.group, " ".join(job.tags), job.worker, job.by, f"{job.error} {job.location}".strip()
    return Moment(job.ended), job.queue, *names, late, took, job.attempt, *more


@app.command
def counts(
    *,
    task: Task = None,
    since: Since = None,
    until: Until = None,
    queue: Queues = None,
    json: Json = False,
    url: Url = None,
) -> int:
    """Count the jobs that ended, by task and outcome; how late they started, and how long they ran. Default: 7 days.

    Both lengths count from the moment when a worker got the job. Whole hours are counted: --since 5m counts the whole
    hour of that moment. They are kept for 8 days, or longer in the ledger. p50 and p99: half of the jobs, and 99 %,
    were at most as late, or took at most as long. Both are kept by powers of two, so each may be up to twice the true
    value.

    Example: evsched history counts --task remind --since 7d
    """
    check_queues(queue)
    start, end = _past(since) or timedelta(days=7), _past(until)
    read, down, unknown = _each(url, queue, lambda stores, ledger: job_history.counts(stores, start, end, task, ledger))
    found = [row for one in read for row in one.found or ()]
    listing(json, found, _COUNTS, map(_counts, found), "no job has ended in this time")
    return report((one.problem for one in read), down) or unknown


def _counts(row: TaskCounts) -> tuple[object, ...]:
    lengths = row.late_p50, row.late_p99, row.run_p50, row.run_p99
    shown = ("" if length is None else format_duration(length) for length in lengths)
    return row.queue, row.task, row.ended, row.done, row.dead, row.expired, row.cancelled, *shown
