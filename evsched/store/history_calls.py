"""The history of a queue: the jobs that ended, and counts of them by the hour. lua/_history.lua writes both.

Programs that schedule jobs may write the names in it, and anyone with rights to the keys may write the rest. So values
that are malformed are left out, never an error.
"""

from __future__ import annotations

import contextlib

import msgspec
from msgspec import Struct

from evsched import keys
from evsched.jobs.record import number, whole
from evsched.store.queue import Queue, StreamPart
from evsched.transport.call import Call, text


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
    """An entry of the history: the jobs of one outcome that a call has written, the last one first."""

    number: int
    """The number of its last job among all ends of the queue."""
    jobs: list[PastJob]


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


class HistoryCalls(Queue):
    """The calls that read the history."""

    def has_past(self) -> Call[bool]:
        """Ask whether jobs of the queue have ended, or operators have changed it, as far as Redis still knows."""
        return self._call(("EXISTS", f"{self._root}history", keys.audit(self.queue)), bool)

    def ended(self, before: str = "+", *, count: int = 50) -> Call[StreamPart[HistoryEntry]]:
        """Read `count` entries of the history, the newest first, back from `before`."""

        def entry(position: bytes, fields: list[bytes]) -> HistoryEntry:
            return HistoryEntry(int(position.partition(b"-")[0]), self._jobs(fields))

        return self._newest(f"{self._root}history", before, "-", count, entry)

    def _jobs(self, flat: list[bytes]) -> list[PastJob]:
        fields = {text(flat[at]): flat[at + 1] for at in range(0, len(flat) - 1, 2)}
        ended, rows = number(fields.get("ended")), list[_HistoryRow]()
        # Names may be cut within a character, or hold any bytes.
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            rows = _decode_rows(fields.get("jobs", b"[]").decode(errors="replace"))
        outcome, worker = text(fields.get("outcome", b"")), text(fields.get("worker", b""))
        return [
            PastJob(
                queue=self.queue,
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

    def hour(self, hour: int) -> Call[list[EndCount]]:
        """Read how many jobs ended in an hour. `hour`: hours since 1970."""

        def counts(reply: list[bytes]) -> list[EndCount]:
            found = list[EndCount]()
            for at in range(0, len(reply), 2):
                outcome, late, run, task = (*text(reply[at]).split(" ", 3), "", "", "")[:4]
                found.append(EndCount(task, outcome, _power(late), _power(run), whole(reply[at + 1])))
            return found

        return self._call(("HGETALL", f"{self._root}hour:{hour}"), counts)


def _power(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 3 else None
