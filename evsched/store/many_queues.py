"""Reads many queues with a few calls: one for 100 queues of each node of Redis, and another if there is much to read.

A queue that Redis refuses to read among others is asked for alone, which says why. So is each queue of a call that is
refused as a whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from evsched import keys
from evsched.errors import MOVING, WRONG_TYPE, StoreDown, StoreError, StoreRefused
from evsched.store.dispatcher_calls import GLANCE_MOST, Fronts, Seen, Survey
from evsched.store.history_calls import EndCount
from evsched.store.operator_calls import FindPart, QueueStats, Slice
from evsched.store.recurrence_calls import RecurrenceStats, Roster, RosterPart
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.call import Call, T, Word

AT_ONCE: Final = 100
"""Queues of one call: 2 ms of Redis's time on a slow machine, and up to 2 ms more if there are many workers."""

_ROWS_AT_ONCE: Final = 504
"""Hashes of one call: under 2 ms, with their fields. The hours of three weeks."""

_OF_THIS_CALL: Final = (MOVING, "misconf", "noreplicas", "readonly")
"""Kinds of errors after which Redis may take other calls: the slot of the first queue moves; Redis takes no writes now,
and so no script that sends a message."""

_UNKNOWN: Final = Seen(nearest=0.0, gated=True, workers=True, recurs=True, chores=True, batches=True)
"""A queue that a glance cannot read: it may have anything."""

R = TypeVar("R")


class SendCall(Protocol):
    """Sends a call, as a sender or a client does."""

    def __call__(self, call: Call[T], /) -> Awaitable[T]: ...


class FindNode(Protocol):
    """Returns the node of a cluster that has a key."""

    async def __call__(self, key: Word, /) -> Host | None: ...


async def by_node(find_node: FindNode, queues: Sequence[str]) -> list[list[str]]:
    """Return the queues of each node of Redis.

    Raises:
        StoreDown: the nodes cannot be found.
    """
    found = dict[Host | None, list[str]]()
    for queue in queues:
        found.setdefault(await find_node(keys.root(queue)), []).append(queue)
    return [*found.values()]


async def read_queue_stats(
    send: SendCall, find_node: FindNode, queues: Sequence[str]
) -> dict[str, QueueStats | StoreError]:
    """Return the figures of each queue, in their order, or why they cannot be read."""
    return await _read(send, find_node, queues, Store.many_queue_stats, Store.queue_stats)


async def read_all_queue_stats(send: SendCall, find_node: FindNode, queues: Sequence[str]) -> list[QueueStats]:
    """Return the figures of all queues, in their order.

    Raises:
        StoreDown, StoreRefused: one cannot be read.
    """
    return _all_of(await read_queue_stats(send, find_node, queues))


async def read_surveys(send: SendCall, find_node: FindNode, queues: Sequence[str]) -> dict[str, Survey | StoreError]:
    """Return the survey of each queue, in their order, or why it cannot be read."""
    return await _read(send, find_node, queues, Store.many_surveys, Store.survey)


async def read_fronts(send: SendCall, find_node: FindNode, queues: Sequence[str]) -> dict[str, Fronts | StoreError]:
    """Return the jobs of each queue that are to move next, in their order, or why they cannot be read."""
    return await _read(send, find_node, queues, Store.many_fronts, Store.fronts)


async def request_statuses(
    send: SendCall, find_node: FindNode, asker: str, queues: Sequence[str]
) -> dict[str, int | StoreError]:
    """Ask the workers of all queues for their status; return how many of each were asked, or why they were not."""

    def many(store: Store, some: Sequence[str]) -> Call[list[int]]:
        return store.request_statuses(asker, some)

    return await _read(send, find_node, queues, many, lambda store: store.request_status(asker))


async def find_slices(
    send: SendCall, find_node: FindNode, place: str, matching: bytes, parts: Sequence[FindPart], *, limit: int
) -> dict[str, Slice | StoreError]:
    """Find jobs in a slice of each queue, with one call for each node of Redis; or return why that is refused.

    `parts`: at most one for each queue. `limit`: of jobs that a call examines. Queues that exceed it are left out.

    Raises:
        StoreDown
    """
    by_queue, found = {part.queue: part for part in parts}, dict[str, Slice | StoreError]()
    for names in await by_node(find_node, [*by_queue]):
        some = [by_queue[name] for name in names[:AT_ONCE]]
        call = Store(names[0]).find_many(place, matching, some, limit=limit)
        for part, one in zip(some, await _part_of(send, call), strict=False):
            alone = Store(part.queue).find(place, matching, part.cursor, limit=limit, ids=part.ids)
            found[part.queue] = await _read_alone(send, alone) if one is None else one
    return found


async def read_glances(send: SendCall, find_node: FindNode, queues: Sequence[str]) -> dict[str, Seen]:
    """Glance at queues; return the ones that need attention. A queue that a glance cannot read may have anything.

    Raises:
        StoreDown
    """
    found = dict[str, Seen]()
    for names in await by_node(find_node, queues):
        for at in range(0, len(names), GLANCE_MOST):
            some = names[at : at + GLANCE_MOST]
            try:
                found |= (await send(Store(some[0]).glance(some))).seen
            except StoreError as error:
                if isinstance(error, StoreDown) and error.kind != MOVING:
                    raise
                found |= dict.fromkeys(some, _UNKNOWN)
    return found


async def read_hours(
    send: SendCall, find_node: FindNode, hours: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], list[EndCount]]:
    """Return how many jobs ended in hours of queues; unreadable hours are left out. `hours`: since 1970.

    Raises:
        StoreDown, StoreRefused
    """
    by_queue, found = dict[str, list[tuple[str, int]]](), dict[tuple[str, int], list[EndCount]]()
    for one in hours:
        by_queue.setdefault(one[0], []).append(one)
    for names in await by_node(find_node, [*by_queue]):
        left = [one for name in names for one in by_queue[name]]
        while left:
            part = await send(Store(left[0][0]).hours(left[:_ROWS_AT_ONCE]))
            found.update((one, counts) for one, counts in zip(left, part, strict=False) if counts is not None)
            left = left[max(len(part), 1) :]
    return found


async def read_hashes(
    send: SendCall, find_node: FindNode, rows: Sequence[tuple[str, str]], read: Callable[[list[bytes]], R]
) -> dict[tuple[str, str], R]:
    """Return hashes of queues, each with `read`. `rows`: queue, and key without the root.

    The ones that Redis refuses to read, as those of a wrong type, are left out.

    Raises:
        StoreDown, StoreRefused
    """
    by_queue, found = dict[str, list[tuple[str, str]]](), dict[tuple[str, str], R]()
    for one in rows:
        by_queue.setdefault(one[0], []).append(one)
    for names in await by_node(find_node, [*by_queue]):
        left = [one for name in names for one in by_queue[name]]
        while left:
            part = await send(Store(left[0][0]).hashes(left[:_ROWS_AT_ONCE], read))
            found.update((one, value) for one, value in zip(left, part, strict=False) if value is not None)
            left = left[max(len(part), 1) :]
    return found


async def read_rosters(
    send: SendCall, find_node: FindNode, parts: Sequence[RosterPart], fields: Sequence[str], *, limit: int
) -> dict[str, Roster | StoreError]:
    """Return a slice of the recurrences of each queue, with one call for each node of Redis, or why that is refused.

    `parts`: at most one for each queue. `limit`: of recurrences that a call reads. Queues that exceed it are left out.

    Raises:
        StoreDown
    """
    by_queue, found = {part.queue: part for part in parts}, dict[str, Roster | StoreError]()
    for names in await by_node(find_node, [*by_queue]):
        some = [by_queue[name] for name in names[:AT_ONCE]]
        for part, one in zip(
            some, await _part_of(send, Store(names[0]).rosters(some, fields, limit=limit)), strict=False
        ):
            alone = Store(part.queue).roster(part.start, min(part.most, limit), fields)
            found[part.queue] = await _read_alone(send, alone) if one is None else one
    return found


async def read_all_recurrence_stats(
    send: SendCall, find_node: FindNode, queues: Sequence[str]
) -> list[list[RecurrenceStats]]:
    """Return the latest runs of the recurrences of all queues, in their order.

    Raises:
        StoreDown, StoreRefused: one cannot be read.
    """
    return _all_of(await _read(send, find_node, queues, Store.many_recurrence_stats, Store.recurrence_stats))


def without_mistyped(found: Mapping[str, R | StoreError]) -> dict[str, R]:
    """Return the replies without the errors of queues that have a key of a wrong type.

    Raises:
        StoreDown, StoreRefused: one cannot be read for another reason.
    """
    known = dict[str, R]()
    for queue, one in found.items():
        if not isinstance(one, StoreError):
            known[queue] = one
        elif not isinstance(one, StoreRefused) or one.kind != WRONG_TYPE:
            raise one
    return known


def _all_of(read: dict[str, R | StoreError]) -> list[R]:
    found = list[R]()
    for one in read.values():
        if isinstance(one, StoreError):
            raise one
        found.append(one)
    return found


async def _read(
    send: SendCall,
    find_node: FindNode,
    queues: Sequence[str],
    many: Callable[[Store, Sequence[str]], Call[list[R | None]]] | Callable[[Store, Sequence[str]], Call[list[R]]],
    alone: Callable[[Store], Call[R]],
) -> dict[str, R | StoreError]:
    found = dict[str, R | StoreError]()
    try:
        nodes = await by_node(find_node, queues)
    except StoreDown as error:
        return dict.fromkeys(queues, error)
    for names in nodes:
        left = names
        while left:
            try:
                part = await send(many(Store(left[0]), left[:AT_ONCE]))
            except StoreError as error:
                if isinstance(error, StoreDown) and error.kind not in _OF_THIS_CALL:
                    found |= dict.fromkeys(left, error)
                    break
                part = [None] * len(left[:AT_ONCE])
            part = part or [None]  # another program's reply: the queue alone says more
            for name, value in zip(left, part, strict=False):
                found[name] = await _read_alone(send, alone(Store(name))) if value is None else value
            left = left[len(part) :]
    return {queue: found[queue] for queue in queues}


async def _part_of(send: SendCall, call: Call[list[R | None]]) -> list[R | None]:
    """Return the first replies about queues; if the call is refused as a whole, that the first queue is refused.

    Raises:
        StoreDown
    """
    try:
        return await send(call) or [None]
    except StoreError as error:
        if isinstance(error, StoreDown) and error.kind not in _OF_THIS_CALL:
            raise
        return [None]


async def _read_alone(send: SendCall, call: Call[R]) -> R | StoreError:
    try:
        return await send(call)
    except StoreError as error:
        return error
