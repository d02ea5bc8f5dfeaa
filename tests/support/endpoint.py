"""An HTTP server on loopback, as the endpoint of requests.

It counts the connections that it accepts, and keeps the requests that it received. A test gives it a function that
answers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, cast

import h11
from msgspec import Struct


class Received(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Reply(Struct, frozen=True):
    """An answer. `hang_up`: close the connection in its place, without a word.

    `after_half`: the behaviour when half of the body is sent.
    """

    status: int = 200
    headers: dict[str, str] = {}
    body: bytes = b""
    hang_up: bool = False
    after_half: Literal["go on", "break off", "stall"] = "go on"


Answer = Callable[[Received], Awaitable[Reply]]


async def fine(received: Received) -> Reply:
    """Answer 200."""
    return Reply()


def always(reply: Reply) -> Answer:
    """Answer every request in the same way."""

    async def answer(received: Received) -> Reply:
        return reply

    return answer


def in_turn(*replies: Reply) -> Answer:
    """Answer the first request with the first reply, and so on; the last one is repeated."""
    left = list(replies)

    async def answer(received: Received) -> Reply:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


class Endpoint:
    """A server. `hosts`: the addresses on which it listens, all on one port; 0 chooses a free one."""

    def __init__(
        self,
        answer: Answer = fine,
        *,
        hosts: tuple[str, ...] = ("127.0.0.1",),
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.answer = answer
        self.port = port
        self.connections = 0
        """Connections that were accepted."""
        self.ended = asyncio.Semaphore(0)
        """Released at the end of each connection."""
        self.requests = list[Received]()
        self._hosts = hosts
        self._tls = tls
        self._servers = list[asyncio.Server]()
        self._tasks = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Self:
        for host in self._hosts:
            server = await asyncio.start_server(self._accept, host, self.port, ssl=self._tls)
            self.port = server.sockets[0].getsockname()[1]
            self._servers.append(server)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def stop_listening(self) -> None:
        for server in self._servers:
            server.close()

    async def reply_to(self, received: Received) -> Reply:
        self.requests.append(received)
        return await self.answer(received)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(_Connection(self, reader, writer).run, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, serve: Callable[[], Awaitable[None]], writer: asyncio.StreamWriter) -> None:
        try:
            await serve()
        except (ConnectionError, h11.RemoteProtocolError):
            pass  # the client has gone
        finally:
            writer.close()
            self.ended.release()


class _Connection:
    """One connection."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.SERVER)

    async def run(self) -> None:
        while isinstance(request := await self._next(), h11.Request):
            body = b""
            while isinstance(part := await self._next(), h11.Data):
                body += bytes(part.data)
            headers = {name.decode(): value.decode() for name, value in request.headers}
            received = Received(request.method.decode(), request.target.decode(), headers, body)
            reply = await self._endpoint.reply_to(received)
            if reply.hang_up:
                return
            length = {} if reply.status in (204, 304) else {"content-length": f"{len(reply.body)}"}
            self._send(h11.Response(status_code=reply.status, headers=list((length | reply.headers).items())))
            if reply.after_half != "go on":
                self._send(h11.Data(data=reply.body[: len(reply.body) // 2]))
                await self._writer.drain()
                if reply.after_half == "stall":
                    await self._reader.read()  # until the client has gone
                return
            if received.method != "HEAD" and length:
                self._send(h11.Data(data=reply.body))
            self._send(h11.EndOfMessage())
            await self._writer.drain()
            if self._h11.our_state is not h11.DONE:
                return
            self._h11.start_next_cycle()

    async def _next(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._h11.receive_data(await self._reader.read(65536))
        return event

    def _send(self, event: Any) -> None:
        self._writer.write(cast("bytes", self._h11.send(event) or b""))
