"""The future planned times of a recurrence, computed from its score and record. Pure."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from itertools import islice

from msgspec import Struct

from evsched.jobs.untrusted import number, whole
from evsched.recurrence.calendars import just_before
from evsched.recurrence.recurrence import Recurrence


class Standing(Struct, frozen=True):
    """How far a recurrence has got."""

    next: float
    """The score: the planned time that is put on the schedule next, in Unix seconds; 0 = from now on, inf = none."""
    made: int = 0
    """How many occurrences were scheduled so far, including those in `ahead`."""
    ahead: tuple[float, ...] = ()
    """The planned times of the occurrences that were put on the schedule last, those that have ended left out."""
    paused: bool = False
    until: float | None = None
    """When its pause ends, in Unix seconds; None = it is not paused, or for good."""
    under_way: bool = False
    """Is an occurrence on the schedule, waiting or running from whose end the next one is counted? Then the score is
    only the time at which a dispatcher looks whether it still is."""


def counted_from(fields: Mapping[str, bytes]) -> list[str]:
    """Return the ids of the occurrences, two at most, from whose end the next one is counted if they have not ended."""
    if fields.get("after") != b"end":
        return []
    ids = {*fields.get("ahead", b"").split()[-1:], fields.get("current", b"")} - {fields.get("last_id"), b""}
    return sorted(id_.decode(errors="backslashreplace") for id_ in ids)


def put_ahead(fields: Mapping[str, bytes]) -> list[str]:
    """Return the ids of the occurrences that were put on the schedule last, those that have ended left out."""
    ids = (id_ for id_ in fields.get("ahead", b"").split() if id_ != fields.get("last_id"))
    return [id_.decode(errors="backslashreplace") for id_ in ids]


def read_standing(next_: float, fields: Mapping[str, bytes], under_way: bool, gone: Container[str] = ()) -> Standing:
    """Read a recurrence's score and record. Malformed values count as absent. `under_way`: see `Standing`.

    `gone`: which of `put_ahead` have no job any more.

    Read the score first: if a dispatcher moves the recurrence on in between, the record has what the score had.
    """
    planned = (number(id_.rpartition("@")[2].encode()) for id_ in put_ahead(fields) if id_ not in gone)
    ahead = tuple(sorted(moment for moment in planned if moment is not None))
    paused = "paused" in fields
    until = number(fields.get("paused_until")) if paused else None
    return Standing(next_, whole(fields.get("made")) or 0, ahead, paused, until, under_way)


def next_time(standing: Standing, now: float) -> float | None:
    """Return the next planned time: of the first occurrence that is on the schedule ahead of it, else the score.

    None = there is none: the recurrence is about to begin, is paused or is over, or counts from the end of the
    occurrence that is under way. A time in the past is overdue.
    """
    first = min((planned for planned in standing.ahead if planned > now), default=None)
    if first is None and not standing.under_way:
        first = standing.next
    return first if first is not None and 0 < first < math.inf else None


def times_ahead(recurrence: Recurrence, standing: Standing, now: float, after: float) -> Iterator[float]:
    """Yield the planned times after a moment, as many as its `count` leaves.

    For a recurrence with a count, past times are left out, because the record does not say which of them were missed.
    """
    if standing.until is not None:
        resumes = just_before(standing.until)
        now, after = max(now, resumes), max(after, resumes)
    count = recurrence.declared.count
    if recurrence.declared.after is not None:
        yield from (planned for planned in _counted_from_ends(recurrence, standing, now) if planned > after)
        return
    if count is None:
        yield from recurrence.walk(after)
        return
    yield from (planned for planned in standing.ahead if planned > max(now, after))
    if standing.next == math.inf and not standing.paused:
        return  # all its occurrences have been scheduled
    begin = just_before(standing.next) if 0 < standing.next < math.inf else now
    for planned in islice(recurrence.walk(begin), max(0, count - standing.made)):
        if planned > after:
            yield planned


def _counted_from_ends(recurrence: Recurrence, standing: Standing, now: float) -> Iterator[float]:
    """Yield the planned times for runs that take no time, because their real ends are not known."""
    yield from standing.ahead
    if standing.next == math.inf and not standing.paused:
        return
    last = next_time(standing, now)
    if last is None:
        last = now  # the run that is under way ends now, or it begins now
    elif last not in standing.ahead:
        last -= recurrence.rule.every
    count = recurrence.declared.count
    yield from islice(recurrence.walk(last), None if count is None else max(0, count - standing.made))
