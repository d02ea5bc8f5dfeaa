"""What the dispatchers share: a connection that counts what it sends, and a sleep that an event ends."""

from __future__ import annotations

import time
from typing import Any, Final, Protocol, cast

import redis

CAP: Final = 30.0
"""Seconds that a dispatcher sleeps at most."""

LIMIT: Final = 250
"""Jobs that a dispatcher moves at once."""


class Counted(redis.Connection):
    """A connection that counts the commands that all of its kind have sent."""

    sent = 0

    def send_command(self, *args: Any, **kwargs: Any) -> None:
        Counted.sent += 1
        super().send_command(*args, **kwargs)

    def pack_commands(self, commands: Any) -> Any:
        Counted.sent += len(commands)
        return cast(Any, super()).pack_commands(commands)


def connect(url: str) -> Any:
    """Return a client whose commands are counted."""
    pool = redis.ConnectionPool.from_url(url, connection_class=Counted, protocol=2, driver_info=None)
    return redis.Redis(connection_pool=pool)


class Wakeups:
    """The keyspace events of one key, of one kind."""

    def __init__(self, client: Any, key: str, event: bytes) -> None:
        self._event = event
        self._messages: Any = client.pubsub(ignore_subscribe_messages=True)
        self._messages.subscribe(f"__keyspace@0__:{key}")

    def wait(self, seconds: float) -> None:
        """Sleep for so long, or until the event comes; several that have come count as one."""
        end = time.monotonic() + min(seconds, CAP)
        while (left := end - time.monotonic()) > 0:
            message = self._messages.get_message(timeout=left)
            if message and message["data"] == self._event:
                while self._messages.get_message(timeout=0):
                    pass
                return


class Design(Protocol):
    """How jobs wait, and how they become ready."""

    events: str
    """The keyspace events that it needs, as `notify-keyspace-events` has them."""

    def schedule(self, pipe: Any, due: float, job: str) -> None:
        """Send what schedules a job."""
        ...

    def finish(self, pipe: Any, jobs: list[str]) -> None:
        """Send what a worker sends when jobs have ended, if the design needs anything."""
        ...

    def run(self, client: Any) -> None:
        """Dispatch for ever."""
        ...


class SortedSet:
    """What most designs have in common: the due times are scores."""

    events = "Kz"

    def schedule(self, pipe: Any, due: float, job: str) -> None:
        pipe.zadd("schedule", {job: due})

    def finish(self, pipe: Any, jobs: list[str]) -> None:
        pass
