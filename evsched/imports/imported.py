"""The schedule of another scheduler as evsched expresses it: recurrences, single jobs, and remarks about the rest.

At the end are the functions that write cron rules from sets of values.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from hashlib import sha1
from itertools import groupby
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from evsched.client.new_job import JobOptions, check_job_options, new_job
from evsched.errors import ConfigError
from evsched.jobs.job import decode
from evsched.keys import check_queue
from evsched.recurrence.recurrence import Declared, Recurrence, check_declared, read_payload, read_recurrence
from evsched.store.client_calls import New

_MONTH_DAYS: Final = (1, 31)
_WEEKDAYS: Final = (0, 6)

_NAME_MOST: Final = 150
"""Characters of a name that is made here: 180 are allowed, and a number may follow."""

_NOTICED: Final = 3600.0
"""Seconds of an interval whose runs are expected at certain times of the day."""

_DAY: Final = 86400.0

_SOURCE: Final = "imported"
"""The part of a payload's `meta` that names the source of its recurrence."""

Call = tuple[str, Sequence[Any], Mapping[str, Any]]
"""A task, and its arguments by position and by name."""


class Remark(Struct, frozen=True):
    """A part of the other schedule that is not imported, or that differs afterwards."""

    where: str
    """A line of a file, or the name of an entry."""
    why: str


class Entry(Struct, frozen=True):
    """A recurrence or a single job that is imported."""

    where: str
    queue: str
    task: str
    made: Declared | New


class Imported:
    """Collects what a reader finds. `queue`: for entries that name none. `prefix`: before the names of recurrences.

    `source`: the schedule that is read. The payloads of recurrences name it, so that a later import finds them.
    """

    def __init__(self, queue: str, prefix: str = "", source: str = "") -> None:
        self.entries = list[Entry]()
        self.remarks = list[Remark]()
        self.source = f"{source} {prefix}".strip()
        self.whole = True
        """Whether all of the schedule was read: recurrences of an earlier import that it lacks are gone from it."""
        self._queue = queue
        self._prefix = prefix
        self._names = set[str]()

    def remark(self, where: str, why: str) -> None:
        """Note that a part of the schedule is not imported, or differs."""
        self.remarks.append(Remark(where, why))

    @contextmanager
    def part(self, where: str) -> Generator[None]:
        """Read a part of the schedule: a ConfigError becomes a remark, and the rest is read."""
        try:
            yield
        except ConfigError as error:
            self.remark(where, str(error))

    def interval(self, where: str, seconds: float, first: float) -> str:
        """Return the rule of an interval. `first`: when a run was planned, in Unix seconds."""
        if seconds >= _NOTICED and (moved := first % seconds) >= 1:
            form = "%H:%M:%S" if seconds <= _DAY else "%Y-%m-%d %H:%M:%S"
            now, then = (datetime.fromtimestamp(at, UTC).strftime(form) for at in (first - moved + seconds, first))
            why = f"an interval counts from 1970, so it runs at {now} UTC and not at {then}: use a cron rule for a time"
            self.remark(where, why)
        return f"every {seconds:.12g}"

    def recurrence(
        self,
        where: str,
        name: str,
        call: Call,
        *,
        rule: str,
        first: float | None = None,
        queue: str | None = None,
        timeout: float | None = None,
        **fields: Any,
    ) -> None:
        """Add a recurrence. `fields`: of `Declared`. It starts at `first` if its rule alone would have it run earlier.

        Raises:
            ConfigError: evsched refuses it.
        """
        job = _job(call, JobOptions(timeout=timeout, meta={_SOURCE: self.source} if self.source else None))
        declared = Declared(name=self._name(name), rule=rule, payload=job.payload, **fields)
        check_declared(declared)
        recurrence = read_recurrence(declared)
        if first is not None and first > _latest(recurrence, time.time()):
            declared = replace(declared, start=first)
        self.entries.append(Entry(where, check_queue(queue or self._queue), call[0], declared))

    def job(
        self,
        where: str,
        job_id: str,
        call: Call,
        *,
        due: float,
        queue: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Add a single job. A second import finds it by its id.

        Raises:
            ConfigError: evsched refuses it.
        """
        job = _job(call, JobOptions(id=self._name(job_id), due=due, timeout=timeout))
        if due <= time.time():
            self.remark(where, "its time has passed: it runs at once, and again if it is imported again")
        self.entries.append(Entry(where, check_queue(queue or self._queue), call[0], job))

    def _name(self, text: str) -> str:
        """Return a name that evsched allows: the same for the same schedule, and another one for each entry."""
        name = re.sub(r"[^A-Za-z0-9._:-]+", "-", f"{self._prefix}{text}").strip("-")[:_NAME_MOST] or "entry"
        if name in self._names:
            name = next(tried for n in range(2, len(self._names) + 3) if (tried := f"{name}.{n}") not in self._names)
        self._names.add(name)
        return name


def source_of(name: str, fields: dict[str, bytes]) -> str | None:
    """Return the source of a recurrence, whose record any client may have written; None if it was not imported."""
    try:
        meta: Any = decode(read_payload(name, fields)).get("meta")
    except ConfigError:
        return None
    return cast("dict[str, Any]", meta).get(_SOURCE) if isinstance(meta, dict) else None


def _latest(recurrence: Recurrence, now: float) -> float:
    """Return the latest time at which the other scheduler may run it first, if it began long ago."""
    every = recurrence.rule.every  # it counts from another moment there; 0 = a cron rule
    return (now + every if every else next(recurrence.walk(now), math.inf)) + recurrence.declared.spread


def _job(call: Call, options: JobOptions) -> New:
    """Return the job of a call.

    Raises:
        ConfigError: a value is not valid, or JSON would make another one of an argument, such as a text of a date.
    """
    check_job_options(options)
    task, args, kwargs = call
    job = new_job(task, args, {**kwargs}, options)
    for name, value in (*enumerate(args, 1), *kwargs.items()):
        if other := _not_plain(value):
            raise ConfigError(f"its argument {name} has {other}, which JSON does not hold: pass a plain value")
    return job


def _not_plain(value: Any) -> str:
    """Return a part of an argument that does not arrive as it is, though it was written as JSON; else empty text.

    Lists for tuples are expected.
    """
    parts: list[Any] = [value]
    while parts:
        part: Any = parts.pop()
        if isinstance(part, dict):
            odd = {type(key).__name__ for key in cast("dict[Any, Any]", part) if not isinstance(key, str)}
            if odd:
                return f"a key of the type {min(odd)}"
            parts += part.values()
        elif isinstance(part, list | tuple):
            parts += part
        elif not isinstance(part, str | int | float | None):
            return f"a value of the type {type(part).__name__}"
    return ""


@contextmanager
def foreign(what: str) -> Generator[None]:
    """Run code of the other program or its library: whatever it raises is the user's mistake, said in one line.

    Raises:
        ConfigError: the code raised an error.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - such as the error of a database's driver
        raise ConfigError(f"{what}: {type(error).__name__}: {f'{error}'.partition(chr(10))[0]}") from None


def digest(text: str) -> str:
    """Return a short digest, by which names of one kind differ."""
    return sha1(text.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()[:8]


def zone_name(zone: tzinfo | None) -> str:
    """Return the IANA name of a zone that another program uses.

    Raises:
        ConfigError: it has none.
    """
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)  # zoneinfo; pytz
    if isinstance(name, str):
        return name
    if zone is not None and zone.tzname(datetime.now(UTC)) == "UTC":
        return "UTC"
    raise ConfigError(f"its time zone {zone} has no name such as Europe/Berlin")


def field(values: Collection[int], low: int, high: int) -> str:
    """Return a field of a rule: `*`, `*/15`, or a list of values and ranges."""
    found = sorted({*values})
    if found == [*range(low, high + 1)]:
        return "*"
    if len(found) > 1 and found == [*range(low, high + 1, found[1] - low)]:
        return f"*/{found[1] - low}"
    parts = list[str]()
    for _, numbered in groupby(enumerate(found), lambda pair: pair[1] - pair[0]):
        run = [value for _, value in numbered]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
    return ",".join(parts)


def both_days(days: Set[int], weekdays: Set[int]) -> tuple[str, str]:
    """Return the fields for days that match both sets; Sunday is 0.

    Celery, APScheduler and rq-scheduler run on days that match both the day of the month and the day of the week. In
    cron, and in evsched, one of them is enough, unless one begins with `*`.

    Raises:
        ConfigError: no rule says that.
    """
    day, weekday = field(days, *_MONTH_DAYS), field(weekdays, *_WEEKDAYS)
    if day.startswith("*") or weekday.startswith("*"):
        return day, weekday
    weeks = [n for n in range(1, 6) if days >= _week(n)]
    if days == {one for n in weeks for one in _week(n)}:
        return "*", ",".join(f"{one}#{n}" for n in weeks for one in sorted(weekdays))
    raise ConfigError(
        f"it runs on days that match both the day of the month {day} and the day of the week {weekday}: a rule says "
        "that only for whole weeks, such as the days 1-7. Use two recurrences, or let the task look at the date"
    )


def _week(n: int) -> set[int]:
    """Return the days of the month on which a weekday is for the n-th time."""
    return {*range(7 * n - 6, min(7 * n, _MONTH_DAYS[1]) + 1)}
