"""Moves the waiting jobs of a queue to the shards that are their homes, a batch at a time.

A batch is three calls: it leaves one queue, arrives at another, and the rest of it is deleted. A program that finds a
batch of another program finishes it. So a program may end at any moment, and several may do the same work. A dispatcher
also finishes a batch that has been on its way for a minute. A job that is due soon stays, and runs where it is; so do
occurrences of recurrences, jobs of the ledger, and jobs that do more than wait for their time.

Stray shards are shards of a queue beyond their number, which no worker serves any more: the number was lowered, and a
program still names the larger one. A queue with such a name is a queue of its own if a worker serves it that does not
serve the queue itself. A shard that is retired is removed when it holds nothing more.

The plan of `evsched queues plan` is made here too: where the shards of queues lie in a cluster, and which slots to move
so that each primary has as many of them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from evsched import keys
from evsched.client.operations import Operation, nodes, send, send_and_wait
from evsched.client.queue_names import find_queues
from evsched.client.spread import MakeStore
from evsched.errors import ConfigError, StoreRefused
from evsched.shards import Shards, shard
from evsched.store import server
from evsched.store.moves import ClusterPrimary, MovingBatch, Vacated
from evsched.store.store import Store
from evsched.transport.call import Call, T
from evsched.transport.servers import slot_of


def finish_moves(stores: Sequence[Store]) -> Operation[int]:
    """Finish the batches that leave these queues; return how many jobs were on their way."""
    found = 0
    for store in stores:
        if batch := (yield from send(store.depart())).batch:
            yield from finish(store, batch)
            found += len(batch.jobs)
    return found


def finish(store: Store, batch: MovingBatch) -> Operation[Vacated]:
    """Finish a batch that leaves a queue. Raises as `send_safely`."""
    to = Store(batch.to)
    arrival = yield from send_safely(to.arrive(store.queue, batch), to, store)
    return (yield from send(Store(store.queue).vacate(batch, arrival)))  # who finishes it is not who moves the jobs


def send_safely(call: Call[T], store: Store, beside: Store, *, on_disk: bool = True) -> Operation[T]:
    """Send a call of one of the two queues of a move, and return when its write is safe: see `Primary.safe`.

    Raises:
        StoreDown: also when no replica confirms the write.
    """
    try:
        primary = yield from send(store.primary())
    except StoreRefused as error:
        if error.kind == "noperm":
            raise
        return (yield from send(call))  # there is no cluster, so both queues are on one server
    wait = primary.safe(store.queue, beside.queue, on_disk=on_disk)
    if wait is None:
        return (yield from send(call))
    value, safe = yield from send_and_wait(call, wait)
    primary.check_safe(store.queue, safe)
    return value


def stray_shards(shards: Shards, queue: str) -> Operation[list[str]]:
    """Return the names of the shards that a queue has beyond their number, whether they hold jobs or not.

    A name that is served by a worker which does not serve the queue is that of another queue.
    """
    if queue not in shards.counts:
        return []
    names = shards.beyond(queue, (yield from find_queues()))
    found, ours = list[str](), (yield from serving(Store(queue))) if names else set[str]()
    for name in names:
        if not (yield from serving(Store(name))) - ours:
            found.append(name)
    return found


def serving(store: Store) -> Operation[set[str]]:
    """Return the workers of a queue whose leases have not ended, and the parents that stand by."""
    survey = yield from send(store.survey())
    now = (yield from send(store.queue_stats())).now
    parents = yield from send(store.parents())
    alive = {lease.worker for lease in survey.leases if lease.left > 0}
    return alive | {name for name, ends in parents if ends > now}


class Held(Struct, frozen=True):
    """The content of a shard that is to be retired: how many jobs, by place."""

    shard: str
    places: dict[str, int]
    served: bool
    """Whether a worker serves it."""


def retire(queue: str, count: int, was: int, strays: Sequence[str] = ()) -> Operation[list[Held]]:
    """Lower the number of shards to `count`, or to the last one that still holds jobs; return all that do."""
    held = yield from _held(_names(queue, count, was))
    left = _after(held) if held else count
    if left < was:
        yield from send(server.set_shards(queue, left))
        late = yield from _held(_names(queue, left, was))
        if late:  # a program that knows of the shards has used one meanwhile
            left = _after(late)
            yield from send(server.declare_shards(queue, left))
            held += late
    return held + (yield from _held(strays))


def _names(queue: str, first: int, end: int) -> list[str]:
    return [shard(queue, number) for number in range(first, end)]


def _after(held: Sequence[Held]) -> int:
    return int(held[-1].shard.rpartition(":")[2]) + 1


def _held(names: Iterable[str]) -> Operation[list[Held]]:
    """Return the content of these shards, without the empty ones."""
    found = list[Held]()
    for store in map(Store, names):
        stats = yield from send(store.queue_stats())
        on_their_way = (yield from send(store.survey())).moving is not None
        places = {place: jobs for place, jobs in stats.places.items() if jobs} | ({"moving": 1} if on_their_way else {})
        if places:
            served = bool((yield from serving(store)))
            found.append(Held(store.queue, places, served))
    return found


class Node(Struct, frozen=True):
    """A primary, and whether its server moves a slot in one atomic step (Valkey 9)."""

    primary: ClusterPrimary
    atomic: bool


class Move(Struct, frozen=True):
    """A slot that is to move, with its keys of a queue."""

    queue: str
    shard: str
    slot: int
    source: str
    to: str
    commands: list[str]
    """The commands for it, in this order."""


def read_nodes() -> Operation[list[Node]]:
    """Return the primaries of a cluster; none, if there is no cluster."""
    found = list[Node]()
    for host in (yield from nodes()):
        if host is None:
            return []
        primary = yield from send(Store("default").primary().at(host))
        facts = yield from send(server.info("server").at(host))
        atomic = int(facts.get("valkey_version", "0").partition(".")[0]) >= 9
        found.append(Node(primary, atomic))
    return sorted(found, key=lambda node: node.primary.address)


def placed(found: Sequence[Node], shards: Shards, queue: str) -> dict[str, list[str]]:
    """Return the shards of a queue, and the queue itself, by the addresses of the primaries that have them."""
    return {node.primary.address: [part for part in shards.all_of(queue) if node.primary.has(part)] for node in found}


def moves(found: Sequence[Node], queue: str, placement: Mapping[str, Sequence[str]]) -> list[Move]:
    """Return the fewest moves after which no primary has two shards more of a queue than another one."""
    by_address = {node.primary.address: node for node in found}
    have, plan = {address: list(parts) for address, parts in placement.items()}, list[Move]()
    while have:
        most, least = max(have, key=lambda at: len(have[at])), min(have, key=lambda at: len(have[at]))
        if len(have[most]) - len(have[least]) < 2:
            break
        part = have[most].pop(0)
        have[least].append(part)
        slot = slot_of(keys.root(part))
        commands = _commands(by_address[most], by_address[least].primary, slot)
        plan.append(Move(queue, part, slot, most, least, commands))
    return plan


def _commands(source: Node, to: ClusterPrimary, slot: int) -> list[str]:
    at_source, at_to = (f"redis-cli -h {host} -p {port} " for host, port in map(_host, (source.primary, to)))
    if source.atomic:
        return [f"{at_source}CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to.id}"]
    return [
        f"{at_to}CLUSTER SETSLOT {slot} IMPORTING {source.primary.id}",
        f"{at_source}CLUSTER SETSLOT {slot} MIGRATING {to.id}",
        f"redis-cli --cluster fix {source.primary.address}",
    ]


def _host(primary: ClusterPrimary) -> tuple[str, str]:
    host, _, port = primary.address.rpartition(":")
    return host, port


CALM: Final = 60.0
"""Jobs that are due within this many seconds stay: an interrupted move makes no job late if it goes on in that time."""

_NOT_CALM: Final = -1e12
"""The same for a shard that nobody serves: there no job would run in time."""

_SLICE: Final = 500
"""Members of the schedule that a call reads: about 0.3 ms of Redis's time."""

_BATCH: Final = 100
"""Jobs that a call moves: about 2 ms of Redis's time."""


_BYTES: Final = 262144
"""Bytes of members in a call: BATCH_MOST of lua/depart.lua."""


class _Inline(Struct, frozen=True):
    id: str | None = None


class Lacking(Struct, frozen=True):
    """A worker, or a parent that stands by, and the shards that it does not serve."""

    worker: str
    shards: list[str]


class Reshard:
    """One pass over the schedules of a queue and all its shards.

    `count`: how many shards it is to have. `was`: how many it had, by Redis. `strays`: its shards beyond both.
    `step` does a part; a pass may end after any. `only_count`: nothing moves; then `moved` is how many jobs would, of
    which some may stay when it is done. `make`: makes the stores whose jobs move.
    """

    def __init__(
        self,
        queue: str,
        count: int,
        was: int,
        strays: Sequence[str] = (),
        *,
        only_count: bool = False,
        make: MakeStore = Store,
    ) -> None:
        self.moved = 0
        self.examined = 0
        self.total = 0
        self.queue = queue
        self.count = count
        self.only_count = only_count
        self._now = max(was, count)
        """How many shards Redis says that there are, until the pass is over."""
        self._homes = Shards({queue: count})
        self._strays = strays
        self._make = make
        self._sources = [*Shards({queue: self._now}).all_of(queue), *strays]
        self._pass: _Source | None = None
        self._has_begun = False
        self._stay = dict[tuple[str, bytes], str]()

    @property
    def stay(self) -> Counter[str]:
        """How many jobs stay where they are though it is not their home, by the reason: see lua/depart.lua."""
        return Counter(self._stay.values())

    def step(self) -> Operation[bool]:
        """Read a slice of a schedule, or move a batch; return whether there is more to do.

        Raises:
            ConfigError: somebody else has changed the number of shards.
        """
        if not self._sources:
            return False
        source = self._pass
        if not self._has_begun:
            yield from self._begin()
        elif source is None:
            yield from self._open(self._make(self._sources[0]))
        elif to := source.next_batch():
            yield from self._move(source, to)
        elif not source.is_read:
            yield from self._read(source)
        else:
            self._sources.pop(0)
            self._pass = None
        return bool(self._sources)

    def _begin(self) -> Operation[None]:
        """Finish the batches that another program has begun, so that their jobs are met wherever they go."""
        if not self.only_count:
            yield from finish_moves([*map(Store, self._sources)])
        for store in map(Store, self._sources):
            self.total += (yield from send(store.queue_stats())).places["schedule"]
        self._has_begun = True

    def _open(self, store: Store) -> Operation[None]:
        self._pass = _Source(store)
        if store.queue in self._strays and not (yield from serving(store)):
            self._pass.calm = _NOT_CALM

    def _read(self, source: _Source) -> Operation[None]:
        source.cursor, members = yield from send(source.store.members(b"schedule", source.cursor, _SLICE))
        source.is_read = source.cursor == 0
        self.examined = min(self.total, self.examined + len(members))
        for member in members:
            home = self._homes.home(self.queue, id_of(member))
            if home != source.store.queue and self.only_count:
                source.seen.add(member)
            elif home != source.store.queue:
                source.waiting[home].append(member)
        if self.only_count and source.is_read:
            self.moved += len(source.seen)

    def _move(self, source: _Source, to: str) -> Operation[None]:
        """Move a batch, or finish the one that is on its way already."""
        count = (yield from send(server.shards())).get(self.queue, 0)
        if count != self._now:
            raise ConfigError(f"queue {self.queue} has {count} shards now: somebody else has changed the number")
        store, token, members = source.store, secrets.token_hex(8), source.batch(to)
        # Nothing leaves while a replica does not answer: a batch that is on its way runs nowhere.
        yield from send_safely(Store(to).has_room(), Store(to), store, on_disk=False)
        yield from send_safely(store.has_room(), store, Store(to), on_disk=False)
        # If the source lost this step later, jobs that have arrived would be back on its schedule, and run twice.
        depart = store.depart(to, token, members, above=source.above, calm=source.calm)
        left = yield from send_safely(depart, store, Store(to), on_disk=False)
        batch = left.batch
        if batch is not None and batch.token != token:
            yield from finish(store, batch)
            return
        leaving = {member for member, _ in batch.jobs} if batch else set[bytes]()
        done = leaving | {member for member, _ in left.stay}
        del source.waiting[to][: len(members)]
        source.waiting[to] += [member for member in members if member not in done]
        self._note(store, ((member, why) for member, why in left.stay if why != "gone"))
        if batch is None:
            return
        arrival = yield from send_safely(Store(to).arrive(store.queue, batch), Store(to), store)
        vacated = yield from send(store.vacate(batch, arrival))
        if arrival.over and vacated.back:
            # Redis's clock was set back, so the batch had too low a number.
            source.above = arrival.last
            source.waiting[to] += leaving
            return
        self.moved += len(leaving) - len(arrival.stay)
        self._note(store, ((member, "taken") for member in arrival.stay))

    def _note(self, store: Store, stay: Iterable[tuple[bytes, str]]) -> None:
        self._stay.update(((store.queue, member), why) for member, why in stay)


class _Source:
    """How far a pass over the schedule of one queue is."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.cursor = 0
        self.is_read = False
        self.waiting = defaultdict[str, list[bytes]](list)
        """The jobs to move, by destination."""
        self.seen = set[bytes]()
        self.above = 0
        """A batch needs a higher number than this."""
        self.calm = CALM

    def batch(self, to: str) -> list[bytes]:
        """Return the next members that are to be moved there; inline jobs may be long."""
        found, size = list[bytes](), 0
        for member in self.waiting[to][:_BATCH]:
            size += len(member)
            if found and size > _BYTES:
                break
            found.append(member)
        return found

    def next_batch(self) -> str | None:
        """Return the queue to which a batch can be moved; when all is read, also a small one."""
        least = 1 if self.is_read else _BATCH
        return next((to for to, members in self.waiting.items() if len(members) >= least), None)


def id_of(member: bytes) -> str:
    """Return the id of the job that a member of a schedule stands for, or a text in its place if it can be no job."""
    if not member.startswith(b"{"):
        return member.decode(errors="replace")
    try:
        found = msgspec.json.decode(member, type=_Inline).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None  # it cannot run, and stays
    return found or hashlib.sha1(member, usedforsecurity=False).hexdigest()


def lacking(queue: str, count: int) -> Operation[list[Lacking]]:
    """Return the live workers of a queue, and the parents that stand by, that do not serve all of its shards."""
    missing = {name: list[str]() for name in (yield from serving(Store(queue)))}
    for number in range(count if missing else 0):
        part = shard(queue, number)
        for name in missing.keys() - (yield from serving(Store(part))):
            missing[name].append(part)
    return [Lacking(name, parts) for name, parts in sorted(missing.items()) if parts]


def undispatched(queue: str, count: int) -> Operation[list[str]]:
    """Return the shards that fewer dispatchers serve by name than the queue itself: these do not know of them."""
    most = yield from send(server.gate_listeners(queue))
    found = list[str]()
    for number in range(count if most else 0):
        part = shard(queue, number)
        if (yield from send(server.gate_listeners(part))) < most:
            found.append(part)
    return found
