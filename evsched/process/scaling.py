"""Decides how many worker processes run: between two bounds, more if one is behind, fewer if one is idle. Pure.

If the lower bound is 0, the last process ends too when it is idle; `ready_watch.py` then decides when one starts again.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from msgspec import Struct

from evsched.errors import ConfigError
from evsched.process.reports import Behind, Idle, Report

_APART: Final = 2.0
"""Seconds between the starts of two more processes: the first one needs this time before it fetches jobs."""

_SOUGHT: Final = 20.0
"""Seconds for which a process stays that starts for a task that is sought: about five offers of a job."""


class Span(Struct, frozen=True):
    """How many processes there are, at least and at most."""

    least: int
    most: int


_SPAN: Final = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")


def read_span(text: str) -> Span:
    """Read `4` or `2:8`.

    Raises:
        ConfigError: it is neither.
    """
    found = _SPAN.fullmatch(text)
    span = Span(int(found[1]), int(found[2] or found[1])) if found else Span(0, 0)
    if not 0 <= span.least <= span.most <= 256 or not span.most:
        raise ConfigError(f"processes {text!r}: a number such as 4, 1 to 256, or MIN:MAX such as 2:8 or 0:8")
    return span


class Scaling:
    """Decides when to start another process, and when to end one."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self._last_added = float("-inf")
        """When another process was started, by the monotonic clock."""
        self._keep_until = float("-inf")

    def keep(self, now: float) -> None:
        """Let no process end for a while: one starts because workers of another app seek a task that this app has.

        A job of the task is offered again after some seconds, and those workers may fetch it first.
        """
        self._keep_until = now + _SOUGHT

    def decide(self, report: Report, running: int, now: float) -> Literal["add", "end"] | None:
        """Return what to do about a report of one of `running` processes; "end" is about the one that reports."""
        if isinstance(report, Behind) and running < self.span.most and now - self._last_added > _APART:
            self._last_added = now
            return "add"
        if isinstance(report, Idle) and running > self.span.least and now > self._keep_until:
            return "end"
        return None
