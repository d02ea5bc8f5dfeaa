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


def is_made(group: str) -> bool:
    """Return whether evsched itself puts jobs into a group. The limits of each group do not hold for it."""
    return group == _RECURRING or group.startswith(_TASK)


def describe(group: str) -> str:
    """Return what people call a group: "task slow" or "group alice"."""
    return f"task {group.removeprefix(_TASK)}" if group.startswith(_TASK) else f"group {group}"
