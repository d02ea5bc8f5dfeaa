"""The commands about one job: enqueue, show, explain, cancel, reschedule, run-now; and the list of jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Final, get_args

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from evsched import keys
from evsched.batches.node import explain_node
from evsched.cli import ledger_rows, output
from evsched.cli.bulk import Bulk, Only, by_filter, change, list_matches, pairs, read, search
from evsched.cli.command_client import client, client_of_job, no_window, not_served, note_if_unknown
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Queue, QueueOfJob, Url, acting, check_limit, parse_due, settings, whole
from evsched.cli.output import Column, Moment
from evsched.client import graph_nodes, past_acts, spread
from evsched.client.client import Client, SyncClient
from evsched.client.edit import Changes, shown_arguments
from evsched.client.explain import Explanation, missing, no_explanation, opening
from evsched.client.explain_job import explain_any, window_of
from evsched.client.new_job import JobOptions, check_job_options, new_job
from evsched.client.option_values import Unique, digest_of, id_of_arguments
from evsched.client.spread import front
from evsched.client.sweep import SEARCHED, Sweep, Waiting, cancelling, rescheduling
from evsched.client.target_tasks import QUEUE, is_target
from evsched.client.time_texts import parse_length
from evsched.config import DEFAULT_QUEUE
from evsched.display import escape, format_duration, nearest
from evsched.errors import JobDead, JobMissing, StoreDown
from evsched.jobs.current_job import Progress
from evsched.jobs.job import OnConflict
from evsched.jobs.record import JobRun, JobStatus, Place, SignalWait, read_member
from evsched.transport.subscription import Subscription

Id = Annotated[str, Parameter(help="The id of the job.")]
OneId = Annotated[str | None, Parameter(help="The id of the job, unless you give a filter.")]
At = Annotated[
    str | None,
    Parameter(name="--at", help="When it is due: 17:00 or 2030-01-31T09:00, in your time zone, or Unix seconds."),
]
In = Annotated[str | None, Parameter(name="--in", help="How long from now it is due: 250ms, 10s, 5m, 1.5h or 7d.")]
Priority = Annotated[
    int | None, Parameter(converter=whole, help="The priority, 0 to 9; higher runs first. Default: 5.")
]
Group = Annotated[str | None, Parameter(help="The group. Groups get equal shares of the queue.")]
Window = Annotated[str | None, Parameter(help="When the job may start: a window, or the name of one.")]
Arg = Annotated[list[str] | None, Parameter(help="A keyword argument, as NAME=JSON. You can repeat it.", negative="")]
Tag = Annotated[
    list[str] | None, Parameter(help="A tag, such as patient:42. You can repeat it, up to five times.", negative="")
]
Redact = Annotated[
    list[str] | None,
    Parameter(help="An argument that nobody is shown, as NAME, or by position: 1. You can repeat it.", negative=""),
]
Timeout = Annotated[
    str | None, Parameter(help="How long a run may take: 30s, 5m, 1.5h. Default: the timeout of the task.")
]
One = Annotated[
    bool,
    Parameter(negative="", help="Only one job of this task and these arguments may wait or run: see --on-conflict."),
]
Within = Annotated[
    str | None, Parameter(help="With --unique: no second job within 30s, 5m or 1.5h, even if the first has ended.")
]


def enqueue(
    task: Annotated[str, Parameter(help="The name of the task.")],
    arguments: Annotated[
        list[str] | None, Parameter(help="The arguments of the task, each as JSON.", negative="")
    ] = None,
    /,
    *,
    arg: Arg = None,
    after: In = None,
    at: At = None,
    queue: Queue = DEFAULT_QUEUE,
    id: Annotated[str | None, Parameter(help="The id of the job. Default: a random id.")] = None,  # noqa: A002
    priority: Priority = None,
    group: Group = None,
    window: Window = None,
    tag: Tag = None,
    redact: Redact = None,
    timeout: Timeout = None,
    on_conflict: Annotated[
        OnConflict | None, Parameter(help="What to do if a job of this id has not ended. Default: refuse.")
    ] = None,
    unique: One = False,
    within: Within = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Schedule a job, and print its id. Without --in or --at, it is due now.

    If no worker serves the queue at present, and no parent stands by to start one, or if the queue has no window of the
    name that you gave, a line on stderr says so; the exit code is 0.

    Example: evsched enqueue send_mail '"ann@example.org"' --arg 'subject="hello"' --in 10m
    """
    due, delay = parse_due(at, after)
    options = JobOptions(
        id=id, due=due, delay=delay, priority=priority, group=group, window=window, tags=tag, redact=redact
    )
    if timeout is not None:
        options["timeout"] = parse_length(timeout)
    args, kwargs = [argument(text) for text in arguments or ()], keyword_arguments(arg or ())
    if within is not None and not unique:
        raise UsageError("--within needs --unique")
    options["unique"] = Unique(within=None if within is None else parse_length(within)) if unique else None
    check_job_options(options)
    job = new_job(task, args, kwargs, options)
    with client(url, changes_queue=id is not None or unique) as redis:  # an id has one home among the shards
        if unique:
            job = replace(job, id=id_of_arguments(task, args, kwargs, digest_of(redis.client.codec)))
        try:
            (when,) = redis.enqueue(queue, [job], on_conflict, options["unique"])
        except StoreDown as error:
            if not error.unsure:
                raise
            look = f"`evsched show {job.id} --queue {queue}` says if it was"
            raise StoreDown(
                f"{error}; the job may have been accepted all the same: {look}", kind=error.kind, node=error.node
            ) from None
        # Before the search for workers: whatever fails from here on, the job has been accepted.
        if json:
            output.as_json({"id": job.id, "queue": queue, "due": when})
        else:
            print(job.id, flush=True)
        if queue == DEFAULT_QUEUE and is_target(task):
            output.note(f"{task}: its workers serve queue {QUEUE} unless they name another: give --queue {QUEUE}")
        for note in (no_window(redis, queue, window), not_served(redis, queue, job.id)):
            if note:
                output.note(note)


def argument(text: str) -> Any:
    """Read an argument of a task, which is JSON.

    Raises:
        UsageError: it is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise UsageError(f"argument {text[:40]}... is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"argument {text!r} is not JSON ({error}): write a string as '\"text\"'") from None


def keyword_arguments(texts: Iterable[str]) -> dict[str, Any]:
    """Read keyword arguments of a task, each as NAME=JSON.

    Raises:
        UsageError: one has no name, is named twice, or is not JSON.
    """
    return {name: argument(value) for name, value in pairs(texts)}


@acting
def cancel(job: OneId = None, /, *, bulk: Bulk = None, queue: QueueOfJob = None, url: Url = None) -> int:
    """Cancel a job: delete it if it waits, or ask its worker to stop it if it is running.

    If a running job was scheduled again, its next run is cancelled too.

    With EVSCHED_LEDGER_URL, a job of the ledger that Redis does not have is cancelled in its row.

    With a filter: delete all waiting jobs that match. Jobs that workers have fetched go on.

    Examples: evsched cancel report-17 --queue mail; evsched cancel --task report --older 2h --dry-run
    """
    matching = by_filter("cancel", job, bulk)
    if matching is not None:
        return change(url, queue or DEFAULT_QUEUE, lambda stores: cancelling(stores, matching), "cancelled", bulk)
    assert job is not None
    named = queue
    try:
        with client_of_job(url, queue, job) as (redis, queue, job):
            done = redis.run(spread.cancel(redis.parts_of(queue, job), job))
    except JobMissing:
        if ledger_rows.cancel(url, named, job):
            return 0
        raise
    if done.place == "processing":
        print(f"{job} is running: its worker was asked to stop it" + ("; its next run is cancelled" * done.next_too))
    else:
        print(f"{job} cancelled, it was in {done.place}")
    return 0


@acting
def reschedule(
    job: OneId = None,
    /,
    *,
    at: At = None,
    after: In = None,
    bulk: Bulk = None,
    queue: QueueOfJob = None,
    url: Url = None,
) -> int:
    """Give a waiting job another due time, or with a filter all waiting jobs that match.

    Examples: evsched reschedule report-17 --in 2h; evsched reschedule --group alice --in 2h --dry-run
    """
    matching = by_filter("reschedule", job, bulk)
    due, delay = parse_due(at, after, to_come=True)
    if due is None and delay is None:
        raise UsageError("reschedule: say when with --at or --in; `evsched run-now` makes it due now")
    if matching is not None:
        plan = partial(rescheduling, matching=matching, due=due, delay=delay)
        return change(url, queue or DEFAULT_QUEUE, plan, "rescheduled", bulk)
    assert job is not None
    with client_of_job(url, queue, job) as (redis, queue, job):
        print(f"{job} is due {output.moment(redis.reschedule(queue, job, due, delay=delay))}")
    return 0


@acting
def edit(
    job: Id,
    arguments: Annotated[
        list[str] | None, Parameter(help="All arguments by position, each as JSON. Default: as they are.", negative="")
    ] = None,
    /,
    *,
    arg: Annotated[
        list[str] | None,
        Parameter(help="A keyword argument, as NAME=JSON; the others stay. You can repeat it.", negative=""),
    ] = None,
    priority: Priority = None,
    group: Annotated[str | None, Parameter(help="The group; an empty text takes the job out of its group.")] = None,
    tag: Annotated[
        list[str] | None,
        Parameter(help="All tags; you can repeat it. An empty text leaves the job without tags.", negative=""),
    ] = None,
    at: At = None,
    after: In = None,
    version: Annotated[
        str | None, Parameter(help="Change it only if it still has this version: see `evsched show`.")
    ] = None,
    queue: QueueOfJob = None,
    url: Url = None,
) -> None:
    """Change a job that waits, or is dead: its arguments, priority, group or tags; if it waits, its due.

    A job that a worker has is never changed, and a dead job stays dead and has no due: revive it afterwards. An
    argument that is given as "[redacted]" keeps its value.

    Example: evsched edit report-17 --arg 'to="ann@example.org"' --priority 7
    """
    changes = Changes()
    changes["due"], changes["delay"] = parse_due(at, after, to_come=True)
    if arguments is not None:
        changes["args"] = [argument(text) for text in arguments]
    if priority is not None:
        changes["priority"] = priority
    if group is not None:
        changes["group"] = group or None
    if tag is not None:
        changes["tags"] = [one for one in tag if one]
    named = keyword_arguments(arg or ())
    if not named and group is None and all(value is None for value in changes.values()):
        raise UsageError("edit: say what to change: arguments, --arg, --priority, --group, --tag, --at or --in")
    with client_of_job(url, queue, job) as (redis, queue, job):
        if named:
            status = redis.status(queue, job)
            known = None if status is None else shown_arguments(status)
            version = version or (status.version if status is not None else None)
            changes["kwargs"] = {**(known[1] if known else {}), **named}
        done = redis.edit(queue, job, version=version, **changes)
        print(f"{job}: {', '.join(done.changed)} changed" if done.changed else f"{job} is like that already")


@acting
def signal(
    job: Id,
    name: Annotated[str, Parameter(help="The name of the signal.")],
    value: Annotated[str | None, Parameter(help="The value, as JSON. Default: null.")] = None,
    /,
    *,
    queue: QueueOfJob = None,
    url: Url = None,
) -> None:
    """Send a signal to a job: if it waits for that, it goes on at once; otherwise the job keeps it.

    A signal that has come to the job before stays as it is.

    Example: evsched signal order-17 approved '{"by": "ann"}'
    """
    given = None if value is None else argument(value)
    with client_of_job(url, queue, job) as (redis, queue, job):
        done = redis.run(graph_nodes.signal(redis.parts_of(queue, job), job, name, given))
    print(_SIGNALED[done].format(job=job, name=name))


_SIGNALED: Final = {
    "due": "{job} waited for the signal {name}, and is due now",
    "kept": "{job} does not wait for the signal {name} yet: it is kept until then",
    "known": "the signal {name} had come to {job} before: nothing was changed",
}


@acting
def run_now(job: Id, /, *, queue: QueueOfJob = None, url: Url = None) -> None:
    """Make a waiting job due now.

    Example: evsched run-now report-17
    """
    with client_of_job(url, queue, job) as (redis, queue, job):
        print(f"{job} is due {output.moment(redis.reschedule(queue, job))}")


def jobs(
    *,
    place: Annotated[Place | None, Parameter(help="List only the jobs in this place.")] = None,
    only: Only = None,
    limit: Annotated[int, Parameter(converter=whole, help="How many jobs of each place to list at most.")] = 50,
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> int:
    """List the waiting and the dead jobs of a queue, the next to run first; with a filter, only matching jobs.

    With a filter, running jobs are searched too. --place finished searches the kept records of jobs that have ended,
    among all keys of the Redis.

    Example: evsched jobs --queue mail --place schedule --task report
    """
    check_limit(limit)
    matching = read(only)
    fronts = [one for one in get_args(Waiting) if place in (None, one)]
    places = (place,) if place else SEARCHED
    with client(url) as redis:
        stores = redis.answering(queue)
        if matching.is_empty and fronts:
            there = redis.run(spread.queue_stats(stores)).places
            rows = [row for name in fronts for row in redis.run(front(stores, name, limit))]
        else:
            found = search(redis, Sweep(stores, matching, places))
            there = Counter(job.place for job in found)
            rows = [row for name in places for row in [job for job in found if job.place == name][:limit]]
        declared, unknown = (
            redis.run(past_acts.redactions(stores, [job.id for job in rows])),
            note_if_unknown(redis, queue, rows),
        )
    for name, listed in Counter(job.place for job in rows).items():
        if there[name] > listed:
            output.note(f"{listed} of {there[name]} jobs in {name}: --limit {there[name]} lists them all")
    list_matches(rows, json, f"no jobs in queue {queue}" + ("" if matching.is_empty else " match"), declared)
    return unknown


_SLICES = 20
"""How many thousand ids are searched for one that resembles a missing one."""

_PATIENCE = 7 * 86400.0
"""The most seconds for which a job is followed."""


def show(
    job: Id,
    /,
    *,
    follow: Annotated[bool, Parameter(negative="", help="Show the progress of the job until it has ended.")] = False,
    queue: QueueOfJob = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show a job: where it is, when it ran, its arguments, result and last error.

    With EVSCHED_LEDGER_URL, a job of the ledger that Redis does not have is shown as its row says.

    Example: evsched show report-17 --follow
    """
    named = queue
    with client_of_job(url, queue, job, reads=True) as (redis, queue, job):
        status, opens = redis.status(queue, job), None
        if status is not None and follow:
            asyncio.run(_follow(settings(url).url, status.queue, job))
            status = redis.status(queue, job)
        if status is None:
            if (row := ledger_rows.find(url, named, job)) is None:
                node = redis.run(explain_node(redis.store(queue), job))
                raise JobMissing(missing(job, named) if node is None else f"{job} has no job yet: {node.sentence}")
            of_row = ledger_rows.fields(row)
            if json:
                output.as_json(of_row)
            else:
                output.fields((name, Moment(at) if isinstance(at, float) else at) for name, at in of_row.items())
            return
        if status.window is not None:
            opens = opening(status, redis.run(window_of(redis.shards, status)), redis.now(status.queue))
    if json:
        output.as_json(status)
        return
    whole = redis.shards.whole(queue)
    fields: dict[str, Any] = {
        name: value
        for name, value in msgspec.to_builtins(status).items()
        if value not in (None, "") and value is not False
    }
    fields["tags"] = " ".join(status.tags)
    if not status.tags:
        del fields["tags"]
    if whole != status.queue:
        fields = {"id": job, "queue": whole, "shard": status.queue} | {**fields, "queue": whole}
    traceback, runs = fields.pop("traceback", ""), fields.pop("runs", [])
    if opens is not None:
        fields["can_start"] = opens
    if (member := read_member(status.batch)) is not None:
        fields["batch"] = member.words
    for name in ("due", "can_start", "created", "expires", "started", "finished", "again", "unknown_since"):
        if name in fields:
            fields[name] = Moment(fields[name], whole=name == "created")
    for name in ("steps", "signals"):
        fields[name] = ", ".join(fields[name])
        if not fields[name]:
            del fields[name]
    if status.waiting is not None:
        fields["waiting"] = _waiting(status.waiting)
    for name in ("payload", "progress"):
        if name in fields:
            fields[name] = msgspec.json.encode(fields[name]).decode()
    if status.outcome == "done":  # 0, false, "" and null are results too
        fields["result"] = msgspec.json.encode(status.result).decode()
    output.fields(fields.items())
    if runs:
        print()
        output.table(_RUNS, map(_run, status.runs), "")
        attempts = [run.attempt for run in status.runs]
        if left_out := sum(max(0, after - before - 1) for before, after in pairwise(attempts)):
            print(f"the runs of {left_out} attempts in between are left out")
    if traceback:
        print("\n" + "\n".join(escape(line) for line in traceback.splitlines()))


def _waiting(waiting: SignalWait) -> str:
    since = "" if waiting.since is None else f" since {output.moment(waiting.since)}"
    until = "without an end" if waiting.until is None else f"at most until {output.moment(waiting.until)}"
    return f"for the signal {waiting.signal}{since}, {until}"


_RUNS: Final = (
    Column("attempt"),
    Column("run", 1),
    Column("outcome"),
    Column("took", 2),
    Column("worker", 4),
    Column("why", 3, prose=True),
)


def _run(run: JobRun) -> tuple[object, ...]:
    took = "" if run.started is None else format_duration(max(0.0, run.ended - run.started))
    return run.attempt, Moment(run.started), run.outcome, took, run.worker, run.reason


def explain(job: Id, /, *, queue: QueueOfJob = None, json: Json = False, url: Url = None) -> None:
    """Explain why a job has not run yet, with the facts behind the answer. Exit code 1: there is no such job.

    With EVSCHED_LEDGER_URL, it explains a job of the ledger that Redis does not have by its row.

    Given the name of a recurrence, it explains the next step of the recurrence, or why it makes no jobs.

    Example: evsched explain report-17
    """
    named = queue
    with client_of_job(url, queue, job, reads=True) as (redis, queue, job):
        found = redis.run(explain_any(redis.shards, redis.parts_of(queue, job), queue, job))
        if found is None and (row := ledger_rows.find(url, named, job)) is not None:
            found = ledger_rows.explain(row)
        found = found or redis.run(explain_node(redis.store(queue), job))
        if found is None:
            sentence = no_explanation(job, named, _similar(redis, queue, job))
            if json:
                output.as_json(Explanation(sentence, {}))
            raise JobMissing(sentence)
    if json:
        output.as_json(found)
        return
    output.sentence(f"{job}: {found.sentence}")
    output.fields(found.facts.items())


def _similar(redis: SyncClient, queue: str, job: str) -> list[str]:
    """Return ids in Redis that resemble one that no job has."""
    found, stores = list[str](), [redis.store(name) for name in redis.shards.all_of(queue)]
    for store in stores:
        cursor = 0
        for _ in range(max(1, _SLICES // len(stores))):
            cursor, ids = redis.send(store.ids(cursor))
            found += [one for one in ids if one != job]  # its record may still exist, without a place
            if cursor == 0:
                break
    return nearest(job, found, most=3)


async def _follow(url: str, queue: str, job: str) -> None:
    """Show a job's progress until it has ended. Nothing is polled: Redis publishes its progress and its end."""
    subscription, redis = Subscription(url), Client(url)
    try:
        await _show(subscription, redis, queue, job)
    finally:
        await subscription.close()
        await redis.close()


async def _show(subscription: Subscription, redis: Client, queue: str, job: str) -> None:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    await subscription.open([], [keys.progress(queue, job)])
    status = await redis.status(queue, job)
    if status is None:
        raise JobMissing(missing(job, queue))
    bars = Bars(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with bars:
        bar = bars.add_task(escape(job), total=None)

        def draw(message: Any) -> None:
            known = msgspec.convert(message, Progress)
            bars.update(bar, completed=known.done, total=known.total, description=escape(f"{job} {known.note}"))

        async def receive() -> None:
            async for _, message in subscription.messages():
                draw(msgspec.json.decode(message))

        if status.progress is not None:
            draw(status.progress)
        receiving = asyncio.ensure_future(receive())
        try:
            await _wait_for_end(redis, queue, job, status)
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)


async def _wait_for_end(redis: Client, queue: str, job: str, status: JobStatus) -> None:
    if status.place in ("finished", "dead"):
        return
    try:
        await redis.result(queue, job, _PATIENCE)
    except JobDead:
        pass  # the record says so
