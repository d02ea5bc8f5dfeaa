"""Puts the jobs of rows on the schedule, and finds the rows that Redis refuses, so that they stop no others.

A call is for many rows, and one of them can make it fail: Redis resets the connection when an argument is too long, and
a key of the wrong type in the place of one job's record fails the whole script. So after a failure, the same call is
made without rows. If that fails too, Redis or the queue is the cause. If it succeeds, some of the rows are: the call is
halved until single rows are left.

A refused row is set aside: it stays in the table, counts as waiting, and is tried again later, alone and after all
other rows. Each failure doubles its delay. The list is not shared: another relay finds such rows by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from evsched import process_events
from evsched.errors import StoreError
from evsched.events import Emit
from evsched.store.relay_calls import RowJob
from evsched.store.server import settings
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_BYTES: Final = 1_048_576
"""Bytes of payloads in one call; a longer payload has a call of its own. Redis takes at least this in an argument."""

_TRIES: Final = 3
"""How often one row is sent until it is known not to be taken: a connection can be lost for other reasons."""

_LIMIT: Final = "proto-max-bulk-len"


class Lengths:
    """The length of rows from which on Redis did not take them: one try of such a row is enough."""

    def __init__(self) -> None:
        self._shortest = math.inf

    def tries(self, size: int) -> int:
        return 1 if size >= self._shortest else _TRIES

    def note(self, size: int, taken: bool) -> None:
        """Note whether Redis took a row of this many bytes."""
        if taken and size >= self._shortest:
            self._shortest = math.inf
        elif not taken and size > _BYTES:
            self._shortest = min(self._shortest, size)


class Delivered(Struct, frozen=True):
    """The states of rows that are not on the schedule."""

    refused: dict[str, str]
    """Why a job can never be scheduled, by its id."""
    failed: dict[str, str]
    """Why Redis did not take a job this time, by its id."""


async def deliver(sender: BatchingSender, queue: str, jobs: Sequence[RowJob], lengths: Lengths) -> Delivered:
    """Put jobs on a queue's schedule; return which are not there.

    Raises:
        StoreDown, StoreRefused: Redis, or this queue, takes no row at all.
    """
    store, done = Store(queue), Delivered({}, {})
    parts = list(_calls(jobs))[::-1]
    tries = dict[str, int]()
    while parts:
        part = parts.pop()
        if len(part) == 1 and (reason := await too_long(sender, len(part[0].payload))) is not None:
            done.refused[part[0].id] = reason
            continue
        try:
            done.refused.update(await sender.send(store.relay(part)))
            lengths.note(max(len(job.payload) for job in part), taken=True)
        except StoreError as error:
            await sender.send(store.relay([]))
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            (job,) = part
            tries[job.id] = tries.get(job.id, 0) + 1
            if tries[job.id] < lengths.tries(len(job.payload)):
                parts.append(part)
            else:
                lengths.note(len(job.payload), taken=False)
                done.failed[job.id] = cause(error, len(job.payload))
    return done


async def too_long(sender: BatchingSender, size: int) -> str | None:
    """Return why Redis never takes a row of this many bytes; None if it may, or if the relay may not read the limit."""
    if size <= _BYTES:
        return None
    try:
        limit = int((await sender.send(settings([_LIMIT]))).get(_LIMIT, "0"))
    except (StoreError, ValueError):
        return None
    if not 0 < limit < size:
        return None
    return (
        f"the row has {size} bytes, more than the {limit} of Redis's setting {_LIMIT}: raise that above "
        "EVSCHED_PAYLOAD_CAP, or store the data elsewhere and pass a reference"
    )


def cause(error: StoreError, size: int) -> str:
    """Return why Redis did not take a row that it may take later."""
    hint = f"; if {_LIMIT} of Redis is less, raise it above EVSCHED_PAYLOAD_CAP" if size > _BYTES else ""
    return f"the row has {size} bytes{hint}; {error}"


def _calls(jobs: Sequence[RowJob]) -> Iterator[list[RowJob]]:
    """Split jobs by the bytes of their payloads, so that no call is long; each has one job at least."""
    some, size = list[RowJob](), 0
    for job in jobs:
        if some and size + len(job.payload) > _BYTES:
            yield some
            some, size = [], 0
        some.append(job)
        size += len(job.payload)
    if some:
        yield some


_SECONDS: Final = 60.0
"""Seconds for which a row is left out at first."""

_MOST: Final = 3600.0
"""Seconds for which a row is left out at most."""


class Aside:
    """Rows by their queue, and their id or name."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._since: dict[tuple[str, str], float] = {}
        """By the monotonic clock. A row whose time is over stays here until it has been tried again."""
        self._failures: dict[tuple[str, str], int] = {}

    def add(self, queue: str, failed: Mapping[str, str]) -> None:
        """Leave rows out from now on; report the rows that were not left out before. `failed`: why, by id or name."""
        now = time.monotonic()
        new = [name for name in failed if (queue, name) not in self._since]
        for key in [(queue, name) for name in failed]:
            self._since[key] = now
            self._failures[key] = self._failures.get(key, 0) + 1
        if new:
            first = f"{new[0]}: {failed[new[0]]}"
            self._emit(process_events.RowsSetAside(queue=queue, count=len(new), first=first))

    def rows(self, without: tuple[str, str] | None = None) -> list[tuple[str, str]]:
        return [key for key in self._since if key != without]

    def due(self) -> tuple[str, str] | None:
        """Return the row to try again first; None = the time of none is over."""
        first = min(self._since, key=self._until, default=None)
        return first if first is not None and self._until(first) <= time.monotonic() else None

    def tried(self, key: tuple[str, str]) -> None:
        """Forget a row that was tried again, unless it has been added again."""
        if self._until(key) <= time.monotonic():
            del self._since[key], self._failures[key]

    def try_all(self) -> None:
        """Have all rows tried again: what stopped them may be gone with the data of Redis."""
        self._since = dict.fromkeys(self._since, -math.inf)

    def _until(self, key: tuple[str, str]) -> float:
        return self._since[key] + min(_SECONDS * 2.0 ** min(self._failures[key] - 1, 20), _MOST)
