"""The calls of `evsched doctor`: find what is wrong in a queue, and repair it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import Struct

from evsched.store.queue import Queue
from evsched.transport.call import Call, Word, text

PLACES: Final = {
    "schedule": "zset",
    "backlog": "zset",
    "ready": "list",
    "dead": "zset",
    "leases": "zset",
    "idle": "zset",
    "limits": "hash",
    "in_flight": "hash",
    "throttled": "zset",
    "fair": "hash",
    "recurrences": "zset",
    "suspects": "hash",
}
"""The keys on which a whole queue depends, with their types."""


class Violation(Struct, frozen=True):
    """Something that the audit found wrong in a queue."""

    id: bytes
    """Of the job, group or worker; empty for the queue."""
    code: str
    """What is wrong, see diagnostics/audit.py."""
    where: str
    """The place, or a detail."""
    met: bytes = b""
    """The list where the id was found, if the record may not name it: `processing:<worker>` or `backlog:<group>`."""


def _read_violations(met: bytes) -> Callable[[list[bytes]], list[Violation]]:
    def read(flat: list[bytes]) -> list[Violation]:
        return [Violation(flat[i], text(flat[i + 1]), text(flat[i + 2]), met) for i in range(0, len(flat), 3)]

    return read


class Audits(Queue):
    """The calls of the doctor."""

    def audit(
        self, ids: Iterable[bytes], *, met: bytes = b"", strays: Iterable[str] = (), now: float | None = None
    ) -> Call[list[Violation]]:
        """Find what is wrong with at most 250 jobs. `met`: where their ids were read, a key without the root.

        `strays`: the workers that have a processing list but no lease.
        """
        return self._verb("audit", _read_violations(met), self._stamp(now), met, " ".join(strays), *ids)

    def recount(
        self, groups: Iterable[bytes] = (), *, strays: Iterable[str] = (), most: int = 10_000
    ) -> Call[list[Violation]]:
        """Find what the gate has miscounted. `groups`: those that have a backlog of their own, under 1,000."""
        return self._verb("recount", _read_violations(b""), most, " ".join(strays), *groups)

    def mend(
        self,
        violations: Iterable[Violation],
        *,
        strays: Iterable[str] = (),
        most: int = 10_000,
        now: float | None = None,
    ) -> Call[list[tuple[bytes, str]]]:
        """Repair what is still wrong, if the repair needs no guess; the reply is (id, code) of each repair."""

        def mended(flat: list[bytes]) -> list[tuple[bytes, str]]:
            return [(flat[i], text(flat[i + 1])) for i in range(0, len(flat), 2)]

        words: list[Word] = [self._stamp(now), most, " ".join(strays)]
        for violation in violations:
            words += (violation.id, violation.code, violation.met)
        return self._verb("mend", mended, *words)

    def members(self, place: bytes, cursor: int, count: int) -> Call[tuple[int, list[bytes]]]:
        """Read a slice of a place, a key without the root; the reply has the next cursor, 0 after the last slice.

        Ids that move within a list meanwhile may be missed.
        """
        key = self._root.encode() + place
        if place == b"ready" or place.startswith(b"processing:"):

            def items(reply: list[bytes]) -> tuple[int, list[bytes]]:
                return (cursor + count if len(reply) == count else 0), reply

            return self._call(("LRANGE", key, cursor, cursor + count - 1), items)

        def ids(reply: list[Any]) -> tuple[int, list[bytes]]:
            return int(reply[0]), reply[1][::2]

        return self._call(("ZSCAN", key, cursor, "COUNT", count), ids)
