"""The audit trail: the acts of operators on a queue, in its stream `audit`.

The script that does an act also appends its entry (lua/_acts.lua): so there is no act without an entry, and no entry of
an act that was refused. The calls of one `Act` leave one entry in each queue that they change. Acts that are about no
queue are in a stream of the deployment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from itertools import count
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from evsched.errors import ConfigError
from evsched.jobs.option_checks import is_unicode
from evsched.transport.call import text

ActName = Literal[
    "pause",
    "resume",
    "limit",
    "cancel",
    "reschedule",
    "edit",
    "signal",
    "revive",
    "drop",
    "trigger",
    "backfill",
    "remove",
    "prune",
    "mend",
    "move",
    "again",
    "quiet",
    "stop",
    "make-token",
    "remove-token",
]

ACTS: Final = get_args(ActName)

NAME_MOST: Final = 200
"""Characters of an operator's name."""

ACTS_MOST: Final = 10_000
"""How many entries a queue keeps, about; as in lua/_acts.lua."""


class Operator(Struct, frozen=True):
    """Who acts, and from where: cli, api, python or console."""

    who: str
    source: str


def named_operator(who: Any, source: str) -> Operator:
    """Return an operator.

    Raises:
        ConfigError: the name is not valid.
    """
    if not isinstance(who, str) or not 1 <= len(who.strip()) <= NAME_MOST or not is_unicode(who):
        raise ConfigError(f"an operator's name is a text of 1 to {NAME_MOST} characters, and not {who!r:.60}")
    return Operator(who.strip(), source)


class Act:
    """One act of an operator: a command, a request or a method, with any number of calls to any number of queues."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._id = os.urandom(8).hex()
        self._calls = count()
        self._mark = ""
        self.places: Sequence[str] = ()
        """The places in which it is to change jobs; none = all in which it can."""

    def within(self, places: Sequence[str]) -> Act:
        """Return the act for calls that change jobs in these places alone."""
        narrowed = copy(self)
        narrowed.places = places
        return narrowed

    def repeated(self) -> Act:
        """Return the act for calls whose jobs other calls of it have noted: they are not counted twice."""
        again = copy(self)
        again._mark = "r"
        return again

    def as_text(self, name: ActName, what: Mapping[str, Any]) -> str:
        """Return the argument `act` of a call. The same `what` in all calls to a queue makes one entry of them."""
        known = ActText(self._id, self._operator.who, self._operator.source, name, {**what})
        return f"{next(self._calls)}{self._mark} {msgspec.json.encode(known).decode()}"


class ActText(Struct, frozen=True, rename={"source": "from"}):
    """The part of an act that its caller knows: the field `act` of its entries."""

    id: str
    who: str
    source: str
    act: str
    what: dict[str, Any]


class AuditEntry(Struct, frozen=True):
    """An entry of the stream of one queue."""

    at: float
    queue: str
    call: str
    """The number of the latest call of the act, among all of its calls."""
    known: ActText
    count: int | None
    ids: list[str]

    @property
    def what(self) -> dict[str, Any]:
        return self.known.what


class AuditedAct(Struct, frozen=True, rename={"source": "from"}):
    """An act of an operator on a queue and its shards."""

    at: float
    """When, in Unix seconds by Redis's clock; of an act of many calls, when the last one was made."""
    queue: str
    """The queue; or a shard, if that alone was changed; empty: the act is about no queue."""
    who: str
    source: str
    act: str
    what: dict[str, Any]
    count: int | None
    """How many jobs were changed, if the act was interrupted, until then. None = it is not about jobs."""
    ids: list[str]
    """The ids of these jobs; of many, the first."""


def stream_position(unix: float) -> str:
    """Return a time as a position in a stream, which is a whole number of 64 bits."""
    return f"{min(max(0.0, unix) * 1000, 1e18):.0f}"


def read_entry(queue: str, position: bytes, flat: Sequence[bytes]) -> AuditEntry | None:
    """Read an entry of the stream; None for one that another program has written there."""
    pairs = [(text(flat[at]), text(flat[at + 1])) for at in range(0, len(flat), 2)]
    fields = dict(pairs)
    try:
        known = msgspec.json.decode(fields.get("act", ""), type=ActText)
        count = int(fields["count"]) if fields.get("count") else None
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    ids = [value for name, value in pairs if name == "id"]
    return AuditEntry(int(position.partition(b"-")[0]) / 1000, queue, fields.get("call", ""), known, count, ids)


def as_acts(queue: str, found: Iterable[AuditEntry]) -> list[AuditedAct]:
    """Return the acts that have these entries, the latest first: each may have one in each shard of a queue."""
    by_act = dict[tuple[str, str], dict[tuple[str, str], AuditEntry]]()
    for entry in found:
        # The same number twice in one queue is a call that was repeated, and noted again.
        by_act.setdefault((entry.known.id, entry.known.act), {})[entry.queue, entry.call] = entry
    return sorted((_as_act(queue, [*parts.values()]) for parts in by_act.values()), key=lambda act: -act.at)


def _as_act(queue: str, parts: Sequence[AuditEntry]) -> AuditedAct:
    known, counts = parts[-1].known, [part.count for part in parts if part.count is not None]
    return AuditedAct(
        at=max(part.at for part in parts),
        queue=parts[0].queue if len({part.queue for part in parts}) == 1 else queue,
        who=known.who,
        source=known.source,
        act=known.act,
        what=known.what,
        count=sum(counts) if counts else None,
        ids=[job for part in parts for job in part.ids],
    )
