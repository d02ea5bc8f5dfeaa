"""A finding: one thing that the doctor has to say, and what to do about it. A value."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Level = Literal["fault", "warning", "info"]


class Finding(Struct, frozen=True):
    """Something is wrong, may become so, or is worth knowing (`info`: that is not counted as found)."""

    check: str
    """Its name, which does not change from release to release."""
    level: Level
    what: str
    where: str
    """A setting, a key, or a queue and an id."""
    mend: str
    """What to type, or a line for redis.conf; empty = there is nothing to do."""
    repaired: bool = False
