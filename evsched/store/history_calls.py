"""The history of a queue: the jobs that ended, and counts of them by the hour. lua/_history.lua writes both.

Programs that schedule jobs may write the names in it, and anyone with rights to the keys may write the rest. So values
that are malformed are left out, never an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Struct

from evsched import keys
from evsched.jobs.record import number, whole
from evsched.store.queue import Queue, StreamPart
from evsched.transport.call import Call, text

_KEPT_FOR: Final = 86400.0
"""Seconds for which a history is kept after its last end."""


class PastJob(Struct, frozen=True):
    """One end of a job. A job that was dead and is revived ends once more. Times in Unix seconds."""

    queue: str
    id: str
    task: str
    """Empty if its payload did not say, or was over 64 KiB in a job that ended without its handler."""
    outcome: str
    """done, dead, expired or cancelled."""
    due: float | None
    """When its last attempt was due."""
    started: float | None
    """When the worker got it for its last attempt; None = it had none, or that had not begun."""
    ended: float
    attempt: int
    """How many attempts were counted."""
    worker: str = ""
    """Who ran it last."""
    group: str = ""
    by: str = ""
    """Who enqueued it; empty = the user `default` of Redis, or it is not known."""
    tags: list[str] = []
    error: str = ""
    """The class of the exception that its handler raised last, if it did not succeed."""
    location: str = ""
    """The line of the user's code that raised it."""


class HistoryEntry(Struct, frozen=True):
    """An entry of the history: the jobs that one call has ended in the same way, the last one first."""

    id: str
    digest: str
    """A hash of its content: after Redis has lost its last moments, another entry may get the same id."""
    jobs: list[PastJob]

    @property
    def number(self) -> int:
        """How many ends the history has had with this entry, counted from its mark."""
        return int(self.id.partition("-")[0])

    @property
    def mark(self) -> int:
        """When the history was made, which distinguishes one from the next."""
        return int(self.id.partition("-")[2])


def missed(before: str | None, entries: list[HistoryEntry]) -> int:
    """Return how many ends are missing before and between these entries, which are in order.

    `before`: the entry behind which the first of these is to follow; None = it is not known.
    """
    count, last = 0, before
    for entry in entries:
        if last is not None:
            number, mark = map(int, last.split("-"))
            begin = number if mark == entry.mark else entry.mark
            count += max(0, entry.number - len(entry.jobs) - begin)
        last = entry.id
    return count


class _HistoryRow(Struct, frozen=True, array_like=True):
    """A job in an entry, as lua/_history.lua describes it."""

    id: str
    label: list[str]
    """The task and the tags."""
    due: float | None
    started: float | None
    attempt: int
    group: str = ""
    by: str = ""
    error: str = ""
    location: str = ""


_decode_rows = msgspec.json.Decoder(list[_HistoryRow]).decode


class EndCount(Struct, frozen=True):
    """How many jobs of a task ended alike in one hour."""

    task: str
    outcome: str
    late: int | None
    """They started less than 2^late ms after their due, and at least half of that, or it is 0. None: they did not."""
    run: int | None
    """The same of how long they ran."""
    jobs: int


def _read_counts(reply: list[bytes]) -> list[EndCount]:
    found = list[EndCount]()
    for at in range(0, len(reply), 2):
        outcome, late, run, task = (*text(reply[at]).split(" ", 3), "", "", "")[:4]
        found.append(EndCount(task, outcome, _power(late), _power(run), whole(reply[at + 1])))
    return found


class HistoryCalls(Queue):
    """The calls that read the history."""

    def has_past(self) -> Call[bool]:
        """Ask whether jobs of the queue have ended, or operators have changed it, as far as Redis still knows."""
        return self._call(("EXISTS", keys.history(self.queue), keys.audit(self.queue)), bool)

    def ended(self, before: str = "+", after: str | None = None, *, count: int = 50) -> Call[StreamPart[HistoryEntry]]:
        """Read `count` entries of the history, the newest first, back from `before`.

        `after`: the id of an entry; only later ones are read. None = all.
        """
        first = "-" if after is None else f"({after}"
        return self._newest(keys.history(self.queue), before, first, count, partial(_entry, self.queue))

    def complete_since(self) -> Call[float | None]:
        """Read since when the history has all ends; None = it has none.

        One that has lost none begins after `_KEPT_FOR` without an end, unless limits say otherwise.
        """

        def read(reply: list[Any]) -> float | None:
            if not reply:
                return None
            first = _entry(self.queue, *reply[0])
            if first.jobs and first.number - len(first.jobs) == first.mark:
                return first.mark / 1e6 - _KEPT_FOR
            return min((job.ended for job in first.jobs), default=None)

        return self._call(("XRANGE", keys.history(self.queue), "-", "+", "COUNT", 1), read)

    def hour(self, hour: int) -> Call[list[EndCount]]:
        """Read how many jobs ended in an hour. `hour`: hours since 1970."""
        return self._call(("HGETALL", f"{self._root}hour:{hour}"), _read_counts)

    def hours(self, hours: Sequence[tuple[str, int]], *, most: int = 5000) -> Call[list[list[EndCount] | None]]:
        """Read hours of many queues in one call, as `hashes`. `hours`: queue and hour."""
        return self.hashes([(queue, f"hour:{hour}") for queue, hour in hours], _read_counts, most=most)


def read_history(last: Mapping[str, str], limit: int, block: float | None) -> Call[dict[str, list[HistoryEntry]]]:
    """Read at most `limit` entries of the history of each of these queues, the oldest first.

    `last`: queue -> the entry behind which to read. `block`: how many seconds Redis waits for one; None = it does not.
    In a cluster, the queues are of one slot.
    """
    streams = {keys.history(queue).encode(): queue for queue in last}

    def read(reply: list[Any] | None) -> dict[str, list[HistoryEntry]]:
        queues = [(streams[stream], found) for stream, found in reply or ()]
        return {queue: [_entry(queue, *one) for one in found] for queue, found in queues}

    waiting = () if block is None else ("BLOCK", round(block * 1000))
    words = "XREAD", "COUNT", limit, *waiting, "STREAMS", *streams, *last.values()
    return Call(words, read, near=next(iter(streams)))


def _entry(queue: str, entry: bytes, flat: list[bytes]) -> HistoryEntry:
    fields = {text(flat[at]): flat[at + 1] for at in range(0, len(flat) - 1, 2)}
    ended, rows = number(fields.get("ended")), list[_HistoryRow]()
    # Names may be cut within a character, or hold any bytes.
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        rows = _decode_rows(fields.get("jobs", b"[]").decode(errors="replace"))
    outcome, worker = text(fields.get("outcome", b"")), text(fields.get("worker", b""))
    jobs = [
        PastJob(
            queue=queue,
            id=row.id,
            task=row.label[0] if row.label else "",
            outcome=outcome,
            due=row.due,
            started=row.started,
            ended=ended or 0.0,
            attempt=row.attempt,
            worker=worker,
            group=row.group,
            by=row.by,
            tags=row.label[1:],
            error=row.error,
            location=row.location,
        )
        for row in reversed(rows)
    ]
    digest = blake2b(b"\0".join(flat), digest_size=8).hexdigest()
    return HistoryEntry(text(entry), digest, jobs)


def _power(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 3 else None
