"""The console in a Django site, for the users of its admin: `evsched.django.with_console`.

Each request for the console is first one for the page of the console in the admin, with the browser's own cookies,
within this process. If the site answers it otherwise, such as with a redirect to its login, the browser gets that
answer. So a session that has ended, or a permission that was taken away, counts from the next request on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from django.apps import apps
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import get_script_prefix
from django.urls import NoReverseMatch, reverse, set_script_prefix
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evsched import environment
from evsched.config import Config
from evsched.console import Visitor, create
from evsched.console.users import Refused
from evsched.django.console_ask import ASK, PAGE, Ask
from evsched.django.management.commands.evsched import environment as variables
from evsched.django.setting_checks import console_faults
from evsched.django.worker_app import first_backend, starting
from evsched.errors import ConfigError

_ANSWERED: Final = "evsched.answered"
"""The key of the `Ask` that the site has answered for this request, in its scope."""

Site = Callable[..., Awaitable[None]]
"""An ASGI application, as Django and Starlette type it differently."""


def with_console(site: Site | None = None, *, config: Config | None = None) -> Starlette:
    """Return an ASGI application that serves the console below the path of `OPTIONS["console"]`, and else the site.

        application = with_console(get_asgi_application())

    `site`: None = that of Django, and while DEBUG is on with its static files, as `runserver`. Its lifespan is not run.

    Raises:
        ConfigError: the settings have no path for the console, or a wrong one, or the URLs no admin.
    """
    with starting():
        django = get_asgi_application()
        backend, listed = first_backend(), _is_listed()
        faults = [*console_faults(backend)]
    if backend.console is None:
        raise ConfigError('the OPTIONS of evsched in TASKS have no "console": write its path, such as "/jobs/"')
    for _, text, hint in faults:
        raise ConfigError(f"{text} {hint}".rstrip("."))
    if not listed:
        raise ConfigError(
            'the URLs of the site have no admin with the console: add path("admin/", admin.site.urls) to them'
        )
    if site is None:
        as_runserver = settings.DEBUG and apps.is_installed("django.contrib.staticfiles")
        site = ASGIStaticFilesHandler(django) if as_runserver else django
    path = backend.console.rstrip("/")
    config = config or environment.load({**os.environ, **variables(backend)})
    gate = _Gate(site, path)
    pages = create(config, find_visitor=gate.find_visitor)

    def first_page(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}{path}/")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with pages.router.lifespan_context(pages):
            yield

    app = Starlette(
        routes=[Route(path, first_page), Mount(path, gate.before(pages)), Mount("", site)],
        middleware=[Middleware(_WithPrefix)],
        lifespan=lifespan,
    )
    app.state.console, app.state.console_path = pages.state.console, f"{path}/"
    return app


def _is_listed() -> bool:
    try:
        return bool(reverse(PAGE))
    except NoReverseMatch:
        return False


class _WithPrefix:
    """Gives each path the prefix of the site, which a proxy may have taken off. Django answers both, too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            root, path = get_script_prefix(scope).rstrip("/"), scope["path"]
            scope = {**scope, "root_path": root}
            if not f"{path}/".startswith(f"{root}/"):
                scope |= {"path": root + path, "raw_path": quote(root + path).encode()}
        await self._app(scope, receive, send)


class _Gate:
    """Asks the site who sends a request for the console. `path`: where the console is mounted."""

    def __init__(self, site: Site, path: str) -> None:
        self._site, self._path = site, path

    def before(self, console: ASGIApp) -> ASGIApp:
        """Return the console for those whom the site lets in; all others get the answer of the site."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or self._page(scope).startswith("/static/"):
                await console(scope, receive, send)
                return
            ask, said = await self._ask(scope)
            if not ask.user:
                await said(scope, receive, send)
                return
            cookies = [one for one in said.raw_headers if one[0].lower() == b"set-cookie"]

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], *cookies]  # the session may have a new key
                await send(message)

            await console({**scope, _ANSWERED: ask}, receive, sending)

        return answer

    async def find_visitor(self, request: HTTPConnection) -> Visitor | None:
        """Return the user, as the site has just answered; it is asked again for a page that stays open.

        Raises:
            Refused: the user has none of the permissions.
        """
        ask = request.scope.pop(_ANSWERED, None) or (await self._ask(request.scope))[0]
        if ask.user and ask.role is None:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"{ask.user} may not see the console: the permission evsched.view_console is missing",
            )
        return Visitor(ask.user, ask.role) if ask.role else None

    def _page(self, scope: Scope) -> str:
        return scope["path"].removeprefix(scope["root_path"])

    async def _ask(self, scope: Scope) -> tuple[Ask, Response]:
        """Send the site a request for the page of the console in its admin; return the answer of both."""
        root = scope["root_path"].removesuffix(self._path)
        set_script_prefix(root)  # for `reverse`, as Django does for a request
        path = unquote(reverse(PAGE))
        back = {"page": _with_query(self._page(scope), scope)} if scope["method"] == "GET" else {}
        ask = Ask()
        asked = {
            **scope,
            "method": "GET",
            "root_path": root,
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode(back).encode(),
            ASK: ask,
        }
        said = await _answer_of(self._site, asked)
        return ask if said.status_code == HTTPStatus.OK else Ask(), said  # a middleware may have the last word


def _with_query(page: str, scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    return f"{page}?{query}" if query else page


async def _answer_of(app: Site, scope: Scope) -> Response:
    """Return an application's answer to a request without a body."""
    said, parts = Response(), list[bytes]()
    begun = False

    async def receive() -> Message:
        nonlocal begun
        if begun:
            await asyncio.Event().wait()  # the browser does not leave
        begun = True
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            said.status_code, said.raw_headers = message["status"], [*message["headers"]]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    said.body = b"".join(parts)
    return said
