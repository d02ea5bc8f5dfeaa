"""Service windows: when a job may start, such as `mon-fri 22:00-06:00 Europe/Berlin; not 2026-12-24..2026-12-26`. Pure.

A window is one or more spans and exceptions, separated by `;`.

* A span is days (`mon-fri`, `sat,sun`; every day if left out), two times of day, and a time zone. A span that ends
  before it begins ends on the next day. At least one span must name the zone, and all share it.
* An exception is a local date, or two dates, both included.

Local time counts. So a span is an hour shorter or longer on the days of a clock change. A span that begins in the
skipped hour begins after it. A span that ends in the repeated hour closes twice, because it opens again when the clock
is set back.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from functools import lru_cache
from math import floor
from typing import Final
from zoneinfo import ZoneInfo

from msgspec import Struct

from evsched.errors import ConfigError
from evsched.recurrence.calendars import Days, last_of, merge
from evsched.recurrence.cron import find_zone

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

# Runs of blanks are replaced by one before matching, so matching takes linear time.
_SPAN: Final = re.compile(
    r"(?:([a-z,\- ]+) )?([0-9]{1,2}:[0-9]{2}) ?- ?([0-9]{1,2}:[0-9]{2})(?: ([A-Za-z0-9_+\-/]{1,64}))?"
)
_DAY_OF: Final = r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
_EXCEPTION: Final = re.compile(rf"not {_DAY_OF}(?: ?\.\. ?{_DAY_OF})?")

LONGEST: Final = 8192
"""Characters of a window, at most."""

SPANS: Final = 20
EXCEPTIONS: Final = 200
"""Parts of a window, at most. A worker computes the next opening between two jobs, within a few milliseconds."""

WINDOW_NAME: Final = re.compile(r"[A-Za-z0-9._\-]{1,100}")
"""The name of a window that is stored in Redis. A window itself always contains a blank or a colon."""

_QUOTED: Final = 200
"""Characters of a window that a message quotes, at most."""

_DAY: Final = 24 * 60

_AHEAD: Final = 800 * 86400.0
"""Seconds within which the next opening is searched, a little over two years."""


class Span(Struct, frozen=True):
    """Minutes of the local day, from `begin` until before `end`, on some days of the week (Monday is 0)."""

    days: frozenset[int]
    begin: int
    end: int


class Window(Struct, frozen=True):
    """When jobs may start. Make one with `parse_window`."""

    text: str
    zone: ZoneInfo
    spans: tuple[Span, ...]
    closed: Days

    def is_open(self, moment: float) -> bool:
        return self._is_open_at(datetime.fromtimestamp(moment, self.zone))

    def next_open(self, moment: float) -> float | None:
        """Return `moment` if the window is open then, or else when it opens next; None if not within two years."""
        begins = [sorted({span.begin for span in self.spans if day in span.days}) for day in range(7)]
        last = moment + _AHEAD
        while moment < last:
            local = datetime.fromtimestamp(moment, self.zone)
            if self._is_open_at(local):
                return moment
            moment = self._next_change(moment, local, begins)
        return None

    def closed_since(self, moment: float) -> float:
        """Return when the window closed that is closed at a moment, to the second; the moment if it is open.

        Closed for longer than two years, or for good: then some moment in that time.
        """
        opens = self.next_open(moment)
        if opens is None or opens <= moment:
            return moment
        before, since = moment - _AHEAD, moment
        while since - before > 1:  # bisection: an earlier moment has no later opening
            middle = (before + since) / 2
            before, since = (before, middle) if self.next_open(middle) == opens else (middle, since)
        return before

    def _is_open_at(self, local: datetime) -> bool:
        if self._is_closed_on(local.date()):
            return False
        day, minute = local.weekday(), 60 * local.hour + local.minute
        for span in self.spans:
            if span.begin < span.end:
                if day in span.days and span.begin <= minute < span.end:
                    return True
            elif (day in span.days and minute >= span.begin) or ((day - 1) % 7 in span.days and minute < span.end):
                return True
        return False

    def _is_closed_on(self, day: date) -> bool:
        return last_of(self.closed, day) is not None

    def _next_change(self, moment: float, local: datetime, begins: list[list[int]]) -> float:
        """Return when a closed window may open next: when a span begins, the day ends, or the clock changes."""
        minute = 60 * local.hour + local.minute
        begin = _DAY
        if not self._is_closed_on(local.date()):
            begin = next((begin for begin in begins[local.weekday()] if begin > minute), _DAY)
        # In whole seconds, so that the result does not keep a fraction of `moment`.
        before = floor(moment)
        at = before + 60 * (begin - minute) - local.second
        offset = local.utcoffset()
        if self._offset(at) == offset:
            return at
        while at - before > 1:  # bisection: `before` has the old offset, `at` the new one
            middle = (before + at) // 2
            before, at = (middle, at) if self._offset(middle) == offset else (before, middle)
        return at

    def _offset(self, moment: float) -> timedelta | None:
        return datetime.fromtimestamp(moment, self.zone).utcoffset()


def parse_window(text: str) -> Window:
    """Parse a window.

    Raises:
        ConfigError: a part of it is not valid; the message quotes the part.
    """
    if len(text) > LONGEST:
        raise ConfigError(f"window {text[:40]!r}... has {len(text)} characters, more than {LONGEST}")
    spans, closed, zone = list[Span](), list[tuple[date, date]](), None
    for part in filter(None, (" ".join(part.split()) for part in text.split(";"))):
        if found := _EXCEPTION.fullmatch(part):
            first, last = (_date(text, day) for day in (found[1], found[2] or found[1]))
            if last < first:
                raise _wrong(text, part, "it ends before it begins")
            closed.append((first, last))
        elif found := _SPAN.fullmatch(part):
            spans.append(Span(_days(text, found[1]), _minute(text, found[2]), _minute(text, found[3])))
            if spans[-1].begin == spans[-1].end:
                raise _wrong(text, part, "it is empty: a whole day is 00:00-24:00")
            if found[4] and zone not in (None, found[4]):
                raise _wrong(text, found[4], f"the zone is already {zone}: a window has one zone")
            zone = found[4] or zone
        else:
            raise _wrong(text, part, "write it as `mon-fri 22:00-06:00 Europe/Berlin` or `not 2026-12-24..2026-12-26`")
    if not spans:
        raise _wrong(text, text, "it is never open: add a span such as `mon-fri 09:00-17:00 Europe/Berlin`")
    if len(spans) > SPANS or len(closed) > EXCEPTIONS:
        raise _wrong(text, text, f"it has more than {SPANS} spans or {EXCEPTIONS} exceptions: merge some")
    if zone is None:
        raise _wrong(text, text, "it has no zone: add one such as Europe/Berlin or UTC")
    return Window(text, find_zone(zone), tuple(spans), merge(closed))


read_window = lru_cache(1024)(parse_window)


def _wrong(text: str, part: str, why: str) -> ConfigError:
    return ConfigError(f"window {_short(text)!r}, at {_short(part)!r}: {why}")


def _short(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def _date(text: str, day: str) -> date:
    try:
        return date.fromisoformat(day)
    except ValueError as error:
        raise _wrong(text, day, f"it is not a date: {error}") from None


def _minute(text: str, clock: str) -> int:
    hours, _, minutes = clock.partition(":")
    minute = 60 * int(hours) + int(minutes)
    if int(minutes) > 59 or minute > _DAY:
        raise _wrong(text, clock, "it is not a time of day")
    return minute


def _days(text: str, names: str | None) -> frozenset[int]:
    if not names:
        return frozenset(range(7))
    days = set[int]()
    for part in names.replace(" ", "").split(","):
        ends = part.split("-")
        if len(ends) > 2 or any(name not in DAYS for name in ends):
            raise _wrong(text, part, f"days are {', '.join(DAYS)}, or two with a dash")
        first, last = DAYS.index(ends[0]), DAYS.index(ends[-1])
        days.update((first + n) % 7 for n in range((last - first) % 7 + 1))
    return frozenset(days)
