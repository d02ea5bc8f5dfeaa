"""The calls of a parent of worker processes, which runs no jobs itself; see `store.py`.

What an ended process held it puts back with `held` and `requeue` of `workers.py`.
"""

from __future__ import annotations

from typing import Literal, cast

from msgspec import Struct

from evsched import keys
from evsched.store.announced import Announced
from evsched.store.queue import Queue, as_bool
from evsched.transport.call import Call, text

Need = Literal["ready", "undeclared", "sought", ""]
"""Why a queue needs a worker process: a job waits, Redis has lost what the app declares, or workers seek a task that
the app has; empty = it needs none."""


class Stance(Struct, frozen=True):
    """What one `stand_by` found."""

    need: Need
    claimed: bool
    """This parent is to start the process."""


class Parents(Queue):
    """The calls of a parent without worker processes, which waits for jobs."""

    def await_ready(self, block: float) -> Call[bool]:
        """Wait up to `block` seconds until a job is ready, and leave it where it is; the reply is whether one is.

        BLMOVE from the front of ready to the front of ready. Of the commands that wait in Redis, it is the only one
        that removes nothing even if its reply is lost. Workers that wait for the same job get it all the same.
        """

        def arrived(reply: bytes | None) -> bool:
            return reply is not None

        ready = keys.ready(self.queue)
        return self._call(("BLMOVE", ready, ready, "LEFT", "LEFT", block), arrived)

    def stand_by(
        self, parent: str, announced: Announced, *, lease: float, claim: float, now: float | None = None
    ) -> Call[Stance]:
        """Register a parent for `lease` seconds; if a process is needed, claim its start for `claim` seconds.

        `claim`: 0 = it only registers.
        """

        def stance(reply: list[bytes]) -> Stance:
            return Stance(cast("Need", text(reply[0])), as_bool(reply[1]))

        words = announced.owner, announced.content, announced.program
        return self._verb("stand_by", stance, self._stamp(now), parent, lease, claim, *words)

    def stand_down(self, parent: str) -> Call[int]:
        """Remove a parent that has a worker process now, or ends."""
        return self._call(("ZREM", keys.parents(self.queue), parent), int)

    def prolong_start(self, seconds: float) -> Call[int]:
        """Prolong the claim of the start of a process, which has not ended yet."""
        return self._call(("PEXPIRE", keys.starting(self.queue), round(seconds * 1000)), int)

    def end_start(self) -> Call[int]:
        """End the claim of the start of a process."""
        return self._call(("DEL", keys.starting(self.queue)), int)

    def parents(self) -> Call[list[tuple[str, float]]]:
        """Read the parents that stand by, and when their registrations end, Unix seconds."""

        def read(reply: list[bytes]) -> list[tuple[str, float]]:
            return [(text(reply[i]), float(reply[i + 1])) for i in range(0, len(reply), 2)]

        return self._call(("ZRANGE", keys.parents(self.queue), 0, -1, "WITHSCORES"), read)
