"""The revision of what an app declares: which of two deploys is the newer one. Pure.

An app gives its revision, `App(revision=...)`, or `lua/register.lua` counts it by the content of the declarations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from evsched.recurrence.recurrence import Declared

_COUNTED: Final = 1e11
"""A counted revision is the Unix seconds at which its content was first seen, minus this."""

_ADDED: Final = ("pause_after", "skip", "after")
"""Fields that came with later releases. They count only if they are set, so a release that adds one, and nothing else,
does not make all contents new ones."""


def content_of(recurrences: Iterable[Declared], limits: Mapping[str, float] | None = None) -> str:
    """Return a digest of recurrences, whatever their order, and of limits by their fields."""
    digest = sha256(usedforsecurity=False)

    def add(value: bytes | str) -> None:
        written = value if isinstance(value, bytes) else value.encode()
        digest.update(b"%d:%b" % (len(written), written))

    for one in sorted(recurrences, key=lambda one: one.name):
        for value in (one.name, *(value for field, value in one.fields().items() if value or field not in _ADDED)):
            add(value)
    for field, limit in sorted((limits or {}).items()):
        add(f"limit {field}")
        add(repr(float(limit)))
    return digest.hexdigest()


def describe_revision(revision: float) -> str:
    """Return a revision as people know it: the number that the app gave, or when its content was first seen."""
    if revision >= 0:
        return f"{revision:.17g}"  # a fraction: counted after the number that an app gave
    try:
        return datetime.fromtimestamp(revision + _COUNTED, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError):  # nothing that evsched has written
        return f"{revision:g}"
