"""What a recurrence will still do, from where it stands: its planned times that are yet to come. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec import Struct

from evsched.jobs.untrusted import number, whole
from evsched.recurrence.recurrence import Recurrence


class Standing(Struct, frozen=True):
    """Where a recurrence stands."""

    next: float
    """The planned time that goes on the schedule next, Unix seconds; 0 = the first from now on, inf = none."""
    made: int = 0
    """How many occurrences it has made, those that are ahead on the schedule too."""
    ahead: tuple[float, ...] = ()
    """The planned times of those on the schedule."""
    paused: bool = False


def read_standing(next_: float, fields: Mapping[str, bytes]) -> Standing:
    """Read where a recurrence stands from its score and its record; what is malformed counts as absent."""
    planned = (number(id_.rpartition(b"@")[2]) for id_ in fields.get("ahead", b"").split())
    ahead = tuple(sorted(moment for moment in planned if moment is not None))
    return Standing(next_, whole(fields.get("made")) or 0, ahead, "paused" in fields)


def times_ahead(recurrence: Recurrence, standing: Standing, now: float, after: float) -> Iterator[float]:
    """Yield the planned times after a moment, as many as its `count` leaves.

    With a count nothing is known of the past: what has run is not told from what was missed.
    """
    count = recurrence.declared.count
    if count is None:
        yield from recurrence.walk(after)
        return
    yield from (planned for planned in standing.ahead if planned > max(now, after))
    if standing.next == math.inf and not standing.paused:
        return  # it is over
    begin = math.nextafter(standing.next, -math.inf) if 0 < standing.next < math.inf else now
    for planned in islice(recurrence.walk(begin), max(0, count - standing.made)):
        if planned > after:
            yield planned
