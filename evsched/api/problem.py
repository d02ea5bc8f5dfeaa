"""The answer to a request that cannot be done: RFC 9457, with a sentence about the error and its remedy."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

from evsched.errors import (
    ConfigError,
    EvschedError,
    InUse,
    JobExists,
    JobMissing,
    JobRunning,
    ShardsDown,
    ShardsUnread,
    StoreDown,
    StoreRefused,
)
from evsched.transport.servers import reason

MEDIA_TYPE: Final = "application/problem+json"

_AWAY: Final = 2
"""Seconds after which a caller should try again when Redis is down: the call was tried for 5 s already."""

_logger: Final = logging.getLogger("evsched")


class ProblemDetails(Struct, frozen=True, kw_only=True):
    """Why a request was not done (RFC 9457). Programs should look at `code`, people at `detail`."""

    title: str
    status: int
    detail: str
    code: str


class Problem(Exception):
    """Raised wherever a request cannot go on."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, dict(headers or {})

    def response(self) -> Response:
        """Return the response that says it."""
        details = ProblemDetails(
            title=self.status.phrase,
            status=self.status,
            detail=self.detail.encode(errors="backslashreplace").decode(),
            code=self.code,
        )
        headers = {"Cache-Control": "no-store", **self.headers}
        return Response(msgspec.json.encode(details), self.status, headers, MEDIA_TYPE)


def invalid(detail: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", detail)


def of_error(error: EvschedError, *, reads: bool = False) -> Problem:
    """Return the problem that an error of evsched is to a caller. Internal details go to the server's log.

    `reads`: the request changes nothing.
    """
    if isinstance(error, JobExists):
        return Problem(HTTPStatus.CONFLICT, "job-exists", str(error))
    if isinstance(error, JobRunning):
        return Problem(HTTPStatus.CONFLICT, "job-running", str(error))
    if isinstance(error, InUse):
        return Problem(HTTPStatus.CONFLICT, "in-use", str(error))
    if isinstance(error, JobMissing):
        return Problem(HTTPStatus.NOT_FOUND, "not-found", str(error))
    if isinstance(error, ConfigError):
        return invalid(str(error))
    if isinstance(error, StoreDown):
        _logger.error("a request was not done, since Redis cannot serve now: %s", error)
        why = "Redis cannot serve now" if error.node is None else reason(error)
        detail = why if reads else f"{why}; a write may have been done all the same: look before you repeat it"
        if isinstance(error, ShardsDown):
            detail = str(error)
        elif isinstance(error, ShardsUnread):
            detail = f"{why}, so the numbers of shards of queues cannot be read, and nothing was done"
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "redis-away", detail, {"Retry-After": str(_AWAY)})
    if isinstance(error, StoreRefused):
        _logger.error("Redis refused a request: %s", error)
        return Problem(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "redis-refused",
            "Redis refused this: the log of the server says why; `evsched doctor` finds wrong data and missing rights",
        )
    _logger.error("a request failed: %s", error)
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", str(error))
