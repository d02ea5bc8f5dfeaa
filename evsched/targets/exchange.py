"""A request that was sent, and the answer to it as far as it has arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from evsched.jobs.steering import RetryLater
from evsched.targets.answer import BODY_MOST, Answer
from evsched.targets.request import Request

CLOSED: Final = "closed the connection before it had answered"
NOT_HTTP: Final = "sent an answer that is not valid HTTP"


class Unsent(Exception):
    """The server has not looked at the request, and never will. It can be sent again at once."""


class Progress:
    """What a request waits for. If its time is over, that is the reason."""

    missing: str = ""
    """What has not happened, as the beginning of a sentence."""


class Exchange:
    """One request and its answer."""

    def __init__(self, request: Request, headers: Mapping[str, str]) -> None:
        self.request = request
        length = {"content-length": f"{len(request.content)}"} if request.has_body else {}
        self.headers: Mapping[str, str] = {**headers, **length}
        """All that are sent but the host."""
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        """Raises RetryLater or Unsent if there is none."""
        self._status = 0
        self._headers = list[tuple[str, str]]()
        self._body = bytearray()

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Note the status and the headers of the answer."""
        self._status = status
        self._headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]

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
        """End the exchange without an answer. The request may have taken effect."""
        if not self.answer.done():
            self.answer.set_exception(RetryLater(None, f"{self.request.target.origin} {why}"))

    def refuse(self) -> None:
        """End the exchange: the server has not looked at the request."""
        if not self.answer.done():
            self.answer.set_exception(Unsent())

    def _end(self, *, whole: bool) -> None:
        if not self.answer.done():
            self.answer.set_result(Answer(self._status, self._headers, bytes(self._body[:BODY_MOST]), whole))
