"""The calls by which a batch is paused and resumed: at its home, and in the queues of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from evsched import keys
from evsched.jobs.groups import of_batch
from evsched.jobs.record import number, whole
from evsched.store.queue import Queue, as_bool, as_moment, as_struct
from evsched.transport.call import Call, text

HOLD_WITHIN: Final = 30.0
"""Seconds after a call to the home of a batch within which its queues accept calls about it."""

FORGET_AFTER: Final = 60.0
"""Seconds after its end for which a batch that was paused is kept at least, so that no call about it comes later. The
difference is for clocks that differ."""


class BatchPause(NamedTuple):
    """Whether a batch is paused, as its home says."""

    now: float
    stamp: int
    """The number of the last pause or resume, which rises; 0 = it was never paused."""
    is_paused: bool
    since: float | None = None
    """Since when it is paused, or was until now; None = it was not."""


class Hold(NamedTuple):
    """Whether the jobs of a batch wait in a queue, since it is paused."""

    address: str
    """`<home>/<batch>`."""
    stamp: int
    held: Literal["1", "", "-"]
    """-: the batch is forgotten."""


class InnerBatch(NamedTuple):
    """A batch that is a member of another one."""

    queue: str
    """Its home."""
    batch: str
    parent: str
    """`<home>/<batch>/<ordinal>` of the member that it is."""


class BatchPauses(Queue):
    """The calls about pauses: of batches whose home is the queue, and of batches that have jobs in it."""

    def batch_pause(
        self,
        batch: str,
        *,
        held: bool,
        after: float,
        until: float | None = None,
        why: str = "",
        seen: int | None = None,
        outer: tuple[str, int] | None = None,
        is_act: bool = True,
    ) -> Call[BatchPause]:
        """Pause a batch, or resume it: `batch_hold` must follow in all queues of its jobs.

        `after`: seconds after which a keeper does that. `seen`: nothing is changed if it has another stamp. `outer`: of
        a batch in a batch, the field `parent` and the stamp of the pause of the outer one. `is_act`: for the trail.

        Raises (when sent):
            JobMissing: there is no such batch.
            JobLate: it has ended.
        """
        act = ""
        if is_act and seen is None and outer is None:
            what = {"batch": batch, "until": until, "why": why or None}
            act = self._act_text("pause" if held else "resume", **what)
        read = as_struct(BatchPause, float, int, as_bool, number)
        words = (self._now(), batch, "1" if held else "", as_moment(until), why, repr(after))
        return self._verb(
            "batch_pause",
            read,
            *words,
            "" if seen is None else seen,
            "" if outer is None else f"{outer[0]} {outer[1]}",
            act,
        )

    def batch_hold(self, until: float, holds: Sequence[Hold]) -> Call[bool]:
        """Have the jobs of batches wait in this queue, or go on. The reply is False if it came after `until`."""
        words = (word for hold in holds for word in hold)
        return self._verb("batch_hold", as_bool, self._now(), as_moment(until), *words)

    def batch_pause_of(self, batch: str) -> Call[BatchPause]:
        """Read whether a batch is paused. The time is missing: 0."""

        def read(reply: list[bytes | None]) -> BatchPause:
            stamp, paused = reply
            return BatchPause(0.0, whole(stamp), paused is not None, number(paused))

        return self._call(("HMGET", f"{self._root}batch:{batch}", "stamp", "paused"), read)

    def inner_batches(self, batch: str, first: int, last: int) -> Call[list[InnerBatch]]:
        """Read the batches among the members of a batch, by their ranks."""

        def read(reply: list[bytes]) -> list[InnerBatch]:
            rows = (text(row).split(" ") for row in reply)
            return [InnerBatch(queue, child, f"{self.queue}/{batch}/{at}") for at, queue, child in rows]

        return self._call(("LRANGE", f"{self._root}batch_inner:{batch}", first, last), read)

    def jobs_held(self, address: str) -> Call[int]:
        """Count the due jobs of a batch that wait in this queue, since it is paused."""
        return self._call(("ZCARD", f"{keys.root(self.queue)}backlog:{of_batch(address)}"), int)

    def held_batches(self) -> Call[list[Hold]]:
        """Read which batches are paused in this queue, or were until lately."""

        def read(reply: list[Any]) -> list[Hold]:
            found = list[Hold]()
            for at in range(0, len(reply), 2):
                stamp, _, held = text(reply[at + 1]).partition(" ")
                found.append(Hold(text(reply[at]), whole(stamp.encode()), "1" if held == "1" else ""))
            return found

        return self._call(("HGETALL", keys.root(self.queue) + "batch_holds"), read)
