"""What the commands print besides tables: JSON, notes on stderr, and times."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import msgspec

from evsched.telemetry.log import escape, json_text


def as_json(value: Any) -> None:
    """Print one JSON document, in printable characters: what Redis holds cannot steer the terminal."""
    sys.stdout.write(msgspec.json.format(json_text(value), indent=2) + "\n")


def note(line: str) -> None:
    """Print one line for people beside the data, on stderr: stdout stays what a program reads."""
    print(f"evsched: {escape(' '.join(line.split()))}", file=sys.stderr)


def moment(unix: float | None) -> str:
    """Return a time as a person reads it: local, with milliseconds and zone."""
    if unix is None:
        return ""
    try:
        return datetime.fromtimestamp(unix).astimezone().isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{unix}"
