"""The calls about the jobs that match a filter: find them, and change them if they still match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from evsched.jobs.untrusted import number
from evsched.store.queue import Queue
from evsched.transport.call import Call, text


def condition(
    *,
    task: str | None = None,
    group: str | None = None,
    reason: str | None = None,
    error: str | None = None,
    after: float | None = None,
    before: float | None = None,
) -> bytes:
    """Return a filter as the scripts take it (lua/_match.lua). `after`, `before`: Unix seconds."""
    given = {
        "task": task,
        "group": group,
        # Lua lowers A to Z alone: so must this, or other letters would never be found.
        "reason": reason if reason is None else reason.encode().lower().decode(),
        "error": error,
        "after": after,
        "before": before,
    }
    return msgspec.json.encode({name: value for name, value in given.items() if value is not None})


class Match(Struct, frozen=True):
    """A job that was found. Times in Unix seconds."""

    place: str
    id: str
    """Of an inline job, the whole member of the schedule."""
    at: float | None
    """When it is due, if it is on the schedule, or when it died; None elsewhere."""
    task: str | None
    group: str | None
    created: float | None
    by: str | None
    reason: str | None
    error: str | None
    """The class of what the handler raised in the last failed run."""


class Slice(Struct, frozen=True):
    """What one call has found."""

    cursor: str
    """Where the next slice begins; "0" = this was the last one."""
    left: list[bytes]
    """Ids that are to be examined before that slice."""
    found: list[Match]


def _read_slice(place: str, reply: list[Any]) -> Slice:
    cursor, left, flat = reply
    found = list[Match]()
    for at in range(0, len(flat), 8):
        score = number(flat[at + 1]) if place in ("schedule", "dead") else None
        task, group, created, by, reason, error = (text(value) or None for value in flat[at + 2 : at + 8])
        moment = None if created is None else number(created.encode())
        job = text(flat[at])
        found.append(Match(place.partition(":")[0], job, score, task, group, moment, by, reason, error))
    return Slice(text(cursor), left, found)


class Matching(Queue):
    """The calls about the jobs that match a filter, see `condition`.

    Those that change jobs take at most 1,000 ids, and leave each job as it is that does not match any more, or is not
    where it was found: it has started, ended, or become another job. The reply is how many were changed.
    """

    def find(
        self, place: str, matching: bytes, cursor: str = "0", *, limit: int = 250, ids: Sequence[bytes | str] = ()
    ) -> Call[Slice]:
        """Find jobs in a slice of a place, or among `ids`. `place`: a key without the root."""
        return self._verb("find", lambda reply: _read_slice(place, reply), place, matching, cursor, limit, *ids)

    def cancel_matching(self, ids: Sequence[str], matching: bytes, *, now: float | None = None) -> Call[int]:
        """Cancel jobs that wait and match."""
        words = [word for job_id in ids for word in (job_id, "")]
        return self._verb("cancel", _count, self._stamp(now), matching, *words)

    def reschedule_matching(
        self,
        ids: Sequence[str],
        matching: bytes,
        due: float | None,
        *,
        delay: float = 0.0,
        now: float | None = None,
    ) -> Call[int]:
        """Give jobs that wait and match another due, None = `delay` seconds from now."""
        moment = "" if due is None else repr(due)
        return self._verb("reschedule", _count, self._stamp(now), moment, repr(delay), matching, *ids)

    def revive_matching(self, ids: Sequence[str], matching: bytes, *, now: float | None = None) -> Call[int]:
        """Put jobs that are dead and match back on the schedule, due now."""
        return self._verb("revive", _count, self._stamp(now), matching, *ids)

    def drop_matching(self, ids: Sequence[str], matching: bytes) -> Call[int]:
        """Delete jobs that are dead and match."""
        return self._verb("drop", _count, matching, *ids)


def _count(reply: list[bytes]) -> int:
    return sum(1 for one in reply if one)
