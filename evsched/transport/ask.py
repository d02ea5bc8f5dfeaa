"""Asks servers where something is: one after the other, until one of them is sure. No connection is kept.

However many loops need the answer at the same time, the servers are asked once (`single_flight.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from redis import exceptions

from evsched.errors import EvschedError, StoreDown, StoreError, StoreRefused
from evsched.transport.address import Host
from evsched.transport.links import AsyncLink, new_link, new_sync_link, pack, secure
from evsched.transport.redis_errors import translate
from evsched.transport.single_flight import SingleFlight

PATIENCE: Final = 1.0
"""Seconds for one server to answer. An unreachable machine delays the answer of the next one by this much."""

T = TypeVar("T")


class Asker(Generic[T]):
    """Sends commands to servers until one gives an answer that is sure. That one is asked first the next time.

    `who`: what the servers are, for messages. `read` makes the answer of a host and its replies, or raises a
    StoreError; a reply but the first may be an exception. `pace`: that of the `SingleFlight`.
    """

    def __init__(
        self,
        who: str,
        scheme: str,
        hosts: Iterable[Host],
        options: dict[str, Any],
        commands: Sequence[tuple[str, ...]],
        read: Callable[[Host, list[Any]], T],
        pace: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._who = who
        self._scheme = scheme
        self._options = options
        self._commands = commands
        self._read = read
        self._flight = SingleFlight[T](pace)
        self.hosts = tuple(hosts)
        """The servers, in the order in which they are asked."""

    async def ask(self) -> T:
        """Return the answer, to a question that others may have asked just before.

        Raises:
            StoreDown: no server answers.
            StoreRefused: those that answer refuse, or do not know it.
        """
        return await self._flight.run(self._ask)

    def ask_sync(self) -> T:
        """Return the answer, without an event loop. Raises as `ask` does."""
        return self._flight.run_sync(self._ask_sync)

    def outdate(self) -> int:
        """Note that answers to questions of the past are out of date; return how often this was called."""
        return self._flight.outdate()

    def hurry(self) -> None:
        """Note that the answer has changed, so the next question need not wait."""
        self._flight.hurry()

    def took(self, host: Host, answer: T, began: int) -> None:
        """Note the answer. `began`: how often `outdate` had been called when the first server was asked."""

    def is_sure(self, answer: T) -> bool:
        """Return whether no other server needs to be asked."""
        return True

    def choose(self, answers: Sequence[T]) -> T:
        """Return the best of answers that are not sure."""
        return answers[0]

    async def _ask(self) -> T:
        began, answers, failures = self._flight.outdated, dict[Host, T](), dict[Host, StoreError]()
        for host in self.hosts:
            try:
                answers[host] = self._answer(host, await self._replies(host))
                if self.is_sure(answers[host]):
                    break
            except StoreError as error:
                failures[host] = error
        return self._result(answers, failures, began)

    def _ask_sync(self) -> T:
        began, answers, failures = self._flight.outdated, dict[Host, T](), dict[Host, StoreError]()
        for host in self.hosts:
            try:
                answers[host] = self._answer(host, self._sync_replies(host))
                if self.is_sure(answers[host]):
                    break
            except StoreError as error:
                failures[host] = error
        return self._result(answers, failures, began)

    def _answer(self, host: Host, replies: list[Any]) -> T:
        if isinstance(replies[0], Exception):
            raise self._refused(replies[0])
        return self._read(host, replies)

    def _result(self, answers: dict[Host, T], failures: dict[Host, StoreError], began: int) -> T:
        """Return the last answer if it is sure, or else the best one. Its server is asked first the next time."""
        if not answers:
            raise self._summary(failures)
        host, answer = list(answers.items())[-1]
        if not self.is_sure(answer):
            answer = self.choose(list(answers.values()))
            host = next(host for host, given in answers.items() if given is answer)
        self.hosts = (host, *(other for other in self.hosts if other != host))
        self.took(host, answer, began)
        return answer

    def options(self, host: Host) -> dict[str, Any]:
        """Return the options of a connection to one of the servers."""
        return {**self._options, "host": host[0], "port": host[1], "socket_connect_timeout": PATIENCE}

    async def _replies(self, host: Host) -> list[Any]:
        link = new_link(self._scheme, **self.options(host))
        try:
            secure(link)
            async with asyncio.timeout(PATIENCE):
                await link.connect()
                await link.send_packed_command([pack(words) for words in self._commands], check_health=False)
                return [await self._reply(link) for _ in self._commands]
        except TimeoutError:
            raise StoreDown(f"no answer within {PATIENCE:g} s", kind="timeout") from None
        except (exceptions.RedisError, OSError) as error:
            raise self._refused(error) from None
        finally:
            await link.disconnect(nowait=True)

    async def _reply(self, link: AsyncLink) -> Any:
        try:
            return cast(Any, await link.read_response())
        except exceptions.ResponseError as error:
            return error

    def _sync_replies(self, host: Host) -> list[Any]:
        link: Any = new_sync_link(self._scheme, **{**self.options(host), "socket_timeout": PATIENCE})
        try:
            secure(link)
            link.connect()
            link.send_packed_command([pack(words) for words in self._commands], check_health=False)
            return [self._sync_reply(link) for _ in self._commands]
        except (exceptions.RedisError, OSError) as error:
            raise self._refused(error) from None
        finally:
            link.disconnect()

    def _sync_reply(self, link: Any) -> Any:
        try:
            return link.read_response()
        except exceptions.ResponseError as error:
            return error

    def _refused(self, error: Exception) -> EvschedError:
        if "unknown command" in str(error):
            return StoreRefused(f"it is no {self._who}: the URL names another kind of server", kind="refused")
        return translate(error)

    def _summary(self, failures: dict[Host, StoreError]) -> StoreError:
        """Return the error for the failures of all servers. A refusal says more than a server that does not answer."""
        refused = {host: error for host, error in failures.items() if isinstance(error, StoreRefused)}
        listed = "; ".join(f"{host}:{port}: {error}" for (host, port), error in (refused or failures).items())
        if not refused:
            return StoreDown(f"no {self._who} answers: {listed}", kind="connection")
        return StoreRefused(f"each {self._who} refuses: {listed}", kind=next(iter(refused.values())).kind)
