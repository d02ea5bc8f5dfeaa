"""The ASGI application: routes to the operations, each behind the same checks.

It also has the health pages for supervisors, and answers the requests that are cancelled when the server stops.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from os import environ
from typing import Any, Final, cast

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope
from starlette.types import Send as SendMessage

from evsched import environment
from evsched.api import endpoints, request_body
from evsched.api.access import Access
from evsched.api.api_request import ApiRequest, KnownShards, Waiters, WaitingFetches, check_served, idempotency_key
from evsched.api.endpoints import OPERATIONS, Operation
from evsched.api.replies import Health, Problem, Reply, error_response, invalid, response
from evsched.api.request_body import UnreadBody
from evsched.api.requests import path_fault
from evsched.app import find_codec
from evsched.client.client import Client
from evsched.client.operations import Send
from evsched.config import DEFAULT_QUEUE, Config
from evsched.errors import EvschedError, JobMissing
from evsched.events import Events
from evsched.telemetry.process_telemetry import why_redis_does_not_serve
from evsched.web_origins import is_known_host, is_other_origin


class StopResponder:
    """Wraps an application that runs in a server of its own: who else cancels its requests has reasons of their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
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
                problem = Problem(HTTPStatus.SERVICE_UNAVAILABLE, "stopping", detail, {"Retry-After": "1"})
                await problem.response()(scope, receive, send)


_AWAY: Final = "Redis does not serve: the log of the server says why"
"""The reason itself has the address of Redis, which is nobody's business who has no token."""

_logger: Final = logging.getLogger("evsched")

_KEPT: Final = 1.0
"""Seconds for which an answer is given again: these pages need no token, and must not load Redis."""


_DIGITS: Final = 8
"""Hex digits of the SHA-256 of a token by which the audit trail names its caller: too few to test a guess of one."""


class HealthPages:
    """Answers /healthz and /readyz, which need no token: supervisors must always reach them."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._reason: str | None = None
        self._checked = -_KEPT
        self._checking = asyncio.Lock()

    async def alive(self, _: Request) -> Response:
        """Say that the event loop runs."""
        return response(Health(True))

    async def ready(self, _: Request) -> Response:
        """Say whether Redis serves."""
        async with self._checking:
            if time.monotonic() - self._checked >= _KEPT:
                before = self._reason
                self._reason = await why_redis_does_not_serve(
                    lambda call: self._client.perform(Send(call)), self._queue
                )
                self._checked = time.monotonic()
                if self._reason is not None and before is None:
                    _logger.error("not ready: %s", self._reason)
        if self._reason is None:
            return response(Health(True))
        return response(Reply(HTTPStatus.SERVICE_UNAVAILABLE, Health(False, _AWAY)))


Endpoint = Callable[[Request], Awaitable[Response]]


class _Endpoints:
    """The state that the endpoints of one application share."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.access = Access(config)
        self.client = Client(config.url).with_codec(find_codec(config.codec), config.payload_cap)
        self.shards = KnownShards(self.client)
        self.waiters = Waiters(config.api_waiting_cap)
        self.fetches = WaitingFetches(config.api_fetching_cap)
        self.events = Events()
        """Those of the runs of workers that use the API. The process logs and counts them."""
        self.health = HealthPages(self.client, next(iter(config.queues), DEFAULT_QUEUE))

    async def answer(self, operation: Operation, request: Request) -> Response:
        """Check a request, have it handled, and return the response."""
        if self.config.api_open_hosts:
            _refuse_other_hosts(request, self.config.api_open_hosts)
            _refuse_other_origins(request)
        authorization = request.headers.get("authorization")
        if self.access.knows(authorization):
            request_body.trust(request.scope)
        caller = self.access.admit(authorization, operation.needs, time.monotonic())
        await self.shards.refresh()
        _check_path(request.path_params)
        if (queue := request.path_params.get("queue")) is not None:
            check_served(self.config, self.client.shards, queue)
        idempotency_key(request.headers)  # one that is not valid is refused everywhere, also where none is needed
        given = dict[str, Any]()
        if "query" in operation.inputs:
            given["query"] = _query(request, operation.inputs["query"])
        if operation.body is not None:
            given["body"] = await request_body.read(request, operation.body, self.config.api_body_cap)
        client = self.client
        if operation.needs == "write":
            client = client.as_operator(f"token {caller[:_DIGITS]}" if caller else "anyone", "api")
        waiting, emit = (self.waiters, self.fetches), self.events.emit
        checked = ApiRequest(client, self.shards, self.config, *waiting, emit, request, caller)
        try:
            return response(await operation.handler(checked, **given))
        except JobMissing:
            self.shards.check()
            raise

    def endpoint(self, operations: dict[str, Operation]) -> Endpoint:
        """Return the endpoint of a path, by its operations."""

        async def endpoint(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await self.answer(operations[method], request)

        return endpoint

    async def document(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        self.access.admit_anyone(time.monotonic())
        return response(endpoints.document(request.scope.get("root_path", "")))


def create(config: Config | None = None) -> Starlette:
    """Return the HTTP interface as an ASGI application, to be served or mounted in another.

    `config`: its settings; None = those in the environment, as for `evsched api`. It connects to Redis on first use.

    Raises:
        ConfigError: a setting is not valid, or there is no token.
    """
    server = _Endpoints(config or environment.load(environ))
    by_path = dict[str, dict[str, Operation]]()
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        await server.shards.read()
        yield
        await server.client.close()

    app = Starlette(
        routes=[
            *(Route(path, server.endpoint(methods), methods=[*methods]) for path, methods in by_path.items()),
            Route("/openapi.json", server.document),
            Route("/healthz", server.health.alive),
            Route("/readyz", server.health.ready),
        ],
        exception_handlers=dict.fromkeys(
            (Problem, EvschedError, HTTPException, ClientDisconnect, Exception), error_response
        ),
        middleware=[Middleware(UnreadBody)],
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.waiters, app.state.events = (server.waiters, server.fetches), server.events
    return app


def _check_path(path: Mapping[str, str]) -> None:
    for name, value in path.items():
        if (fault := path_fault(name, value)) is not None:
            raise invalid(fault)


def _query(request: Request, kind: type) -> Any:
    """Return the query of a request as a value of a type.

    Raises:
        Problem: it is not of that type.
    """
    given: dict[str, Any] = dict(request.query_params)
    if len(request.query_params.multi_items()) > len(given):
        raise invalid("the query has the same name twice: give each once")
    if "tags" in given:
        given["tags"] = given["tags"].split(",")
    if "arguments" in given:
        try:
            given["arguments"] = msgspec.json.decode(given["arguments"])
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid(f"the query does not fit: arguments is not JSON: {error}") from None
    try:
        return msgspec.convert(given, cast(Any, kind), strict=False)
    except msgspec.ValidationError as error:
        raise invalid(f"the query does not fit: {error}") from None


def _refuse_other_hosts(request: Request, allowed: Sequence[str]) -> None:
    """Refuse a request to a name that is not known here: without tokens, any page whose name leads here could send it.

    Raises:
        Problem
    """
    host = request.headers.get("host", "")
    if not is_known_host(host, allowed):
        detail = (
            f"an API without tokens answers to addresses, to localhost and to the names that --open-host gives, and "
            f"not to {host!r:.100}"
        )
        raise Problem(HTTPStatus.FORBIDDEN, "other-host", detail)


def _refuse_other_origins(request: Request) -> None:
    """Refuse requests that a page of another origin makes a browser send: without tokens, nothing else keeps it out.

    Raises:
        Problem
    """
    if is_other_origin(request.headers.get("host"), request.headers.get("origin")):
        detail = "a page of another origin may not use an API without tokens: start it with tokens"
        raise Problem(HTTPStatus.FORBIDDEN, "other-origin", detail)
