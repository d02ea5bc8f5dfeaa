"""What all loops of a process share: its settings, its sender to Redis, and where events go."""

from __future__ import annotations

from msgspec import Struct

from evsched.config import Config
from evsched.events import Emit
from evsched.transport.senders import BatchingSender


class Runtime(Struct, frozen=True):
    """Passed to the constructor of each loop. `structs.replace` makes one whose events go elsewhere."""

    config: Config
    sender: BatchingSender
    emit: Emit
