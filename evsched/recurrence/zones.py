"""Time zones by their IANA names."""

from __future__ import annotations

import difflib
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from evsched.errors import ConfigError

_LONGEST: Final = 64
"""Characters of a name, at most: the longest has 32. A longer text is not compared with all names."""


@cache
def find_zone(name: str) -> ZoneInfo:
    """Return the zone of a name.

    Raises:
        ConfigError: there is no zone of that name; the message suggests the nearest.
    """
    if len(name) > _LONGEST:
        raise ConfigError(f"zone {name[:_LONGEST]!r}... has {len(name)} characters: write it as Europe/Berlin")
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        near = difflib.get_close_matches(name, available_timezones(), n=1, cutoff=0.4)
        hint = f": did you mean {near[0]}?" if near else ": write it as Europe/Berlin"
        raise ConfigError(f"zone {name!r} is not known{hint}") from None
