"""The limits of a queue: what its gate lets pass, as an operator rules it.

A limit is of the queue, or of one of its groups. `concurrency` is how many jobs may be handed out and not ended;
`rate` how many may start in a second, and `burst` how many of them at once after a silence; `weight` is a group's
share in the fair queueing, 1 without one.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from evsched.errors import ConfigError
from evsched.transport.call import text

_RANGES: Final = {
    "concurrency": (1, 1_000_000),
    "rate": (0.00001, 1_000_000),
    "burst": (1, 1_000_000),
    "weight": (0.001, 1000),
}
_WHOLE: Final = ("concurrency", "burst")


class Limits(Struct, frozen=True):
    """What is ruled; None = not limited."""

    paused: float | None = None
    """Since when, Unix seconds."""
    queue: dict[str, float] = {}
    """concurrency, rate, burst."""
    groups: dict[str, dict[str, float]] = {}
    """The same and weight, by group."""


def field(name: str, group: str | None, value: float | None) -> str:
    """Return the field of `limits` that a limit has, when it may have that value. None takes the limit away.

    Raises:
        ConfigError: it may not.
    """
    if name not in _RANGES or (name == "weight" and group is None):
        raise ConfigError(
            "weight: it is a group's share, so name the group" if name == "weight" else f"no limit {name}"
        )
    if group is not None and (not 0 < len(group.encode()) <= 200 or "}" in group):
        raise ConfigError("group: 1 to 200 bytes, without `}`")
    least, most = _RANGES[name]
    if value is not None and not least <= value <= most:
        raise ConfigError(f"{name} is {value:g}: from {least:g} to {most:g}")
    if value is not None and name in _WHOLE and value != int(value):
        raise ConfigError(f"{name} is {value:g}: a whole number")
    return name if group is None else f"{name}:{group}"


def read_limits(reply: list[Any]) -> Limits:
    """Read the hash `limits`. What is no number there rules nothing, so it is not shown."""
    paused, queue, groups = None, dict[str, float](), dict[str, dict[str, float]]()
    for at in range(0, len(reply), 2):
        name, colon, group = text(reply[at]).partition(":")
        try:
            value = float(reply[at + 1])
        except ValueError:
            continue
        if name == "paused":
            paused = value
        elif name in _RANGES and colon:
            groups.setdefault(group, {})[name] = value
        elif name in _RANGES:
            queue[name] = value
    return Limits(paused, queue, groups)
