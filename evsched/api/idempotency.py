"""The header Idempotency-Key: requests that are done once, and whose repetitions get the reply of the first."""

from __future__ import annotations

from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.datastructures import Headers

from evsched.api.problem import Problem, invalid
from evsched.store.queue import IdempotentRequest

_MOST: Final = 255
"""Characters of a key."""

_DIGITS: Final = 32
"""Hex digits of a digest: 128 bits."""

_encode: Final = msgspec.json.Encoder(order="sorted").encode


def read(headers: Headers, caller: str, path: str, body: Any) -> IdempotentRequest | None:
    """Return the key of a request with a digest of the request; None if it has no key. A key belongs to its `caller`.

    Two requests ask for the same if their paths and the values in their bodies are the same; the order of fields and
    the spaces between them do not count.

    Raises:
        Problem: the key is not valid.
    """
    key = read_key(headers)
    if key is None:
        return None
    try:
        return IdempotentRequest(_digest(key, caller), _digest(path, body))
    except RecursionError:
        raise invalid("the body is nested too deeply") from None


def read_key(headers: Headers) -> str | None:
    """Return the key of a request; None if it has none.

    Raises:
        Problem: it is not valid.
    """
    keys = headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1:
        raise Problem(HTTPStatus.BAD_REQUEST, "invalid", "the header Idempotency-Key is there twice: send one")
    key = keys[0].strip().removeprefix('"').removesuffix('"')
    if not key or len(key) > _MOST:
        raise Problem(
            HTTPStatus.BAD_REQUEST, "invalid", f"Idempotency-Key: send 1 to {_MOST} characters, such as a UUID"
        )
    return key


def check(request: IdempotentRequest, asked: str) -> None:
    """Refuse a key that an earlier request has used. `asked`: what the first request of the key asked for.

    Raises:
        Problem: that was something else.
    """
    if asked != request.asked:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "key-reused",
            "another request was sent with this Idempotency-Key in the last 24 hours: nothing was done; send a new key "
            "with each new request",
        )


def moved() -> Problem:
    """Return the refusal of a repetition whose first request was spread over another number of shards."""
    return Problem(
        HTTPStatus.CONFLICT,
        "shards-changed",
        "the number of shards of the queue has changed since the first request with this Idempotency-Key, so its reply "
        "is not known any more: look its jobs up",
    )


def _digest(*parts: Any) -> str:
    return sha256(_encode(parts)).hexdigest()[:_DIGITS]
