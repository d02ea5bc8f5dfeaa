"""The queues that a dispatcher serves, as its other loops see them."""

from __future__ import annotations

from typing import Protocol


class ServedQueues(Protocol):
    """Knows the queues that are served."""

    @property
    def queues(self) -> list[str]:
        """Their names. More are found while the dispatcher runs."""
        ...


class NewQueues(Protocol):
    """Serves the queues that are found."""

    def serve(self, queue: str) -> object:
        """Serve a queue from now on, if it is not served yet."""
        ...
