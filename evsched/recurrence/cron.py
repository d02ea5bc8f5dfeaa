"""Rules of recurrences, in a time zone: when a rule falls due next after a moment. Pure.

A rule is cron (five fields, or six with seconds first; names, ranges, steps, `L`, `#`), an alias such as `@daily`, or
`every` and a number of seconds, counted from 1970. Cron follows the local time of its zone. On the days of a clock
change cronsim follows the rules of Debian's cron; docs/recurrence-reference.md has the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field
from msgspec import Struct

from evsched.display import nearest
from evsched.errors import ConfigError

_LONGEST_NAME: Final = 64
"""Characters of a name, at most: the longest has 32. A longer text is not compared with all names."""


@cache
def find_zone(name: str) -> ZoneInfo:
    """Return the zone of a name.

    Raises:
        ConfigError: there is no zone of that name; the message suggests the nearest.
    """
    if len(name) > _LONGEST_NAME:
        raise ConfigError(f"zone {name[:_LONGEST_NAME]!r}... has {len(name)} characters: write it as Europe/Berlin")
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        near = nearest(name, available_timezones(), alike=0.4)
        hint = f": did you mean {near[0]}?" if near else ": write it as Europe/Berlin"
        raise ConfigError(f"zone {name!r} is not known{hint}") from None


ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_FIELDS: Final = (
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day-of-month", "1 to 31, L or LW"),
    ("month", "1 to 12 or jan to dec"),
    ("day-of-week", "0 to 7 or sun to sat, 5L, or 1#2"),
)

_RANGE_OF_ONE: Final = re.compile(r"([^-,/\s]+)-([^-,/\s]+)/0*[1-9][0-9]*")
"""A range with a step, whose ends may be equal."""

_EVERY: Final = re.compile(r"every\s+(.+)")
_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")

_SHORTEST: Final = 1.0
"""The shortest interval between two occurrences, in seconds."""

_WIDEST: Final = 1e9
"""The longest interval, in seconds: thirty years."""

_LONGEST_RULE: Final = 500
"""Characters of a rule, at most."""

_CALENDAR_ENDS: Final = 253_402_300_800.0
"""The end of the year 9999, in Unix seconds: no rule has occurrences after it."""

_GUARD: Final = 200
"""Times before `after` that are skipped at most. In the repeated hour of autumn, cronsim can return such times."""


class Rule(Struct, frozen=True):
    """When a recurrence falls due. Make one with `parse_rule`."""

    text: str
    zone: ZoneInfo
    cron: str | None
    every: float = 0.0
    """Seconds; 0 with cron."""

    def walk(self, after: float) -> Iterator[float]:
        """Yield the occurrences after a moment, in order, from 1970 to the end of the year 9999."""
        # The moment may be a score that any client wrote. From 1e300 on, adding an interval leads to no later moment.
        if not after < _CALENDAR_ENDS:
            return
        after = max(after, -1.0)
        if self.cron is None:
            step = math.floor(after / self.every) + 1
            while True:
                moment = step * self.every
                if moment >= _CALENDAR_ENDS:
                    return
                if moment > after:
                    yield moment
                step += 1
        walker, tries = CronSim(self.cron, datetime.fromtimestamp(math.floor(after), self.zone)), 0
        for local in walker:
            moment = local.timestamp()
            if moment > after:
                yield moment
                after, tries = moment, 0
            elif (tries := tries + 1) > _GUARD:
                return

    def walk_from(self, moment: float) -> Iterator[float]:
        """Yield the times of an interval that is counted from a moment."""
        moment, step = max(moment, -1.0), 1
        while (found := moment + step * self.every) < _CALENDAR_ENDS:
            yield found
            step += 1

    def words(self) -> str:
        if self.cron is None:
            return f"Every {self.every:g} seconds"
        return f"{CronSim(self.cron, datetime.now(self.zone)).explain()}, {self.zone.key}"

    def shortest(self) -> float:
        """Return the shortest interval between two occurrences within a year, in seconds."""
        if self.cron is None:
            return self.every
        before, found, first = None, math.inf, datetime(2026, 1, 1, tzinfo=self.zone).timestamp()
        for n, moment in enumerate(self.walk(first)):
            if before is not None:
                found = min(found, moment - before)
            before = moment
            if n > 1500 or moment > first + 370 * 86400:
                break
        return found


def parse_rule(text: str, zone: str = "UTC") -> Rule:
    """Read a rule: cron, an alias such as `@daily`, or `every 90` (seconds).

    Raises:
        ConfigError: the rule is not valid; the message says which part of it.
    """
    if len(text) > _LONGEST_RULE:
        raise ConfigError(f"rule {text[:40]!r}... has {len(text)} characters, more than {_LONGEST_RULE}")
    found_zone = find_zone(zone)
    if found := _EVERY.fullmatch(text.strip()):
        if not _SECONDS.fullmatch(found[1]):
            give = f"a number of seconds from {_SHORTEST:g} to {_WIDEST:.0f}"
            raise ConfigError(f"rule {text!r}: the interval is {found[1]!r}: give {give}, such as every 90")
        every = float(found[1])
        if not _SHORTEST <= every <= _WIDEST:
            bound = f"least {_SHORTEST:g}" if every < _SHORTEST else f"most {_WIDEST:g}"
            raise ConfigError(f"rule {text!r}: the interval must be at {bound} s")
        return Rule(text, found_zone, None, every)
    cron = ALIASES.get(text.strip().lower(), text.strip())
    if cron.startswith("@"):
        raise ConfigError(f"rule {text!r} is not known: the names are {', '.join(ALIASES)}")
    try:
        plain = _plain(cron)
        CronSim(plain, datetime(2026, 1, 1, tzinfo=found_zone))
    except (CronSimError, ValueError) as error:  # ValueError: digits that Python cannot convert
        raise ConfigError(f"rule {text!r}: {_place(cron, str(error))}") from None
    return Rule(text, found_zone, plain)


def _plain(cron: str) -> str:
    """Return a cron rule with `5` for `5-5/15`, which cronsim reads as `5/15`: 5, 20, 35 and 50.

    Raises:
        CronSimError: an end of a range is not valid.
    """
    parts = cron.split()
    if "/" not in cron or len(parts) not in (5, 6):
        return cron
    fields = [*Field][6 - len(parts) :]
    return " ".join(
        ",".join(_plain_piece(field, piece) for piece in part.split(","))
        for field, part in zip(fields, parts, strict=True)
    )


def _plain_piece(field: Field, piece: str) -> str:
    found = _RANGE_OF_ONE.fullmatch(piece)
    return found[1] if found and field.int(found[1].upper()) == field.int(found[2].upper()) else piece


def _place(cron: str, message: str) -> str:
    """Return a message that says which part of a cron rule is wrong. `message` is cronsim's."""
    parts = cron.split()
    if len(parts) not in (5, 6):
        return (
            f"it has {len(parts)} field{'' if len(parts) == 1 else 's'}: give five (minute hour day-of-month month "
            f"day-of-week), or six with seconds first, or a name such as @daily, or give the seconds of an interval, "
            "such as every 90"
        )
    fields = _FIELDS[6 - len(parts) :]
    if message == "Bad day-of-month" and _parses([*parts[:-2], "*", parts[-1]]):
        return f"it never falls due: no month of {parts[-2]!r} has a day {parts[-3]!r}"
    for n, (name, range_) in enumerate(fields):
        field = Field(6 - len(parts) + n)
        if message == f"Bad {name}":
            why = next(filter(None, (_wrong_piece(field, piece) for piece in parts[n].split(","))), "")
            return f"field {n + 1}, the {name}, is {parts[n]!r}: {why or f'give {range_}'}"
    return message


def _wrong_piece(field: Field, piece: str) -> str:
    """Return why a part of a field is not valid, if it has the form of a range or a step; else an empty text."""
    term, slash, step = piece.partition("/")
    if slash and step.strip("0") == "":
        return f"the step of {piece!r} is {step or 'missing'}: give 1 or more"
    first, _, last = term.partition("-")
    try:
        falls = field.int(first.upper()) > field.int(last.upper())
    except CronSimError:
        return ""
    return f"{term!r} ends before it begins: write two ranges, with a comma between them" if falls else ""


def _parses(parts: list[str]) -> bool:
    try:
        CronSim(" ".join(parts), datetime(2026, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError):
        return False
    return True
