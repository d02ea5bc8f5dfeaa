"""Answers the requests that the server cancels when it stops, because they were not done within its grace."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evsched.api.problem import Problem


class Stopping:
    """Wraps an application that runs in a server of its own: who else cancels its requests has reasons of their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answered = False

        async def sending(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            # Nobody awaits the task, so the cancellation ends here: uvicorn would log it as a bug and answer with 500.
            if not answered:
                detail = "the server stops; a write may have been done all the same: look before you repeat it"
                headers = {"Retry-After": "1", "Connection": "close"}
                problem = Problem(HTTPStatus.SERVICE_UNAVAILABLE, "stopping", detail, headers)
                await problem.response()(scope, receive, send)
