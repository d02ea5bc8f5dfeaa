"""Operations on a queue that may have shards: it finds the shard that has a job, or asks all of them.

`stores` are those of the queue and its shards (`Shards.all_of`), or the one store of a queue without shards: then each
of these operations works as without this file, at no cost. Only if no job has the id, it asks Redis
whether the queue has shards after all.

A change of a queue is made in each of its shards, one after the other, and is not begun while the primary of a shard
does not answer. If it fails in the middle, the error names the shards that were changed, and the others. The same
change can be made again: it does the rest.

Shards are served side by side, so the jobs at the same rank of their backlogs, or ready lists, run at about the same
time, whatever their scores: those count within a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec import Struct

from evsched import keys
from evsched.client import operations, sweep
from evsched.client.operations import Operation, node_of, send
from evsched.client.option_values import Unique
from evsched.client.queue_names import find_queues
from evsched.client.sealing import opened
from evsched.client.sweep import Waiting
from evsched.display import nearest
from evsched.errors import JobMissing, ShardsDown, ShardsUnread, StoreDown, StoreError, StoreRefused
from evsched.jobs.job import OnConflict
from evsched.jobs.option_checks import ids as check_ids
from evsched.jobs.option_checks import invalid
from evsched.jobs.record import JobStatus
from evsched.shards import NONE, Shards
from evsched.store import server
from evsched.store.client_calls import Cancelled, New, Original
from evsched.store.operator_calls import Match, QueueStats, merged
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.call import Call, T
from evsched.transport.servers import START_IT, nodes_down, reason

_NAMED: Final = 5
"""Shards that a message names."""


def change(
    stores: Sequence[Store],
    operation: Callable[[Store], Operation[T]],
    done: str,
    ready: Operation[None] | None = None,
) -> Operation[list[T]]:
    """Change a queue and each of its shards, if all their primaries answer; return the results.

    `stores`: those of the queue and its shards, in the order of the changes. `done`: the action, such as "paused".
    `ready`: checks that are made first, and write nothing.

    Raises:
        ShardsDown: a primary does not answer: nothing was done, or only a part.
    """
    if len(stores) == 1:
        yield from ready or ()
        return [(yield from operation(stores[0]))]
    yield from check(stores)
    try:
        yield from ready or ()
    except StoreDown as error:
        raise _nothing_done(reason(error), error) from error
    found = list[T]()
    for at, store in enumerate(stores):
        try:
            found.append((yield from operation(store)))
        except (StoreDown, StoreRefused) as error:
            raise _failed([store.queue for store in stores], at, done, error) from error
    return found


def check(stores: Sequence[Store]) -> Operation[None]:
    """Check, in a cluster, that the primaries of a queue and of all its shards answer.

    Raises:
        ShardsDown: one does not, and nothing was done.
    """
    lost = dict[str, tuple[str, int]]()
    try:
        if len(stores) > 1 and (yield from node_of(keys.root(stores[-1].queue))) is not None:
            _, lost = yield from answering(stores, _ask, set())
    except StoreDown as error:
        raise _nothing_done(reason(error), error) from error
    if lost:
        nodes = sorted({*lost.values()})
        down = StoreDown(kind="connection", node=nodes[0])
        raise _nothing_done(f"{nodes_down(nodes)}, which {_has(nodes)} {_some([*lost])}", down)


def _ask(stores: Sequence[Store]) -> Operation[None]:
    for store in stores:
        yield from send(clock(keys.root(store.queue)))


def _failed(names: Sequence[str], at: int, done: str, error: StoreError) -> StoreError:
    """Return the error of a change that failed at one of the shards."""
    if at == 0 and not error.unsure:
        return _nothing_done(reason(error), error)
    were = f"{_some(names[:at])} {_was(at)} {done}; " if at else ""
    maybe = [f"{names[at]} may have been"] if error.unsure else []
    left = names[at + len(maybe) :]
    nots = [f"{_some(left)} {_was(len(left))} not"] if left else []
    when = "it does" if error.node else "Redis can do it"
    return _same_kind(f"{were}{reason(error)}, so {', and '.join(maybe + nots)}: repeat this when {when}", error)


def _nothing_done(why: str, error: StoreError) -> StoreError:
    todo = "" if error.node is None else f": {START_IT}, and try again"
    return _same_kind(f"{why}, so nothing was done{todo}", error)


def _same_kind(message: str, error: StoreError) -> StoreError:
    kind = ShardsDown if isinstance(error, StoreDown) else StoreRefused
    return kind(message, kind=error.kind, node=error.node)


def _has(nodes: Sequence[object]) -> str:
    return "has" if len(nodes) == 1 else "have"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


ChangeDead = Callable[[Store, Sequence[str]], Call[list[str]]]
"""Revives or drops dead jobs by their ids: all, or none if one is not dead."""

MakeStore = Callable[[str], Store]
"""Returns the calls of a queue."""


class Parts(NamedTuple):
    """Where a job of a queue may be."""

    queue: str
    make: MakeStore
    stores: list[Store]
    """Those of the queue and its shards, as far as they are known here, that of the job's home first."""
    unreadable: bool = False
    """The numbers of shards could not be read."""


def parts_of(shards: Shards, make: MakeStore, queue: str, job_id: str) -> Parts:
    """Return where a job may be.

    Raises:
        ConfigError: the id is not a string.
    """
    if not isinstance(job_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a program may pass anything
        raise invalid("id", job_id, "a string")
    home = shards.home(queue, job_id)
    stores = [make(home), *(make(name) for name in shards.all_of(queue) if name != home)]
    return Parts(queue, make, stores, shards.learned is False)


def enqueue(
    shards: Shards,
    make: MakeStore,
    queue: str,
    jobs: Sequence[New],
    on_conflict: OnConflict | None,
    unique: Unique | None,
) -> Operation[list[float]]:
    """Put jobs on the schedules of their homes, 400 of each in one round trip; return their dues."""
    if not shards.counts.get(queue):
        return operations.enqueue(make(queue), jobs, on_conflict, unique)
    return _enqueue_by_home(shards, make, queue, jobs, on_conflict, unique)


def _enqueue_by_home(
    shards: Shards,
    make: MakeStore,
    queue: str,
    jobs: Sequence[New],
    on_conflict: OnConflict | None,
    unique: Unique | None,
) -> Operation[list[float]]:
    by_home, dues = dict[str, list[int]](), [0.0] * len(jobs)
    for at, job in enumerate(jobs):
        by_home.setdefault(shards.home(queue, job.id), []).append(at)
    for home, places in by_home.items():
        found = yield from operations.enqueue(make(home), [jobs[at] for at in places], on_conflict, unique)
        for at, due in zip(places, found, strict=True):
            dues[at] = due
    return dues


def search(parts: Parts, look: Callable[[Store], Operation[T | None]]) -> Operation[tuple[Store, T] | None]:
    """Look for a job in each place where it may be; return the first store where `look` finds it, and what it found.

    The stores that are known here are asked twice: a job that moves from one shard to another may be missed by one
    pass, in which the other was asked first.
    """
    for store in parts.stores * 2 if len(parts.stores) > 1 else parts.stores:
        if (found := (yield from look(store))) is not None:
            return store, found
    for store in (yield from unknown_parts(parts)):
        if (found := (yield from look(store))) is not None:
            return store, found
    return None


def of_job(parts: Parts, operation: Callable[[Store], Operation[T]]) -> Operation[T]:
    """Do an operation about a job where the job is, which is its home unless another client chose another shard.

    Raises:
        JobMissing: none of them has the job; what the home said.
    """
    missing = list[JobMissing]()

    def attempt(store: Store) -> Operation[tuple[T] | None]:
        try:
            return ((yield from operation(store)),)
        except JobMissing as error:
            missing.append(error)
            return None

    if found := (yield from search(parts, attempt)):
        return found[1][0]
    raise missing[0]


def unknown_parts(parts: Parts) -> Operation[list[Store]]:
    """Return the stores of a queue that are not known here, for a job that the others do not have.

    The queue may have more shards by now, and there may be shards beyond their number: see `reshard.py`.
    """
    reading = send(server.shards())
    try:
        shards = Shards((yield from operations.once(reading) if parts.unreadable else reading))
        if parts.queue not in shards.counts:
            return []
        names = yield from send(server.queue_names())
    except StoreError:
        return []  # a right is missing, or the node of these keys is down
    known = {store.queue for store in parts.stores}
    found = [*shards.all_of(parts.queue), *shards.beyond(parts.queue, names)]
    return [parts.make(name) for name in found if name not in known]


def status(parts: Parts, job_id: str) -> Operation[JobStatus | None]:
    """Return where a job is and what its record says; None when there is no job of that id."""
    found = yield from search(parts, lambda store: send(store.look(job_id)))
    return found and (yield from opened(*found))


def original(parts: Parts, job_id: str) -> Operation[Original | None]:
    """Read a job as Redis has it; None if there is no job of that id."""
    found = yield from search(parts, lambda store: send(store.original(job_id)))
    return found and found[1]


def cancel(parts: Parts, job_id: str) -> Operation[Cancelled]:
    """Delete a waiting job, or have its worker stop it. Raises as `of_job`."""
    return (yield from of_job(parts, lambda store: send(store.cancel(job_id))))


def whole(shards: Shards, make: MakeStore, queue: str) -> Operation[list[Store]]:
    """Return the stores of a queue and its shards: the shards that are known here, and the shards that Redis knows.

    Raises:
        ShardsUnread: their number cannot be read.
    """
    found = Shards(shards.counts)
    found.grow((yield from read_all_shards()).counts)
    return [make(name) for name in found.all_of(queue)]


def answering(
    stores: Sequence[Store], read: Callable[[Sequence[Store]], Operation[T]], down: set[Host]
) -> Operation[tuple[T, dict[str, Host]]]:
    """Read those stores whose primaries answer; also return the others by their names, with these primaries.

    `down`: the primaries of a cluster that are known not to answer. Those that are found here are added.

    Raises:
        StoreDown: none of them answers.
    """
    there, lost = [*stores], dict[str, Host]()
    while True:
        for store in [*there] if down else ():
            node = yield from operations.node_of(keys.root(store.queue))
            if node is not None and node in down:
                there.remove(store)
                lost[store.queue] = node
        if not there:
            nodes = sorted({*lost.values()})
            raise StoreDown(nodes_down(nodes), kind="connection", node=nodes[0])
        try:
            return (yield from read(there)), lost
        except StoreDown as error:
            if error.node is None or error.node in down:
                raise
            down.add(error.node)


def change_dead(
    parts_of: Callable[[str], Parts],
    ids: Sequence[str],
    change: ChangeDead,
) -> Operation[int]:
    """Revive or drop dead jobs by their ids, wherever they are; return how many. `parts_of`: as above, by the id.

    Raises:
        ConfigError: the ids are not a list.
        JobMissing: one of the ids is not dead; then none was changed.
    """
    check_ids("ids", ids)
    if ids and len((first := parts_of(ids[0])).stores) == 1:
        try:
            return len((yield from send(change(first.stores[0], ids))))
        except JobMissing:
            if not (yield from unknown_parts(first)):
                raise
    by_queue = dict[str, tuple[Store, list[str]]]()
    for job_id in ids:
        parts = parts_of(job_id)
        found = yield from search(parts, partial(_dead, job_id))
        store = found[0] if found else parts.stores[0]
        if not found:  # the home says so; if the job has died meanwhile, it is changed
            of_home = store.queue, by_queue.pop(store.queue, (store, list[str]()))
            by_queue = dict([of_home, *by_queue.items()])
        by_queue.setdefault(store.queue, (store, []))[1].append(job_id)
    changed = 0
    for store, some in by_queue.values():
        changed += len((yield from send(change(store, some))))
    return changed


def _dead(job_id: str, store: Store) -> Operation[JobStatus | None]:
    found = yield from send(store.look(job_id))
    return found if found is not None and found.place == "dead" else None


def queue_stats(stores: Sequence[Store], lead: float = 0.0) -> Operation[QueueStats]:
    """Return the figures of a queue and its shards, as if it were one queue. `lead`: as of the call."""
    parts = list[QueueStats]()
    for store in stores:
        parts.append((yield from send(store.queue_stats(lead))))
    return merged(parts)


def listed(shards: Shards, make: MakeStore) -> Operation[list[str]]:
    """Return the names of all queues, as a person sees them. Raises as `find_queues`."""
    return (yield from shown(shards, make, (yield from find_queues())))


def shown(shards: Shards, make: MakeStore, queues: Sequence[str]) -> Operation[list[str]]:
    """Return queues as a person sees them: sorted, with the queue in place of its shards.

    The name of a shard beyond their number is listed while it holds jobs.
    """
    names = shards.wholes(queues)
    gone = set[str]()
    for queue in shards.counts:
        for name in shards.beyond(queue, names):
            if (yield from _is_empty(make(name))):
                gone.add(name)
    return [name for name in names if name not in gone]


def is_unused(shards: Shards, make: MakeStore, queue: str) -> Operation[bool]:
    """Return whether a queue has never been used; False if it has, or if the numbers of shards are not known."""
    if shards.learned is False:
        return False
    try:
        stats = yield from queue_stats([make(name) for name in shards.all_of(queue)])
    except StoreRefused:  # a key of the wrong type: so the queue has been used
        return False
    if queue in shards.counts or any(stats.places.values()) or stats.workers or stats.parents or stats.paused:
        return False
    if (yield from send(make(queue).recurrences(0, 1))):
        return False
    for name in shards.all_of(queue):
        if (yield from send(make(name).has_past())):
            return False
    return True


def never_used(shards: Shards, make: MakeStore, queue: str) -> Operation[str | None]:
    """Return a message if a queue has never been used and has no limits, with similar names; else None.

    This decides for the commands, the HTTP interface and the console for which names they refuse to change a queue.
    """
    if not (yield from is_unused(shards, make, queue)):
        return None
    limits = yield from send(make(queue).limits())
    if limits.queue or limits.groups:
        return None
    return f"queue {queue} has no jobs, no workers and no recurrences{(yield from similar(shards, make, queue))}"


def similar(shards: Shards, make: MakeStore, queue: str) -> Operation[str]:
    """Suggest the names of queues that are like this one, as the end of a message; "" without any."""
    try:
        there = yield from others(shards, make, queue)
    except StoreDown:
        return "; similar names were not looked for, because a node of the cluster does not answer"
    near = nearest(queue, there, most=3)
    return f": did you mean {', '.join(near)}?" if near else ""


def others(shards: Shards, make: MakeStore, queue: str) -> Operation[list[str]]:
    """Return the queues that there are, without this one, which may have keys such as limits; none if Redis refuses.

    Raises:
        StoreDown: a node does not answer.
    """
    try:
        return [name for name in (yield from operations.once(listed(shards, make))) if name != queue]
    except StoreRefused:  # the ACL user `client` may not look for queues
        return []


def _is_empty(store: Store) -> Operation[bool]:
    try:
        return not any((yield from send(store.queue_stats())).places.values())
    except StoreRefused:
        return False  # a key of the wrong type: who reads the queue says so


def read_all_shards() -> Operation[Shards]:
    """Read the numbers of shards for an operation that needs all shards of a queue.

    Raises:
        ShardsUnread
    """
    try:
        return (yield from read_shards())
    except StoreDown as error:
        todo = "" if error.node is None else f": {START_IT}, and try again"
        raise ShardsUnread(
            f"{reason(error)}, so the numbers of shards of queues cannot be read, and nothing was done{todo}",
            kind=error.kind,
            node=error.node,
        ) from None


def read_shards() -> Operation[Shards]:
    """Return how many shards queues have, as Redis says; a Redis that refuses to say it has none."""
    try:
        return Shards((yield from send(server.shards())))
    except StoreRefused:
        return NONE


class _Entry(Struct, frozen=True):
    """A job in a place. `key`: the place, or a group's own backlog. `at`: None = the score is not a time."""

    store: Store
    key: str
    id: str
    at: float | None
    rank: int


def front(stores: Sequence[Store], place: Waiting, limit: int) -> Operation[list[Match]]:
    """Return the first `limit` jobs of a place of a queue, and of its shards.

    In the backlog, also the jobs of groups that their limits hold: after the others, in any number if the queue has
    no shards.
    """
    entries = list[_Entry]()
    for store in stores:
        entries += yield from _entries(store, place, limit)
    if len(stores) > 1:
        entries = sorted(entries, key=_order)[:limit]
    return (yield from _described(entries))


def _order(entry: _Entry) -> tuple[bool, float]:
    return (":" in entry.key, entry.rank if entry.at is None else entry.at)


def _entries(store: Store, place: Waiting, limit: int) -> Operation[list[_Entry]]:
    """Return the first jobs of a place of one queue."""
    if place == "ready":
        ids = yield from send(store.line(limit))
        return [_Entry(store, place, job, None, rank) for rank, job in enumerate(ids)]
    found = yield from send(store.front(place, limit))
    if place != "backlog":
        return [_Entry(store, place, job, at, rank) for rank, (job, at) in enumerate(found)]
    entries = [_Entry(store, place, job, None, rank) for rank, (job, _) in enumerate(found)]
    for group in (yield from send(store.throttled())):
        held = yield from send(store.front(place, limit, group=group))
        entries += [_Entry(store, f"{place}:{group}", job, None, rank) for rank, (job, _) in enumerate(held)]
    return entries


def _described(entries: Sequence[_Entry]) -> Operation[list[Match]]:
    """Return the known facts about jobs, in this order."""
    by_key = dict[tuple[str, str], list[int]]()
    for at, entry in enumerate(entries):
        by_key.setdefault((entry.store.queue, entry.key), []).append(at)
    found = dict[int, Match]()
    for places in by_key.values():
        first = entries[places[0]]
        jobs = [(entries[at].id, entries[at].at) for at in places]
        described = yield from sweep.describe(first.store, first.key, jobs)
        found.update(zip(places, described, strict=True))
    return [found[at] for at in range(len(entries))]
