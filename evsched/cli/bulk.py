"""Commands on many jobs, by a filter: its flags, and how far the change is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from evsched.cli import output
from evsched.cli.command_client import CommandClient, client_of, note_if_unknown
from evsched.cli.commands import UsageError
from evsched.cli.output import Column, Moment, listing
from evsched.client import past_acts
from evsched.client.client import SyncClient
from evsched.client.reshard import finish_moves
from evsched.client.sweep import SEARCHED, Filter, Sweep
from evsched.client.time_texts import parse_length, parse_past
from evsched.errors import ConfigError
from evsched.jobs.redaction import Redactions, redacted_member
from evsched.store.operator_calls import Match
from evsched.store.store import Store

_EXAMPLES: Final = 10
"""Jobs that --dry-run shows besides their number."""

_FILTERS: Final = "--task, --group, --reason, --error, --tag, --arg, --older, --since, --until"


@dataclass(frozen=True)
class FilterFlags:
    """The flags of a filter. All that are given must hold."""

    task: Annotated[str | None, Parameter(help="Only jobs of this task.")] = None
    group: Annotated[str | None, Parameter(help="Only jobs of this group.")] = None
    reason: Annotated[str | None, Parameter(help="Only jobs whose reason contains this text, in any case.")] = None
    error: Annotated[
        str | None,
        Parameter(help="Only jobs whose handler raised this class last: Timeout, or requests.exceptions.Timeout."),
    ] = None
    tag: Annotated[
        list[str] | None, Parameter(help="Only jobs that have this tag. You can repeat it.", negative="")
    ] = None
    arg: Annotated[
        list[str] | None,
        Parameter(
            help="Only jobs with this argument, as NAME=JSON, or 1=JSON for the first one by position. You can repeat "
            "it. What is not JSON is a string.",
            negative="",
        ),
    ] = None
    older: Annotated[
        str | None, Parameter(help="Only jobs that were created, or that died, longer ago than 30s, 5m, 1.5h or 7d.")
    ] = None
    since: Annotated[
        str | None,
        Parameter(
            help="Only jobs that were created, or that died, then or later: 2h for two hours ago, 14:00 for the latest "
            "14:00, 2030-01-31T09:00, or Unix seconds."
        ),
    ] = None
    until: Annotated[
        str | None,
        Parameter(help="Only jobs that were created, or that died, then or earlier; a time as of --since."),
    ] = None


@dataclass(frozen=True)
class BulkFlags(FilterFlags):
    """The flags of a command that changes one job, or all that match a filter."""

    dry_run: Annotated[
        bool, Parameter(negative="", help="With a filter: count the jobs and list some, change nothing.")
    ] = False
    json: Annotated[bool, Parameter(name="--json", negative="", help="With --dry-run: print all the jobs as JSON.")] = (
        False
    )


Only = Annotated[FilterFlags | None, Parameter(name="*")]
Bulk = Annotated[BulkFlags | None, Parameter(name="*")]


def read(flags: FilterFlags | None) -> Filter:
    """Return the filter; an empty one if no flag is given.

    Raises:
        UsageError
    """
    given = flags or FilterFlags()
    older = None if given.older is None else parse_length(given.older)
    since, until = (None if text is None else parse_past(text) for text in (given.since, given.until))
    names = {"task": given.task, "group": given.group, "reason": given.reason, "error": given.error}
    arguments = {name: _value(text) for name, text in pairs(given.arg or ())}
    try:
        return Filter(**names, tags=given.tag or (), arguments=arguments, older=older, since=since, until=until)
    except ConfigError as error:
        raise UsageError(f"--{str(error).replace('arguments: ', 'arg ', 1)}") from None


def pairs(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Split the values of --arg into names and values.

    Raises:
        UsageError: one has no name, or is named twice.
    """
    found = dict[str, str]()
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--arg {text!r}: write NAME=JSON, such as subject='\"hello\"'")
        if name in found:
            raise UsageError(f"--arg {name} is given twice: give it once")
        found[name] = value
    return list(found.items())


def _value(text: str) -> Any:
    """Return the value of an argument: JSON, else the text itself."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def by_filter(command: str, named: object, bulk: BulkFlags | None, every: bool | None = None) -> Filter | None:
    """Return the filter that a command was given; None if the jobs were `named` instead.

    `every`: whether it was given --all; None = it has no such flag.

    Raises:
        UsageError: it was given none of these, or several.
    """
    matching, bulk = read(bulk), bulk or BulkFlags()
    also = "" if every is None else "; or --all"
    if sum(map(bool, (named, not matching.is_empty, every))) > 1:
        raise UsageError(f"{command}: name jobs, or give a filter{', or --all' if also else ''}: one of them")
    if not named and not every and matching.is_empty:
        raise UsageError(f"{command}: say which jobs: an id, or a filter: {_FILTERS}{also}")
    if bulk.dry_run and named:
        raise UsageError(f"--dry-run needs a filter: {_FILTERS}{also}")
    if bulk.json and not bulk.dry_run:
        raise UsageError("--json needs --dry-run")
    if every:
        return Filter(older=0.0)  # only jobs that are dead by now: so it ends
    return None if named else matching


def change(
    url: str | None, queue: str, plan: Callable[[Sequence[Store]], Sweep], done: str, bulk: BulkFlags | None
) -> int:
    """Change all jobs that match, and print how many; or with --dry-run, list them. `done`: the state of the jobs then.

    Return the exit code: 1 if nothing matched because there is no such queue.
    """
    with client_of(url, queue, changes_queue=True) as redis:
        stores = redis.stores(queue)
        sweep = plan(stores)
        if bulk is not None and bulk.dry_run:
            found = search(redis, sweep.without_change())
            if not bulk.json:
                print(f"{len(found)} would be {done}" + (", among them:" if len(found) > _EXAMPLES else ""))
            if found or bulk.json:
                shown = found if bulk.json else found[:_EXAMPLES]
                list_matches(shown, bulk.json, "", redis.run(past_acts.redactions(stores, [job.id for job in shown])))
            return note_if_unknown(redis, queue, found)
        _finish_moves(redis, stores)
        stopped_by = redis.work_off(sweep, f"jobs examined, to be {done}", lambda: f"{sweep.changed} {done}")
        swept = sweep.swept
        code = note_if_unknown(redis, queue, swept.matched)
        moved = _finish_moves(redis, stores)
    print(f"{swept.changed} {done}" + (", then stopped: the same command does the rest" if stopped_by else ""))
    if swept.left:
        them = "it had" if swept.left == 1 else "they had"
        print(f"{swept.left} left as found: {them} started, ended or changed before it was their turn")
    if swept.unknown:
        print(f"{swept.unknown} more may be {done}: Redis was down, and its answer was lost")
    if moved:
        output.note(f"{moved} jobs were on their way between shards, and may have been missed: repeat the command")
        code = 1
    return 128 + stopped_by if stopped_by else code


def _finish_moves(redis: SyncClient, stores: Sequence[Store]) -> int:
    """Have the jobs arrive that are on their way between these shards: no sweep sees them. Return how many were."""
    return redis.run(finish_moves(stores)) if len(stores) > 1 else 0


def search(redis: CommandClient, sweep: Sweep) -> list[Match]:
    """Find all jobs that match, the next to run and the latest to die first."""
    if number := redis.work_off(sweep, "jobs examined, to be found"):
        output.note(f"stopped after {sweep.examined} of {sweep.total} jobs")
        raise SystemExit(128 + number)
    order = {place: rank for rank, place in enumerate((*SEARCHED, "finished"))}
    return sorted(sweep.found, key=lambda job: (order[job.place], job.at or 0.0, job.id))


_COLUMNS: Final = (
    Column("place", 1),
    Column("job"),
    Column("due / died", 2),
    Column("task", 3),
    Column("created", 4),
    Column("by", 5),
    Column("tags", 6),
)


def list_matches(jobs: Sequence[Match], json: bool, empty: str, declared: Redactions) -> None:
    """Print jobs as JSON or as a table; the sentence `empty` without any. `declared`: what workers redact."""
    jobs = [replace(job, id=redacted_member(job.id, declared)) for job in jobs]
    rows = (
        (job.place, job.id, Moment(job.at), job.task, Moment(job.created, whole=True), job.by, " ".join(job.tags))
        for job in jobs
    )
    listing(json, jobs, _COLUMNS, rows, empty)
