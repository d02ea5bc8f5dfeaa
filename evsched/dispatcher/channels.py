"""The channels to which a dispatcher subscribes: keyspace events, messages about gates, and its own canary."""

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
        watched = (keys.schedule, keys.recurrences, keys.canary)
        channels = [keys.events(db, key(name)) for key in watched for name in names]
        channels += [keys.gate(name) for name in names]
        # Named queues are subscribed to by name: an ACL allows a pattern only if it contains the very same text.
        self.patterns = [] if config.queues else channels
        self.names = [keys.canary_message(dispatcher), *(channels if config.queues else ())]
        self._prefix = len(keys.events(db, ""))

    def read(self, channel: bytes) -> tuple[Kind, str]:
        """Return what a channel is about, and the queue, '' if it is about none."""
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
