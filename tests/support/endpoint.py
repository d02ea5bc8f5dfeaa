"""An HTTP server on loopback, as the endpoint of requests: HTTP/1.1, or HTTP/2 over TLS if the client offers it.

It counts the connections that it accepts, and keeps the requests that it received. A test gives it a function that
answers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, cast

import h2.config
import h2.connection
import h2.events
import h11
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame
from msgspec import Struct


class Received(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    version: str


class Reply(Struct, frozen=True):
    """An answer. `hang_up`: close the connection in its place, without a word.

    `after_half`: what happens when half of the body is sent. On HTTP/2, breaking it off says that it was refused.

    On HTTP/2: `leave`: take no requests on this connection after this one. `refuse`: refuse the request. `crash`: close
    the connection. `frames`: the type, flags and content of frames that are sent in place of the answer.
    """

    status: int = 200
    headers: dict[str, str] = {}
    body: bytes = b""
    hang_up: bool = False
    after_half: Literal["go on", "break off", "stall"] = "go on"
    leave: bool = False
    refuse: bool = False
    crash: bool = False
    frames: tuple[tuple[int, int, bytes], ...] = ()


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
    """A server. `hosts`: the addresses on which it listens, all on one port; 0 chooses a free one.

    `streams`: requests on one connection of HTTP/2, as it announces it; None: it announces no limit.
    `header_table`: the bytes of sent headers that a client of HTTP/2 may remember; None: it announces no number.
    """

    def __init__(
        self,
        answer: Answer = fine,
        *,
        hosts: tuple[str, ...] = ("127.0.0.1",),
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        streams: int | None = 100,
        header_table: int | None = None,
    ) -> None:
        self.answer = answer
        self.streams = streams
        self.header_table = header_table
        self.early = False
        """On HTTP/2: answer before the body has arrived, and read no more of it."""
        self.silent = False
        """On HTTP/2: do not answer a ping."""
        self.unread = ""
        """On HTTP/2: a path whose bodies are not read, so that the client does not get its window back."""
        self.begun = asyncio.Semaphore(0)
        """Released when the head of a request of HTTP/2 has arrived."""
        self.settled = asyncio.Semaphore(0)
        """Released when a client has received the settings of a connection of HTTP/2."""
        self.resets = list[ErrorCodes | int | None]()
        """The codes with which clients have reset requests of HTTP/2."""
        self.pings = asyncio.Semaphore(0)
        """Released after each ping that was answered."""
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
        self._http2 = list[_Http2]()

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

    @property
    def header_tables(self) -> list[int]:
        """How many bytes of sent headers the client remembers, of each connection of HTTP/2."""
        return [connection.header_table for connection in self._http2]

    def stop_listening(self) -> None:
        for server in self._servers:
            server.close()

    def allow(self, streams: int) -> None:
        """Announce another number of requests on each connection of HTTP/2."""
        for connection in self._http2:
            connection.allow(streams)

    async def reply_to(self, received: Received) -> Reply:
        self.requests.append(received)
        return await self.answer(received)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        tls = writer.get_extra_info("ssl_object")
        is_http2 = tls is not None and tls.selected_alpn_protocol() == "h2"
        if is_http2:
            self._http2.append(connection := _Http2(self, reader, writer))
        else:
            connection = _Http1(self, reader, writer)
        task = asyncio.create_task(self._serve(connection.run, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, serve: Callable[[], Awaitable[None]], writer: asyncio.StreamWriter) -> None:
        try:
            await serve()
        except* (ConnectionError, h11.RemoteProtocolError):
            pass  # the client has gone
        finally:
            writer.close()
            self.ended.release()


class _Http1:
    """One connection of HTTP/1.1."""

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
            received = Received(request.method.decode(), request.target.decode(), headers, body, "HTTP/1.1")
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


class _Http2:
    """One connection of HTTP/2."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self._begun = dict[int, tuple[dict[str, str], bytearray]]()
        self._replies = dict[int, asyncio.Task[None]]()
        self._window = asyncio.Event()

    async def run(self) -> None:
        self._h2.local_settings = Settings(client=False)
        if self._endpoint.streams is not None:
            self._h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = self._endpoint.streams
            self._h2.local_settings.acknowledge()
        if (size := self._endpoint.header_table) is not None:
            self._h2.local_settings[SettingCodes.HEADER_TABLE_SIZE] = size
            self._h2.local_settings.acknowledge()
            self._h2.decoder.max_allowed_table_size = size
        self._h2.initiate_connection()
        async with asyncio.TaskGroup() as replies:
            while True:
                self._flush()
                data = await self._reader.read(65536)
                if not data:
                    raise ConnectionResetError
                for event in self._h2.receive_data(data):
                    self._take(event, replies)

    @property
    def header_table(self) -> int:
        return self._h2.decoder.header_table_size

    def allow(self, streams: int) -> None:
        self._h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: streams})
        self._flush()

    def _take(self, event: h2.events.Event, replies: asyncio.TaskGroup) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(stream), headers=headers):
                self._begun[stream] = ({str(name): str(value) for name, value in headers or []}, bytearray())
                self._endpoint.begun.release()
                if self._endpoint.early:
                    self._answer(stream, replies)
            case h2.events.SettingsAcknowledged():
                self._endpoint.settled.release()
            case h2.events.PingReceived():
                if self._endpoint.silent:
                    self._h2.clear_outbound_data_buffer()
                else:
                    self._endpoint.pings.release()
            case h2.events.DataReceived() | h2.events.StreamEnded() if self._endpoint.early:
                pass
            case h2.events.DataReceived(stream_id=int(stream), data=data, flow_controlled_length=length):
                self._begun[stream][1].extend(data or b"")
                if self._begun[stream][0][":path"] != self._endpoint.unread:
                    self._h2.acknowledge_received_data(length or 0, stream)
            case h2.events.StreamEnded(stream_id=int(stream)):
                self._answer(stream, replies)
            case h2.events.WindowUpdated():
                self._window.set()
            case h2.events.StreamReset(stream_id=int(stream), error_code=code) if stream in self._replies:
                self._endpoint.resets.append(code)
                self._replies[stream].cancel()
            case _:
                pass

    def _answer(self, stream: int, replies: asyncio.TaskGroup) -> None:
        self._replies[stream] = replies.create_task(self._reply(stream, *self._begun.pop(stream)))

    async def _reply(self, stream: int, headers: dict[str, str], body: bytearray) -> None:
        received = Received(headers.pop(":method"), headers.pop(":path"), headers, bytes(body), "HTTP/2")
        reply = await self._endpoint.reply_to(received)
        if reply.hang_up or reply.refuse:
            self._h2.reset_stream(stream, ErrorCodes.REFUSED_STREAM if reply.refuse else ErrorCodes.NO_ERROR)
            self._flush()
            return
        if reply.crash:
            self._writer.transport.abort()
            return
        if reply.frames:
            self._flush()
            for kind, flags, content in reply.frames:
                self._writer.write(len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content)
            return
        if reply.leave:
            self._flush()
            self._writer.write(GoAwayFrame(0, last_stream_id=stream).serialize())  # h2 would send nothing after it
        self._h2.send_headers(stream, [(":status", f"{reply.status}"), *reply.headers.items()])
        if reply.after_half != "go on":
            await self._send_body(stream, reply.body[: len(reply.body) // 2])
            if reply.after_half == "break off":
                self._h2.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
            self._flush()
            return
        await self._send_body(stream, reply.body)
        self._h2.end_stream(stream)
        self._flush()

    async def _send_body(self, stream: int, left: bytes) -> None:
        while left:
            self._window.clear()
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if not room:
                self._flush()
                await self._window.wait()
                continue
            self._h2.send_data(stream, left[:room])
            left = left[room:]

    def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())
