"""A request that was sent, and the answer to it as far as it has arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from evsched.client.target_request import Request
from evsched.jobs.steering import RetryLater
from evsched.targets.answer import BODY_MOST, Answer

CLOSED: Final = "closed the connection before it had answered"
NOT_HTTP: Final = "sent an answer that is not valid HTTP"
TOO_LARGE: Final = "sent more than 256 KiB of headers in one answer"
TOO_MANY: Final = "sent too many small parts before it had answered"

HEAD_KEPT: Final = 64 * 1024
"""Bytes of the headers of an answer that are kept."""

PARTS_MOST: Final = 4096
"""Parts of an answer that are read: chunks, frames, and packets that complete none of these. Each costs about as much
time, however small it is. So many lines of 16 bytes fill `BODY_MOST`."""


class Unsent(Exception):
    """The server has not looked at the request, and never will. It can be sent again at once."""


class Disturbed(Exception):
    """The connection ended before the answer began, perhaps by the fault of another request, or because it was old.

    The request may have taken effect. Its Idempotency-Key makes it safe to send it again, on a connection of its own.
    The message is that of a request that has failed.
    """


class Exchange:
    """One request and its answer.

    When the head of an answer has arrived, what becomes of the job is known. So whatever happens to the body then, the
    exchange ends with that answer, its body cut.
    """

    def __init__(self, request: Request, headers: Mapping[str, str], *, alone: bool = False) -> None:
        self.request = request
        self.alone = alone
        """No other request may be sent on its connection."""
        length = {"content-length": f"{len(request.content)}"} if request.has_body else {}
        self.headers: Mapping[str, str] = {**headers, **length}
        """All that are sent but the host."""
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        """Raises RetryLater, Unsent or Disturbed if there is none."""
        self._parts = 0
        self._status = 0
        self._headers = list[tuple[str, str]]()
        self._head = 0
        """Bytes of the headers."""
        self._cut = False
        """Not all headers are kept."""
        self._body = bytearray()

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Note the status and the headers of the answer, as many as are kept."""
        self._status = status
        for name, value in headers:
            self._head += len(name) + len(value)
            if self._head > HEAD_KEPT:
                self._cut = True
                break
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def count(self, parts: int) -> bool:
        """Count what has arrived. Return False if there are more than `PARTS_MOST` parts: the answer has ended."""
        self._parts += parts
        if self._parts > PARTS_MOST:
            self.fail(TOO_MANY)
            return False
        return True

    def add(self, part: bytes) -> bool:
        """Note a part of the body. Return False if there is more than is read: the answer has ended."""
        self._body += part
        if len(self._body) > BODY_MOST:
            self._end(whole=False)
            return False
        return True

    def end(self) -> None:
        """End the exchange: all of the answer has arrived."""
        if self._status:
            self._end(whole=True)
        else:
            self.fail(NOT_HTTP)

    def fail(self, why: str) -> None:
        """End the exchange before the end of the answer. The request may have taken effect."""
        self._break_off(RetryLater(None, f"{self.request.target.origin} {why}"))

    def reject(self, why: str) -> None:
        """End the exchange: what has arrived is not valid, so it is no answer, not even its status."""
        self._status = 0
        self.fail(why)

    def disturb(self, why: str) -> None:
        """End the exchange with its connection, which other requests have used too."""
        self._break_off(Disturbed(f"{self.request.target.origin} {why}"))

    def refuse(self) -> None:
        """End the exchange: the server says that it has not looked at the request."""
        self._break_off(Unsent())

    def arrived(self) -> Answer | None:
        """Return the answer as far as it has arrived; None = not even its head has."""
        return Answer(self._status, self._headers, bytes(self._body[:BODY_MOST]), whole=False) if self._status else None

    def _break_off(self, error: Exception) -> None:
        if self._status:
            self._end(whole=False)
        elif not self.answer.done():
            self.answer.set_exception(error)

    def _end(self, *, whole: bool) -> None:
        if not self.answer.done():
            whole = whole and not self._cut
            self.answer.set_result(Answer(self._status, self._headers, bytes(self._body[:BODY_MOST]), whole))


class Progress:
    """What a request waits for, and what has arrived. If its time is over, that says what becomes of it."""

    missing: str = ""
    """What has not happened, as the beginning of a sentence."""
    exchange: Exchange | None = None
    """What the server has answered so far; None = the request is not sent."""
