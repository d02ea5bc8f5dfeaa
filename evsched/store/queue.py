"""The base of a queue's calls: how each is made, values that several of them take, and the size of their batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Self

from msgspec import Struct

from evsched import keys
from evsched.jobs.redaction import read_names
from evsched.store.acts import Act, ActName
from evsched.transport.call import Call, T, Word, script, text


def as_moment(unix: float | None) -> str:
    return "" if unix is None else f"{unix:.6f}"


def as_revision(revision: float | None) -> str:
    return "" if revision is None else f"{revision:.17g}"


def as_pairs(flat: list[bytes]) -> list[tuple[str, str]]:
    return [(text(flat[i]), text(flat[i + 1])) for i in range(0, len(flat), 2)]


def as_fields(flat: list[bytes]) -> dict[str, bytes]:
    return {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}


def read_redactions(flat: list[bytes]) -> dict[str, tuple[str, ...]]:
    """Read the redacted arguments that workers have declared, by task."""
    return {task: names for task, value in as_fields(flat).items() if (names := read_names(value))}


def as_texts(flat: list[bytes]) -> dict[str, str]:
    return dict(as_pairs(flat))


def as_scores(flat: list[bytes]) -> list[tuple[str, float]]:
    return [(text(flat[i]), float(flat[i + 1])) for i in range(0, len(flat), 2)]


def as_bool(reply: bytes) -> bool:
    return reply == b"1"


def is_there(reply: Any) -> bool:
    return reply is not None


def as_optional(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Return a reader that returns None for None, else what `read` returns."""
    return lambda reply: None if reply is None else read(reply)


def as_struct(kind: Callable[..., T], *readers: Callable[[Any], Any]) -> Callable[[list[Any]], T]:
    """Return a reader of a list that makes a value of its items: each item by the reader in its place."""
    return lambda reply: kind(*(read(item) for read, item in zip(readers, reply, strict=True)))


def as_tuple(*readers: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    """Return a reader of a list, each item by the reader in its place."""
    return lambda reply: tuple(read(item) for read, item in zip(readers, reply, strict=True))


class StreamPart(Struct, Generic[T], frozen=True):
    """A part of a stream, the newest entry first."""

    entries: list[T]
    before: str | None
    """The argument that reads the next part; None = this is the last."""


class Queue:
    """The calls of one queue.

    `clock`: a test's clock, instead of Redis's own. `by`: who enqueues, "" = the default user. `act`: the act of an
    operator, which these calls do; None = a program does them.

    Raises:
        ConfigError: the queue's name is not valid.
    """

    def __init__(
        self, queue: str, clock: Callable[[], float] | None = None, *, by: str = "", act: Act | None = None
    ) -> None:
        self.queue = self._checked(queue)
        self._root = keys.root(queue)
        self._clock = clock
        self._by = by
        self._act = act

    @staticmethod
    def _checked(queue: str) -> str:
        return keys.check_queue(queue)

    def at(self, now: float | None) -> Self:
        """Return the same calls at a moment, Unix seconds; None = at the time of Redis's clock."""
        return type(self)(self.queue, None if now is None else lambda: now, by=self._by, act=self._act)

    def repeated(self) -> Self:
        """Return the same calls, for jobs that other calls of the act have noted."""
        act = None if self._act is None else self._act.repeated()
        return type(self)(self.queue, self._clock, by=self._by, act=act)

    def within(self, places: Sequence[str]) -> Self:
        """Return the same calls, of an act that changes jobs in these places alone."""
        act = None if self._act is None else self._act.within(places)
        return type(self)(self.queue, self._clock, by=self._by, act=act)

    def _now(self) -> str:
        return "" if self._clock is None else as_moment(self._clock())

    def _act_text(self, name: ActName, **what: Any) -> str:
        """Return the argument `act` of a script: what an operator does with this call. None values are left out."""
        given = {key: value for key, value in what.items() if value is not None}
        return "" if self._act is None else self._act.as_text(name, given)

    def _verb(
        self,
        verb: str,
        read: Callable[[Any], T],
        *arguments: Word,
        again: Callable[[float], Call[T]] | None = None,
    ) -> Call[T]:
        return Call((1, self._root, *arguments), read, script(verb), self._root, again=again)

    def _call(self, words: tuple[Word, ...], read: Callable[[Any], T]) -> Call[T]:
        return Call(words, read, near=self._root)

    def hashes(
        self, rows: Sequence[tuple[str, str]], read: Callable[[list[bytes]], T], *, most: int = 5000
    ) -> Call[list[T | None]]:
        """Read hashes of many queues in one call, as far as the reply goes; None = Redis refuses to read it.

        `rows`: queue, and key without the root. `most`: how many fields to read, about 0.2 us of Redis's time for each.
        """

        def all_of(reply: list[Any]) -> list[T | None]:
            return [None if one is None else read(one) for one in reply]

        return self._verb("hashes", all_of, most, *(word for row in rows for word in row))

    def _newest(
        self, key: str, before: str, first: str, count: int, read: Callable[[bytes, list[bytes]], T]
    ) -> Call[StreamPart[T]]:
        """Read `count` entries of a stream, the newest first, back from `before` to `first`: "+" and "-" = its ends.

        `read`: of an entry's id and its fields.
        """

        def part(reply: list[Any]) -> StreamPart[T]:
            entries = [read(entry, fields) for entry, fields in reply]
            return StreamPart(entries, f"({text(reply[-1][0])}" if len(reply) == count else None)

        return self._call(("XREVRANGE", key, before, first, "COUNT", count), part)


class IdempotentRequest(Struct, frozen=True):
    """A request that is done once. Both are digests: of the key that its caller gave, and of its content."""

    key: str
    asked: str


NO_REQUEST: Final = IdempotentRequest("", "")


NO_EDIT: Final[tuple[Word, ...]] = ("",) * 5
"""The arguments of a call of `reschedule` that changes only the due."""


class Announced(Struct, frozen=True):
    """The declarations that a worker has written in a queue; empty texts if it has none."""

    owner: str = ""
    """The app."""
    content: str = ""
    """The digest of all that it declares there."""
    program: str = ""
    """The digest of the names of its tasks; empty also if it has none."""
    revision: float | None = None
    """The revision of the content, which Redis may lose; None = not registered yet."""


BUDGET: Final = 0.003
"""Seconds that one script should take, at most. 250 jobs take about 2 ms; often two scripts follow each other."""

LEAST: Final = 16
"""The limit falls no further: for fewer jobs, the cost of the call itself outweighs that of the jobs."""

_STEPS: Final = 32
"""Fast calls that raise the limit from nothing to its maximum."""


class BatchLimit:
    """The limit of jobs in a call, which adapts to the cost of calls. It begins at `most`, and never exceeds it.

    Redis does one thing at a time: while a script runs, every other client waits. The cost of a job depends on the
    machine, its load and the jobs themselves (limits of groups, long payloads), so no fixed number is right. The limit
    falls by a quarter after a call that took too long, and rises again in small steps.

    The duration of a call is measured by Redis's own clock, with TIME before and after it in the same round trip, so
    neither the network nor the wait in Redis's queue counts. A script cannot measure itself: on Valkey, TIME does not
    advance within a script. Calls that move few jobs are not measured, so sparse jobs pay nothing.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._least = min(LEAST, most)
        self.limit = most

    def worth_timing(self, count: int) -> bool:
        """Return whether a call for this number of jobs is worth measuring."""
        return count >= self._least

    def took(self, count: int, seconds: float) -> None:
        """Record how long a script took for this number of jobs."""
        if seconds > BUDGET:
            self.limit = max(self._least, min(self.limit, count * 3 // 4))
        elif count >= self.limit:
            self.limit = min(self._most, self.limit + 1 + self._most // _STEPS)
