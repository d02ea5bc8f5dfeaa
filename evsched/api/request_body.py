"""Reads the body of a request: within its limits, before it is whole, and as the struct that the operation takes."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.requests import Request

from evsched.api.problem import Problem, invalid
from evsched.api.requests import NAME_IN_PATH, NAME_RULE
from evsched.jobs.job import describe_malformed

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
