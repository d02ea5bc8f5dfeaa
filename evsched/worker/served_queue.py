"""A queue as one worker serves it: what the parts of a consumer share."""

from __future__ import annotations

from msgspec import Struct

from evsched.runtime.loops import Runtime
from evsched.store.store import Store


class ServedQueue(Struct, frozen=True):
    """Passed to each part of a consumer."""

    runtime: Runtime
    store: Store
    worker: str

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.store.queue
