"""What the doctor calls: what is wrong, and to put it right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from evsched.store.queue import Queue
from evsched.store.replies import Violation
from evsched.transport.call import Call, Word, text


def _wrongs(met: bytes) -> Callable[[list[bytes]], list[Violation]]:
    def read(flat: list[bytes]) -> list[Violation]:
        return [Violation(flat[i], text(flat[i + 1]), text(flat[i + 2]), met) for i in range(0, len(flat), 3)]

    return read


class Audits(Queue):
    """The calls of the doctor."""

    def audit(
        self, ids: Iterable[bytes], *, met: bytes = b"", strays: Iterable[str] = (), now: float | None = None
    ) -> Call[list[Violation]]:
        """Tell what is wrong with jobs, at most 250. `met`: the key without the root where their ids were read.

        `strays`: the workers that have a list and no lease.
        """
        return self._verb("audit", _wrongs(met), self._stamp(now), met, " ".join(strays), *ids)

    def recount(
        self, groups: Iterable[bytes] = (), *, strays: Iterable[str] = (), most: int = 10_000
    ) -> Call[list[Violation]]:
        """Tell what the gate has miscounted. `groups`: those that have a backlog of their own, under 1,000."""
        return self._verb("recount", _wrongs(b""), most, " ".join(strays), *groups)

    def mend(
        self, wrongs: Iterable[Violation], *, strays: Iterable[str] = (), most: int = 10_000, now: float | None = None
    ) -> Call[list[tuple[bytes, str]]]:
        """Put right what is wrong, if it still is and needs no guess; the reply is (id, code) of what was mended."""

        def mended(flat: list[bytes]) -> list[tuple[bytes, str]]:
            return [(flat[i], text(flat[i + 1])) for i in range(0, len(flat), 2)]

        words: list[Word] = [self._stamp(now), most, " ".join(strays)]
        for wrong in wrongs:
            words += (wrong.id, wrong.code, wrong.met)
        return self._verb("mend", mended, *words)

    def members(self, place: bytes, cursor: int, count: int) -> Call[tuple[int, list[bytes]]]:
        """Read a slice of a place by its key without the root; the reply has the next cursor, 0 = it was the last.

        What moves meanwhile within a list may be left out.
        """
        key = self._root.encode() + place
        if place == b"ready" or place.startswith(b"processing:"):

            def items(reply: list[bytes]) -> tuple[int, list[bytes]]:
                return (cursor + count if len(reply) == count else 0), reply

            return Call(("LRANGE", key, cursor, cursor + count - 1), items)

        def ids(reply: list[Any]) -> tuple[int, list[bytes]]:
            return int(reply[0]), reply[1][::2]

        return Call(("ZSCAN", key, cursor, "COUNT", count), ids)
