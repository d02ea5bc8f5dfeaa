"""The commands about the shards of queues: how many there are, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from cyclopts import Parameter

from evsched.cli import output
from evsched.cli.interruption import asked_to_end
from evsched.cli.options import Json, Url, client, whole
from evsched.cli.progress_bar import progress_bar
from evsched.cli.table import Column, table
from evsched.cli.unknown_queues import missing
from evsched.cli.usage import UsageError
from evsched.client import new_shards, placement, reshard, retired_shards
from evsched.client.client import SyncClient
from evsched.client.new_shards import Gates
from evsched.client.reshard import CALM, Lacking, Reshard
from evsched.client.retired_shards import Held
from evsched.client.stray_shards import stray_shards
from evsched.errors import ConfigError, EvschedError, StoreDown, StoreRefused
from evsched.keys import check_queue
from evsched.shards import Shards, check_count
from evsched.store import server
from evsched.store.store import Store

_STAY: Final = {
    "soon": f"are due within {CALM:g} s: they run where they are",
    "recurrence": "are runs of recurrences, which live in the queue itself",
    "ledger": "are jobs of the ledger, which live in the queue itself",
    "taken": "stay because the shard that is their home has another job of their id",
    "other": "stay because they also run, wait or are dead under the same id, or cannot run as they are",
}


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
    schedule are not moved, nor those that are due within a minute.

    Exit code 1: workers run that do not know of the new shards, or shards that are to go still hold jobs.

    Example: evsched queues shard mail 12
    """
    try:
        check_count(check_queue(queue), count)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    with client(url, changes_queue=True) as redis:
        counts = redis.send(server.shards())
        if (whole := Shards(counts).whole(queue)) != queue:
            raise UsageError(f"{queue} is a shard of queue {whole}: name that queue")
        was = counts.get(queue, 0)
        if unknown := missing(redis, queue):
            raise EvschedError(unknown)
        strays = _strays(redis, queue, max(was, count))
        if not dry_run:
            redis.run(new_shards.settle(Store, queue, was))
            gates = _gates(redis, queue, was, count)
            if not announce and not _is_worked(redis, queue, count):
                return 1
            if count > was:
                redis.run(new_shards.open_new(Store, gates))
                redis.send(server.set_shards(queue, count))
                redis.run(new_shards.divide_again(Store, gates))
                redis.run(new_shards.settle(Store, queue, count))
            if announce:
                print(
                    f"queue {queue} has {max(count, was)} shards now: restart the workers, and then repeat the command"
                )
                return 0
            if not _is_dispatched(redis, queue, count):
                return 1
        return _move(redis, Reshard(Store, queue, count, was, strays, only_count=dry_run), was, strays)


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
        found = redis.run(placement.read_nodes())
        queues = names or sorted(queue for queue, count in redis.shards.counts.items() if count)
        if unsharded := [queue for queue in queues if not redis.shards.counts.get(queue)]:
            raise EvschedError(f"{output.some(unsharded)}: no shards; evsched queues shard Q N gives a queue shards")
        if not found:
            raise EvschedError("this Redis is not a cluster, so all shards are on one server")
        places = {queue: placement.placed(found, redis.shards, queue) for queue in queues}
        moves = [move for queue in queues for move in placement.moves(found, queue, places[queue])]
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
    """Return the shards that a queue has beyond so many; none if it never had any, or this user may not look."""
    if queue not in redis.shards.counts:
        return []
    try:
        return redis.run(stray_shards(Store, Shards({queue: count}), queue))
    except StoreRefused as error:
        output.note(f"shards of queue {queue} beyond {count} are not looked for: {error}")
        return []


def _gates(redis: SyncClient, queue: str, was: int, count: int) -> Gates:
    """Return what holds for the queue, as it is to hold for its shards.

    Raises:
        EvschedError: a limit is too small to be divided among so many.
    """
    try:
        return redis.run(new_shards.plan(Store, queue, was, count))
    except ConfigError as error:
        raise EvschedError(str(error)) from None


def _is_worked(redis: SyncClient, queue: str, count: int) -> bool:
    """Return whether each worker serves all shards; print what to do if not."""
    if lacking := redis.run(reshard.lacking(Store, queue, count)):
        workers = [_describe(one) for one in lacking]
        output.note(
            f"not every worker of queue {queue} serves {count} shards: {output.some(workers)}. Deploy the workers with "
            f"App(shards={count}) first, or see --announce; and then repeat the command. Nothing was changed"
        )
        return False
    return True


def _is_dispatched(redis: SyncClient, queue: str, count: int) -> bool:
    """Return whether each dispatcher serves all shards; print what to do if not."""
    try:
        unknown = redis.run(reshard.undispatched(Store, queue, count))
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


def _move(redis: SyncClient, work: Reshard, was: int, strays: Sequence[str]) -> int:
    """Move the jobs, and retire shards; return the exit code."""
    queue, count, dry_run, stopped_by = work.queue, work.count, work.only_count, 0
    try:
        with progress_bar("jobs examined") as show, asked_to_end() as asked:
            while redis.run(work.step()) and not (stopped_by := asked()):
                show(work.examined, work.total)
    except EvschedError as error:
        if not dry_run:
            rest = ""
            if isinstance(error, StoreDown):
                rest, error.unsure = ": the same command does the rest", False
            output.note(f"{work.moved} moved before this failed{rest}")
        raise
    if dry_run:
        print(f"{work.moved} of {work.total} jobs on the schedules are not in their homes, and would move if they can")
        return 128 + stopped_by if stopped_by else 0
    print(f"{work.moved} moved" + (", then stopped: the same command does the rest" if stopped_by else ""))
    for why, number in sorted(work.stay.items()):
        print(f"{number} {_STAY[why]}")
    if stopped_by:
        return 128 + stopped_by
    return _retire(redis, queue, count, was, strays)


def _retire(redis: SyncClient, queue: str, count: int, was: int, strays: Sequence[str]) -> int:
    """Retire the shards that the queue is not to have any more; return the exit code."""
    held = redis.run(retired_shards.retire(Store, queue, count, was, strays))
    has = redis.send(server.shards()).get(queue, 0)
    if has < was:
        redis.run(new_shards.divide_again(Store, _gates(redis, queue, was, has)))
    gone = {*Shards({queue: has}).beyond(queue, Shards({queue: was}).all_of(queue)), *strays}
    redis.run(retired_shards.close(Store, gone - {one.shard for one in held}))
    restart = ": restart the workers, so that they serve no others" if has < was else ""
    print(f"queue {queue} has {f'{has} shards' if has else 'no shards'} now{restart}")
    for one in held:
        print(f"{one.shard} still holds jobs: {_places(one)}")
        if one.shard in strays and not one.served:
            print(f"no worker serves {one.shard}: start one: evsched worker MODULE:APP --queue {one.shard}")
    if held:
        print("repeat the command when these jobs have run, or when you have revived or dropped those that are dead")
    return 1 if held else 0


def _places(held: Held) -> str:
    return ", ".join(f"{number} in {place}" for place, number in held.places.items())


def _describe(one: Lacking) -> str:
    return f"{one.worker} lacks {output.some(one.shards)}"
