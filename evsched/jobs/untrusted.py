"""What anybody may have written, as values: what is not what it should be is nothing, and never an error. Pure."""

from __future__ import annotations

import math
from typing import Final

_EXACT: Final = 2.0**53
"""Up to there a float is a whole number exactly."""


def number(reply: bytes | None) -> float | None:
    """Read a number; None = it is none, or not there."""
    try:
        found = float(reply) if reply else None
    except ValueError:
        return None
    return None if found is None or math.isnan(found) else found


def whole(reply: bytes | None) -> int:
    """Read a count; 0 = it is none, or not there."""
    found = number(reply) or 0.0
    return int(found) if abs(found) <= _EXACT else 0
