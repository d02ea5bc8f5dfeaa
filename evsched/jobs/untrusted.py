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
