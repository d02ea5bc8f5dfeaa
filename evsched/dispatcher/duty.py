"""The duties of a dispatcher besides dispatching: each is a loop, which hears of the changes of one key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from evsched.runtime.loops import Pulse, Runtime


class Duty(Protocol):
    """A loop that looks after a key of the queues that are dispatched."""

    key: str
    """The name of the key, without the root."""
    pulse: Pulse

    def look_at(self, queue: str) -> None:
        """Look at a queue now: the key has changed."""
        ...

    def look_for(self, queue: str) -> None:
        """Look whether a new queue has the key."""
        ...

    def look(self) -> None:
        """Look at all queues: events may have been missed, or Redis's clock was set."""
        ...

    async def run(self) -> None:
        """Do the duty until cancelled."""
        ...


MakeDuty = Callable[[Runtime, Callable[[], list[str]]], Duty]
"""Makes the duty of one dispatcher. Its last argument returns the queues that are dispatched."""
