"""A call: what to send to Redis, and how to read its reply. A value; transport/senders.py sends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct, structs

from evsched.transport.address import Host

T = TypeVar("T")
Word = str | bytes | int | float


_READERS: Final = frozenset(
    (
        *("CLUSTER", "DBSIZE", "EXISTS", "GET", "INFO", "PUBSUB", "SCAN", "TIME", "TYPE"),
        *("HGET", "HGETALL", "HMGET", "HSTRLEN", "LINDEX", "LRANGE", "SCARD", "SMEMBERS", "SSCAN"),
        *("XINFO", "XLEN", "ZCARD", "ZRANGE", "ZSCAN", "ZSCORE"),
    )
)
"""Commands that change nothing, as they are used here."""


class Script(Struct, frozen=True):
    """A Lua script. Its SHA is its version, so old and new code can run side by side."""

    name: str
    source: str
    sha: str


class Call(Struct, Generic[T], frozen=True):
    """One command, and the function that converts its raw reply to a value.

    With a script, `words` are what follows the SHA: the number of keys, the keys, the arguments.
    """

    words: tuple[Word, ...]
    read: Callable[[Any], T]
    script: Script | None = None
    near: Word | None = None
    """In a cluster: a key of the node that is asked; None = any node."""
    node: Host | None = None
    """In a cluster: the node that is asked, whatever `near` is."""

    @property
    def name(self) -> str:
        """The name for messages: the verb, or the command."""
        return self.script.name if self.script else str(self.words[0])

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        if self.script is not None:
            return not self.script.source.startswith("#!lua flags=no-writes")
        return str(self.words[0]) not in _READERS

    def at(self, node: Host | None) -> Call[T]:
        """Return the call to one of the nodes that `nodes` of a sender returns."""
        return self if node is None else structs.replace(self, node=node)

    def by_sha(self) -> tuple[Word, ...]:
        """Return the words to send first."""
        return self.words if self.script is None else ("EVALSHA", self.script.sha, *self.words)

    def by_source(self) -> tuple[Word, ...]:
        """Return the words to send when Redis does not know the SHA (restart, failover, SCRIPT FLUSH)."""
        return self.words if self.script is None else ("EVAL", self.script.source, *self.words)


def raw(reply: Any) -> Any:
    """Return a reply as it is."""
    return reply


def text(reply: bytes) -> str:
    """Read a reply as text; bytes that are not UTF-8 become escapes."""
    return reply.decode(errors="backslashreplace")


def texts(reply: list[bytes]) -> list[str]:
    """Read a list of texts."""
    return [text(item) for item in reply]
