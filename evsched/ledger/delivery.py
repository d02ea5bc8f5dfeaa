"""Puts the jobs of rows on the schedule, and finds the rows that Redis does not take, so that they stop no others.

A call is for many rows, and one of them can make it fail: Redis resets the connection when an argument is too long, and
a key of the wrong type at the place of one job's record fails the whole script. So after a failure, the same call is
made without rows. If that fails too, Redis or the queue is the cause. If it succeeds, some of the rows are: the call is
halved until single rows are left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from evsched.errors import StoreError
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
        """Return how often a row of so many bytes is sent at most."""
        return 1 if size >= self._shortest else _TRIES

    def note(self, size: int, taken: bool) -> None:
        """Note whether Redis took a row of so many bytes."""
        if taken and size >= self._shortest:
            self._shortest = math.inf
        elif not taken and size > _BYTES:
            self._shortest = min(self._shortest, size)


class Delivered(Struct, frozen=True):
    """What became of rows that are not on the schedule."""

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
    """Return why Redis never takes a row of so many bytes; None if it may, or if the relay may not read the limit."""
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
