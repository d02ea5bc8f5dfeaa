"""The commands that list queues and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from cyclopts import App, Parameter

import evsched
from evsched.cli import output
from evsched.cli.options import Json, Queues, Url, check_queues, client, shards_unread
from evsched.cli.queue_shards import plan, shard
from evsched.cli.table import Column, Moment, table
from evsched.cli.unknown_queues import note_unknown
from evsched.client import new_shards, spread
from evsched.client.client import SyncClient
from evsched.client.operations import Operation, find_queues_once
from evsched.display import format_duration
from evsched.errors import StoreDown, StoreRefused
from evsched.runtime.new_id import release_of
from evsched.store.gate_limits import Limits, merged
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.servers import nodes_down, reason, topology

T = TypeVar("T")

app = App(name="queues", version=evsched.__version__)
app.command(shard)
app.command(plan)

_PLACES = ("schedule", "backlog", "ready", "processing", "dead")

_QUEUE_COLUMNS = (
    Column("queue"),
    Column("schedule", 3),
    Column("backlog", 6),
    Column("ready", 4),
    Column("processing", 7),
    Column("dead", 5),
    Column("workers", 8),
    Column("next due", 1),
    Column("paused since", 2),
    Column("limits", 9),
    Column("paused until", 10),
    Column("why", 11),
)

_FIELDS = (
    *_PLACES,
    "workers",
    "parents",
    "next_due",
    "paused",
    "paused_until",
    "paused_why",
    "limits",
    "changed_by_hand",
    "error",
)


Named = Annotated[list[str] | None, Parameter(help="The queues. Default: all queues.", negative="")]


class Reading(NamedTuple, Generic[T]):
    """What was read of a queue and its shards."""

    queue: str
    found: T | None
    """None = nothing could be read."""
    error: str | None = None
    """What could not be read, and why."""

    @property
    def problem(self) -> str | None:
        """The sentence about what could not be read."""
        return self.error and f"queue {self.queue}{' cannot be read' if self.found is None else ''}: {self.error}"


def each(
    redis: SyncClient, named: list[str] | None, read: Callable[[Sequence[Store]], T]
) -> tuple[list[Reading[T]], list[Host]]:
    """Read each queue with its shards by itself: what cannot be read does not hide the rest.

    Also return the primaries of a cluster that do not answer: they may have queues that are not listed.
    """
    down = set[Host]()
    if named:
        return [_read(redis, name, read, down) for name in named], []
    if topology(redis.url) is None:
        return [_read(redis, name, read, down) for name in redis.run(spread.listed(redis.shards, redis.store))], []
    known = find_queues_once(redis.url)
    down.update(known.down)
    names = {*redis.run(spread.shown(redis.shards, redis.store, known.names)), *redis.shards.wholes(known.lost)}
    return [_read(redis, name, read, down) for name in sorted(names)], sorted(down)


def _read(redis: SyncClient, queue: str, read: Callable[[Sequence[Store]], T], down: set[Host]) -> Reading[T]:
    """Read a queue, and those of its shards whose primaries answer. `down`: as in `spread.answering`."""

    def reading(stores: Sequence[Store]) -> Operation[T]:
        yield from ()
        return read(stores)

    try:
        found, lost = redis.run(spread.answering(redis.stores(queue), reading, down))
    except StoreRefused as error:
        return Reading(queue, None, str(error))
    except StoreDown as error:
        if error.node is None:
            raise
        return Reading(queue, None, reason(error))
    if not lost:
        return Reading(queue, found)
    return Reading(queue, found, shards_unread(lost))


def read_limits(redis: SyncClient, stores: Sequence[Store]) -> list[Limits]:
    """Read the limits of a queue and its shards, with those that apps declare."""
    return [redis.run(new_shards.read_limits(store)) for store in stores]


@app.default
@app.command(name="list")
def queues(names: Named = None, /, *, queue: Queues = None, json: Json = False, url: Url = None) -> int:
    """Count the jobs of each queue by place. Exit code 1: a queue cannot be read or does not exist.

    schedule: not due yet. backlog: due, waiting for its turn or for a limit. ready: a worker may fetch it now.
    processing: a worker has it. dead: failed, and will not be tried again. limits: how many it has; `evsched limits`
    lists them. workers: how many run. A parent of `evsched worker --processes 0:8` that runs none stands by: it starts
    one when a job waits.

    Examples: evsched queues; evsched queues mail
    """
    queue = [*(names or ()), *(queue or ())]
    check_queues(queue)
    rows = list[dict[str, Any]]()
    with client(url) as redis:
        read, down = each(
            redis, queue, lambda stores: (redis.run(spread.queue_stats(stores)), read_limits(redis, stores))
        )
        for one in read:
            row: dict[str, Any] = {"queue": one.queue, **dict.fromkeys(_FIELDS), "error": one.error}
            if one.found is not None:
                queue_stats, parts = one.found
                limits = merged(parts)
                row |= {**queue_stats.places, "workers": queue_stats.workers, "parents": queue_stats.parents}
                row |= {"next_due": queue_stats.next_due, "paused": queue_stats.paused}
                row |= {"paused_until": queue_stats.paused_until, "paused_why": queue_stats.paused_why}
                fields = {field for part in parts for field, value in part.fields().items() if value is not None}
                row["limits"] = len(fields)  # also those that only some shards have
                row["changed_by_hand"] = sum(limits.overruled(field) is not None for field in limits.declared)
            rows.append(row)
        unknown = note_unknown(redis, queue)
    if json:
        output.as_json(rows)
    else:
        shown = [
            [
                row["queue"],
                *("?" if row[name] is None else row[name] for name in _PLACES),
                "?" if row["workers"] is None else _count_workers(row["workers"], row["parents"]),
                *(Moment(row[name]) for name in ("next_due", "paused")),
                _count_limits(row["limits"] or 0, row["changed_by_hand"] or 0),
                Moment(row["paused_until"]),
                row["paused_why"],
            ]
            for row in rows
        ]
        table(_QUEUE_COLUMNS, shown, "no queues: nothing has been scheduled yet")
    return report((one.problem for one in read), down) or unknown


def _count_workers(workers: int, parents: int) -> str:
    """Return the cell of the column workers, such as "0, 1 stands by"."""
    return f"{workers}" + (f", {parents} stand{'s' if parents == 1 else ''} by" if parents else "")


def _count_limits(limits: int, changed: int) -> str:
    """Return the cell of the column limits, such as "2, 1 changed by hand"."""
    return f"{limits or ''}" + (f"{', ' if limits else ''}{changed} changed by hand" if changed else "")


def workers(*, queue: Queues = None, json: Json = False, url: Url = None) -> int:
    """List the workers: how many jobs each holds, and when it will count as dead unless it sends a heartbeat.

    A parent that stands by has no worker process, and starts one when a job waits (`evsched worker --processes 0:8`).

    Exit code 1: a queue cannot be read or does not exist.

    Example: evsched workers --queue mail
    """
    rows = list[dict[str, Any]]()
    with client(url) as redis:
        read, down = each(redis, queue, lambda stores: _serving(redis, stores))
        for one in read:
            rows += [
                {"worker": worker, "queue": one.queue, "release": release_of(worker), **values}
                for worker, values in one.found or ()
            ]
        unknown = note_unknown(redis, queue or ())
    if json:
        output.as_json(rows)
    else:
        shown = [
            (
                row["worker"],
                row["queue"],
                row["release"] or "",
                "stands by" if row["stands_by"] else row["held"],
                format_duration(row["lease_left"]),
            )
            for row in rows
        ]
        names = ("worker", "queue", "release", "holds", "lease left")
        table(list(map(Column, names, (0, 1, 4, 2, 3))), shown, "no workers")
    return report((one.problem for one in read), down) or unknown


def _serving(redis: SyncClient, stores: Sequence[Store]) -> list[tuple[str, dict[str, Any]]]:
    """Return the workers of a queue and the parents that stand by, with the values of their rows.

    A worker has a lease on each shard: it holds the jobs of all, and the lease that ends first is shown.
    """
    found = dict[tuple[bool, str], dict[str, Any]]()
    for store in stores:
        rows = [(lease.worker, lease.held, lease.left, False) for lease in redis.send(store.survey()).leases]
        now = redis.now(store.queue)
        rows += [(parent, 0, ends - now, True) for parent, ends in redis.send(store.parents()) if ends > now]
        for name, held, left, stands_by in rows:
            row = found.setdefault((stands_by, name), {"held": 0, "lease_left": left, "stands_by": stands_by})
            row["held"] += held
            row["lease_left"] = min(left, row["lease_left"])
    return [(name, row) for (_, name), row in sorted(found.items(), key=lambda item: item[0][0])]


def report(problems: Iterable[str | None], down: Sequence[Host]) -> int:
    """Print which queues cannot be read, and which primaries do not answer; return the exit code."""
    lines = [line for line in problems if line]
    if down:
        lines.append(f"{nodes_down(down)}: other queues there may be missing from the list")
    for line in lines:
        output.note(line)
    return int(bool(lines))
