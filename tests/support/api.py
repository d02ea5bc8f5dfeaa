"""A caller of the HTTP interface, over the real application: each answer is held against the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, Final

import httpx

from evsched.api import endpoints
from evsched.api.application import create
from evsched.api.endpoints import OPERATIONS, Operation
from evsched.config import Config
from evsched.events import Events

READ: Final = "a-token-that-may-read-only"
WRITE: Final = "a-token-that-may-write-too"
WORK: Final = "a-token-that-may-work-only"
LATER: Final = 4_000_000_000.0
"""A moment at which nothing is due yet."""

_DOCUMENT: Final = endpoints.document("")


class Caller:
    """Sends requests with a token that may write, unless another is given."""

    def __init__(self, client: httpx.AsyncClient, events: Events) -> None:
        self.client = client
        self.events = events
        """Those of the runs of workers that use the API."""

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = WRITE, **options: Any
    ) -> httpx.Response:
        """Send a request, and check the response against the document."""
        headers: dict[str, str] = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= options.pop("headers", {})
        if body is not None:
            options["json"] = body
        response = await self.client.request(method, path, headers=headers, **options)
        check(method, path, response)
        return response


def _find(method: str, path: str) -> Operation | None:
    for one in OPERATIONS:
        if one.method == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", one.path), path.partition("?")[0]):
            return one
    return None


def check(method: str, path: str, response: httpx.Response) -> None:
    """Check that the OpenAPI document has a response: its status, its media type and its body."""
    assert response.headers["cache-control"] == "no-store"
    operation = _find(method, path)
    status = str(response.status_code)
    if response.status_code >= 400 and path != "/readyz":
        assert response.headers["content-type"] == "application/problem+json"
        problem = response.json()
        assert problem["status"] == response.status_code
        assert set(problem) == {"title", "status", "detail", "code"}
        assert "Traceback" not in problem["detail"]
        status = "default"
    if operation is None:
        return
    responses: dict[str, Any] = _DOCUMENT["paths"][operation.path][method.lower()]["responses"]
    assert status in responses, f"{method} {operation.path} must not answer {response.status_code}: {response.text}"
    content = responses[status].get("content")
    if content is None:
        assert response.content == b""
        return
    (schema,) = (one["schema"] for one in content.values())
    assert _misfits(schema, response.json()) == []


def _misfits(schema: Any, value: Any) -> list[str]:
    """Return why a value does not fit a schema of the document; nothing if the library is not installed."""
    try:
        jsonschema: Any = import_module("jsonschema")
    except ImportError:
        return []
    validator: Any = jsonschema.Draft202012Validator({**schema, "components": _DOCUMENT["components"]})
    return [error.message for error in validator.iter_errors(value)]


@asynccontextmanager
async def calling(url: str, **settings: Any) -> AsyncGenerator[Caller]:
    """Yield a caller of an application with these settings."""
    tokens = {"api_read_tokens": (READ,), "api_write_tokens": (WRITE,), "api_work_tokens": (WORK,)}
    if settings.get("api_open_hosts"):
        tokens = {}
    defaults: dict[str, Any] = {"api_rate": 100_000, "api_unknown_rate": 100_000, **tokens}
    app = create(Config(url=url, **defaults | settings))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://api") as client,
    ):
        yield Caller(client, app.state.events)
