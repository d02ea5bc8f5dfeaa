"""The commands about dead jobs: list, revive, drop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

import evsched
from evsched.cli import ledger_rows, output
from evsched.cli.bulk import Bulk, BulkFlags, Only, by_filter, change, read, search
from evsched.cli.command_client import client_of, client_of_job, id_now, note_if_unknown
from evsched.cli.options import Ids, Json, Queue, QueueOfJob, Url, acting, check_limit, whole
from evsched.cli.output import Column, Moment, listing
from evsched.client.client import SyncClient
from evsched.client.sweep import Sweep, dropping, reviving
from evsched.config import DEFAULT_QUEUE
from evsched.errors import StoreRefused
from evsched.store.store import Store

if TYPE_CHECKING:
    from evsched.ledger.row_audit import Change


app = App(
    name="dead",
    help="List, revive or drop dead jobs: jobs that failed and will not be tried again.",
    version=evsched.__version__,
)

_DONE: Final[dict[Change, str]] = {"revive": "revived", "drop": "dropped"}
"""The state of the jobs then."""

All = Annotated[bool, Parameter(name="--all", negative="", help="All dead jobs of the queue.")]


@app.default
@app.command(name="list")
def list_dead(
    *,
    only: Only = None,
    limit: Annotated[int, Parameter(converter=whole, help="How many jobs to list at most.")] = 50,
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> int:
    """List dead jobs with the reasons, the newest first; with a filter, only matching jobs.

    Example: evsched dead --queue mail --limit 100
    """
    check_limit(limit)
    matching = read(only)
    front, there = list[tuple[Store, str, float]](), 0
    with client_of(url, queue) as redis:
        for store in redis.answering(queue):
            if matching.is_empty:
                front += [(store, job, died) for job, died in redis.send(store.front("dead", limit, last=True))]
                there += redis.send(store.dead())
            else:
                found = search(redis, Sweep([store], matching, ("dead",)))
                front += [(store, job.id, job.at or 0.0) for job in found]
                there += len(found)
        front = sorted(front, key=lambda entry: -entry[2])[:limit]
        rows = [_row_of(redis, *entry) for entry in front]
        unknown = note_if_unknown(redis, queue, there)
    if matching.is_empty and (lost := ledger_rows.ask(url, 0, "count_lost_dead", queue)):
        count = "1,000 or more" if lost >= 1000 else lost
        output.note(
            f"{count} more are dead in the ledger, and Redis does not have them: evsched dead revive ID, or --all"
        )
    if there > len(front):
        output.note(f"{len(front)} of {there} dead jobs, the newest first: --limit {there} lists them all")
    shown = ((row["id"], Moment(row["died"]), row["task"], row["reason"]) for row in rows)
    columns = (Column("job"), Column("died", 3), Column("task", 2), Column("reason", 1, prose=True))
    listing(json, rows, columns, shown, f"no dead jobs in queue {queue}" + ("" if matching.is_empty else " match"))
    return unknown


def _row_of(redis: SyncClient, store: Store, job: str, died: float) -> dict[str, Any]:
    """Return the row of a dead job. Each is read by itself: a bad record does not hide the others."""
    task: str | None = None
    reason: str | None = None
    tags: tuple[str, ...] = ()
    try:
        if (status := redis.send(store.look(job))) is not None:
            task, tags, reason = status.task, status.tags, status.reason or "its record has no reason that can be read"
    except StoreRefused as error:
        reason = f"its record cannot be read: {error}"
    return {"id": job, "died": died, "task": task, "reason": reason, "tags": tags}


@app.command
@acting
def revive(
    ids: Ids = None, /, *, all_: All = False, bulk: Bulk = None, queue: QueueOfJob = None, url: Url = None
) -> int:
    """Schedule dead jobs again, due now: by id, by a filter, or all. Their attempts are counted from 1 again.

    With EVSCHED_LEDGER_URL, an id or --all also revives dead jobs of the ledger that Redis does not have.

    Examples: evsched dead revive --all --queue mail; evsched dead revive --reason ConnectionError --dry-run
    """
    return _change("revive", ids or (), all_, bulk, queue, url)


@app.command
@acting
def drop(ids: Ids = None, /, *, all_: All = False, bulk: Bulk = None, queue: QueueOfJob = None, url: Url = None) -> int:
    """Delete dead jobs: by id, by a filter, or all.

    With EVSCHED_LEDGER_URL, an id or --all also drops dead jobs of the ledger that Redis does not have.

    Examples: evsched dead drop report-17; evsched dead drop --task report --older 7d --dry-run
    """
    return _change("drop", ids or (), all_, bulk, queue, url)


def _change(
    what: Change, ids: Sequence[str], every: bool, bulk: BulkFlags | None, queue: str | None, url: str | None
) -> int:
    """Change dead jobs by id, by a filter, or all, and print how many; return the exit code."""
    matching = by_filter(f"dead {what}", ids, bulk, every)
    if matching is not None:
        queue, sweep = queue or DEFAULT_QUEUE, reviving if what == "revive" else dropping
        code = change(url, queue, lambda stores: sweep(stores, matching), _DONE[what], bulk)
        found = every and code < 128 and _change_all_lost(url, queue, what, bulk)
        return 0 if found else code
    lost = set(_change_lost(url, queue, what, ids))
    left = [one for one in ids if one not in lost]
    if left:
        with client_of_job(url, queue, left[0]) as (redis, queue, first):  # all are of the queue of the first
            left = [first, *(id_now(redis, queue, one) for one in left[1:])]
            count = (redis.revive if what == "revive" else redis.drop)(queue, left)
        print(f"{count} {_DONE[what]}")
    return 0


def _change_all_lost(url: str | None, queue: str, what: Change, bulk: BulkFlags | None) -> int:
    """Change all dead jobs of a queue that Redis does not have, or with --dry-run, count them; return how many."""
    if not bulk or not bulk.dry_run:
        return len(_change_lost(url, queue, what, None))
    count = ledger_rows.ask(url, 0, "count_lost_dead", queue, math.inf)
    if count:
        say = output.note if bulk.json else print
        say(f"{count} would be {_DONE[what]} by the ledger, because Redis does not have them")
    return count


def _change_lost(url: str | None, queue: str | None, what: Change, ids: Sequence[str] | None) -> list[str]:
    changed = ledger_rows.ask(url, list[str](), "change_lost_dead", what, queue, ids)
    if changed:
        then = ": a relay schedules them" if what == "revive" else ""
        print(f"{len(changed)} {_DONE[what]} by the ledger, because Redis does not have them{then}")
    return changed
