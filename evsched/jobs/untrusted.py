"""Values that any client may have written to Redis. A malformed value counts as missing; it is never an error. Pure."""

from __future__ import annotations

import math
from typing import Final

_EXACT: Final = 2.0**53
"""Up to this size every whole number is exact as a float."""


def number(reply: bytes | None) -> float | None:
    """Read a number; None if it is missing or malformed."""
    try:
        found = float(reply) if reply else None
    except ValueError:
        return None
    return None if found is None or math.isnan(found) else found


def whole(reply: bytes | None) -> int:
    """Read a count; 0 if it is missing or malformed."""
    found = number(reply) or 0.0
    return int(found) if abs(found) <= _EXACT else 0


def unknown_since(field: bytes | None, due: float | None) -> float | None:
    """Read since when workers have not known a job's task; None if that is not so, or the field is malformed.

    The field `unknown` has that moment, and the due time that the last of these workers gave the job. If the job has
    another due time now, it has been retried, rescheduled or scheduled again since then, and the field says nothing.
    """
    since, _, given = (field or b"").partition(b" ")
    return number(since) if due is not None and number(given) == due else None
