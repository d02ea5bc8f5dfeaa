"""How values are shown to people: durations, names that may be meant, and text that is safe on a terminal."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

import msgspec

_MOST: Final = 10_000 * 365.25 * 86400
"""Seconds from which on a duration is not shown in digits: it may have 300 of them, or be infinite."""

_COMPARED: Final = 200
"""Characters of a name that are compared: a payload may have a longer one, and the time grows with the square."""


def format_duration(seconds: float) -> str:
    """Return a duration with about three digits, such as `12.5 ms`, `3.0 s`, `4m 05s` or `2d 3h`."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds >= _MOST:
        return "more than 10,000 years"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def escape(line: str) -> str:
    """Return the line without control characters: the payload of a job must not control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def json_text(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    # JSON escapes characters below a space, but not DEL, C1 controls, U+2028 or marks of the direction of text.
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def nearest(name: str, among: Iterable[str], most: int = 1, alike: float = 0.6) -> list[str]:
    """Return the names that may be meant by one that does not exist, the most similar first.

    The whole names must be similar, `alike` from 0 to 1, and so must their last parts: `polls.tasks.charge` and
    `polls.tasks.ship` are not, although they share a long beginning.
    """
    name, names = name[:_COMPARED], [*among]
    found = difflib.get_close_matches(name, names, len(names) or 1, alike)
    return [*islice((one for one in found if difflib.get_close_matches(_end(name), [_end(one)])), most)]


def _end(name: str) -> str:
    """Return the last part of the dotted name of a task, or of a path such as Europe/Berlin."""
    return re.split("[./]", name)[-1]
