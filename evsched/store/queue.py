"""The base of a queue's calls: how each is made, and how replies become pairs and fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evsched import keys
from evsched.transport.call import Call, T, Word, script, text


def as_moment(unix: float | None) -> str:
    return "" if unix is None else f"{unix:.6f}"


def as_revision(revision: float | None) -> str:
    return "" if revision is None else f"{revision:.17g}"


def as_pairs(flat: list[bytes]) -> list[tuple[str, str]]:
    return [(text(flat[i]), text(flat[i + 1])) for i in range(0, len(flat), 2)]


def as_fields(flat: list[bytes]) -> dict[str, bytes]:
    return {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}


def as_bool(reply: bytes) -> bool:
    return reply == b"1"


class Queue:
    """The calls of one queue.

    `clock`: a test's clock, instead of Redis's own. `by`: who enqueues, "" = the default user.

    Raises:
        ConfigError: the queue's name is not valid.
    """

    def __init__(self, queue: str, clock: Callable[[], float] | None = None, *, by: str = "") -> None:
        self.queue = keys.check_queue(queue)
        self._root = keys.root(queue)
        self._clock = clock
        self._by = by

    def _stamp(self, now: float | None) -> str:
        if now is None and self._clock is not None:
            now = self._clock()
        return as_moment(now)

    def _verb(self, verb: str, read: Callable[[Any], T], *arguments: Word) -> Call[T]:
        return Call((1, self._root, *arguments), read, script(verb), self._root)

    def _call(self, words: tuple[Word, ...], read: Callable[[Any], T]) -> Call[T]:
        return Call(words, read, near=self._root)
