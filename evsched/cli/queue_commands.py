"""The commands that list queues and workers, and those about the shards of queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

from cyclopts import App, Parameter
from msgspec import structs

import evsched
from evsched.cli import output
from evsched.cli.command_client import CommandClient, client, missing, note_unknown, shards_unread
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Queues, Url, acting, check_queues, whole
from evsched.cli.output import Column, Moment, listing, table
from evsched.client import new_shards, operations, reshard, spread
from evsched.client.client import SyncClient
from evsched.client.new_shards import Gates
from evsched.client.operations import Operation, node_of, once
from evsched.client.queue_names import find_queues, find_queues_once
from evsched.client.reshard import CALM, Reshard, stray_shards
from evsched.errors import ConfigError, EvschedError, StoreDown, StoreError, StoreRefused
from evsched.keys import check_queue
from evsched.shards import Shards, check_count
from evsched.store import server
from evsched.store.gate_limits import Limits, merged, read_declared, read_limits
from evsched.store.many_queues import read_hashes, read_queue_stats
from evsched.store.operator_calls import QueueStats
from evsched.store.operator_calls import merged as merged_stats
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.call import Call, Word, raw
from evsched.transport.links import finish
from evsched.transport.servers import nodes_down, reason, topology

_STAY: Final = {
    "soon": f"are due within {CALM:g} s: they run where they are",
    "recurrence": "are runs of recurrences, which live in the queue itself",
    "ledger": "are jobs of the ledger, which live in the queue itself",
    "taken": "stay because the shard that is their home has another job of their id",
    "other": "stay because they also run, wait or are dead under the same id, or cannot run as they are",
}


@acting
def shard(
    queue: Annotated[str, Parameter(help="The queue.")],
    count: Annotated[int, Parameter(converter=whole, help="How many shards it is to have; 0 = none.")],
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative="", help="Count the jobs that would move, change nothing.")] = False,
    announce: Annotated[
        bool,
        Parameter(negative="", help="Only write the number, for workers whose code declares none: then restart them."),
    ] = False,
    url: Url = None,
) -> int:
    """Change the number of shards of a queue, and move the jobs on its schedules to where they belong then.

    The queue goes on meanwhile; no job is lost, and none runs twice. Repeat the command after an interruption.

    First deploy the workers and then the programs with the new number, `App(shards=12)`. Jobs that have left the
    schedule are not moved, nor jobs that are due within a minute.

    Exit code 1: workers run that do not know of the new shards, or shards that are to go still hold jobs.

    Example: evsched queues shard mail 12
    """
    check_count(check_queue(queue), count)
    with client(url, changes_queue=True) as redis:
        counts = redis.send(server.shards())
        if (whole := Shards(counts).whole(queue)) != queue:
            raise UsageError(f"{queue} is a shard of queue {whole}: name that queue")
        was = counts.get(queue, 0)
        if unknown := missing(redis, queue):
            raise EvschedError(unknown)
        strays = _strays(redis, queue, max(was, count))
        if not dry_run:
            redis.run(new_shards.settle(queue, was))
            gates = _gates(redis, queue, was, count)
            if not announce and not _is_worked(redis, queue, count):
                return 1
            if count > was:
                redis.run(new_shards.open_new(gates))
                redis.send(server.set_shards(queue, count))
                redis.run(new_shards.divide_again(gates))
                redis.run(new_shards.settle(queue, count))
            if announce:
                print(
                    f"queue {queue} has {max(count, was)} shards now: restart the workers, and then repeat the command"
                )
                return 0
            if not _is_dispatched(redis, queue, count):
                return 1
        work = Reshard(queue, count, was, strays, only_count=dry_run, make=redis.client.acting())
        return _move(redis, work, was, strays)


_PLACEMENT: Final = (Column("queue"), Column("node"), Column("shards", 1), Column("which", 2))


def plan(
    names: Annotated[list[str] | None, Parameter(help="The queues. Default: all with shards.", negative="")] = None,
    /,
    *,
    json: Json = False,
    url: Url = None,
) -> int:
    """Show on which nodes of a cluster the shards of queues lie, and print commands that even them out.

    A slot is the hash of a shard's name, so shards lie by chance, and the busiest node limits a queue. Each move is of
    one slot. Run its commands before those of the next one: they change the cluster, and this command changes nothing.
    While Valkey 9 moves a slot, its queues go on. On other servers they pause until the keys have moved.

    Exit code 1: there is no cluster, or a queue has no shards.

    Example: evsched queues plan mail
    """
    with client(url) as redis:
        found = redis.run(reshard.read_nodes())
        queues = names or sorted(queue for queue, count in redis.shards.counts.items() if count)
        if unsharded := [queue for queue in queues if not redis.shards.counts.get(queue)]:
            raise EvschedError(f"{output.some(unsharded)}: no shards; evsched queues shard Q N gives a queue shards")
        if not found:
            raise EvschedError("this Redis is not a cluster, so all shards are on one server")
        places = {queue: reshard.placed(found, redis.shards, queue) for queue in queues}
        moves = [move for queue in queues for move in reshard.moves(found, queue, places[queue])]
    if json:
        output.as_json({"queues": places, "moves": moves})
        return 0
    rows = [(queue, at, len(parts), " ".join(parts)) for queue in queues for at, parts in places[queue].items()]
    table(_PLACEMENT, rows, "no queue has shards")
    for move in moves:
        print(f"\nmove slot {move.slot}, {move.shard}, from {move.source} to {move.to}:")
        print("\n".join(f"  {command}" for command in move.commands))
    if queues and not moves:
        print("the shards lie evenly")
    return 0


def _strays(redis: SyncClient, queue: str, count: int) -> list[str]:
    """Return the shards that a queue has beyond this number; none if it never had any, or this user may not look."""
    if queue not in redis.shards.counts:
        return []
    try:
        return redis.run(stray_shards(Shards({queue: count}), queue))
    except StoreRefused as error:
        output.note(f"shards of queue {queue} beyond {count} are not looked for: {error}")
        return []


def _gates(redis: SyncClient, queue: str, was: int, count: int) -> Gates:
    """Return the queue's pause and limits, as they are to hold for its shards.

    Raises:
        EvschedError: a limit is too small to be divided.
    """
    try:
        return redis.run(new_shards.plan(queue, was, count))
    except ConfigError as error:
        raise EvschedError(str(error)) from None


def _is_worked(redis: SyncClient, queue: str, count: int) -> bool:
    """Return whether each worker serves all shards; print what to do if not."""
    if lacking := redis.run(reshard.lacking(queue, count)):
        workers = [f"{one.worker} lacks {output.some(one.shards)}" for one in lacking]
        output.note(
            f"not every worker of queue {queue} serves {count} shards: {output.some(workers)}. Deploy the workers with "
            f"App(shards={count}) first, or see --announce; and then repeat the command. Nothing was changed"
        )
        return False
    return True


def _is_dispatched(redis: SyncClient, queue: str, count: int) -> bool:
    """Return whether each dispatcher serves all shards; print what to do if not."""
    try:
        unknown = redis.run(reshard.undispatched(queue, count))
    except StoreRefused:  # a right is missing: `pubsub|numsub`
        unknown = []
    if unknown:
        output.note(
            f"queue {queue} has {count} shards now, but dispatchers that name the queue do not serve "
            f"{output.some(unknown)} yet. Repeat the command in half a minute, when they have learned of the shards. "
            "No job was moved"
        )
        return False
    return True


def _move(redis: CommandClient, work: Reshard, was: int, strays: Sequence[str]) -> int:
    """Move the jobs, and retire shards; return the exit code."""
    stopped_by = redis.work_off(work, "jobs examined", None if work.only_count else lambda: f"{work.moved} moved")
    if work.only_count:
        print(f"{work.moved} of {work.total} jobs on the schedules are not in their homes, and would move if they can")
        return 128 + stopped_by if stopped_by else 0
    print(f"{work.moved} moved" + (", then stopped: the same command does the rest" if stopped_by else ""))
    for why, number in sorted(work.stay.items()):
        print(f"{number} {_STAY[why]}")
    if stopped_by:
        return 128 + stopped_by
    return _retire(redis, work.queue, work.count, was, strays)


def _retire(redis: SyncClient, queue: str, count: int, was: int, strays: Sequence[str]) -> int:
    """Retire the shards that the queue is not to have any more; return the exit code."""
    held = redis.run(reshard.retire(queue, count, was, strays))
    has = redis.send(server.shards()).get(queue, 0)
    if has < was:
        redis.run(new_shards.divide_again(_gates(redis, queue, was, has)))
    gone = {*Shards({queue: has}).beyond(queue, Shards({queue: was}).all_of(queue)), *strays}
    for name in gone - {one.shard for one in held}:
        redis.run(new_shards.hold(Store(name), Limits()))
    restart = ": restart the workers, so that they serve no others" if has < was else ""
    print(f"queue {queue} has {f'{has} shards' if has else 'no shards'} now{restart}")
    for one in held:
        print(f"{one.shard} still holds jobs: {', '.join(f'{n} in {place}' for place, n in one.places.items())}")
        if one.shard in strays and not one.served:
            print(f"no worker serves {one.shard}: start one: evsched worker MODULE:APP --queue {one.shard}")
    if held:
        print("repeat the command when these jobs have run, or when you have revived or dropped the dead ones")
    return 1 if held else 0


T = TypeVar("T")
Read = Callable[[Sequence[Store]], Operation[T]]
"""Reads a queue, from the stores of its shards and itself."""

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

_STATS = ("workers", "parents", "next_due", "paused", "paused_until", "paused_why")
"""Fields of QueueStats."""

_FIELDS = (*_PLACES, *_STATS, "limits", "changed_by_hand", "error")

Named = Annotated[list[str] | None, Parameter(help="The queues. Default: all queues.", negative="")]


class Reading(NamedTuple, Generic[T]):
    """The state of a queue and its shards, as far as it could be read."""

    queue: str
    found: T | None
    """None = nothing could be read."""
    error: str | None = None
    """The parts that could not be read, and why."""

    @property
    def problem(self) -> str | None:
        return self.error and f"queue {self.queue}{' cannot be read' if self.found is None else ''}: {self.error}"


def each(
    redis: SyncClient,
    named: list[str] | None,
    read: Read[T],
    *,
    past: bool = False,
    more: Iterable[str] = (),
    begin: Callable[[list[str]], None] = lambda _: None,
) -> tuple[list[Reading[T]], list[Host]]:
    """Read each queue with its shards by itself: an error in one does not hide the others.

    Also return the primaries of a cluster that do not answer: they may have queues that are not listed. Without names,
    `past`: also read the queues, and shards beyond their number, that have nothing but a history or an audit trail.
    `more`: read these too, even if Redis has nothing of them. `begin`: called with all names before they are read.
    """
    down = set[Host]()
    if named:
        begin(named)
        return [_read(redis, name, read, down) for name in dict.fromkeys(named)], []
    if topology(redis.url) is None:
        names, lost = redis.run(find_queues(past=past)), list[str]()
    else:
        names, lost, nodes = find_queues_once(redis.url, past=past)
        down.update(nodes)
    shown = redis.shards.wholes(names) if past else redis.run(spread.shown(redis.shards, redis.store, names))
    known = {*shown, *redis.shards.wholes([*lost, *more])}
    begin(shown)
    return [_read(redis, name, read, down) for name in sorted(known)], sorted(down)


def _read(redis: SyncClient, queue: str, read: Read[T], down: set[Host]) -> Reading[T]:
    """Read a queue, and those of its shards whose primaries answer. `down`: as in `spread.answering`."""
    try:
        found, lost = redis.run(spread.answering(redis.stores(queue), read, down))
    except StoreRefused as error:
        return Reading(queue, None, str(error))
    except StoreDown as error:
        if error.node is None:
            raise
        return Reading(queue, None, reason(error))
    return Reading(queue, found, shards_unread(lost) if lost else None)


class _ManyReader:
    """Sends the calls that read many queues. A node that does not answer is asked once."""

    def __init__(self, redis: SyncClient) -> None:
        self._client = redis.client

    async def send(self, call: Call[T], /) -> T:
        return await self._client.run(once(operations.send(call)))

    async def find_node(self, key: Word, /) -> Host | None:
        return await self._client.run(node_of(key))


class KnownLimits:
    """Reads the limits of queues, with the limits that apps declare: those of all with a few calls."""

    def __init__(self, redis: SyncClient) -> None:
        self._redis = redis
        self._read = dict[tuple[str, str], list[bytes]]()

    def begin(self, queues: Sequence[str]) -> None:
        names = [store.queue for queue in queues for store in self._redis.stores(queue)]
        reader, rows = _ManyReader(self._redis), [(name, key) for name in names for key in _LIMITS]
        with suppress(StoreError):  # the calls of each queue say why
            self._read = finish(read_hashes(reader.send, reader.find_node, rows, raw))

    def read(self, stores: Sequence[Store]) -> Operation[list[Limits]]:
        """Return the limits of a queue and its shards."""
        found = list[Limits]()
        for store in stores:
            limits, declared = (self._read.get((store.queue, key)) for key in _LIMITS)
            if limits is None or declared is None:
                found.append((yield from new_shards.read_limits(store)))
            else:
                found.append(structs.replace(read_limits(limits), declared=read_declared(declared)))
        return found


_LIMITS: Final = "limits", "declared_limits"
"""Keys of a queue."""


class _Figures:
    """Reads the figures of queues: the places and limits of all with a few calls."""

    def __init__(self, redis: SyncClient) -> None:
        self._redis = redis
        self._limits = KnownLimits(redis)
        self._stats = dict[str, QueueStats | StoreError]()

    def begin(self, queues: list[str]) -> None:
        names = [store.queue for queue in queues for store in self._redis.stores(queue)]
        reader = _ManyReader(self._redis)
        self._stats = finish(read_queue_stats(reader.send, reader.find_node, names))
        self._limits.begin(queues)

    def read(self, stores: Sequence[Store]) -> Operation[tuple[QueueStats, list[Limits]]]:
        """Return the figures of a queue and its shards, and their limits."""
        known = [self._stats.get(store.queue) for store in stores]
        stats = [one for one in known if isinstance(one, QueueStats)]
        if len(stats) < len(stores):  # the call of each says why it cannot be read
            return (yield from spread.queue_stats(stores)), (yield from self._limits.read(stores))
        return merged_stats(stats), (yield from self._limits.read(stores))


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
        figures = _Figures(redis)
        read, down = each(redis, queue, figures.read, begin=figures.begin)
        for one in read:
            row: dict[str, Any] = {"queue": one.queue, **dict.fromkeys(_FIELDS), "error": one.error}
            if one.found is not None:
                queue_stats, parts = one.found
                limits = merged(parts)
                row |= queue_stats.places | {name: getattr(queue_stats, name) for name in _STATS}
                fields = {field for part in parts for field, value in part.fields().items() if value is not None}
                row["limits"] = len(fields)  # also limits of only some shards
                row["changed_by_hand"] = sum(limits.overruled(field) is not None for field in limits.declared)
            rows.append(row)
        unknown = note_unknown(redis, queue)
    shown = (
        (
            row["queue"],
            *("?" if row[name] is None else row[name] for name in _PLACES),
            "?" if row["workers"] is None else _count_workers(row["workers"], row["parents"]),
            *(Moment(row[name]) for name in ("next_due", "paused")),
            _count_limits(row["limits"] or 0, row["changed_by_hand"] or 0),
            Moment(row["paused_until"]),
            row["paused_why"],
        )
        for row in rows
    )
    listing(json, rows, _QUEUE_COLUMNS, shown, "no queues: nothing has been scheduled yet")
    return report((one.problem for one in read), down) or unknown


def _count_workers(workers: int, parents: int) -> str:
    """Return the cell of the column workers, such as "0, 1 stands by"."""
    return f"{workers}" + (f", {parents} stand{'s' if parents == 1 else ''} by" if parents else "")


def _count_limits(limits: int, changed: int) -> str:
    """Return the cell of the column limits, such as "2, 1 changed by hand"."""
    return f"{limits or ''}" + (f"{', ' if limits else ''}{changed} changed by hand" if changed else "")


def report(problems: Iterable[str | None], down: Sequence[Host]) -> int:
    """Print which queues cannot be read, and which primaries do not answer; return the exit code."""
    lines = [line for line in problems if line]
    if down:
        lines.append(f"{nodes_down(down)}: other queues there may be missing from the list")
    for line in lines:
        output.note(line)
    return int(bool(lines))
