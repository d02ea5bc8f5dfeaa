"""Text that is safe on a terminal, whatever Redis holds."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def escape(line: str) -> str:
    """Return the line without control characters: the payload of a job must not control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def json_text(value: Any) -> str:
    """Return the value as JSON in one line of printable characters."""
    text = msgspec.json.encode(value).decode()
    # JSON escapes characters below a space, but not DEL, C1 controls, U+2028 or marks of the direction of text.
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
