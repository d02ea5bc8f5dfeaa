"""The limits that an operator sets on a queue's gate.

A limit holds for the queue or for one of its groups. `concurrency` is how many jobs may be in flight, `rate` how many
may start in a second, and `burst` how many may start at once after a pause. `weight` is a group's share in fair
queueing, 1 by default.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from evsched.errors import ConfigError
from evsched.jobs import options
from evsched.transport.call import text

_RANGES: Final = {
    "concurrency": (1, 1_000_000),
    "rate": (0.00001, 1_000_000),
    "burst": (1, 1_000_000),
    "weight": (0.001, 1000),
}
_WHOLE: Final = ("concurrency", "burst")


class Limits(Struct, frozen=True):
    """The limits of a queue; what is not there is not limited."""

    paused: float | None = None
    """Since when the queue is paused, in Unix seconds; None if it is not."""
    queue: dict[str, float] = {}
    """concurrency, rate, burst."""
    groups: dict[str, dict[str, float]] = {}
    """concurrency, rate, burst and weight, by group."""


def field(name: str, group: str | None, value: float | None) -> str:
    """Return the field of the hash `limits` for a limit, if the value is valid. None removes the limit.

    Raises:
        ConfigError: there is no such limit, or the value is not valid.
    """
    if name not in _RANGES or (name == "weight" and group is None):
        raise ConfigError(
            "weight is the share of a group: name the group" if name == "weight" else f"there is no limit {name!r}"
        )
    if group is not None:
        options.group("group", group)
    least, most = _RANGES[name]
    if value is not None and not least <= value <= most:
        raise ConfigError(f"{name} is {value:g}: must be from {least:g} to {most:g}")
    if value is not None and name in _WHOLE and value != int(value):
        raise ConfigError(f"{name} is {value:g}: must be a whole number")
    return name if group is None else f"{name}:{group}"


def read_limits(reply: list[Any]) -> Limits:
    """Read the hash `limits`. A value that is not a number limits nothing, and is left out."""
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
