"""Asks the sentinels where the primary is, and hears from them when another server has become the primary.

As Redis's guidelines for clients of Sentinel say, one sentinel after the other is asked until one knows it. Nothing is
polled: they are asked when a connection to Redis is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, cast

from redis import exceptions

from evsched.errors import StoreDown, StoreError, StoreRefused
from evsched.transport.address import Sentinels
from evsched.transport.links import new_link, new_sync_link
from evsched.transport.redis_errors import translate

_PATIENCE: Final = 1.0
"""Seconds for one sentinel to answer. So much does a machine cost that is away, until another one has answered."""

_AGAIN: Final = 10.0
"""Seconds until a sentinel that was lost is listened to again. Meanwhile the others are heard."""

_LOGIN: Final = "name the login at the sentinels in the URL: ?sentinel_username=USER&sentinel_password=PASSWORD"

Host = tuple[str, int]


class Asker:
    """Asks the sentinels. The one that knew the primary is asked first the next time."""

    def __init__(self, scheme: str, sentinels: Sentinels) -> None:
        self._scheme = scheme
        self._sentinels = sentinels
        self._hosts = sentinels.hosts
        self._words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels.name)

    async def ask(self) -> Host:
        """Return host and port of the primary.

        Raises:
            StoreDown: no sentinel answers.
            StoreRefused: those that answer do not know the name, or refuse the login.
        """
        failures = dict[Host, StoreError]()
        for host in self._hosts:
            try:
                return self._primary(host, await self._reply(host))
            except StoreError as error:
                failures[host] = error
        raise _summary(failures)

    def ask_sync(self) -> Host:
        """Return host and port of the primary, without an event loop. Raises as `ask` does."""
        failures = dict[Host, StoreError]()
        for host in self._hosts:
            try:
                return self._primary(host, self._sync_reply(host))
            except StoreError as error:
                failures[host] = error
        raise _summary(failures)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The sentinels."""
        return self._hosts

    async def moves(self, host: Host) -> AsyncIterator[Host]:
        """Yield where the primary is each time that it moves, as one of the sentinels says; for ever.

        A sentinel that is away, or refuses to be listened to, says nothing.
        """
        while True:
            with suppress(StoreError):
                async for message in self._messages(host):
                    name, _, _, at, port = message.decode().split()
                    if name == self._sentinels.name:
                        yield at, int(port)
            await asyncio.sleep(_AGAIN)

    async def _messages(self, host: Host) -> AsyncIterator[bytes]:
        """Yield the messages of a sentinel about new primaries.

        Raises:
            StoreDown, StoreRefused: when the connection is lost.
        """
        link = new_link(self._scheme, **self._options(host))
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

    def _options(self, host: Host) -> dict[str, Any]:
        return {**self._sentinels.options, "host": host[0], "port": host[1], "socket_connect_timeout": _PATIENCE}

    async def _reply(self, host: Host) -> Any:
        link = new_link(self._scheme, **self._options(host))
        try:
            async with asyncio.timeout(_PATIENCE):
                await link.connect()
                await link.send_command(*self._words, check_health=False)
                return cast(Any, await link.read_response())
        except TimeoutError:
            raise StoreDown(f"no answer within {_PATIENCE:g} s", kind="timeout") from None
        except (exceptions.RedisError, OSError) as error:
            raise translate(error) from None
        finally:
            await link.disconnect(nowait=True)

    def _sync_reply(self, host: Host) -> Any:
        link: Any = new_sync_link(self._scheme, **{**self._options(host), "socket_timeout": _PATIENCE})
        try:
            link.connect()
            link.send_command(*self._words, check_health=False)
            return link.read_response()
        except (exceptions.RedisError, OSError) as error:
            raise translate(error) from None
        finally:
            link.disconnect()

    def _primary(self, host: Host, reply: list[bytes] | None) -> Host:
        if reply is None:
            name = self._sentinels.name
            raise StoreRefused(f"it knows no primary {name!r}: `SENTINEL MASTERS` lists the names", kind="sentinel")
        self._hosts = (host, *(other for other in self._hosts if other != host))
        return reply[0].decode(), int(reply[1])


def _summary(failures: dict[Host, StoreError]) -> StoreError:
    """Return the error for the failures of all sentinels. Those that refused say more than those that are away."""
    refused = {host: error for host, error in failures.items() if isinstance(error, StoreRefused)}
    listed = "; ".join(f"{host}:{port}: {error}" for (host, port), error in (refused or failures).items())
    if not refused:
        return StoreDown(f"no sentinel answers: {listed}", kind="connection")
    first = next(iter(refused.values()))
    advice = "" if first.kind == "sentinel" else f"; {_LOGIN}"
    return StoreRefused(f"the sentinels refuse: {listed}{advice}", kind=first.kind)
