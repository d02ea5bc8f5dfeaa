"""Groups of jobs that have limits: the names with a meaning of their own. Pure."""

from __future__ import annotations

import re
from hashlib import sha1
from typing import Final

from evsched.errors import ConfigError
from evsched.jobs import option_checks as check

EACH: Final = "*"
"""Stands for each group that has no limit of its own."""

RECURRING: Final = "@recurring"
"""The group of occurrences whose recurrence names none."""

TASK: Final = "task:"

ORIGIN: Final = "origin:"
"""Before where a job sends its request or message: scheme, host and port, or the name of a server (lua/_in_flight.lua
finds it in the payload)."""

BATCH: Final = "batch:"
"""Before the address of a batch, `<home>/<batch>`: its jobs are in this group while batches are paused."""

_ORIGIN_MOST: Final = 200 - len(ORIGIN)
"""Bytes of an origin: the end of a longer one stands for all of it."""

_URL: Final = re.compile(r"(https?://)([a-z0-9.:_\[\]-]+)/?")
_DEFAULT_PORTS: Final = {"http://": ":80", "https://": ":443"}
_SERVER: Final = re.compile(r"[a-z][a-z0-9_]*")
"""The name of a server of messages."""

EACH_ORIGIN: Final = f"{ORIGIN}{EACH}"
"""Stands for each origin that has no limit of its own."""


def of_task(task: str) -> str:
    """Return the group to which all jobs of a task belong, besides their own groups.

    Raises:
        ConfigError: no group may have such a name.
    """
    group = f"{TASK}{task}"
    try:
        check.group("group", group)
    except ConfigError:
        most = 200 - len(TASK)
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
    return group == RECURRING or group.startswith((TASK, ORIGIN, BATCH))


def of_batch(address: str) -> str:
    """Return the group of the jobs of a batch, as lua/_in_flight.lua does."""
    return BATCH + (
        address if len(address) <= 200 - len(BATCH) else sha1(address.encode(), usedforsecurity=False).hexdigest()
    )


def is_origin(group: str) -> bool:
    """Return whether a group is an origin, or stands for each."""
    return group.startswith(ORIGIN)


def as_counted(group: str, *, lenient: bool) -> str:
    """Return a group as the jobs have in which it counts: lua/_in_flight.lua writes origins in one form.

    `lenient`: return a group of another form as it is, so that its limits can be removed.

    Raises:
        ConfigError: it is the origin of no job.
    """
    if group.startswith(BATCH) and not lenient:
        raise ConfigError(f"group {group!r} is that of a batch: pause the batch with `evsched batches pause`")
    origin = group.removeprefix(ORIGIN)
    if origin in (group, EACH) or len(origin.encode()) == _ORIGIN_MOST:  # then it may be the end of a longer one
        return group
    if url := _URL.fullmatch(origin.lower()):
        return f"{ORIGIN}{url[1]}{url[2].removesuffix(_DEFAULT_PORTS[url[1]])}"
    if not lenient and not _SERVER.fullmatch(origin):
        raise ConfigError(
            f"group {group!r} is the origin of no job: write {ORIGIN}https://HOST or {ORIGIN}http://HOST, with :PORT "
            f"unless it is the default one; {ORIGIN}SERVER for messages; or {EACH_ORIGIN} for each"
        )
    return group


def describe(group: str) -> str:
    """Return what people call a group: "task slow", "origin https://api.example.com" or "group alice"."""
    kind, colon, name = group.partition(":")
    return f"{kind} {name}" if f"{kind}{colon}" in (TASK, ORIGIN, BATCH) else f"group {group}"
