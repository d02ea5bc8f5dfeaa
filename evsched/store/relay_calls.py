"""The calls of a relay of the ledger: it reads how jobs ended, and says when the ledger has that; see `store.py`.

The reports are in a stream. All relays read it as one consumer group, so each report goes to one of them, and stays
in the stream until `settle`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from evsched import keys
from evsched.jobs.record import number
from evsched.store.queue import Queue, as_fields, as_optional, as_struct, as_texts
from evsched.transport.call import Call, Word, raw, text

_GROUP: Final = "ledger"
"""The consumer group of all relays."""

_ROW: Final = re.compile(r"[0-9]{1,18}")
"""The number of a row, as lua/_ends.lua takes it: a bigint of PostgreSQL."""


class RowJob(Struct, frozen=True):
    """A job of a row. `due` in Unix seconds."""

    id: str
    payload: bytes
    priority: int | None
    group: str | None
    due: float
    row: int
    """The number of the row."""
    revision: int = 0
    """How often its due was changed in the row."""


class Report(Struct, frozen=True):
    """How a job of the ledger ended."""

    entry: str
    """The report's id in the stream: Redis's clock in milliseconds, and a count."""
    id: str
    row: str
    """The number of the job's row. Untrusted, as all that a record says."""
    outcome: str
    """`done`, `dead`, `expired`, `cancelled`, `dropped`; or `open`: a dead job was revived."""
    reason: str
    retention: str
    """For `settle`."""

    @property
    def is_of_row(self) -> bool:
        """Whether a script has written it. Anybody who may write to the stream may add entries of another form."""
        return _ROW.fullmatch(self.row) is not None and self.order < 1 << 63

    @property
    def order(self) -> int:
        """Return the place of the report among all of its stream, as a number of 63 bits."""
        milliseconds, _, count = self.entry.partition("-")
        return int(milliseconds) << 20 | min(int(count), (1 << 20) - 1)


class Consumer(Struct, frozen=True):
    """A relay that reads the reports of a queue."""

    name: str
    pending: int
    """Reports that it was given and has not settled."""
    idle: float
    """Seconds since it last asked."""


class Mark(Struct, frozen=True):
    """The fields of a record that are about the ledger."""

    row: str | None
    finished: float | None
    next_row: str | None
    """The row whose job runs when this one's run has ended."""


def own_key(key: str, mine: str | None) -> Call[str]:
    """Read a key that says which data, or whose, this is. If it is missing, write `mine`; None = return "" then."""

    def read(reply: bytes | None) -> str:
        return mine or "" if reply is None else text(reply)

    return Call(("GET", key) if mine is None else ("SET", key, mine, "NX", "GET"), read, near=key)


def _reports(entries: list[Any]) -> list[Report]:
    found = list[Report]()
    for entry, flat in entries:
        fields = as_texts(flat or [])
        found.append(
            Report(text(entry), *(fields.get(name, "") for name in ("id", "row", "outcome", "reason", "retention")))
        )
    return found


def _length(retention: str) -> str:
    """Return the retention in a report as the script takes it. In the stream it may be any text."""
    found = number(retention.encode())
    return "" if found is None or math.isinf(found) else repr(found)


def read_ends(queues: Sequence[str], relay: str, limit: int, block: float | None) -> Call[dict[str, list[Report]]]:
    """Read at most `limit` reports of each queue: new ones, for which it waits in Redis, or those given before.

    `block`: how many seconds to wait; None = read the unsettled entries of `relay`. Redis ends the wait
    with an error when a stream is deleted, as when all its data is lost.
    """
    streams = {keys.ends(queue).encode(): queue for queue in queues}

    def read(reply: list[Any] | None) -> dict[str, list[Report]]:
        return {streams[stream]: _reports(entries) for stream, entries in reply or ()}

    wait = () if block is None else ("BLOCK", round(block * 1000))
    last = ("0" if block is None else ">",) * len(streams)
    return Call(
        ("XREADGROUP", "GROUP", _GROUP, relay, "COUNT", limit, *wait, "STREAMS", *streams, *last),
        read,
        near=next(iter(streams)),
    )


SETTING: Final = "setting"
"""The outcome in an entry of the stream that is not about a job: an operator has changed a setting of the queue."""


class RelayCalls(Queue):
    """The calls of a relay, and `note_setting`."""

    def note_setting(self) -> Call[Any]:
        """Tell the relays, if there are any, that a setting was changed, so that they copy it."""
        return self._call(("XADD", keys.ends(self.queue), "NOMKSTREAM", "*", "outcome", SETTING), raw)

    def relay(self, jobs: Sequence[RowJob]) -> Call[dict[str, str]]:
        """Put jobs of rows on the schedule; the reply is why those cannot be whose rows were refused, by their ids."""
        words: list[Word] = []
        for job in jobs:
            priority = "" if job.priority is None else job.priority
            words += (job.id, job.payload, priority, job.group or "", repr(job.due), job.row, job.revision or "")

        def read(reply: list[bytes]) -> dict[str, str]:
            return {job.id: text(reason) for job, reason in zip(jobs, reply, strict=True) if reason}

        return self._verb("relay", read, self._now(), *words)

    def cancel_rows(self, cancelled: Sequence[tuple[str, int]]) -> Call[Any]:
        """Cancel the jobs of rows, which are given by their ids and numbers; their ends are reported."""
        words = [word for job_id, row in cancelled for word in (job_id, row)]
        return self._verb("cancel", raw, self._now(), "", "", *words)

    def follow_ends(self) -> Call[Any]:
        """Make the stream and its consumer group. Fails with kind "busygroup" if they exist."""
        return self._call(("XGROUP", "CREATE", keys.ends(self.queue), _GROUP, "0", "MKSTREAM"), raw)

    def inherit_ends(self, relay: str, limit: int, idle: float) -> Call[list[Report]]:
        """Take over at most `limit` reports that another relay was given at least `idle` seconds ago."""

        def read(reply: list[Any]) -> list[Report]:
            return _reports(reply[1])

        words = keys.ends(self.queue), _GROUP, relay, round(idle * 1000), "0", "COUNT", limit
        return self._call(("XAUTOCLAIM", *words), read)

    def settle(self, reports: Sequence[Report]) -> Call[int]:
        """Note that the ledger has these ends; the reply is how many reports were deleted."""
        words = [word for one in reports for word in (one.entry, one.id, one.row, _length(one.retention))]
        return self._verb("settle", int, _GROUP, *words)

    def withdraw(self, ended: Sequence[tuple[str, int]]) -> Call[int]:
        """Remove jobs of rows that have ended, given as ids and numbers; the reply is how many there were."""
        return self._verb("withdraw", int, self._now(), *(word for one in ended for word in one))

    def mark(self, job_id: str) -> Call[Mark]:
        """Read from a record which row the job has, and when it ended."""
        read = as_struct(Mark, as_optional(text), number, as_optional(text))
        return self._call(("HMGET", keys.job(self.queue, job_id), "ledger", "finished", "next_ledger"), read)

    def count_ends(self) -> Call[int]:
        """Count the reports that are not settled."""
        return self._call(("XLEN", keys.ends(self.queue)), int)

    def consumers(self) -> Call[list[Consumer]]:
        """Read which relays have asked for reports."""

        def read(reply: list[list[Any]]) -> list[Consumer]:
            rows = [as_fields(row) for row in reply]
            return [Consumer(text(row["name"]), int(row["pending"]), int(row["idle"]) / 1000) for row in rows]

        return self._call(("XINFO", "CONSUMERS", keys.ends(self.queue), _GROUP), read)

    def forget_consumer(self, relay: str) -> Call[Any]:
        """Delete a relay that has ended and has nothing to settle."""
        return self._call(("XGROUP", "DELCONSUMER", keys.ends(self.queue), _GROUP, relay), raw)
