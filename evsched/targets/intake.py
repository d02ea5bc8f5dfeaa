"""One request on its way: which step it waits for, how its answer is read, and its meaning.

An answer is read in small pieces and up to a bound, so that no server takes the time of the requests to others. It
decides whether the job is done, is tried again or is given up.
"""

from __future__ import annotations

import asyncio
import codecs
import select
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from evsched.client.target_tasks import HttpResponse, Target
from evsched.jobs.redaction import REDACTED
from evsched.jobs.steering import GiveUp, RetryLater
from evsched.targets.allowed_hosts import Address, is_teredo

if TYPE_CHECKING:
    from aiohttp import StreamReader
    from aiohttp.client_proto import ResponseHandler


BODY_MOST: Final = 64 * 1024
"""Bytes of a body that are read. A result is kept in Redis."""

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
    said = f"{origin} answered {status} {responses.get(status, '')}".rstrip()
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


NOT_HTTP: Final = "sent an answer that is not valid HTTP"
TOO_LARGE: Final = "sent more than 256 KiB of headers in one answer"
TOO_MANY: Final = "sent too many small parts before it had answered"

HEAD_MOST: Final = 256 * 1024
"""Bytes that are read before an answer begins: its headers, and informational answers (1xx) before it."""

_ANSWER_MOST: Final = 512 * 1024
"""Bytes of an answer that are read. Chunks of one byte, which take six bytes each, fill `BODY_MOST` with fewer."""

_PIECES_MOST: Final = 4096
"""Pieces of an answer that are read. Each costs a turn of the event loop, however small it is."""

_PIECE: Final = 4 * 1024
"""Bytes that are read in one turn of the event loop. Parsing the worst of them takes a few milliseconds, by which a
server that sends thousands of tiny parts at once delays the requests to others."""

_BODY_PIECE: Final = 64 * 1024
"""Bytes of a body without chunks that are read in one turn: they are copied, not parsed."""


class Transfer(Struct, eq=False):
    """The state of a request. When its time is over, this decides the outcome of the job."""

    target: Target
    missing: str = ""
    """The step that has not happened, as the beginning of a sentence."""
    alone: bool = False
    """Send it on a new connection."""
    intake: Intake | None = None
    """The reader of the connection on which it is sent."""
    refused: list[Address] = []
    """The addresses that may not be connected to."""
    tried: bool = False
    """A connection to an address was tried."""
    ended: bool = False
    """The answer was read to its end, and the connection may serve another request."""
    status: int = 0
    headers: list[tuple[str, str]] = []
    body: bytearray = bytearray()

    def arrived(self) -> Answer | None:
        """Return the answer as far as it has arrived; None = not even its head has."""
        return Answer(self.status, self.headers, bytes(self.body), whole=False) if self.status else None

    def refusal(self) -> GiveUp:
        """Return the error of a host that has no address which may be connected to."""
        host, shown = self.target.shown_host, ", ".join(map(str, dict.fromkeys(self.refused)))
        if self.target.hidden:  # the host may be the address itself
            shown = REDACTED
        if all(map(is_teredo, self.refused)):
            return GiveUp(
                f"{host} has the Teredo address {shown}: requests are never sent there; give the host another address"
            )
        return GiveUp(
            f"{host} has the address {shown}, which is not public: to send requests there, start the worker with "
            "--http-network and the network of that address"
        )


current: Final[ContextVar[Transfer]] = ContextVar("current")
"""The request for which a connection is needed: aiohttp passes only its own arguments on."""


class Intake(asyncio.BufferedProtocol):
    """Reads a connection for aiohttp: in small pieces, up to a bound, and only while a request is under way.

    An answer has no mark of its request. So a connection on which anything arrived after an answer is not used again:
    the next job would take it for its own answer.
    """

    def __init__(self, transport: asyncio.Transport, protocol: ResponseHandler, lost: Callable[[], None]) -> None:
        self.fault = ""
        """The reason for which reading was stopped; empty if it was not."""
        self.size = 0
        """Bytes that have arrived since the request was sent."""
        self.reused = False
        """The request is not the first one on the connection."""
        self._transport = transport
        self._protocol = protocol
        self._lost = lost
        """Called when the connection is closed."""
        self._content: StreamReader | None = None
        """The body of the answer, when that has begun."""
        self._buffer = memoryview(b"")
        self._pieces = 0
        self._busy = False
        """A request is under way."""
        self._clean = False
        """The last answer was read to its end, and nothing has arrived after it."""
        self._head = bytearray()
        self._in_body = False
        self._body = 0
        """Bytes that have arrived after the head."""
        self._unparsed = 0
        """Bytes of the body that need no parsing."""
        self._last = b""

    def begin(self) -> None:
        """Expect the answer to the next request."""
        self.reused = self._clean
        self.fault, self.size, self._content = "", 0, None
        self._busy, self._clean, self._pieces, self._in_body = True, False, 0, False
        self._body = self._unparsed = 0
        self._head.clear()

    def follow(self, content: StreamReader, length: int | None, *, chunked: bool) -> None:
        """Note that the answer has begun. `content`: its body; `length`: the bytes of that, if the head says so."""
        self._content = content
        if not chunked and not content.is_eof():
            self._unparsed = _ANSWER_MOST if length is None else length
        self._look_for_error()

    def end(self, body: int, *, chunked: bool) -> bool:
        """Note that an answer was read to its end. Return whether the connection may serve another request.

        `body`: the bytes of its body.
        """
        self._busy = False
        nothing_else = self._last == b"\n" if chunked else self._body == body
        is_open = not self._transport.is_closing()  # asked first: a closed transport of TLS has no buffer to ask for
        self._clean = nothing_else and is_open and not self._transport.get_write_buffer_size()
        return self._clean

    def may_be_used(self) -> bool:
        """Return whether another request may be sent: nothing has arrived since the last answer, not even an end."""
        if not self._clean or self._protocol.should_close:
            return False
        waiting = select.poll()
        waiting.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return not waiting.poll(0)

    def abort(self, fault: str) -> None:
        self.fault = self.fault or fault
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._buffer = memoryview(bytearray(min(_BODY_PIECE, max(_PIECE, self._unparsed - self._body))))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass a piece on to aiohttp, if it is expected and not too much."""
        data, self._buffer = bytes(self._buffer[:nbytes]), memoryview(b"")
        self.size += nbytes
        self._pieces += 1
        if not self._busy:
            self.abort("")
        elif self.size > (HEAD_MOST if self._content is None else _ANSWER_MOST):
            self.abort(TOO_LARGE)
        elif self._pieces > _PIECES_MOST:
            self.abort(TOO_MANY)
        else:
            self._last = data[-1:]
            if not self._in_body:
                data = self._pass_heads(data)
            self._body += len(data)
            if data:
                self._protocol.data_received(data)
            self._look_for_error()

    def _look_for_error(self) -> None:
        """End a body that is not valid: aiohttp closes its connection, and lets the reader wait for the rest."""
        content = self._content
        if content is not None and not content.is_eof() and self._protocol.exception() is not None:
            self.fault = NOT_HTTP
            content.feed_eof()

    def _pass_heads(self, data: bytes) -> bytes:
        """Pass on each head by itself, and return the bytes after the last one.

        A server may send bytes that are not HTTP after an answer without a body. In one piece with them, aiohttp would
        refuse the answer too.
        """
        while data and not self._in_body:
            before = len(self._head)
            self._head += data
            end = self._head.find(b"\r\n\r\n", max(0, before - 3))
            length = len(data) if end < 0 else end + 4 - before
            if end >= 0:
                self._in_body = not self._head.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1"))
                self._head.clear()
            self._protocol.data_received(data[:length])
            data = data[length:]
        return data

    def eof_received(self) -> bool | None:
        self._protocol.eof_received()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
