"""Serves an ASGI application with uvicorn, in a process whose signals and log are those of every service."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Message, Receive, Scope, Send

from evsched.errors import CannotStart
from evsched.runtime.loops import background, first_of
from evsched.runtime.shutdown import StopRequest
from evsched.telemetry.http_server import url_of


def mounted(app: Starlette, path: str, other: Starlette) -> Starlette:
    """Return an application that serves `other` below a path, and `app` everywhere else."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with app.router.lifespan_context(app), other.router.lifespan_context(other):
            yield

    def first_page(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}{path}/")

    return Starlette(routes=[Route(path, first_page), Mount(path, other), Mount("", app)], lifespan=lifespan)


GRACE: Final = 5.0
"""Seconds that requests have to end after SIGTERM: about as long as a call is tried while Redis is down."""

_KEEP_ALIVE: Final = 75
"""Seconds for which an idle connection is kept: longer than the proxies in front of it do, so that none of them sends a
request on a connection that closes."""

_BACKLOG: Final = 1024
"""Connections that may wait to be accepted."""

_HEAD_MOST: Final = 16 * 1024
"""Bytes of a request's head."""


class AsgiServer:
    """One server. `name`: what it serves, for messages. `on_stop`: all called when the process is to end."""

    def __init__(self, app: Any, host: str, port: int, name: str, on_stop: Sequence[Callable[[], None]]) -> None:
        self._app, self._host, self._port, self._name, self._on_stop = app, host, port, name, on_stop
        self._server = _UvicornServer(
            uvicorn.Config(
                self._answer,
                access_log=False,
                h11_max_incomplete_event_size=_HEAD_MOST,
                interface="asgi3",
                lifespan="on",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=int(GRACE),
                timeout_keep_alive=_KEEP_ALIVE,
                ws="none",
            )
        )

    async def serve(self, started: Callable[[str], None], request: StopRequest) -> None:
        """Answer requests until the process is asked to end. `started` is called with the URL.

        Raises:
            CannotStart: the port is taken, or there is no such host.
        """
        with _listen(self._host, self._port, self._name) as listening:
            started(url_of(listening.getsockname()))
            async with background(self._server.serve([listening]), request.wait()) as tasks:
                await first_of(tasks)
                self._server.end()
                for end in self._on_stop:
                    end()
                await tasks[0]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Once the process ends, the response says that its connection must not be used again."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and self._server.should_exit:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, sending)


class _UvicornServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to the service."""
        yield

    def end(self) -> None:
        """Accept no more connections, and shut down.

        Uvicorn itself listens for another 0.1 s. By then, a client whose request was answered at the end has connected
        again, only to be cut off.
        """
        if self.started:
            for listener in self.servers:
                listener.close()
        self.should_exit = True


def _listen(host: str, port: int, name: str) -> socket.socket:
    # Without the protocol, asyncio would leave Nagle's algorithm on, which delays each response by 40 ms.
    listening = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
        return listening
    except (OSError, OverflowError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or error
        raise CannotStart(
            f"{name} on {host}:{port}: {why}: choose another --port, or a --host of this machine"
        ) from None
