"""A server's answer: whether the job is done, is tried again or is given up. Pure."""

from __future__ import annotations

import codecs
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

from msgspec import Struct

from evsched.client.target_tasks import HttpResponse
from evsched.jobs.steering import GiveUp, RetryLater

BODY_MOST: Final = 64 * 1024
"""Bytes of a body that are read. What a result holds is kept in Redis."""

_WAIT_MOST: Final = 86400.0
"""Seconds: the longest `Retry-After` that is obeyed. A server's mistake must not put a job off for years."""

_TRIED_AGAIN: Final = (408, 425, 429)
"""Beside 5xx: the server was not ready for the request, or took it for too early or for one too many."""


class Answer(Struct, frozen=True):
    """An answer, its body read up to `BODY_MOST`."""

    status: int
    headers: list[tuple[str, str]]
    """Their names in lower case."""
    body: bytes
    whole: bool
    """The body is not cut: it has ended, and was not longer than that."""

    def header(self, name: str) -> str | None:
        """Return the first header of a name."""
        return next((value for found, value in self.headers if found == name), None)


def judge(answer: Answer, origin: str, now: float) -> None:
    """Return if an answer says that the request is done. `origin`: who answered, for the reason. `now`: Unix seconds.

    Raises:
        RetryLater: it is to be sent again, when the server says, or else as the policy says.
        GiveUp: it would be answered in the same way again.
    """
    status = answer.status
    if 200 <= status < 300:
        return
    said = f"{origin} answered {status} {_phrase(status)}".rstrip()
    if status in _TRIED_AGAIN or 500 <= status < 600:
        wait = _wait(answer, now)
        raise RetryLater(wait, said if wait is None else f"{said}, with a Retry-After of {wait:g} s")
    raise GiveUp(
        f"{said}, which is not tried again: correct the request and schedule it again, or correct the server and "
        "revive the job"
    )


def as_result(answer: Answer) -> HttpResponse:
    """Return an answer as the result of its job."""
    headers = dict[str, str]()
    for name, value in answer.headers:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    # A character that the cut has split is left out.
    body = codecs.getincrementaldecoder("utf-8")("replace").decode(answer.body, final=answer.whole)
    return HttpResponse(answer.status, headers, body, not answer.whole)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _wait(answer: Answer, now: float) -> float | None:
    """Return after how many seconds the server wants to be asked again; None = it does not say so.

    A date is compared with the server's own clock, which may differ from ours, if the answer has it.
    """
    text = (answer.header("retry-after") or "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:18]), _WAIT_MOST)
    after = _date(text)
    if after is None:
        return None
    since = _date(answer.header("date") or "") or datetime.fromtimestamp(now, UTC)
    return min(max(0.0, (after - since).total_seconds()), _WAIT_MOST)


def _date(text: str) -> datetime | None:
    """Read a date in one of the three forms of RFC 9110, 5.6.7."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
