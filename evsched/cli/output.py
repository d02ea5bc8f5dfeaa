"""What the commands print besides tables: JSON, notes on stderr, and times."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from evsched.display import escape, json_text

_NAMED: Final = 5
"""Workers, queues or shards that a message names."""


def as_json(value: Any) -> None:
    """Print one JSON document, in printable characters: what Redis holds cannot steer the terminal."""
    text = msgspec.json.format(json_text(value), indent=2) + "\n"
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], text)  # the escapes of JSON
    sys.stdout.write(text)


def note(line: str) -> None:
    """Print one line for people beside the data, on stderr: stdout stays what a program reads."""
    sys.stdout.flush()  # the data come first, and if they cannot be written, that is the only line
    print(f"evsched: {escape(' '.join(line.split()))}", file=sys.stderr)


def some(names: Sequence[str]) -> str:
    """Return some of the names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def moment(unix: float | None, *, short: bool = False, whole: bool = False) -> str:
    """Return a time as a person reads it: local, with milliseconds and zone. `whole`: without milliseconds.

    `short`: without either.
    +inf is a due that never comes. A time that no calendar has stays a number.
    """
    if unix is None:
        return ""
    if unix == math.inf:
        return "never"
    try:
        local = datetime.fromtimestamp(unix).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{unix}"
    return (
        local.strftime("%Y-%m-%d %H:%M:%S") if short else local.isoformat(" ", "seconds" if whole else "milliseconds")
    )
