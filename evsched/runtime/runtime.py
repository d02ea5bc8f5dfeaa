"""What all loops of a process share: the settings, the sender to Redis, and the function that emits events."""

from __future__ import annotations

from msgspec import Struct

from evsched.config import Config
from evsched.events import Emit
from evsched.transport.senders import BatchingSender


class Runtime(Struct, frozen=True):
    """Passed to the constructor of each loop. Use `structs.replace` to send events elsewhere."""

    config: Config
    sender: BatchingSender
    emit: Emit
