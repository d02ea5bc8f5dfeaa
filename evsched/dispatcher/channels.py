"""The channels to which a dispatcher subscribes: keyspace events of some keys, gates, and its own canary."""

from __future__ import annotations

from typing import Literal

from evsched import keys
from evsched.config import Config
from evsched.transport import address

Kind = Literal["schedule", "recurrences", "gate", "canary event", "canary message", "foreign"]


class Channels:
    """What to subscribe to, and what a message on each channel is about."""

    def __init__(self, config: Config, dispatcher: str) -> None:
        db = address.parse(config.url).db
        names = config.queues or ("*",)
        told = [keys.events(db, key(name)) for key in (keys.schedule, keys.recurrences, keys.canary) for name in names]
        told += [keys.gate(name) for name in names]
        # An ACL compares a pattern literally, and a channel by its own patterns: so queues named are no patterns.
        self.patterns = [] if config.queues else told
        self.names = [keys.canary_message(dispatcher), *(told if config.queues else ())]
        self._prefix = len(keys.events(db, ""))

    def read(self, channel: bytes) -> tuple[Kind, str]:
        """Return what a channel is about, and the queue; empty = no queue."""
        if channel.endswith(b"}:schedule"):
            return self._of("schedule", channel[self._prefix :])
        if channel.endswith(b"}:recurrences"):
            return self._of("recurrences", channel[self._prefix :])
        if channel.endswith(b"}:gate"):
            return self._of("gate", channel)
        return ("canary event" if channel.startswith(b"__keyspace@") else "canary message"), ""

    def _of(self, kind: Kind, key: bytes) -> tuple[Kind, str]:
        found = keys.parse(key)
        return ("foreign", "") if found is None else (kind, found[0])
