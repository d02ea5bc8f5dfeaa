"""The calls that move waiting jobs between the shards of a queue: depart, arrive, vacate.

The two queues are in different slots, perhaps on different nodes, so a move is three scripts. Between them each job of
the batch is in the place `moving` of the queue that it leaves. Any step may be repeated, by anybody and after any time.

In a cluster the two queues may be on different servers, each of which may lose its last writes when it fails. So no
step begins before the one before it is safe: a replica has it, or, where there are no replicas, the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from evsched import keys
from evsched.errors import EvschedError, StoreDown
from evsched.store.queue import Queue, as_bool, as_struct
from evsched.transport.call import Call, raw, text
from evsched.transport.servers import slot_of

_SAFE_WITHIN: Final = 3.0
"""Seconds within which a write must be safe: a replica needs milliseconds, `appendfsync everysec` one second or two."""


class MovingBatch(Struct, frozen=True):
    """Jobs that are on their way from one queue to another."""

    number: str
    token: str
    to: str
    """The queue that they go to."""
    jobs: list[tuple[bytes, bytes]]
    """(member of the schedule, its content for `arrive`)."""


class Departure(Struct, frozen=True):
    """The result of `depart`."""

    batch: MovingBatch | None
    """The batch that is on its way, perhaps one that another program began; None = there is none."""
    stay: list[tuple[bytes, str]]
    """(member, why) of each job that stays: soon, recurrence, ledger, other, gone (see lua/depart.lua)."""


class Arrival(Struct, frozen=True):
    """The result of `arrive`."""

    over: bool
    """A later batch had come from the same queue: so this one has been finished, or the clock was set back."""
    last: int
    """The number of the last batch that came from there."""
    stay: list[bytes]
    """The members that could not come, because their ids are taken."""


class Vacated(Struct, frozen=True):
    """The result of `vacate`: how many jobs have left for good, and how many are back on the schedule."""

    moved: int
    back: int


class ClusterPrimary(Struct, frozen=True):
    """The primary of a cluster that has a queue."""

    id: str
    address: str
    replicas: int
    """How many replicas the cluster knows, including unreachable ones."""
    slots: list[tuple[int, int]]

    def has(self, queue: str) -> bool:
        """Return whether a queue is on this server."""
        slot = slot_of(keys.root(queue))
        return any(first <= slot <= last for first, last in self.slots)

    def safe(self, queue: str, beside: str, *, on_disk: bool) -> Call[bool] | None:
        """Return the call that waits until the last write of its connection is safe; None = nothing is waited for.

        `queue`: the queue that was written. `beside`: the other queue of the move. If that is on this server too, both
        lose the same moment, so the later step never outlives the earlier one. `on_disk`: without replicas, wait for
        the disk.
        """
        if self.has(beside) or not (self.replicas or on_disk):
            return None
        limit, near = round(_SAFE_WITHIN * 1000), keys.root(queue)
        if self.replicas:
            return Call(("WAIT", 1, limit), lambda reply: reply > 0, near=near)
        return Call(("WAITAOF", 1, 0, limit), lambda reply: reply[0] > 0, near=near)

    def check_safe(self, queue: str, safe: bool | EvschedError) -> None:
        """Check the reply to the call that `safe` returned.

        Raises:
            StoreDown: the write is not safe.
        """
        if safe is False:
            lacks, advice = (
                ("no replica has", "start its replica, or remove that from the cluster (CLUSTER FORGET)")
                if self.replicas
                else ("its disk has not", "see INFO persistence there")
            )
            raise StoreDown(
                f"queue {queue}: {lacks} confirmed a move between shards within {_SAFE_WITHIN:g} s, so jobs stay at "
                f"the shard that they leave. The server of the queue is {self.address}: {advice}",
                kind="noreplicas",
            )
        if isinstance(safe, EvschedError) and self.replicas:
            raise safe  # without replicas: Redis is older than 7.2 or writes no AOF, so there is nothing to wait for


def _read_primary(reply: bytes) -> ClusterPrimary:
    """Read the reply to CLUSTER NODES of a primary."""
    lines = [line.split() for line in text(reply).splitlines()]
    me = next(line for line in lines if "myself" in line[2].split(","))
    slots = [slots.partition("-") for slots in me[8:] if not slots.startswith("[")]
    return ClusterPrimary(
        id=me[0],
        address=me[1].partition("@")[0],
        replicas=sum("slave" in line[2].split(",") and line[3] == me[0] for line in lines),
        slots=[(int(first), int(last or first)) for first, _, last in slots],
    )


class Moves(Queue):
    """The calls that move jobs between the shards of a queue; see `store.py`."""

    def depart(
        self, to: str = "", token: str = "", members: Sequence[bytes] = (), *, above: int = 0, calm: float = 60.0
    ) -> Call[Departure]:
        """Take jobs off the schedule, at most 250, to move them to another queue; without `members` only look.

        If a batch is on its way already, nothing is taken, and the reply has that batch. `token`: a random name.
        `above`: the number that the batch must exceed. `calm`: jobs that are due within this number of seconds stay.
        """

        def read(reply: list[Any]) -> Departure:
            number, found, where, jobs, stay = reply
            pairs = [(jobs[i], jobs[i + 1]) for i in range(0, len(jobs), 2)]
            batch = MovingBatch(text(number), text(found), keys.check_queue(text(where)), pairs) if number else None
            return Departure(batch, [(stay[i], text(stay[i + 1])) for i in range(0, len(stay), 2)])

        return self._verb("depart", read, self._now(), to, token, above, calm, *members)

    def arrive(self, source: str, batch: MovingBatch) -> Call[Arrival]:
        """Put a batch that has left the queue `source` on the schedule of this one."""
        words = [word for job in batch.jobs for word in job]
        return self._verb(
            "arrive", as_struct(Arrival, as_bool, int, raw), self._now(), source, batch.number, batch.token, *words
        )

    def vacate(self, batch: MovingBatch, arrival: Arrival) -> Call[Vacated]:
        """Delete the rest of a batch that has arrived, and put the jobs that could not back on the schedule."""
        words = (batch.number, batch.token, "1" if arrival.over else "", self._act_text("move"), *arrival.stay)
        return self._verb("vacate", lambda reply: Vacated(*reply), *words)

    def primary(self) -> Call[ClusterPrimary]:
        """Read which server of a cluster has this queue. Refused if there is no cluster."""
        return self._call(("CLUSTER", "NODES"), _read_primary)

    def has_room(self) -> Call[Any]:
        """Do nothing, unless the memory of this queue's Redis is full: then it refuses, as it would refuse a job."""
        return self._call(("ZADD", keys.schedule(self.queue), "XX", 0, ""), raw)
