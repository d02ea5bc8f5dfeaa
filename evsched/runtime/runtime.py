"""What all loops of a process share: the settings, the sender to Redis, and the function that emits events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field, structs

from evsched.config import DEFAULT_QUEUE, Config
from evsched.events import Emit
from evsched.lease import Times
from evsched.shards import Shards
from evsched.transport.address import Host
from evsched.transport.senders import BatchingSender


def _all(queue: str) -> bool:
    return True


class Part(Struct, frozen=True):
    """The queues that a dispatcher is for: those of one node of a cluster."""

    node: Host | None = None
    """None = there is no cluster."""
    owns: Callable[[str], bool] = _all
    """Whether the node has a queue."""
    idle_queue: str = DEFAULT_QUEUE
    """A queue of the node that carries the proof of the subscription while there is no other."""


WHOLE: Final = Part()
"""The part of the dispatcher of one Redis."""


class Runtime(Struct, frozen=True):
    """Passed to the constructor of each loop. Use `structs.replace` to send events elsewhere."""

    config: Config
    sender: BatchingSender
    emit: Emit
    part: Part = WHOLE
    shards: Shards = field(default_factory=Shards)
    """What is known of the shards of queues. It grows while the process runs."""
    made_times: Times | None = None
    """See `times`. None = make them."""

    def __post_init__(self) -> None:
        if self.made_times is None:
            structs.force_setattr(self, "made_times", Times(self.config))

    @property
    def times(self) -> Times:
        """The times that follow from the lease. A copy by `structs.replace` has the same ones."""
        assert self.made_times is not None
        return self.made_times
