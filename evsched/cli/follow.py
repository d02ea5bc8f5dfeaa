"""The commands that look at one job: show it, follow it to its end, explain why it has not run yet."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from msgspec import structs

from evsched import keys
from evsched.cli import output, table
from evsched.cli.jobs import Id
from evsched.cli.options import Json, QueueOfJob, Url, settings
from evsched.cli.table import Moment
from evsched.cli.unknown_queues import client_of_job
from evsched.client import spread
from evsched.client.client import Client
from evsched.client.kept_recurrences import find_standing, read_record
from evsched.client.sync_client import SyncClient
from evsched.diagnostics.audit import PLACES
from evsched.diagnostics.explain import Explanation, is_waiting, missing, named_window, opening
from evsched.diagnostics.explain import explain as explain_job
from evsched.diagnostics.explain_recurrence import explain_recurrence
from evsched.errors import JobDead, JobMissing, StoreRefused
from evsched.jobs.current_job import Progress
from evsched.jobs.job import JobStatus
from evsched.recurrence.windows import WINDOW_NAME
from evsched.store import server
from evsched.store.clients import Facts
from evsched.store.store import Store
from evsched.telemetry.printable import escape
from evsched.top.collector import Top
from evsched.transport.subscription import Subscription
from evsched.worker.demand import FetchPause

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

    Example: evsched show report-17 --follow
    """
    named = queue
    with client_of_job(url, queue, job) as (redis, queue):
        status, opens = redis.status(queue, job), None
        if status is not None and follow:
            asyncio.run(_follow(settings(url).url, status.queue, job))
            status = redis.status(queue, job)
        if status is None:
            raise JobMissing(missing(job, named))
        if status.window is not None:
            opens = opening(status, _window(redis, status), redis.now(status.queue))
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


def explain(job: Id, /, *, queue: QueueOfJob = None, json: Json = False, url: Url = None) -> None:
    """Explain why a job has not run yet, with the facts behind the answer. Exit code 1: there is no such job.

    Given the name of a recurrence, it explains what the recurrence does next, or why it makes no jobs.

    Example: evsched explain report-17
    """
    named = queue
    with client_of_job(url, queue, job) as (redis, queue):
        store, facts = _find(redis, queue, job)
        if facts.status is None:
            if (found := _recurrence(redis, store, job)) is not None:
                _print(job, found, json)
                return
            answer = explain_job(job, named, facts, _similar(redis, queue, job))
            if json:
                output.as_json(answer)
            raise JobMissing(answer.sentence)
        window = _window(redis, facts.status)
        types = None
        if is_waiting(facts.status, facts.now):
            types = {name: redis.send(server.kind(keys.root(queue) + name)) for name in PLACES}
        dispatchers = None
        if facts.holder is not None:
            with contextlib.suppress(StoreRefused):  # this user may not ask
                dispatchers = redis.send(server.dispatchers(store.queue))
    pauses = list[FetchPause | None]()
    if facts.status.place == "ready" and facts.counts.get("workers"):
        pauses = asyncio.run(_pauses(settings(url).url, store.queue))
    whole = redis.shards.whole(store.queue)
    answer = explain_job(job, whole, facts, (), window, types, dispatchers, pauses)
    _print(job, _note_stray(redis, queue, store.queue, answer), json)


def _window(redis: SyncClient, status: JobStatus) -> str | None:
    """Return the present definition of the window that a job names; None if it names none, or none of that name is."""
    name = named_window(status)
    with contextlib.suppress(StoreRefused):  # the reason in the record says that the window cannot be read
        return redis.send(Store(redis.shards.whole(status.queue)).window(name)) if name else None
    return None


def _find(redis: SyncClient, queue: str, job: str) -> tuple[Store, Facts]:
    """Return the queue, or the shard, that has a job, and the facts about it; the queue itself if none has it."""
    parts = redis.parts_of(queue, job)
    home, *others = parts.stores
    facts = redis.send(home.explain(job))
    if facts.status is not None:
        return home, facts
    for store in others:
        found = redis.send(store.explain(job))
        if found.status is not None:
            return store, found
    for store in redis.run(spread.unknown_parts(parts)):
        found = redis.send(store.explain(job))
        if found.status is not None:
            return store, found
    return Store(queue), facts


def _note_stray(redis: SyncClient, queue: str, shard: str, found: Explanation) -> Explanation:
    """Add that a job is in a shard beyond the number of shards, if it is."""
    if not redis.shards.beyond(queue, [shard]):
        return found
    count = redis.shards.counts[queue]
    why = f"; queue {queue} has {count} shards, and {shard} is none of them: evsched queues shard {queue} {count}"
    return structs.replace(found, sentence=found.sentence + why)


def _print(name: str, answer: Explanation, json: bool) -> None:
    if json:
        output.as_json(answer)
    else:
        table.sentence(f"{name}: {answer.sentence}")
        table.fields(answer.facts.items())


def _recurrence(redis: SyncClient, store: Store, name: str) -> Explanation | None:
    """Explain the recurrence of a name; None if there is none. Of an occurrence that is no job, explain its recurrence.

    Raises:
        JobMissing: it is an occurrence's id.
    """
    at = redis.send(store.next_planned(name))
    owner = name if at is not None else name.rpartition("@")[0]
    if at is None:
        at = redis.send(store.next_planned(owner)) if owner else None
    if at is None:
        return None
    fields, requests, dispatchers = redis.run(read_record(store, owner)), 0, None
    with contextlib.suppress(StoreRefused):  # the key is of another type
        requests = redis.send(store.requests(owner))
    with contextlib.suppress(StoreRefused):  # this user may not ask
        dispatchers = redis.send(server.dispatchers(store.queue))
    standing = redis.run(find_standing(store, at, fields))
    name_of_window, window = fields.get("window", b"").decode(errors="backslashreplace"), None
    if WINDOW_NAME.fullmatch(name_of_window):
        with contextlib.suppress(StoreRefused):
            window = redis.send(store.window(name_of_window))
    now = redis.now(store.queue)
    found = explain_recurrence(owner, store.queue, standing, fields, requests, now, dispatchers, window)
    if owner != name:
        raise JobMissing(f"{missing(name, store.queue)}; recurrence {owner}: {found.sentence}")
    return found


async def _pauses(url: str, queue: str) -> list[FetchPause | None]:
    """Ask the workers of a queue why they fetch nothing from it; nothing if this user may not ask."""
    top = Top(url, [queue])
    try:
        return [status.not_fetching for status in (await top.look()).statuses]
    except StoreRefused:
        return []
    finally:
        await top.close()


def _similar(redis: SyncClient, queue: str, job: str) -> list[str]:
    """Return ids in Redis that resemble one that no job has."""
    found, stores = list[str](), redis.stores(queue)
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
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    subscription, redis = Subscription(url), Client(url)
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
            await subscription.close()
            await redis.close()


async def _wait_for_end(redis: Client, queue: str, job: str, status: JobStatus) -> None:
    if status.place in ("finished", "dead"):
        return
    try:
        await redis.result(queue, job, _PATIENCE)
    except JobDead:
        pass  # the record says so
