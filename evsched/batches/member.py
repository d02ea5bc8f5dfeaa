"""The members of a batch by their ordinals: their queues, their ids, and how each has ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from evsched.client.operations import Operation, send, send_many
from evsched.store.store import Store

CODES: Final = {"o": 0, "d": 1, "x": 2, "c": 3, "e": 4, "m": 5, "s": 6, "w": 7}
"""The codes of lua/_batches.lua."""

OUTCOMES: Final = ("open", "done", "dead", "cancelled", "expired", "missing", "stopped", "waiting")
"""The outcomes by the numbers of their codes."""

_PARTS: Final = 1000
"""Parts of a batch that one call reads."""

_SLICE: Final = 65536
"""Ordinals whose ends one call reads."""


_CODE_OF: Final = bytes(byte % 8 for byte in range(256))


class Member(Struct, frozen=True):
    """A job of a batch, or a batch in a batch."""

    ordinal: int
    queue: str
    id: str
    outcome: str
    """open, done, dead, cancelled, expired, or missing (never enqueued); a node may also be waiting, or stopped."""

    @property
    def batch(self) -> str | None:
        """The id of the batch in this place; None = it is a job."""
        return self.id[1:] if self.id.startswith("/") else None


def ends(store: Store, batch: str, first: int, last: int) -> Operation[bytes]:
    """Read how the members have ended: a byte for each ordinal, the number of its code."""
    found = yield from send(store.batch_ends(batch, first, last))
    return found.translate(_CODE_OF).ljust(last - first + 1, b"\0")


def members(store: Store, batch: str, ordinals: Sequence[int], codes: Sequence[int]) -> Operation[list[Member]]:
    """Find members by their ordinals, in ascending order; `codes`: how they have ended."""
    if not ordinals:
        return []
    ids = yield from send(store.batch_ids(batch, ordinals))
    queues, read = dict[int, str](), 0
    while len(queues) < len(ordinals):
        parts = yield from send(store.batch_parts(batch, read, read + _PARTS - 1))
        for first, count, queue in parts:
            queues |= {at: queue for at in ordinals if first <= at < first + count}
        read += len(parts)
        if len(parts) < _PARTS:
            break
    found = zip(ordinals, ids, codes, strict=True)
    return [Member(at, queues[at], job_id, OUTCOMES[code % 8]) for at, job_id, code in found if at in queues]


def with_codes(
    store: Store, batch: str, total: int, wanted: Sequence[int], limit: int, first: int = 0
) -> Operation[list[Member]]:
    """Find the members from an ordinal on that have ended with one of some codes, at most `limit`."""
    ordinals, codes = list[int](), list[int]()
    pattern = re.compile(b"[%s]" % re.escape(bytes(wanted)))
    while first < total and len(ordinals) < limit:
        last = min(first + _SLICE, total) - 1
        found = yield from ends(store, batch, first, last)
        for match in islice(pattern.finditer(found), limit - len(ordinals)):
            ordinals.append(first + match.start())
            codes.append(found[match.start()])
        first = last + 1
    return (yield from members(store, batch, ordinals, codes))


def are_there(stores: Sequence[Store], home: Store, batch: str, found: Sequence[Member]) -> Operation[list[bool]]:
    """Return of each member whether one of the stores, of its queue and the shards, has its record.

    A job that moves to another shard is in both for a moment. With several stores each is asked twice, because a pass
    may ask the one just before the job comes, and the other just after it has left.
    """
    opened = yield from send(home.batch_opened(batch))
    life = yield from send(home.batch_life(batch))
    there = [False] * len(found)
    for store in [*stores] * (2 if len(stores) > 1 else 1):
        records = yield from send_many([store.membership_of(member.id) for member in found])
        for at, (member, record) in enumerate(zip(found, records, strict=True)):
            address = f"{home.queue}/{batch}/{member.ordinal}".encode()
            there[at] = there[at] or record.is_of(address, life, opened)
    return there
