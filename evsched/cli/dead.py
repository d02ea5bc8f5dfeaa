"""The commands about dead jobs: list, revive, drop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from types import ModuleType
from typing import Annotated, Any, TypeVar

from cyclopts import App, Parameter

import evsched
from evsched.cli import output
from evsched.cli.bulk import Bulk, BulkFlags, by_filter, change
from evsched.cli.options import Ids, Json, Queue, QueueOfJob, Url, check_limit, settings, whole
from evsched.cli.table import Column, Moment, table
from evsched.cli.unknown_queues import client_of, client_of_job, note_if_unknown
from evsched.client.sweep import dropping, reviving
from evsched.client.sync_client import SyncClient
from evsched.config import DEFAULT_QUEUE
from evsched.errors import CannotStart, StoreRefused
from evsched.store.store import Store

app = App(
    name="dead",
    help="List, revive or drop dead jobs: jobs that failed and will not be tried again.",
    version=evsched.__version__,
)

_Change = Callable[[SyncClient, str, Sequence[str]], int]

T = TypeVar("T")

All = Annotated[bool, Parameter(name="--all", negative="", help="All dead jobs of the queue.")]


@app.default
@app.command(name="list")
def list_dead(
    *,
    limit: Annotated[int, Parameter(converter=whole, help="How many jobs to list at most.")] = 50,
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> int:
    """List dead jobs with the reasons, the newest first.

    Example: evsched dead --queue mail --limit 100
    """
    check_limit(limit)
    front, there = list[tuple[Store, str, float]](), 0
    with client_of(url, queue) as redis:
        for store in redis.stores(queue):
            front += [(store, job, died) for job, died in redis.send(store.front("dead", limit, last=True))]
            there += redis.send(store.dead())
        front = sorted(front, key=lambda entry: -entry[2])[:limit]
        rows = [(job, died, *_read(redis, store, job)) for store, job, died in front]
        unknown = note_if_unknown(redis, queue, there)
    if lost := _ask_ledger(url, lambda revival, database, redis: revival.count_lost_dead(database, redis, queue), 0):
        count = "1,000 or more" if lost >= 1000 else lost
        output.note(
            f"{count} more are dead in the ledger, and Redis does not have them: evsched dead revive ID, or --all"
        )
    if there > len(front):
        output.note(f"{len(front)} of {there} dead jobs, the newest first: --limit {there} lists them all")
    if json:
        output.as_json(
            [
                {
                    "id": job,
                    "died": died,
                    "task": task,
                    "reason": reason,
                }
                for job, died, task, reason in rows
            ]
        )
        return unknown
    shown = [(job, Moment(died), task, reason) for job, died, task, reason in rows]
    columns = (Column("job"), Column("died", 3), Column("task", 2), Column("reason", 1, prose=True))
    table(columns, shown, f"no dead jobs in queue {queue}")
    return unknown


def _read(redis: SyncClient, store: Store, job: str) -> tuple[str | None, str | None]:
    """Return a dead job's task and reason. Each is read by itself: a bad record does not hide the others."""
    try:
        status = redis.send(store.look(job))
    except StoreRefused as error:
        return None, f"its record cannot be read: {error}"
    return (status.task, status.reason or "its record has no reason that can be read") if status else (None, None)


def _ask_ledger(url: str | None, ask: Callable[[ModuleType, str, str], Coroutine[Any, Any, T]], default: T) -> T:
    """Return what the ledger says of dead jobs that Redis lacks; `default` without a ledger, or if it is away."""
    config = settings(url)
    if config.ledger_url is None:
        return default
    try:
        from evsched.ledger import revival

        return asyncio.run(ask(revival, config.ledger_url, config.url))
    except ImportError:
        reason = "pip install 'evsched[ledger]'"
    except CannotStart as error:
        reason = str(error)
    output.note(f"the ledger was not asked for dead jobs that Redis does not have: {reason}")
    return default


def _revive_lost(url: str | None, queue: str | None, ids: Sequence[str] | None) -> list[str]:
    revived = _ask_ledger(
        url, lambda revival, database, redis: revival.revive_lost_dead(database, redis, queue, ids), list[str]()
    )
    if revived:
        print(f"{len(revived)} revived by the ledger, because Redis does not have them: a relay schedules them")
    return revived


def _count_lost(url: str | None, queue: str, bulk: BulkFlags) -> int:
    count = _ask_ledger(
        url, lambda revival, database, redis: revival.count_lost_dead(database, redis, queue, math.inf), 0
    )
    if count:
        say = output.note if bulk.json else print
        say(f"{count} would be revived by the ledger, because Redis does not have them")
    return count


@app.command
def revive(
    ids: Ids = None,
    /,
    *,
    all_: All = False,
    bulk: Bulk = None,
    queue: QueueOfJob = None,
    url: Url = None,
) -> int:
    """Schedule dead jobs again, due now: by id, by a filter, or all. Their attempts are counted from 1 again.

    With EVSCHED_LEDGER_URL, an id or --all also revives dead jobs of the ledger that Redis does not have.

    Examples: evsched dead revive --all --queue mail; evsched dead revive --reason ConnectionError --dry-run
    """
    matching = by_filter("dead revive", ids, bulk, all_)
    if matching is not None:
        queue = queue or DEFAULT_QUEUE
        code = change(url, queue, lambda store: reviving(store, matching), "revived", bulk)
        if code >= 128 or not all_:
            return code
        found = _count_lost(url, queue, bulk) if bulk and bulk.dry_run else _revive_lost(url, queue, None)
        return 0 if found else code
    lost = set(_revive_lost(url, queue, ids))
    left = [one for one in ids or () if one not in lost]
    return _each(url, queue, left, SyncClient.revive, "revived") if left else 0


@app.command
def drop(
    ids: Ids = None,
    /,
    *,
    all_: All = False,
    bulk: Bulk = None,
    queue: QueueOfJob = None,
    url: Url = None,
) -> int:
    """Delete dead jobs: by id, by a filter, or all.

    Examples: evsched dead drop report-17; evsched dead drop --task report --older 7d --dry-run
    """
    matching = by_filter("dead drop", ids, bulk, all_)
    if matching is not None:
        return change(url, queue or DEFAULT_QUEUE, lambda store: dropping(store, matching), "dropped", bulk)
    return _each(url, queue, ids or (), SyncClient.drop, "dropped")


def _each(url: str | None, queue: str | None, ids: Sequence[str], change: _Change, done: str) -> int:
    """Handle the jobs that are named, all of the queue of the first, and print how many; return the exit code."""
    with client_of_job(url, queue, ids[0]) as (redis, queue):
        count = change(redis, queue, ids)
    print(f"{count} {done}")
    return 0
