"""The exceptions with which a handler steers its job: run it again later, as an attempt or not, or give it up."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from evsched.display import format_duration
from evsched.errors import EvschedError

_LONGEST: Final = 1e10
"""Seconds that a job may snooze, and the last moment: in the year 2286."""


class RetryLater(EvschedError):
    """Raised by a handler: run this job again after `delay` (a timedelta, or seconds), or as its retry policy says.

    The run counts as an attempt: after the last allowed one the job goes to dead.

    Raises:
        TypeError, ValueError: the delay is not a duration; the attempt fails with that error.
    """

    # Also set here, as in Snooze: a subclass need not call this constructor.
    delay: float | None = None
    """Seconds; None = as the retry policy says."""

    def __init__(
        self, delay: timedelta | float | None = None, reason: str = "the handler asked for another attempt"
    ) -> None:
        super().__init__(reason)
        self.delay = None if delay is None else _length("RetryLater", delay)


class Snooze(EvschedError):
    """Raised by a handler: run this job again after `delay` (a timedelta, or seconds), or at the time `until`.

    `until` is an aware datetime, or Unix seconds. The run does not count as an attempt, however often the handler
    snoozes; the job's `expires` bounds it. From the fifth time on, a job waits for at least a second.

    Raises:
        TypeError, ValueError: not one of the two is given, or it is not valid; the attempt fails with that error.
    """

    delay: float | None = 0.0
    """Seconds; None = `until` is given."""
    until: float | None = None
    """Unix seconds."""
    reason: str = ""
    signal: str = ""
    """The signal for which the job waits until then; "" = none."""

    def __init__(
        self, delay: timedelta | float | None = None, reason: str = "", *, until: datetime | float | None = None
    ) -> None:
        if (delay is None) is (until is None):
            raise TypeError("Snooze: give either a delay or until=")
        self.delay = None if delay is None else _bounded("the delay", _length("Snooze", delay))
        self.until = None if until is None else _bounded("until", _moment(until))
        self.reason = str(reason)
        # "at least": only the script knows how often the job has snoozed, and then it may have to wait for a second.
        asked = f"for at least {format_duration(self.delay or 0.0)}"
        if self.until is not None:
            asked = f"until at least {_text(self.until)}"
        super().__init__(f"snoozed {asked}" + (f": {reason}" if reason else ""))


class Waiting(Snooze):
    """Raised by `wait_for` of `evsched.steps`: run this job again when a signal comes, at the latest at `until`."""

    def __init__(self, signal: str, until: float) -> None:
        end = "" if until == math.inf else f", at most until {_text(until)}"
        EvschedError.__init__(self, f"waiting for the signal {signal}{end}")
        self.delay, self.until, self.signal, self.reason = None, until, signal, str(self)


class GiveUp(EvschedError):
    """Raised by a handler: do not run this job again; it goes to dead with this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler gave up, and gave no reason")


def _length(what: str, delay: timedelta | float) -> float:
    given: Any = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(given, int | float):
        raise TypeError(f"{what}: the delay is a timedelta or a number of seconds, not {given!r}")
    if given == math.inf:
        raise ValueError(f"{what}: the delay is infinite: raise GiveUp for a job that is never to run again")
    return float(given)


def _moment(until: datetime | float) -> float:
    given: Any = until
    if isinstance(given, datetime) and given.tzinfo is not None:
        return given.timestamp()
    if isinstance(given, datetime) or not isinstance(given, int | float):
        raise TypeError(f"Snooze: until is an aware datetime or Unix seconds, not {given!r}")
    return float(given)


def _bounded(what: str, seconds: float) -> float:
    if not seconds <= _LONGEST:  # nor NaN
        raise ValueError(f"Snooze: {what} is {seconds:g}, not a number of seconds up to {_LONGEST:g}")
    return max(0.0, seconds)


def _text(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
