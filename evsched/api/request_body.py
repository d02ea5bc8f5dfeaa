"""Reads the body of a request: within its limits, and as the struct that the operation takes.

A caller may send its whole body before it reads the response. If the server closed the connection meanwhile, TCP would
reset it, and the caller would get no response. So after an early response the rest of the body is received and
discarded, up to a limit, before the connection is closed. nginx calls this lingering_close.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evsched.api.replies import Problem, invalid
from evsched.api.requests import NAME_IN_PATH, NAME_RULE
from evsched.jobs.job import describe_malformed

_MOST: Final = 64 * 1024 * 1024
"""Bytes that are discarded of a body whose caller may use the API."""

_MOST_OF_OTHERS: Final = 1024 * 1024
"""The same of anybody else: a courtesy to a caller who has forgotten his token."""

_TRUSTED: Final = "evsched.trusted"

_SECONDS: Final = 30.0
"""Seconds for which the rest of a body is waited for."""

_SMALL: Final = 64 * 1024
"""A body of this many bytes is received before the response, so that the connection can be used again."""

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


_NAME_RULE: Final = f"matching regex {NAME_IN_PATH!r}"
"""How msgspec says that a name has other characters."""

_PATIENCE: Final = 30.0
"""Seconds that a caller has to send a body."""


async def read(request: Request, kind: Any, cap: int) -> Any:
    """Return the body of a request as a value of a type.

    Raises:
        Problem: it is too long, too slow, in another format, not JSON, or not of that type.
    """
    media, _, parameter = request.headers.get("content-type", "").partition(";")
    charset = parameter.strip().lower().replace('"', "")
    encoding = request.headers.get("content-encoding", "identity")
    if media.strip().lower() != "application/json" or charset not in ("", "charset=utf-8") or encoding != "identity":
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "not-json",
            "send the body as JSON in UTF-8, not compressed, with the header `Content-Type: application/json`",
            {"Accept": "application/json"},
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > cap):
        raise _too_long(cap)
    text = await _receive(request, cap)
    if not text:
        raise Problem(HTTPStatus.BAD_REQUEST, "not-json", "the request has no body: send one, as JSON in UTF-8")
    try:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.ValidationError as error:
            _check_json(text)  # a value that does not fit may come before the place where the text is not JSON
            why = str(error).replace(_NAME_RULE, f"of {NAME_RULE}")
            raise invalid(f"the body does not fit: {why}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = describe_malformed(text, error)
        raise Problem(HTTPStatus.BAD_REQUEST, "not-json", f"the body is not JSON in UTF-8: {why}") from None
    except RecursionError:
        raise Problem(HTTPStatus.BAD_REQUEST, "not-json", "the body is nested too deeply") from None


def _check_json(text: bytes) -> None:
    """Raise as msgspec's decoder, but for a value that no type holds, such as a number that is too large."""
    try:
        msgspec.json.decode(text)
    except msgspec.ValidationError:
        pass


async def _receive(request: Request, cap: int) -> bytes:
    text = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            async for part in request.stream():
                text += part
                if len(text) > cap:
                    raise _too_long(cap)
    except TimeoutError:
        raise Problem(
            HTTPStatus.REQUEST_TIMEOUT, "too-slow", f"the body did not arrive within {_PATIENCE:g} s"
        ) from None
    return bytes(text)


def _too_long(cap: int) -> Problem:
    detail = f"the body has more than {cap} bytes: schedule fewer jobs in one request, or store the data elsewhere"
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-long", detail)
