"""Asks servers where something is: one after the other, until one of them knows it. No connection is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar, cast

from redis import exceptions

from evsched.errors import EvschedError, StoreDown, StoreError, StoreRefused
from evsched.transport.address import Host
from evsched.transport.links import new_link, new_sync_link
from evsched.transport.redis_errors import translate

PATIENCE: Final = 1.0
"""Seconds for one server to answer. So much does a machine cost that is away, until another one has answered."""

T = TypeVar("T")


class Asker(Generic[T]):
    """Sends a command to servers until one answers. The one that answered is asked first the next time.

    `who`: what the servers are, for messages. `read` makes the answer of a host and its reply, or raises a StoreError.
    """

    def __init__(
        self,
        who: str,
        scheme: str,
        hosts: Iterable[Host],
        options: dict[str, Any],
        words: tuple[str, ...],
        read: Callable[[Host, Any], T],
    ) -> None:
        self._who = who
        self._scheme = scheme
        self._options = options
        self._words = words
        self._read = read
        self.hosts = tuple(hosts)
        """Whom to ask, in this order."""

    async def ask(self) -> T:
        """Return the answer.

        Raises:
            StoreDown: no server answers.
            StoreRefused: those that answer refuse, or do not know it.
        """
        failures = dict[Host, StoreError]()
        for host in self.hosts:
            try:
                return self._answer(host, await self._reply(host))
            except StoreError as error:
                failures[host] = error
        raise self._summary(failures)

    def ask_sync(self) -> T:
        """Return the answer, without an event loop. Raises as `ask` does."""
        failures = dict[Host, StoreError]()
        for host in self.hosts:
            try:
                return self._answer(host, self._sync_reply(host))
            except StoreError as error:
                failures[host] = error
        raise self._summary(failures)

    def options(self, host: Host) -> dict[str, Any]:
        """Return the options of a connection to one of the servers."""
        return {**self._options, "host": host[0], "port": host[1], "socket_connect_timeout": PATIENCE}

    async def _reply(self, host: Host) -> Any:
        link = new_link(self._scheme, **self.options(host))
        try:
            async with asyncio.timeout(PATIENCE):
                await link.connect()
                await link.send_command(*self._words, check_health=False)
                return cast(Any, await link.read_response())
        except TimeoutError:
            raise StoreDown(f"no answer within {PATIENCE:g} s", kind="timeout") from None
        except (exceptions.RedisError, OSError) as error:
            raise self._refused(error) from None
        finally:
            await link.disconnect(nowait=True)

    def _sync_reply(self, host: Host) -> Any:
        link: Any = new_sync_link(self._scheme, **{**self.options(host), "socket_timeout": PATIENCE})
        try:
            link.connect()
            link.send_command(*self._words, check_health=False)
            return link.read_response()
        except (exceptions.RedisError, OSError) as error:
            raise self._refused(error) from None
        finally:
            link.disconnect()

    def _refused(self, error: Exception) -> EvschedError:
        if "unknown command" in str(error):
            return StoreRefused(f"it is no {self._who}: the URL names another kind of server", kind="refused")
        return translate(error)

    def _answer(self, host: Host, reply: Any) -> T:
        answer = self._read(host, reply)
        self.hosts = (host, *(other for other in self.hosts if other != host))
        return answer

    def _summary(self, failures: dict[Host, StoreError]) -> StoreError:
        """Return the error for the failures of all servers. Those that refused say more than those that are away."""
        refused = {host: error for host, error in failures.items() if isinstance(error, StoreRefused)}
        listed = "; ".join(f"{host}:{port}: {error}" for (host, port), error in (refused or failures).items())
        if not refused:
            return StoreDown(f"no {self._who} answers: {listed}", kind="connection")
        return StoreRefused(f"each {self._who} refuses: {listed}", kind=next(iter(refused.values())).kind)
