"""The sentinels: they say where the primary is, and publish when another server has become the primary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

from redis import exceptions

from evsched.errors import NO_ENTRY, StoreError, StoreRefused
from evsched.transport.address import Host, Sentinels
from evsched.transport.ask import Asker
from evsched.transport.links import new_link
from evsched.transport.redis_errors import translate

_AGAIN: Final = 10.0
"""Seconds until a sentinel that was lost is listened to again. Meanwhile the others are heard."""

_LOGIN: Final = "name the login at the sentinels in the URL: ?sentinel_username=USER&sentinel_password=PASSWORD"


class Answer(NamedTuple):
    sentinel: Host
    """The sentinel that gave this answer."""
    primary: Host


class SentinelAsker(Asker[Answer]):
    """Asks for host and port of the primary, and listens for its moves."""

    def __init__(self, scheme: str, sentinels: Sentinels) -> None:
        self._name = sentinels.name
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels.name)
        super().__init__("sentinel", scheme, sentinels.hosts, sentinels.options, [words], self._primary)

    def ask_last(self, sentinel: Host) -> None:
        """Ask a sentinel only after the others from now on: its answer has not led to a primary."""
        self.hosts = (*(host for host in self.hosts if host != sentinel), sentinel)
        self.outdate()

    async def doubtful(self, primary: Host) -> list[tuple[Host, str]]:
        """Ask each sentinel; return those that do not name the primary, with the reason."""
        found = list[tuple[Host, str]]()
        for host in self.hosts:
            try:
                named = self._answer(host, await self._replies(host)).primary
                if named != primary:
                    found.append((host, f"it names {named[0]}:{named[1]} instead of {primary[0]}:{primary[1]}"))
            except StoreError as error:
                found.append((host, str(error)))
        return found

    def _primary(self, sentinel: Host, replies: list[list[bytes] | None]) -> Answer:
        (reply,) = replies
        if reply is None:
            raise StoreRefused(
                f"it knows no primary {self._name!r}: `SENTINEL MASTERS` lists the names", kind="sentinel"
            )
        return Answer(sentinel, (reply[0].decode(), int(reply[1])))

    def _summary(self, failures: dict[Host, StoreError]) -> StoreError:
        error = super()._summary(failures)
        return StoreRefused(f"{error}; {_LOGIN}", kind=error.kind) if error.kind in NO_ENTRY else error

    async def moves(self, host: Host) -> AsyncIterator[Host]:
        """Yield where the primary is each time that it moves, as one of the sentinels says; for ever.

        A sentinel that is down, or refuses to be listened to, says nothing.
        """
        while True:
            with suppress(StoreError):
                async for message in self._messages(host):
                    name, _, _, at, port = message.decode().split()
                    if name == self._name:
                        yield at, int(port)
            await asyncio.sleep(_AGAIN)

    async def _messages(self, host: Host) -> AsyncIterator[bytes]:
        """Yield the messages of a sentinel about new primaries.

        Raises:
            StoreDown, StoreRefused: when the connection is lost.
        """
        link = new_link(self._scheme, **self.options(host))
        try:
            await link.connect()
            await link.send_command("SUBSCRIBE", "+switch-master", check_health=False)
            while True:
                kind, _, message = cast(list[Any], await link.read_response())
                if kind == b"message":
                    yield message
        except (exceptions.RedisError, OSError) as error:
            raise translate(error) from None
        finally:
            await link.disconnect(nowait=True)
