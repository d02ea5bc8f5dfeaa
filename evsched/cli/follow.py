"""The commands that look at one job: show it, follow it to its end, explain why it has not run yet."""

from __future__ import annotations

import asyncio
import difflib
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from evsched import keys
from evsched.cli import ledger_rows, output, table
from evsched.cli.jobs import Id
from evsched.cli.options import Json, QueueOfJob, Url, settings
from evsched.cli.table import Moment
from evsched.cli.unknown_queues import client_of_job
from evsched.client.client import Client, SyncClient
from evsched.client.explain import Explanation, missing, no_explanation, opening
from evsched.client.explain_job import explain_any, window_of
from evsched.display import escape
from evsched.errors import JobDead, JobMissing
from evsched.jobs.current_job import Progress
from evsched.jobs.record import JobStatus
from evsched.transport.subscription import Subscription

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
    with client_of_job(url, queue, job, reads=True) as (redis, queue):
        status, opens = redis.status(queue, job), None
        if status is not None and follow:
            asyncio.run(_follow(settings(url).url, status.queue, job))
            status = redis.status(queue, job)
        if status is None:
            if (row := ledger_rows.find(url, named, job)) is None:
                raise JobMissing(missing(job, named))
            _show_row(ledger_rows.fields(row), json)
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
    if whole != status.queue:
        fields = {"id": job, "queue": whole, "shard": status.queue} | {**fields, "queue": whole}
    traceback = fields.pop("traceback", "")
    if opens is not None:
        fields["can_start"] = opens
    for name in ("due", "can_start", "created", "expires", "started", "finished", "unknown_since"):
        if name in fields:
            fields[name] = Moment(fields[name], whole=name == "created")
    for name in ("payload", "progress"):
        if name in fields:
            fields[name] = msgspec.json.encode(fields[name]).decode()
    if status.outcome == "done":  # 0, false, "" and null are results too
        fields["result"] = msgspec.json.encode(status.result).decode()
    table.fields(fields.items())
    if traceback:
        print("\n" + "\n".join(escape(line) for line in traceback.splitlines()))


def _show_row(fields: dict[str, Any], json: bool) -> None:
    """Show a job of the ledger that Redis does not have."""
    if json:
        output.as_json(fields)
        return
    table.fields((name, Moment(value) if isinstance(value, float) else value) for name, value in fields.items())


def explain(job: Id, /, *, queue: QueueOfJob = None, json: Json = False, url: Url = None) -> None:
    """Explain why a job has not run yet, with the facts behind the answer. Exit code 1: there is no such job.

    With EVSCHED_LEDGER_URL, it explains a job of the ledger that Redis does not have by its row.

    Given the name of a recurrence, it explains what the recurrence does next, or why it makes no jobs.

    Example: evsched explain report-17
    """
    named = queue
    with client_of_job(url, queue, job, reads=True) as (redis, queue):
        found = redis.run(explain_any(redis.shards, redis.parts_of(queue, job), queue, job))
        if found is None and (row := ledger_rows.find(url, named, job)) is not None:
            found = ledger_rows.explain(row)
        if found is None:
            sentence = no_explanation(job, named, _similar(redis, queue, job))
            if json:
                output.as_json(Explanation(sentence, {}))
            raise JobMissing(sentence)
    if json:
        output.as_json(found)
        return
    table.sentence(f"{job}: {found.sentence}")
    table.fields(found.facts.items())


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
    return difflib.get_close_matches(job, found, n=3)


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
