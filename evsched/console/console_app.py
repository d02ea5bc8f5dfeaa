"""The ASGI application: who may see which page, how pages and their streams are answered, and what every answer has."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from os import environ
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evsched import environment
from evsched.app import find_codec
from evsched.client import queue_names, spread
from evsched.config import Config
from evsched.console.act_runs import UserActs
from evsched.console.live import Hub, PageReading
from evsched.console.page import STATIC, MeteredClient, Pages, View, Visit, address
from evsched.console.user_acts import ACTS
from evsched.console.users import (
    COOKIE,
    LENGTH,
    ROLES,
    FindVisitor,
    Refused,
    Users,
    Visitor,
    check_origin,
    read_tokens,
)
from evsched.console.views import VIEWS
from evsched.console.views.jobs import complete
from evsched.console.views.trail import ActRow, last_act
from evsched.errors import ConfigError, EvschedError, JobMissing, StoreDown, StoreError, StoreRefused
from evsched.keys import check_queue

_HEADERS: Final = {
    b"content-security-policy": b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src "
    b"'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
_NO_STORE: Final = (b"cache-control", b"no-store")

_FORM_MOST: Final = 1024 * 1024
"""Bytes of a form."""

_TOKEN_MOST: Final = 4096
"""Bytes of the form to sign in, which anybody may send."""

_OPEN_MOST: Final = 500
"""Different pages that may be open: with more, each would be read less than once a minute."""

_OWN_PATH: Final = re.compile(r"/(?![/\\])[^\x00-\x20\\\x7f]*")
"""A path of this console. Browsers take some others for the address of another site."""

_KNOWN_FOR: Final = 5.0
"""Seconds for which the names of the queues and their shards are kept, at least."""

_SLICES: Final = 20
"""Thousands of keys that are looked through for queues, if no dispatcher runs."""


class _Headers:
    """Adds the headers that every answer has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                added = [one for one in _HEADERS.items() if one[0] not in names]
                if b"cache-control" not in names:
                    added.append(_NO_STORE)
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, sending)


class _Assets(StaticFiles):
    """The style sheet and the script, which browsers may keep: their addresses have a digest of their content."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = "public, max-age=604800"
        return response


class Console:
    """The parts that the requests to one console share."""

    def __init__(self, config: Config, *, alone: bool, find_visitor: FindVisitor | None) -> None:
        self.config = config
        self._alone = alone
        self.client = MeteredClient(config.url).with_codec(find_codec(config.codec), config.payload_cap)
        self.access = Users(config, self.client, open_without_tokens=alone, find_visitor=find_visitor)
        self.pages = Pages(config)
        self.hub = Hub()
        self.acts = UserActs(ACTS)
        self.memory = dict[str, Any]()
        """Values that views keep between two readings, by their names. One with `close` is closed at the end."""
        self._queues = list[str]()
        self._again = 0.0
        """When the names of the queues are read again, on the monotonic clock."""

    async def queues(self, client: MeteredClient) -> list[str]:
        """Return the names of the queues of this console, and read how many shards they have.

        Without a dispatcher, which keeps their set, a part of the keys is looked through, and less often.
        """
        if time.monotonic() > self._again:
            before = client.commands
            self.client.shards = client.shards = await client.run(spread.read_shards())
            found = sorted(self.config.queues) or await client.run(queue_names.find_queues(_SLICES))
            self._queues = await client.run(spread.shown(client.shards, client.store, found))
            self._again = time.monotonic() + max(_KNOWN_FOR, client.commands - before)
        return self._queues

    async def close(self) -> None:
        self.hub.stop()
        await self.acts.stop()
        for kept in self.memory.values():
            if (close := getattr(kept, "close", None)) is not None:
                await close()
        await self.client.close()

    # Requests.

    async def page(self, view: View, request: Request) -> Response:
        """Answer with a page."""
        visitor = await self._find(request)
        if visitor is None:
            return self._to_sign_in(request, view)
        if view.needs != "viewer" and not visitor.may(view.needs):
            raise Refused(HTTPStatus.FORBIDDEN, f"this page is for the role {view.needs}, and yours is {visitor.role}")
        visit = Visit(self, self.client.metered(), visitor, request.query_params, _prefix(request))
        values = await view.read(visit)
        if (target := values.get("redirect")) is not None:
            return RedirectResponse(target, HTTPStatus.SEE_OTHER)
        if visit.get("as") == "json" and "data" in values:
            return Response(msgspec.json.encode(values["data"]), media_type="application/json")
        return HTMLResponse(
            self.pages.draw(
                view.name,
                {**self.common(request, view, visitor), "proof": await self.access.form_token(visitor), **values},
            )
        )

    async def live(self, view: View, request: Request) -> Response:
        """Answer with the stream of an open page."""
        check_origin(request)
        visitor = await self._find(request)
        if visitor is None or not visitor.may(view.needs) or view.every is None or request.method != "GET":
            return Response(status_code=HTTPStatus.NO_CONTENT)  # the browser does not ask again
        if self.hub.open >= _OPEN_MOST:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"{_OPEN_MOST} different pages are open already")
        query, prefix = request.query_params, _prefix(request)
        anyone = replace(visitor, name="", session="")
        common = self.common(request, view, anyone)
        key = repr((prefix, view.path, sorted(query.multi_items()), visitor.role))

        async def reread() -> PageReading:
            visit = Visit(self, self.client.metered(), anyone, query, prefix)
            try:
                values = await (view.follow or view.read)(visit)
            except HTTPException as error:
                return PageReading({}, str(error.detail), visit.client.commands)
            return PageReading(self.pages.regions(view.name, {**common, **values}), "", visit.client.commands)

        async def still() -> bool:
            try:
                return await self.access.find(request) == visitor
            except StoreError:
                return True  # nothing is read meanwhile, either
            except Refused:
                return False

        stream = self.hub.stream(sha256(key.encode()).hexdigest(), reread, view.every, still)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    def common(self, request: Request, view: View | None, visitor: Visitor | None) -> dict[str, Any]:
        """Return the values that the frame of each page is drawn from."""
        prefix = _prefix(request)
        notice = self.acts.notice(request.query_params.get("act", ""))
        if (
            notice is None or visitor is None or notice.by != visitor.name
        ):  # it may have a secret, and the address is in logs
            notice = None
        return {
            "url": partial(address, prefix),
            "static": f"{prefix}/static",
            "here": view.part or view.name if view else "",
            "live": _again(prefix, f"/live{view.path}", request) if view and view.every else "",
            "every": view.every if view else None,
            "visitor": visitor,
            "q": request.query_params.get("q", "") if view and view.path == "/jobs" else "",
            "read_at": time.time(),
            "notice": notice,
            "secret": notice.take_secret() if notice else "",
            "signed": bool(visitor and visitor.session),
        }

    async def _find(self, request: Request) -> Visitor | None:
        """Return who sends a request, and note whether the user may know why Redis fails. Raises as `Access.find`."""
        if self._alone:
            request.state.known = True
        visitor = await self.access.find(request)
        request.state.known = visitor is not None
        request.state.visitor = visitor
        return visitor

    def _to_sign_in(self, request: Request, view: View) -> Response:
        back = _again("", view.path, request)
        return RedirectResponse(address(_prefix(request), "/sign-in", back=back), HTTPStatus.SEE_OTHER)

    async def _last_act(self, request: Request, visitor: Visitor) -> ActRow | None:
        """Return the last act on a job that is gone, if it can be read."""
        visit = Visit(self, self.client.metered(), visitor, request.query_params, _prefix(request))
        job = request.query_params.get("id", "")
        try:
            return await last_act(visit, [check_queue(visit.get("queue"))], job) if job else None
        except EvschedError:
            return None

    async def act(self, request: Request) -> Response:
        """Do what a form asks for, and answer with the page that shows it."""
        visitor = await self._find(request)
        if visitor is None:
            raise Refused(HTTPStatus.FORBIDDEN, "you are not signed in any more: sign in, and send the form again")
        form = await read_form(request)
        await self.access.check_form(request, visitor, dict(form))
        prefix = _prefix(request)
        visit = Visit(self, self.client.metered(), visitor, request.query_params, prefix)
        target = await self.acts.perform(request.path_params["act"], visit, form)
        return RedirectResponse(prefix + target, HTTPStatus.SEE_OTHER)

    async def complete(self, request: Request) -> Response:
        """Answer with what may follow in the search box."""
        check_origin(request)
        visitor = await self.access.find(request)
        if visitor is None:
            return Response(status_code=HTTPStatus.FORBIDDEN)
        visit = Visit(self, self.client.metered(), visitor, request.query_params, request.scope.get("root_path", ""))
        return JSONResponse(await complete(visit))

    async def sign_in(self, request: Request) -> Response:
        """Show the form to sign in, or begin a session."""
        prefix, back = _prefix(request), request.query_params.get("back", "/")
        if not _OWN_PATH.fullmatch(back):
            back = "/"
        if self.access.elsewhere:
            return RedirectResponse(prefix + back, HTTPStatus.SEE_OTHER)
        values = {
            **self.common(request, None, None),
            "back": back,
            "problem": "",
            "tokens": await self.access.has_tokens(),
        }
        if request.method != "POST":
            return HTMLResponse(self.pages.draw("sign-in", values))
        check_origin(request)
        form = await read_form(request, _TOKEN_MOST)
        session = await self.access.sign_in(dict(form).get("token", ""))
        if session is None:
            values["problem"] = "This token is not known here. It may have been replaced or deleted."
            return HTMLResponse(self.pages.draw("sign-in", values), HTTPStatus.FORBIDDEN)
        response = RedirectResponse(prefix + back, HTTPStatus.SEE_OTHER)
        secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
        response.set_cookie(
            COOKIE, session, max_age=LENGTH, path=prefix or "/", secure=secure, httponly=True, samesite="lax"
        )
        return response

    async def sign_out(self, request: Request) -> Response:
        """End the session of the user."""
        visitor, prefix = await self._find(request), _prefix(request)
        if visitor is not None and visitor.session:
            await self.access.check_form(request, visitor, dict(await read_form(request)))
            await self.access.sign_out(visitor)
        response = RedirectResponse(prefix + "/sign-in", HTTPStatus.SEE_OTHER)
        response.delete_cookie(COOKIE, path=prefix or "/")
        return response

    async def problem(self, request: Request, error: Exception) -> Response:
        """Answer with the page that says what went wrong, and what to do."""
        status, title, detail = _described(error)
        if isinstance(error, StoreError) and not getattr(request.state, "known", False):
            detail = "Ask whoever runs this console: its log, or `evsched doctor`, says why."  # not where Redis is
        visitor = getattr(request.state, "visitor", None) if isinstance(error, JobMissing) else None
        values = {**self.common(request, None, visitor), "title": title, "detail": detail, "status": status}
        values["again"] = _form_of(request) if request.method == "POST" else ""
        # After an error that nothing expected, no middleware adds the headers.
        headers = {name.decode(): value.decode() for name, value in (*_HEADERS.items(), _NO_STORE)}
        if visitor is not None:
            gone = {**values, **_missing(request), "last_act": await self._last_act(request, visitor)}
            if gone["recurrence"] and visitor.may("operator"):
                gone["proof"] = await self.access.form_token(visitor)
            return HTMLResponse(self.pages.draw("missing", gone), status, headers)
        return HTMLResponse(self.pages.draw("error", values), status, headers)


async def _tokens(visit: Visit) -> dict[str, Any]:
    """Return who has a token; or if a proxy signs users in, the roles of those whom it names."""
    found = await visit.client.send(read_tokens())
    config = visit.console.config
    named = (
        [text.rpartition("=")[::2] for text in config.console_users or ("*=viewer",)] if config.console_proxies else []
    )
    elsewhere = visit.console.access.elsewhere
    shown = {"roles": ROLES, "named": named, "header": config.console_header, "elsewhere": elsewhere}
    return {"tokens": sorted(found.items()), **shown}


PAGES: Final = (*VIEWS, View("/tokens", "tokens", _tokens, part="tokens", needs="admin"))
"""All pages: the views, and that of the users."""


def _missing(request: Request) -> dict[str, str]:
    """Return what the page of a job that is gone names: also the recurrence, if it is a run, `NAME@TIME`."""
    asked = request.query_params
    job = asked.get("id", "")
    name, at, moment = job.rpartition("@")
    run = bool(at and re.fullmatch(r"\d+(\.\d+)?", moment))
    if request.url.path.endswith("/batch"):
        return {"job": "", "queue": asked.get("queue", ""), "recurrence": "", "here": "batches"}
    part = "recurrences" if request.url.path.endswith("/recurrence") else "jobs"
    return {"job": job, "queue": asked.get("queue", ""), "recurrence": name if run else "", "here": part}


def _form_of(request: Request) -> str:
    """Return the address of the page whose form was sent: the first page, if the browser does not say it."""
    sent = urlsplit(request.headers.get("referer", ""))
    if sent.netloc != request.headers.get("host") or not _OWN_PATH.fullmatch(sent.path):
        return _prefix(request) + "/"
    return sent.path + (f"?{sent.query}" if sent.query else "")


def _described(error: Exception) -> tuple[int, str, str]:
    match error:
        case Refused():
            return error.status_code, "This is not allowed", str(error.detail)
        case HTTPException(status_code=404, detail=detail) if detail != HTTPStatus.NOT_FOUND.phrase:
            return 404, "It is not known here", detail
        case HTTPException(status_code=404):
            return 404, "There is no such page", "The address may be incomplete, or of another release."
        case HTTPException():
            return error.status_code, "The request cannot be answered", str(error.detail)
        case JobMissing():
            return 404, "It is not there any more", str(error)
        case StoreDown():
            unsure = (
                "; what you asked for may have been done all the same: look before you repeat it"
                if error.unsure
                else ""
            )
            return 503, "Redis does not answer", f"{error}{unsure}"
        case StoreRefused():
            return 502, "Redis refused", str(error)
        case ConfigError():
            return 400, "This cannot be done", str(error)
        case EvschedError():
            return 409, "This was not done", str(error)
        case _:
            return 500, "The console failed", "This is a bug of evsched. The log of the console has the traceback."


def _prefix(request: Request) -> str:
    """Return the path below which the console is mounted."""
    return request.scope.get("root_path", "")


def _again(prefix: str, path: str, request: Request) -> str:
    """Return the address of a page with the parameters of a request."""
    given = urlencode(request.query_params.multi_items())
    return address(prefix, path) + (f"?{given}" if given else "")


async def read_form(request: Request, most: int = _FORM_MOST) -> list[tuple[str, str]]:
    """Return the fields of a form.

    Raises:
        Refused: it is too long, or of another kind.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a form is sent as application/x-www-form-urlencoded")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the form has more than {most:,} bytes")
    except ClientDisconnect:
        raise Refused(HTTPStatus.BAD_REQUEST, "the form ended early") from None
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10_000)
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "the form cannot be read") from None


def create(config: Config | None = None, *, alone: bool = False, find_visitor: FindVisitor | None = None) -> Starlette:
    """Return the console as an ASGI application, to be served or mounted in another one under any path.

    `config`: its settings; None = those in the environment, as for `evsched console`. `alone`: it is served on loopback
    only, where it needs no tokens; else everybody must sign in. `find_visitor`: the login of the other application, in
    place of tokens: it is called with each request. It connects to Redis on first use.

    Raises:
        ConfigError: a setting is not valid.
    """
    console = Console(config or environment.load(environ), alone=alone, find_visitor=find_visitor)

    def answers(
        answer: Callable[[View, Request], Awaitable[Response]], view: View
    ) -> Callable[..., Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await answer(view, request)

        return endpoint

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        await console.close()

    app = Starlette(
        routes=[
            *(Route(view.path, answers(console.page, view)) for view in PAGES),
            *(Route(f"/live{view.path}", answers(console.live, view)) for view in PAGES if view.every),
            Route("/complete", console.complete),
            Route("/act/{act}", console.act, methods=["POST"]),
            Route("/sign-in", console.sign_in, methods=["GET", "POST"]),
            Route("/sign-out", console.sign_out, methods=["POST"]),
            Mount("/static", _Assets(directory=STATIC)),
        ],
        exception_handlers=dict.fromkeys((Refused, HTTPException, EvschedError, Exception), console.problem),
        middleware=[Middleware(_Headers)],
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.console = console
    return app
