"""A parser for servers whose replies are short: one that answers without end must not fill the memory."""

from __future__ import annotations

from typing import Any, Final, Literal

from redis import exceptions
from redis._parsers import _AsyncHiredisParser  # pyright: ignore[reportPrivateUsage]

_MOST: Final = 1_048_576
"""Bytes of a reply, and of what was read together with it. The replies to XADD, RPUSH and PUBLISH have some twenty."""


class ShortReplies(_AsyncHiredisParser):
    """redis-py's parser, but a reply that is longer is an error. hiredis itself keeps what it has until it has all."""

    _taken = 0
    """Bytes that were read for this reply."""

    async def read_response(self, disable_decoding: bool = False, push_request: bool = False) -> Any:
        """Read one reply."""
        self._taken = 0
        return await super().read_response(disable_decoding, push_request)

    async def read_from_socket(self) -> Literal[True]:
        """Read what has arrived.

        Raises:
            InvalidResponse: the reply is too long.
        """
        reader: Any = self._reader
        before = reader.len()
        await super().read_from_socket()
        self._taken += reader.len() - before
        if self._taken > _MOST:
            raise exceptions.InvalidResponse(f"the server's reply is longer than {_MOST} bytes: is it a Redis?")
        return True
