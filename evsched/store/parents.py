"""The calls of a parent of worker processes, which runs no jobs itself; see `store.py`.

What an ended process held it puts back with `held` and `requeue` of `workers.py`.
"""

from __future__ import annotations

from typing import Any

from evsched import keys
from evsched.store.queue import Queue
from evsched.transport.call import Call


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
        return Call(("BLMOVE", ready, ready, "LEFT", "LEFT", block), arrived)

    def is_ready(self) -> Call[bool]:
        """Return whether a job is ready that no worker has fetched."""
        return Call(("EXISTS", keys.ready(self.queue)), bool)

    def claim_start(self, seconds: float) -> Call[bool]:
        """Claim the start of a process for the jobs that wait; False if another parent has, within so many seconds."""

        def claimed(reply: Any) -> bool:
            return reply is not None

        return Call(("SET", keys.starting(self.queue), 1, "NX", "PX", round(seconds * 1000)), claimed)
