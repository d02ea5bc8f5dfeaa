"""Receives and discards the rest of a body that was not read when its request was answered.

A caller may send its whole body before it reads the response. If the server closed the connection meanwhile, TCP would
reset it, and the caller would get no response. So the response is sent, and the connection is closed when the body has
arrived, or after a limit. nginx calls it lingering_close.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MOST: Final = 64 * 1024 * 1024
"""Bytes that are discarded of a body whose caller may use the API."""

_MOST_OF_OTHERS: Final = 1024 * 1024
"""The same of anybody else: a courtesy to a caller who has forgotten his token."""

_TRUSTED: Final = "evsched.trusted"

_SECONDS: Final = 30.0
"""Seconds for which the rest of a body is waited for."""

_SMALL: Final = 64 * 1024
"""A body of so many bytes is received before the response, so that the connection can be used again."""

_SOON: Final = 1.0
"""Seconds within which a small body must have arrived for that."""


def trust(scope: Scope) -> None:
    """Note that the caller of a request may use the API."""
    scope[_TRUSTED] = True


class UnreadBody:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            exchange = _Exchange(scope, receive, send)
            receive, send = exchange.receive, exchange.send
        await self._app(scope, receive, send)


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        self._unread = length != "0" or "transfer-encoding" in headers
        self._is_small = length.isdecimal() and len(length) < 9 and 0 < int(length) <= _SMALL
        self._waits = headers.get("expect", "").lower() == "100-continue"
        """The caller sends the body only when it is asked for, which the first `receive` does."""
        self._closes = False

    async def receive(self) -> Message:
        """Receive a part of the body, for the application."""
        self._waits = False
        message = await self._receive()
        if not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the response; after the last one, discard the rest of the body."""
        if message["type"] == "http.response.start" and self._unread:
            if self._is_small and not self._waits:
                await self._discard(_SMALL, _SOON)
            if self._unread:
                self._closes = True
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        if not self._closes or message["type"] != "http.response.body" or message.get("more_body", False):
            await self._send(message)
            return
        try:
            await self._send({**message, "more_body": True})
            if not self._waits:
                await self._discard(_MOST if _TRUSTED in self._scope else _MOST_OF_OTHERS, _SECONDS)
        finally:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _discard(self, most: int, seconds: float) -> None:
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._unread and size < most:
                    size += len((await self.receive()).get("body", b""))
