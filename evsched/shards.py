"""Shards: one queue that is spread over several, which may be on different nodes of a cluster.

A queue `mail` of 12 shards is the queues `mail:0` to `mail:11`, and `mail` itself. Each is a queue in all respects,
with its own keys in its own slot. A job's home is the shard that the CRC-32 of its id names; but a job runs in
whichever of them it was scheduled, so a client that knows nothing of shards may use `mail`. Recurrences live in `mail`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

from evsched import keys
from evsched.errors import ConfigError

MOST: Final = 1024
"""Shards of a queue: each costs each worker a heartbeat every minute."""

_DIGITS: Final = 5
"""Characters that a shard's name has more than the queue's."""

_SHARD: Final = re.compile(r".+:(0|[1-9][0-9]{0,3})")


class Share(NamedTuple):
    """A part of a limit that is divided, and the whole of it."""

    value: float
    whole: float


class Shards:
    """How many shards queues have, by name. A queue that is not named has none."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts: dict[str, int] = {}
        self._wholes: dict[str, str] = {}
        """The queue of each shard."""
        self.learned: bool | None = None
        """Whether this process has read the numbers from Redis; None = it has not tried."""
        self.found = set[str]()
        """Shards whose keys were found while the numbers could not be read."""
        self.grow(counts or {})

    def all_of(self, queue: str) -> list[str]:
        """Return the names of the queues that hold the jobs of a queue: its shards and, last, itself."""
        return [*(shard(queue, number) for number in range(self.counts.get(queue, 0))), queue]

    def home(self, queue: str, job_id: str) -> str:
        """Return the queue in which a job of this id is scheduled."""
        count = self.counts.get(queue, 0)
        return shard(queue, crc32(job_id.encode()) % count) if count else queue

    def whole(self, queue: str) -> str:
        """Return the queue of which this is a shard; any other queue itself."""
        return self._wholes.get(queue, queue)

    def wholes(self, queues: Iterable[str]) -> list[str]:
        """Return queues as a person sees them: by name, with the queue in place of its shards."""
        return sorted({self.whole(queue) for queue in queues})

    def may_lack(self, queue: str) -> bool:
        """Return whether a queue has the name of a shard that is not known here."""
        return queue not in self._wholes and _SHARD.fullmatch(queue) is not None

    def find(self, queues: Iterable[str], names: Iterable[str]) -> bool:
        """Note which of the names are those of shards of these queues; return whether one of them is new."""
        had, wholes = len(self.found), set(queues)
        self.found.update(name for name in names if _SHARD.fullmatch(name) and name.rpartition(":")[0] in wholes)
        return len(self.found) > had

    def beyond(self, queue: str, names: Iterable[str]) -> list[str]:
        """Return those of the names that shards of a queue would have that had more of them, by their numbers.

        Nothing, if the queue never had shards: then these are names like any others.
        """
        if queue not in self.counts:
            return []
        start = len(queue) + 1
        numbers = [
            int(name[start:])
            for name in names
            if name.startswith(f"{queue}:") and _SHARD.fullmatch(name) and name[start:].isdecimal()
        ]
        return [shard(queue, number) for number in sorted(numbers) if self.counts[queue] <= number < MOST]

    def is_beyond(self, name: str) -> bool:
        """Return whether a queue has the name of a shard beyond the number of shards."""
        return bool(self.beyond(name.rpartition(":")[0], [name]))

    def divide(self, limits: Mapping[str, float], queue: str) -> dict[str, float]:
        """Return the part of a queue's limits, by their fields, that holds in this queue: the whole, or one shard.

        Raises:
            ConfigError: a limit is smaller than the number of parts, so in some of them no job could start.
        """
        whole = self.whole(queue)
        parts = self.all_of(whole)
        if len(parts) == 1:
            return dict(limits)
        return {field: _part(field, value, parts.index(queue), len(parts), whole) for field, value in limits.items()}

    def grow(self, counts: Mapping[str, int]) -> None:
        """Note that these queues have at least this many shards."""
        for queue, count in counts.items():
            had = self.counts.get(queue, 0)
            self._wholes.update((shard(queue, number), queue) for number in range(had, count))
            self.counts[queue] = max(count, had)


NONE: Final = Shards()
"""No queue has shards."""


def unread() -> Shards:
    """Return the shards that a process knows of if it could not read their numbers: none."""
    found = Shards()
    found.learned = False
    return found


def _part(field: str, value: float, at: int, parts: int, queue: str) -> float:
    """Return one of the parts of a limit. The first ones get the remainder."""
    name, _, group = field.partition(":")
    if name in ("weight", "history_age"):
        return value
    if name != "rate" and group.startswith("origin:"):
        value = max(value, parts)  # it has a default, which must not keep a worker from starting
    if name == "rate":
        return value / parts
    if name == "history" and value < parts:
        return min(value, 1.0)  # 0 would keep none
    if value < parts:
        raise ConfigError(
            f"limit {field} of queue {queue} is {value:g}: it is divided among {parts - 1} shards and the queue "
            f"itself, so it must be at least {parts}; or use a queue without shards"
        )
    least, rest = divmod(int(value), parts)
    return float(least + (at < rest))


def shard(queue: str, number: int) -> str:
    return f"{queue}:{number}"


def check_count(queue: str, count: Any) -> int:
    """Return `count` if a queue may have this many shards; 0 = none.

    Raises:
        ConfigError: it is no number of shards, or the queue's name is too long for their names.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST:
        raise ConfigError(f"shards is {count!r}: must be a whole number from 0 to {MOST}")
    if count and not keys.NAME.fullmatch(queue + "0" * _DIGITS):
        raise ConfigError(
            f"queue {queue}: its name is too long for a queue with shards, which have its name and 5 more"
        )
    return count


def check_shards(counts: Mapping[str, int]) -> Shards:
    """Return the shards of queues, if none of these queues has the name of a shard of another one.

    Raises:
        ConfigError
    """
    for name, count in counts.items():
        queue, _, number = name.rpartition(":")
        if count and counts.get(queue) and number.isdecimal():
            raise ConfigError(f"shards: {name} is the name of a shard of queue {queue}, so it cannot have shards")
    return Shards(counts)
