"""The calls that read what a codec has sealed, wherever it lies, and write it sealed with another key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any, Final, Literal

from msgspec import Struct

from evsched import keys
from evsched.store.queue import Queue
from evsched.transport.call import Call, Word, text

SEALED_FIELDS: Final = ("payload", "next_payload", "result", "steps", "signals")
"""The fields of a record that may have sealed values."""

Kind = Literal["job", "inline", "recurrence", "node"]


class Kept(Struct, frozen=True):
    """A value as Redis has it."""

    kind: Kind
    name: str | bytes
    """The id of the job; the member of the schedule; the name of the recurrence; the id of the graph."""
    field: str
    """A field of the record, or of the hash of nodes; "" for a member."""
    value: bytes


class KeptPart(Struct, frozen=True):
    """A part of the values in one place."""

    kept: list[Kept]
    next: int
    """The cursor of the next part; 0 = this was the last."""


class ResealCalls(Queue):
    """The calls about sealed values; see `store.py`."""

    def reseal(self, kind: Kind, changes: Sequence[tuple[Kept, bytes]]) -> Call[list[bool]]:
        """Write other values in place of some of one kind; the reply is which were still as they were read."""
        words: list[Word] = [kind]
        for kept, value in changes:
            words += kept.name, kept.field, sha1(kept.value, usedforsecurity=False).hexdigest(), value
        return self._verb("reseal", lambda reply: [one == b"1" for one in reply], *words)

    def sealed_fields(self, job_id: str) -> Call[list[Kept]]:
        """Read the fields of a record that may have sealed values."""

        def read(reply: list[bytes | None]) -> list[Kept]:
            pairs = zip(SEALED_FIELDS, reply, strict=True)
            return [Kept("job", job_id, field, value) for field, value in pairs if value]

        return self._call(("HMGET", keys.job(self.queue, job_id), *SEALED_FIELDS), read)

    def light_payloads(self, cursor: int, count: int) -> Call[KeptPart]:
        """Read payloads of light jobs (lua/_schedule.lua)."""

        def kept(job_id: bytes, value: bytes) -> Kept:
            return Kept("job", text(job_id), "payload", value.split(b" ", 3)[-1])

        return self._call(("HSCAN", self._root + "light", cursor, "COUNT", count), _pairs(kept))

    def inline_members(self, cursor: int, count: int) -> Call[KeptPart]:
        """Read inline jobs on the schedule."""

        def kept(member: bytes, score: bytes) -> Kept:
            return Kept("inline", member, "", member)

        words = ("ZSCAN", self._root + "schedule", cursor, "MATCH", "{*", "COUNT", count)
        return self._call(words, _pairs(kept))

    def recurrence_payload(self, name: str) -> Call[list[Kept]]:
        """Read the payload of a recurrence."""

        def read(reply: bytes | None) -> list[Kept]:
            return [Kept("recurrence", name, "payload", reply)] if reply else []

        return self._call(("HGET", f"{self._root}recurrence:{name}", "payload"), read)

    def batch_ids_of_all(self, cursor: int, count: int) -> Call[tuple[int, list[str]]]:
        """Read ids of batches."""

        def read(reply: list[Any]) -> tuple[int, list[str]]:
            return int(reply[0]), [text(one) for one in reply[1][::2]]

        return self._call(("ZSCAN", self._root + "batches", cursor, "COUNT", count), read)

    def graph_nodes(self, batch: str, cursor: int, count: int) -> Call[KeptPart]:
        """Read nodes of a graph. The other fields of the hash begin with no digit."""

        def kept(ordinal: bytes, value: bytes) -> Kept:
            return Kept("node", batch, text(ordinal), value)

        words = ("HSCAN", f"{self._root}batch_nodes:{batch}", cursor, "MATCH", "[0-9]*", "COUNT", count)
        return self._call(words, _pairs(kept))


def _pairs(kept: Callable[[bytes, bytes], Kept]) -> Callable[[list[Any]], KeptPart]:
    """Return a reader of a scan that makes a value of each pair."""

    def read(reply: list[Any]) -> KeptPart:
        flat = reply[1]
        return KeptPart([kept(flat[at], flat[at + 1]) for at in range(0, len(flat), 2)], int(reply[0]))

    return read
