"""Text that is safe on a terminal."""

from __future__ import annotations


def escape(line: str) -> str:
    """Return the line without control characters: the payload of a job must not control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
