"""The limits that an operator sets on a queue's gate.

A limit holds for the queue, for one of its groups, or for each group that has none of its own (the group `*`). The
limits of a task are those of the group `task:<task>`, to which all its jobs belong, besides their own groups; those of
an origin are those of `origin:<origin>`, or of each, `origin:*`.
`concurrency` is how many jobs may be in flight, `rate` how many may start in a second, and `burst` how many may start
at once after a pause. `weight` is a group's share in fair queueing, 1 by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from evsched.display import format_duration
from evsched.errors import ConfigError
from evsched.jobs import groups
from evsched.jobs import option_checks as check_option
from evsched.shards import Shards
from evsched.transport.call import text

RANGES: Final = {
    "concurrency": (1, 1_000_000),
    "rate": (0.00001, 1_000_000),
    "burst": (1, 1_000_000),
    "weight": (0.001, 1000),
    "history": (0, 10_000_000),
    "history_age": (60, 366 * 86400),
}
RATE_LEAST: Final = 1e-6
"""A lower rate means no rate, in the scripts too (lua/_gate.lua)."""

_WHOLE: Final = ("concurrency", "burst", "history")

_OF_QUEUE: Final = ("history", "history_age")
"""Those that no group has: how many ended jobs a queue lists, and for how many seconds after the last one."""


class DeclaredLimit(Struct, frozen=True):
    """A limit that an app declares in its code."""

    value: float
    app: str
    whole: float | None = None
    """The limit of the whole queue, if this is the part of a shard; None = it is not divided."""

    def as_text(self) -> str:
        """Return it as the hash `declared_limits` has it."""
        whole = "" if self.whole is None else f" {as_limit(self.whole)}"
        return f"{as_limit(self.value)} {self.app}{whole}"


class Reserved(Struct, frozen=True, array_like=True):
    """The part of a new shard's limit that is not to be used yet, because jobs in older parts of the queue use it."""

    part: float
    whole: float
    """The limit of the whole queue, of which the older parts get theirs if that was interrupted."""


class Limits(Struct, frozen=True):
    """The limits of a queue; nothing else is limited."""

    paused: float | None = None
    """Since when the queue is paused, in Unix seconds; None if it is not."""
    paused_until: float | None = None
    """When the pause ends by itself, in Unix seconds; None if it does not."""
    paused_why: str | None = None
    queue: dict[str, float] = {}
    """concurrency, rate, burst."""
    reserved: dict[str, Reserved] = {}
    """By field; only a new shard has something reserved."""
    groups: dict[str, dict[str, float]] = {}
    """concurrency, rate, burst and weight, by group."""
    batches: tuple[str, ...] = ()
    """The groups of the batches that are paused."""
    declared: dict[str, DeclaredLimit] = {}
    """By field, if they were read: the limits that the code declares, whatever was set since."""

    def is_paused(self, now: float) -> bool:
        """Return whether the queue is paused. A pause that is over stays noted until the next script runs."""
        return self.paused is not None and (self.paused_until is None or now < self.paused_until)

    def of_group(self, group: str) -> dict[str, tuple[str, float]]:
        """Return the limits that hold for a group: its own, and those of each group that has none of its own.

        By name, each with the field that it comes from.
        """
        own, each = self.groups.get(group, {}), groups.each_for(group)
        found = {name: (f"{name}:{group}", value) for name, value in own.items()}
        for name, value in self.groups.get(each or "", {}).items():
            if name != "burst" or "rate" not in own:  # a burst belongs to the rate that is set with it
                found.setdefault(name, (f"{name}:{each}", value))
        return found

    def add(self, field: str, value: float) -> None:
        """Add a limit by its field; only while the limits are made."""
        name, colon, group = field.partition(":")
        if colon:
            self.groups.setdefault(group, {})[name] = value
        else:
            self.queue[name] = value

    def fields(self) -> dict[str, float | None]:
        """Return all limits by their fields, with declared ones that were removed by hand as None."""
        found: dict[str, float | None] = dict(self.queue)
        for group, limited in self.groups.items():
            found |= {f"{name}:{group}": value for name, value in limited.items()}
        return found | {field: None for field in self.declared if field not in found}

    def overruled(self, field: str) -> DeclaredLimit | None:
        """Return the declaration of a limit that was changed by hand since; None if it was not."""
        declared = self.declared.get(field)
        return declared if declared and self.fields().get(field) != declared.value else None


def merged(parts: Sequence[Limits]) -> Limits:
    """Return the limits of a queue and its shards, among which they were divided, as if it were one queue.

    A limit, or a pause, that only some of them have is left out: see `own`.
    """
    if len(parts) == 1:
        return parts[0]
    present = [{name: value for name, value in part.fields().items() if value is not None} for part in parts]
    declared = {
        name: DeclaredLimit(_whole(name, [part.declared[name].value for part in parts]), first.app, first.whole)
        for name, first in parts[0].declared.items()
        if all(name in part.declared for part in parts)
    }
    found = Limits(declared=declared, batches=tuple(sorted({batch for part in parts for batch in part.batches})))
    for name in present[0]:
        if all(name in values for values in present):
            found.add(name, _whole(name, [values[name] for values in present]))
    pauses = [part for part in parts if part.paused is not None]
    return paused_as(max(pauses, key=lambda part: part.paused or 0.0), found) if len(pauses) == len(parts) else found


def paused_as(part: Limits, limits: Limits) -> Limits:
    """Return limits with the pause of others."""
    return structs.replace(limits, paused=part.paused, paused_until=part.paused_until, paused_why=part.paused_why)


def own(part: Limits, whole: Limits) -> Limits:
    """Return the limits of one of the parts of `merged` that are not limits of the whole."""
    found, fields = Limits(), whole.fields()
    for name, value in part.fields().items():
        if fields.get(name) is None and value is not None:
            found.add(name, value)
    declared = {name: limit for name, limit in part.declared.items() if name not in whole.declared}
    return structs.replace(paused_as(part, found) if whole.paused is None else found, declared=declared)


def _whole(name: str, values: Sequence[float]) -> float:
    """Return a limit of a queue by its parts (`Shards.divide`)."""
    return values[0] if name.partition(":")[0] in ("weight", "history_age") else float(f"{sum(values):.9g}")


def field(name: str, group: str | None, value: float | None) -> str:
    """Return the field of the hash `limits` for a limit, if the value is valid. None removes the limit.

    Raises:
        ConfigError: there is no such limit, or the value is not valid.
    """
    if name not in RANGES or (name == "weight" and group is None):
        raise ConfigError(
            "weight is the share of a group: name the group" if name == "weight" else f"there is no limit {name!r}"
        )
    if group is not None and name in _OF_QUEUE:
        raise ConfigError(f"{name} holds for a queue: leave the group out")
    if group is not None:
        (check_option.group if value is not None else check_option.known_group)("group", group)
        group = groups.as_counted(group, lenient=value is None)
    if name == "weight" and group is not None and (group == groups.EACH or groups.is_made(group)):
        raise ConfigError("weight compares a group of jobs with the others: name one, such as alice")
    if value is not None:
        check_option.number(name, value)
    least, most = RANGES[name]
    if value is not None and not least <= value <= most:
        unit = " s" if name == "history_age" else ""
        raise ConfigError(f"{name} is {value:,.12g}{unit}: must be from {least:,g} to {most:,.0f}{unit}")
    if value is not None and name in _WHOLE and value != int(value):
        raise ConfigError(f"{name} is {value:,.12g}: must be a whole number")
    return name if group is None else f"{name}:{group}"


def check(limits: Mapping[str, float]) -> None:
    """Check limits by their fields.

    Raises:
        ConfigError: one is not valid.
    """
    for name, value in limits.items():
        kind, _, group = name.partition(":")
        field(kind, group or None, value)


def read_limits(reply: list[Any]) -> Limits:
    """Read the hash `limits`. Values that limit nothing are left out: malformed, negative, or a rate of almost 0."""
    pause, found, batches = dict[str, float](), Limits(), set[str]()
    why = None
    for at in range(0, len(reply), 2):
        name, colon, group = text(reply[at]).partition(":")
        if name == "paused_why":
            why = text(reply[at + 1])
        if text(reply[at]) == "reserved":
            found = structs.replace(found, reserved=_read_reserved(reply[at + 1]))
            continue
        try:
            value = float(reply[at + 1])
        except ValueError:
            continue
        if not value >= (RATE_LEAST if name == "rate" else 0.0):  # nor NaN
            continue
        if name in ("paused", "paused_until"):
            pause[name] = value
        elif group.startswith(groups.BATCH):
            batches.add(group)
        elif name in RANGES:
            found.add(name + colon + group, value)
    found = structs.replace(found, batches=tuple(sorted(batches)))
    return structs.replace(found, paused_why=why, **pause) if "paused" in pause else found


def _read_reserved(reply: bytes) -> dict[str, Reserved]:
    try:
        return msgspec.json.decode(reply, type=dict[str, Reserved])
    except msgspec.MsgspecError:
        return {}


def undivided(shards: Shards, queue: str, parts: Mapping[str, Limits]) -> dict[str, dict[str, float]]:
    """Return the limits that older parts of a queue lack, by its parts, if they still have the previous limit.

    The change of the number of shards was interrupted before these were written. A limit that was set again since is
    left alone.
    """
    wholes = dict[str, float]()
    for name, limits in parts.items():
        for field, reserved in limits.reserved.items():
            if _has(limits, field, _share(shards, field, reserved.whole, name)):
                wholes[field] = reserved.whole
    found = dict[str, dict[str, float]]()
    for name, limits in parts.items():
        shares = {} if limits.reserved else {field: _share(shards, field, wholes[field], name) for field in wholes}
        if wrong := {field: share for field, share in shares.items() if not _has(limits, field, share)}:
            found[name] = {field: share for field, share in wrong.items() if share is not None}
    return found


def _share(shards: Shards, field: str, whole: float, name: str) -> float | None:
    try:
        return shards.divide({field: whole}, name)[field]
    except ConfigError:
        return None


def _has(limits: Limits, field: str, value: float | None) -> bool:
    present = limits.fields().get(field)
    return present is None or value is None or as_limit(present) == as_limit(value)


def still_reserved(parts: Mapping[str, tuple[Limits, Mapping[str, int]]]) -> dict[str, dict[str, Reserved]]:
    """Return the reservations to be made now in each shard that has any; none = the shard is wholly open.

    `parts`: the shards of a queue by their numbers, and the queue itself, each with its limits and counts in flight.
    A limit holds in all parts together if no fewer jobs are reserved than are in flight in some parts beyond their own
    limits. It is reserved in the last shards: only new ones have something reserved, and they are the last.
    """
    found = {name: dict[str, Reserved]() for name, (limits, _) in parts.items() if limits.reserved}
    for field in {field for limits, _ in parts.values() for field in limits.reserved}:
        left = _excess(field, parts)
        for name, (limits, _) in reversed([*parts.items()]):
            part = limits.fields().get(field) or 0.0
            reserved = limits.reserved.get(field)
            if reserved is not None and min(left, part) > 0:
                found[name][field] = Reserved(min(left, part), reserved.whole)
            if reserved is not None:
                left = max(0.0, left - part)
    return found


def _excess(field: str, parts: Mapping[str, tuple[Limits, Mapping[str, int]]]) -> float:
    """Return how many jobs are in flight in parts beyond their own limit; for a limit of each group, the most."""
    kind, _, group = field.partition(":")
    if kind != "concurrency":
        return 0.0
    counts = {f"#{group}" if group else "*"}
    if group.endswith("*"):
        start = f"#{group[:-1]}"
        counts = {name for _, found in parts.values() for name in found if name.startswith(start)}
    return max(
        (
            sum(max(0.0, found.get(name, 0) - (limits.fields().get(field) or 0.0)) for limits, found in parts.values())
            for name in counts
        ),
        default=0.0,
    )


def read_declared(reply: list[Any]) -> dict[str, DeclaredLimit]:
    """Read the hash `declared_limits`. Values that are not a number and the name of an app are left out."""
    found = dict[str, DeclaredLimit]()
    for at in range(0, len(reply), 2):
        value, _, rest = text(reply[at + 1]).partition(" ")
        app, _, whole = rest.partition(" ")
        try:
            found[text(reply[at])] = DeclaredLimit(float(value), app, float(whole) if whole else None)
        except ValueError:
            continue
    return found


def shown(name: str, value: float) -> str:
    """Return a limit as a person reads it."""
    kind = name.partition(":")[0]
    if kind == "history_age":
        return format_duration(value)
    number = f"{value:.0f}" if value.is_integer() else f"{value:.9g}"
    return f"{number}/s" if kind == "rate" else number


def as_limit(value: float) -> str:
    """Return a limit as text. A declared one is compared by its text."""
    return f"{value:.12g}"
