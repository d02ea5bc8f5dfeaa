"""A finding: a problem that the doctor reports, and how to fix it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

Level = Literal["fault", "warning", "info"]


class Finding(Struct, frozen=True):
    """A fault, a risk (`warning`), or something worth knowing (`info`, which does not change the exit code)."""

    check: str
    """The name of the check, which does not change between releases."""
    level: Level
    what: str
    where: str
    """A setting, a key, or a queue and an id."""
    mend: str
    """The command to type, or a line for redis.conf; empty if there is nothing to do."""
    repaired: bool = False


def changes(before: Sequence[Finding], after: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return the new findings, and the resolved ones.

    A finding is the same as before if its check, its level and its place are: its text may contain figures.
    """
    known, found = ({(one.check, one.level, one.where): one for one in part} for part in (before, after))
    new = [finding for key, finding in found.items() if key not in known]
    return new, [finding for key, finding in known.items() if key not in found]
