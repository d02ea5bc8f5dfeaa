"""How values are shown to people: durations, and text that is safe on a terminal whatever Redis holds."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

_MOST: Final = 10_000 * 365.25 * 86400
"""Seconds from which on a duration is not shown in digits: it may have 300 of them, or be infinite."""


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
