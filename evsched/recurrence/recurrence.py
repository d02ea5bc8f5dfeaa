"""Recurrences: their declaration, and which of their occurrences to put on the schedule now. Pure.

`check_declared` checks the types and ranges of a declaration made in Python. A revision says which of two deploys is
newer: an app gives it, `App(revision=...)`, or `lua/register.lua` counts it by the content of the declarations.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha1, sha256
from typing import Any, Final, Literal, cast, get_args

import msgspec
from msgspec import Struct

from evsched.errors import ConfigError
from evsched.jobs import option_checks as check
from evsched.jobs.job import decode_payload
from evsched.jobs.option_checks import Check, one_of
from evsched.keys import NAME
from evsched.recurrence.calendars import (
    CALENDAR_NAME,
    Days,
    begin_after,
    just_before,
    last_of,
    local_day,
    names_of,
    read_days,
)
from evsched.recurrence.cron import Rule, parse_rule
from evsched.recurrence.windows import WINDOW_NAME, Window, read_window

Misfire = Literal["skip", "once", "all"]
"""The treatment of missed occurrences, whose time passed while no dispatcher could schedule them."""

Overlap = Literal["allow", "skip", "wait"]
"""The treatment of an occurrence that falls due before the one before it has ended."""

CHOICES: Final[dict[str, Check]] = {
    "misfire": one_of(*get_args(Misfire)),
    "overlap": one_of(*get_args(Overlap)),
    "after": one_of("end"),
}
"""The checks of the fields that have one of a few values."""

_MISFIRE_GRACE: Final = 5.0
"""Seconds of lateness after which an occurrence counts as missed; half of the interval, if that is shorter."""

_PUT: Final = 100
"""Occurrences of one recurrence that one step schedules, at most."""

_LOOKED: Final = 2000
"""Occurrences of one recurrence that one step examines, at most: 40 ms."""

_CAUGHT_UP: Final = 10_000
"""Missed occurrences that `all` schedules late, at most."""

_LOOK_AGAIN: Final = 60.0
"""Seconds after which a dispatcher looks whether an occurrence still runs from whose end the next one is counted. Its
end plans the next one; but a client may have deleted its job."""

_FAR: Final = 1e11
"""Unix seconds, in the year 5138."""

_NAME_MOST: Final = 180
"""Characters of a name: an occurrence's id is the name, `@` and a time, and has at most 200."""


class Declared(Struct, frozen=True, kw_only=True):
    """A recurrence as an app declares it, and as its record stores it. All times in seconds, moments since 1970."""

    name: str
    rule: str
    """Cron, an alias such as `@daily`, or `every 90`."""
    zone: str = "UTC"
    payload: bytes
    priority: int | None = None
    group: str | None = None
    start: float | None = None
    end: float | None = None
    count: int | None = None
    """How many occurrences there are in all."""
    spread: float = 0.0
    """Seconds by which occurrences are delayed at most, so that not all recurrences start at once. The delay of an
    occurrence is computed from its id."""
    misfire: Misfire = "once"
    most: int = 100
    """How many missed occurrences `all` schedules at a time, the newest ones."""
    overlap: Overlap = "skip"
    window: str | None = None
    pause_after: int | None = None
    """Pause it after this many failures in a row."""
    skip: str | None = None
    """The names of the calendars on whose days it makes no jobs, separated by commas."""
    after: Literal["end"] | None = None
    """Count the interval from the end of each run, not from 1970."""

    def fields(self) -> dict[str, str | bytes]:
        """Return the fields of the record; '' means that a value is not set."""
        found = {name: _as_field(value) for name, value in msgspec.structs.asdict(self).items() if name != "name"}
        return found | {"spread": f"{self.spread:g}" if self.spread else ""}


def _as_field(value: Any) -> str | bytes:
    return value if isinstance(value, bytes) else "" if value is None else str(value)


def read_declared(name: str, fields: dict[str, bytes]) -> Declared:
    """Read a record, which any client may have written.

    Raises:
        ConfigError: a field is missing or not valid; the message names it.
    """
    known = {key: value.decode(errors="replace") for key, value in fields.items() if key in Declared.__struct_fields__}
    try:
        found = msgspec.convert({**known, "name": name, "payload": ""}, Declared, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"recurrence {name}: {_not_a_choice(known) or error}") from None
    return msgspec.structs.replace(found, payload=read_payload(name, fields))


def _not_a_choice(known: Mapping[str, str]) -> ConfigError | None:
    """Return the error of a field that has a value that it may not have; msgspec's does not list these."""
    for field in CHOICES.keys() & known.keys():
        try:
            CHOICES[field](field, known[field])
        except ConfigError as error:
            return error
    return None


def read_payload(name: str, fields: dict[str, bytes]) -> bytes:
    """Return the payload of a record, which any client may have written.

    Raises:
        ConfigError: it is missing, or no worker could read it.
    """
    payload = fields.get("payload")
    if payload is None:
        raise ConfigError(f"recurrence {name}: its record has no payload")
    try:
        decode_payload(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(f"recurrence {name}: its payload is not valid: {error}") from None
    return payload


class Occurrence(Struct, frozen=True):
    """One occurrence. `planned` identifies it; `due` is when it runs: moved by the spread, and into its window."""

    id: str
    planned: float
    due: float
    misfire_grace: float | None = None
    """Seconds after which it counts as missed; None for a missed occurrence that is scheduled late."""


class Plan(Struct, frozen=True):
    """The occurrences to put on the schedule now."""

    put: list[Occurrence]
    next: float | None
    """The planned time after those; None if there are no more occurrences."""
    missed: int


class Recurrence(Struct, frozen=True):
    """A declared recurrence with its rule and window parsed. Make one with `read_recurrence`."""

    declared: Declared
    rule: Rule
    window: Window | None
    closed: Days = ()
    """The days of its calendars, in the zone of the rule."""

    def walk(self, after: float) -> Iterator[float]:
        """Yield the planned times after a moment. Closed days have none.

        If they are counted from the end of each run, these are the times for runs that take no time.
        """
        start, end = self.declared.start, self.declared.end
        if start is not None:
            after = max(after, just_before(start))
        times = self._walk(after)
        for planned in times if not self.closed else self._open(times):
            if end is not None and planned > end:
                return
            yield planned

    def _walk(self, after: float) -> Iterator[float]:
        return self.rule.walk(after) if self.declared.after is None else self.rule.walk_from(after)

    def _open(self, times: Iterator[float]) -> Iterator[float]:
        """Yield the times that are on no closed day. A range of closed days is passed over in one step."""
        zone = self.rule.zone
        while (planned := next(times, None)) is not None:
            last = last_of(self.closed, local_day(planned, zone))
            if last is None:
                yield planned
            elif (opens := begin_after(last, zone)) > planned:
                times = self._walk(just_before(opens))

    def words(self) -> str:
        """Return in words when it makes jobs."""
        declared = self.declared
        words = self.rule.words() + (", counted from the end of each run" if declared.after else "")
        if names := names_of(declared.skip):
            words += f", except on the days of calendar{'s' if len(names) > 1 else ''} {', '.join(names)}"
        return words + (f"; window {declared.window}" if declared.window else "")

    def _is_closed(self, planned: float) -> bool:
        return bool(self.closed) and last_of(self.closed, local_day(planned, self.rule.zone)) is not None

    def occurrence(self, planned: float, misfire_grace: float | None = None) -> Occurrence | None:
        """Return the occurrence of a planned time; None if its window does not open within two years."""
        job_id = occurrence_id(self.declared.name, planned)
        due: float | None = planned
        if self.declared.spread:
            digest = sha1(job_id.encode(), usedforsecurity=False).digest()
            due = planned + self.declared.spread * int.from_bytes(digest[:8]) / 2**64
        if self.window is not None:
            due = self.window.next_open(due)
        return None if due is None else Occurrence(job_id, planned, due, misfire_grace)

    def plan(self, next_planned: float, now: float, ahead: float) -> Plan:
        """Return what to put on the schedule now. `next_planned` is 0 for a new recurrence.

        An occurrence that is late by more than 5 s, or by more than half an interval, counts as missed, and the misfire
        policy applies to it.
        """
        if next_planned <= 0:
            return Plan([], next(self.walk(now), None), 0)
        if self.declared.after is not None:
            return self._plan_one(next_planned, now, ahead)
        put, missed, late, looked = list[Occurrence](), 0, deque[Occurrence](maxlen=self.declared.most), 0
        times = self.walk(next_planned)
        # Its calendar may have changed since it was planned.
        planned: float | None = next(times, None) if self._is_closed(next_planned) else next_planned
        while planned is not None and planned <= now + ahead and len(put) < _PUT:
            looked += 1
            if looked > _LOOKED:
                return Plan([], planned, missed)  # after a long downtime; the next step goes on from here
            following = next(times, None)
            misfire_grace = _MISFIRE_GRACE if following is None else min(_MISFIRE_GRACE, (following - planned) / 2)
            one = self.occurrence(planned, misfire_grace)
            if one is None or now - one.due > misfire_grace:
                missed += 1
                if one is not None:
                    late.append(msgspec.structs.replace(one, misfire_grace=None))
            else:
                put.append(one)
            planned = following
        caught_up = {"skip": [], "once": list(late)[-1:], "all": list(late)}[self.declared.misfire]
        return Plan([*caught_up, *put], planned, missed - len(caught_up))

    def _plan_one(self, next_planned: float, now: float, ahead: float) -> Plan:
        """Plan the one occurrence that is next, and when to look again in case its end is never written.

        `recur` puts it on the schedule unless another is on its way or runs; the end of that one sets the next time.
        """
        if self._is_closed(next_planned):
            return Plan([], next(self.walk(next_planned), None), 0)
        if self.declared.end is not None and next_planned > self.declared.end:
            return Plan([], None, 0)
        if next_planned > now + ahead:
            return Plan([], next_planned, 0)
        one = self.occurrence(next_planned)
        return Plan([] if one is None else [one], max(next_planned, now) + max(self.rule.every, _LOOK_AGAIN), 0)


def planned_text(planned: float) -> str:
    """Return a planned time as it stands in the id of its occurrence: every process writes the same."""
    return f"{planned:.3f}".rstrip("0").rstrip(".")


def occurrence_id(name: str, planned: float) -> str:
    """Return the id of an occurrence: every process computes the same one."""
    return f"{name}@{planned_text(planned)}"


def window_names(window: str | bytes | None, payload: bytes) -> list[str]:
    """Return the named windows of a recurrence: its own, and that of its payload, by which its jobs wait."""
    found = {window.decode(errors="replace") if isinstance(window, bytes) else window}
    with contextlib.suppress(msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        found.add(decode_payload(payload).window)  # if it is not valid, the recurrence makes no jobs
    return sorted(name for name in found if name is not None and WINDOW_NAME.fullmatch(name))


def _check_windows(declared: Declared, windows: Mapping[str, str]) -> None:
    for name in window_names(declared.window, declared.payload):
        if name not in windows:
            raise ConfigError(f"there is no window {name}: evsched windows set {name} HOURS --queue QUEUE")


def read_recurrence(
    declared: Declared, calendars: Mapping[str, str] | None = None, windows: Mapping[str, str] | None = None
) -> Recurrence:
    """Parse a recurrence's rule and window, and its calendars, which are given by their names.

    Without `calendars` it is only checked: it knows no closed days. Without `windows` it may name any.

    Raises:
        ConfigError: one of them is not valid, or does not exist; the message names the recurrence and the wrong part.
    """
    try:
        if windows is not None:
            _check_windows(declared, windows)
        closed = () if calendars is None else read_days(declared.skip, calendars)
        rule = _rule(declared.rule, declared.zone)
        # A named window is looked up by the worker, which defers jobs that come while it is closed.
        named = declared.window is None or WINDOW_NAME.fullmatch(declared.window)
        window = None if named else read_window(cast(str, declared.window))
    except ConfigError as error:
        raise ConfigError(f"recurrence {declared.name}: {error}") from None
    if not NAME.fullmatch(declared.name) or len(declared.name) > _NAME_MOST:
        raise ConfigError(f"recurrence {declared.name!r}: a name is 1 to {_NAME_MOST} of A-Z a-z 0-9 . _ : @ -")
    counts = (declared.most, declared.count, declared.pause_after)
    if any(value is not None and value < 1 for value in counts):
        raise ConfigError(f"recurrence {declared.name}: most, count and pause_after are at least 1")
    # Larger values are mistakes: they would not fit a date, or the memory.
    if declared.most > _CAUGHT_UP:
        raise ConfigError(f"recurrence {declared.name}: most is at most {_CAUGHT_UP}")
    if not 0 <= declared.spread <= _FAR:  # nor NaN
        give = f"a number of seconds from 0 to {_FAR:.0f}"
        raise ConfigError(f"recurrence {declared.name}: spread is {declared.spread:g}: give {give}")
    if not all(-_FAR <= moment <= _FAR for moment in (declared.start, declared.end) if moment is not None):
        raise ConfigError(f"recurrence {declared.name}: start and end are Unix seconds, up to {_FAR:g}")
    if not all(CALENDAR_NAME.fullmatch(calendar) for calendar in names_of(declared.skip)):
        raise ConfigError(f"recurrence {declared.name}: skip is the name of a calendar, or several with commas")
    if declared.after is not None and (rule.cron is not None or declared.overlap == "allow"):
        raise ConfigError(f"recurrence {declared.name}: after='end' needs every=, and an overlap that is not 'allow'")
    if declared.misfire == "all" and declared.overlap != "allow":  # they are all due at once
        raise ConfigError(f"recurrence {declared.name}: misfire='all' needs overlap='allow'")
    return Recurrence(declared, rule, window, closed)


_rule = lru_cache(4096)(parse_rule)


CHECKS: Final[dict[str, Check]] = {
    **CHOICES,
    "zone": check.text,
    "priority": check.priority,
    "group": check.group,
    "count": check.count,
    "most": check.count,
    "window": check.text,
    "skip": check.text,
    "pause_after": check.count,
}
"""The checks of the fields that `App.recurring` takes as they are."""


def _payload(name: str, value: Any) -> None:
    try:
        if isinstance(value, bytes):
            decode_payload(value)
            return
        why = ""
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        why = f" ({error})"
    raise check.invalid(name, value, f'the JSON of a job as bytes, such as b\'{{"task":"report"}}\'{why}')


_ALL: Final[dict[str, Check]] = {
    **CHECKS,
    "name": check.text,
    "rule": check.text,
    "payload": _payload,
    "start": check.number,
    "end": check.number,
    "spread": check.length_or_zero,
}

_MAY_BE_NONE: Final = ("priority", "group", "start", "end", "count", "window", "pause_after", "after", "skip")


def check_declared(declared: Declared) -> None:
    """Check the fields of a recurrence. `read_recurrence` checks their combination.

    Raises:
        ConfigError: a field is not valid; the message names the recurrence and the field.
    """
    given = msgspec.structs.asdict(declared)
    try:
        check.check_options("Declared", given, _ALL, [name for name in given if name not in _MAY_BE_NONE])
    except ConfigError as error:
        raise ConfigError(f"recurrence {declared.name}: {error}") from None


_COUNTED: Final = 1e11
"""A counted revision is the Unix seconds at which its content was first seen, minus this."""

_ADDED: Final = ("pause_after", "skip", "after")
"""Fields that came with later releases. They count only if they are set, so a release that adds one, and nothing else,
does not make all contents new ones."""


def content_of(recurrences: Iterable[Declared], limits: Mapping[str, float] | None = None) -> str:
    """Return a digest of recurrences, whatever their order, and of limits by their fields."""
    digest = sha256(usedforsecurity=False)

    def add(value: bytes | str) -> None:
        written = value if isinstance(value, bytes) else value.encode()
        digest.update(b"%d:%b" % (len(written), written))

    for one in sorted(recurrences, key=lambda one: one.name):
        for value in (one.name, *(value for field, value in one.fields().items() if value or field not in _ADDED)):
            add(value)
    for field, limit in sorted((limits or {}).items()):
        add(f"limit {field}")
        add(repr(float(limit)))
    return digest.hexdigest()


def describe_revision(revision: float) -> str:
    """Return a revision as people know it: the number that the app gave, or when its content was first seen."""
    if revision >= 0:
        return f"{revision:.17g}"  # a fraction: counted after the number that an app gave
    try:
        return datetime.fromtimestamp(revision + _COUNTED, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError):  # nothing that evsched has written
        return f"{revision:g}"
