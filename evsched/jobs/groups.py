"""Groups of jobs that have limits: the names with a meaning of their own. Pure."""

from __future__ import annotations

from typing import Final

from evsched.errors import ConfigError
from evsched.jobs import options as check

EACH: Final = "*"
"""Stands for each group that has no limit of its own."""

_RECURRING: Final = "@recurring"
"""The group of occurrences whose recurrence names none."""

_TASK: Final = "task:"

_ORIGIN: Final = "origin:"
"""Before where a job sends its request or message: scheme, host and port, or the name of a server (lua/_in_flight.lua
finds it in the payload)."""

EACH_ORIGIN: Final = f"{_ORIGIN}{EACH}"
"""Stands for each origin that has no limit of its own."""


def of_task(task: str) -> str:
    """Return the group to which all jobs of a task belong, besides their own groups.

    Raises:
        ConfigError: no group may have such a name.
    """
    group = f"{_TASK}{task}"
    try:
        check.group("group", group)
    except ConfigError:
        most = 200 - len(_TASK)
        raise ConfigError(
            f"task {task}: to have limits, it needs a name of at most {most} bytes, without `}}`"
        ) from None
    return group


def each_for(group: str) -> str | None:
    """Return the group whose limits hold for a group that has none of its own; None = no group's do."""
    if is_origin(group):
        return EACH_ORIGIN
    return None if is_made(group) else EACH


def is_made(group: str) -> bool:
    """Return whether evsched itself puts jobs into a group. The limits of each group do not hold for it."""
    return group == _RECURRING or group.startswith((_TASK, _ORIGIN))


def is_origin(group: str) -> bool:
    """Return whether a group is an origin, or stands for each."""
    return group.startswith(_ORIGIN)


def describe(group: str) -> str:
    """Return what people call a group: "task slow", "origin https://api.example.com" or "group alice"."""
    kind, colon, name = group.partition(":")
    return f"{kind} {name}" if f"{kind}{colon}" in (_TASK, _ORIGIN) else f"group {group}"
