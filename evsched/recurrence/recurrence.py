"""Recurrences: what is declared, and from where one stands to what goes on the schedule now. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha1
from typing import Final, Literal, cast

import msgspec
from msgspec import Struct

from evsched.errors import ConfigError
from evsched.jobs.retry import Retry
from evsched.keys import NAME
from evsched.recurrence.cron import Rule, parse_rule
from evsched.recurrence.windows import WINDOW_NAME, Window, read_window

Misfire = Literal["skip", "once", "all"]
"""What becomes of occurrences whose time passed while nobody could put them on the schedule."""

Overlap = Literal["allow", "skip", "wait"]
"""What becomes of an occurrence that falls due while the one before it has not ended."""

_LATE: Final = 5.0
"""Seconds after which an occurrence was missed rather than late, if half its interval is not shorter."""

_PUT: Final = 100
_LOOKED: Final = 2000
"""Occurrences of one recurrence in one step: those put on the schedule, and those looked at. 40 ms."""

_MADE_UP: Final = 10_000
"""Missed occurrences that `all` makes up for, at the most."""

_FAR: Final = 1e11
"""Unix seconds, in the year 5138."""

_NAME_MOST: Final = 180
"""An occurrence's id has `@` and a time behind the name, and 200 characters in all."""


class Declared(Struct, frozen=True, kw_only=True):
    """A recurrence, as it is declared and as its record holds it. Unix seconds; lengths in seconds."""

    name: str
    rule: str
    """Cron, an alias such as `@daily`, or `every 90`."""
    payload: bytes
    zone: str = "UTC"
    priority: int | None = None
    group: str | None = None
    start: float | None = None
    end: float | None = None
    count: int | None = None
    """How many occurrences there are in all."""
    spread: float = 0.0
    """Each occurrence is moved by a stable part of this."""
    misfire: Misfire = "once"
    most: int = 100
    """How many missed occurrences `all` makes up for at a time."""
    overlap: Overlap = "skip"
    window: str | None = None

    def fields(self) -> dict[str, str | bytes]:
        """Return the fields of its record; '' is not set."""
        return {
            "rule": self.rule,
            "zone": self.zone,
            "payload": self.payload,
            "priority": "" if self.priority is None else str(self.priority),
            "group": self.group or "",
            "start": "" if self.start is None else repr(self.start),
            "end": "" if self.end is None else repr(self.end),
            "count": "" if self.count is None else str(self.count),
            "spread": f"{self.spread:g}" if self.spread else "",
            "misfire": self.misfire,
            "most": str(self.most),
            "overlap": self.overlap,
            "window": self.window or "",
        }


def read_declared(name: str, fields: dict[str, bytes]) -> Declared:
    """Read a record, that of any client.

    Raises:
        ConfigError: a field is missing, or is none; the message names it.
    """
    known = {key: value.decode(errors="replace") for key, value in fields.items() if key in Declared.__struct_fields__}
    try:
        found = msgspec.convert({**known, "name": name, "payload": ""}, Declared, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"recurrence {name}: {error}") from None
    if "payload" not in fields:
        raise ConfigError(f"recurrence {name}: its record has no payload")
    return msgspec.structs.replace(found, payload=fields["payload"])


class Occurrence(Struct, frozen=True):
    """One occurrence. `planned` names it, `due` is when it runs: moved by the spread, and to its window's opening."""

    id: str
    planned: float
    due: float
    misfire_grace: float | None = None
    """Seconds after which it was missed rather than late; None = it makes up for missed ones."""


class Plan(Struct, frozen=True):
    """What is to be put on the schedule now."""

    put: list[Occurrence]
    next: float | None
    """The planned time after those; None = there is none any more."""
    missed: int


class Recurrence(Struct, frozen=True):
    """A declared recurrence with its rule and window read. Make one with `read_recurrence`."""

    declared: Declared
    rule: Rule
    window: Window | None

    def walk(self, after: float) -> Iterator[float]:
        """Yield the planned times after a moment."""
        start, end = self.declared.start, self.declared.end
        if start is not None:
            after = max(after, math.nextafter(start, -math.inf))
        for planned in self.rule.walk(after):
            if end is not None and planned > end:
                return
            yield planned

    def occurrence(self, planned: float, misfire_grace: float | None = None) -> Occurrence | None:
        """Return the occurrence of a planned time; None when its window does not open within two years."""
        job_id = occurrence_id(self.declared.name, planned)
        due: float | None = planned
        if self.declared.spread:
            digest = sha1(job_id.encode(), usedforsecurity=False).digest()
            due = planned + self.declared.spread * int.from_bytes(digest[:8]) / 2**64
        if self.window is not None:
            due = self.window.next_open(due)
        return None if due is None else Occurrence(job_id, planned, due, misfire_grace)

    def plan(self, stands: float, now: float, ahead: float) -> Plan:
        """Say what goes on the schedule now, when the recurrence stands at a planned time; 0 = it begins from now on.

        What is over, by more than half an interval or 5 s, was missed: the misfire policy says what becomes of it.
        """
        if stands <= 0:
            return Plan([], next(self.walk(now), None), 0)
        put, missed, over, looked = list[Occurrence](), 0, deque[Occurrence](maxlen=self.declared.most), 0
        planned: float | None = stands
        times = self.walk(stands)
        while planned is not None and planned <= now + ahead and len(put) < _PUT:
            looked += 1
            if looked > _LOOKED:
                return Plan([], planned, missed)  # a long downtime: the rest in the next step
            following = next(times, None)
            misfire_grace = _LATE if following is None else min(_LATE, (following - planned) / 2)
            one = self.occurrence(planned, misfire_grace)
            if one is None or now - one.due > misfire_grace:
                missed += 1
                if one is not None:
                    over.append(msgspec.structs.replace(one, misfire_grace=None))
            else:
                put.append(one)
            planned = following
        made_up = {"skip": [], "once": list(over)[-1:], "all": list(over)}[self.declared.misfire]
        return Plan([*made_up, *put], planned, missed - len(made_up))


def occurrence_id(name: str, planned: float) -> str:
    """Return the id of an occurrence: the same whoever computes it."""
    return f"{name}@{planned:.3f}".rstrip("0").rstrip(".")


def read_recurrence(declared: Declared) -> Recurrence:
    """Read a recurrence's rule and window.

    Raises:
        ConfigError: one of them is none; the message names the recurrence and the place.
    """
    try:
        rule = _rule(declared.rule, declared.zone)
        # A named one is looked up by the worker, which defers what comes outside it.
        named = declared.window is None or WINDOW_NAME.fullmatch(declared.window)
        window = None if named else read_window(cast(str, declared.window))
    except ConfigError as error:
        raise ConfigError(f"recurrence {declared.name}: {error}") from None
    if not NAME.fullmatch(declared.name) or len(declared.name) > _NAME_MOST:
        raise ConfigError(f"recurrence {declared.name!r}: a name is 1 to {_NAME_MOST} of A-Z a-z 0-9 . _ : @ -")
    if declared.most < 1 or (declared.count is not None and declared.count < 1) or declared.spread < 0:
        raise ConfigError(f"recurrence {declared.name}: most and count are at least 1, spread at least 0")
    # What is beyond has slipped: it would not fit a date, or the memory.
    if declared.most > _MADE_UP or not declared.spread <= _FAR:
        raise ConfigError(f"recurrence {declared.name}: most is at most {_MADE_UP}, spread at most {_FAR:g} s")
    if not all(-_FAR <= moment <= _FAR for moment in (declared.start, declared.end) if moment is not None):
        raise ConfigError(f"recurrence {declared.name}: start and end are Unix seconds, up to {_FAR:g}")
    return Recurrence(declared, rule, window)


_rule = lru_cache(4096)(parse_rule)


def check_interval(name: str, rule: Rule, retry: Retry) -> None:
    """Refuse a recurrence that can fall due again before the retries of one occurrence are through.

    Raises:
        ConfigError: with both figures.
    """
    shortest, worst = rule.shortest(), retry.worst_case()
    if retry.attempts > 1 and shortest < worst:  # one attempt has no retries
        raise ConfigError(
            f"recurrence {name}: it recurs after {shortest:g} s, and the retries of one occurrence may take {worst:g}"
            " s: give it fewer or quicker attempts, a longer interval, or overlap='allow'"
        )
