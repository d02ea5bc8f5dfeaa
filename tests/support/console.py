"""Users of the console, over the real application: each is a browser without a screen, with cookies of its own."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urlencode

import httpx
from starlette.types import ASGIApp, Message

from evsched import keys
from evsched.client.client import SyncClient
from evsched.config import Config
from evsched.console import create
from evsched.console.users import COOKIE, FindVisitor, Role, make_token
from evsched.store.acts import Operator
from tests.support.patience import PATIENCE

LATER: Final = 4e9
"""A moment at which nothing is due yet."""

BASE: Final = "http://console"
"""Browsers send no Sec-Fetch-Site there, so this support does not, either."""


class Found(HTMLParser):
    """The forms of a page, as (method, action), and the values of their fields by name."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.forms = list[tuple[str, str]]()
        self.fields = dict[str, str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append((given.get("method", "get"), given.get("action", "")))
        if tag in ("input", "button") and "name" in given:
            self.fields[given["name"]] = given.get("value", "")


class Browser:
    """One user. `prefix`: the path below which the console is mounted."""

    def __init__(self, http: httpx.AsyncClient, prefix: str = "") -> None:
        self.http, self.prefix = http, prefix

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.get(self.prefix + path, **options)

    async def sign_in(self, token: str, *, back: str | None = None, **options: Any) -> httpx.Response:
        query = "" if back is None else f"?{urlencode({'back': back})}"
        return await self.http.post(f"{self.prefix}/sign-in{query}", data={"token": token}, **options)

    async def proof(self, path: str = "/jobs") -> str:
        """Return what the forms of this user's pages prove themselves with; empty if the page has no form."""
        return Found((await self.get(path)).text).fields.get("proof", "")

    async def send(self, path: str, /, *, proof: str | None = None, **fields: str) -> httpx.Response:
        """Send a form as a page of the console does."""
        given = await self.proof() if proof is None else proof
        return await self.http.post(
            self.prefix + path, data={"proof": given, **fields}, headers={"Origin": str(self.http.base_url).rstrip("/")}
        )

    @property
    def session(self) -> str:
        return self.http.cookies.get(COOKIE) or ""


class Consoles:
    """Applications on one Redis, and their users."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = SyncClient(url)

    def token(self, name: str, role: Role) -> str:
        return self._client.run(make_token(name, role, 1.7e9, Operator("test", "python")))

    def audited(self, queue: str) -> list[tuple[str, str, str]]:
        """Return who did what to a queue from where, the latest first."""
        return [(one.who, one.source, one.act) for one in self._client.audit(queue)]

    def close(self) -> None:
        self._client.close()

    @asynccontextmanager
    async def app(
        self, *, alone: bool = False, find_visitor: FindVisitor | None = None, **settings: Any
    ) -> AsyncGenerator[ASGIApp]:
        app = create(Config(url=self.url, **settings), alone=alone, find_visitor=find_visitor)
        async with app.router.lifespan_context(app):
            yield app

    @asynccontextmanager
    async def browser(
        self,
        app: ASGIApp,
        *,
        address: str = "127.0.0.1",
        base: str = BASE,
        prefix: str = "",
        named: tuple[str, str] | None = None,
    ) -> AsyncGenerator[Browser]:
        """Yield a browser at an address. `named`: a header that all its requests have."""
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(address, 4711))
        headers = [] if named is None else [(named[0].encode(), named[1].encode())]
        async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers, timeout=PATIENCE) as http:
            yield Browser(http, prefix)

    @asynccontextmanager
    async def browser_of(self, url: str, prefix: str = "") -> AsyncGenerator[Browser]:
        """Yield a browser at a console that is a process."""
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http:
            yield Browser(http, prefix)

    @asynccontextmanager
    async def signed_in(
        self, app: ASGIApp, role: Role, *, name: str = "ann", **options: Any
    ) -> AsyncGenerator[Browser]:
        """Yield the browser of a user who has just signed in."""
        async with self.browser(app, **options) as browser:
            assert (await browser.sign_in(await asyncio.to_thread(self.token, name, role))).status_code == 303
            yield browser


@contextmanager
def consoles(url: str) -> Generator[Consoles]:
    found = Consoles(url)
    try:
        yield found
    finally:
        found.close()


def seed(raw: Any, queue: str) -> None:
    """Make a queue with a job that waits, dead ones, one of them to be dropped, a recurrence, a batch and a graph."""
    raw.sadd(keys.QUEUES, queue)
    for job, task in (("waits", "noop"), ("dead", "noop"), ("spare", "spare")):
        raw.hset(keys.job(queue, job), "payload", f'{{"task":"{task}"}}')
    raw.zadd(keys.schedule(queue), {"waits": LATER})
    raw.zadd(f"{keys.root(queue)}dead", {"dead": 1.7e9, "spare": 1.6e9})
    raw.zadd(f"{keys.root(queue)}batches", {"b": 1.7e9})
    raw.hset(f"{keys.root(queue)}batch:b", mapping={"state": "running", "created": "1.7e9", "total": 2, "dead": 1})
    raw.set(f"{keys.root(queue)}batch_ends:b", b"\x00\x02")
    raw.rpush(f"{keys.root(queue)}batch_parts:b", f"0 2 {queue}")
    raw.hset(f"{keys.root(queue)}batch_ids:b", mapping={"0": "waits", "1": "dead"})
    raw.hset(f"{keys.root(queue)}batch:g", mapping={"state": "running", "created": "1.7e9", "total": 2, "nodes": 2})
    raw.set(f"{keys.root(queue)}batch_ends:g", b"\x00\x07")
    raw.hset(f"{keys.root(queue)}batch_nodes:g", mapping={"0": "{}", "<0": "", "1": "{}", "<1": "0"})
    raw.hset(f"{keys.root(queue)}recurrence:r", mapping={"rule": "@daily", "task": "noop"})
    raw.zadd(keys.recurrences(queue), {"r": LATER})


QUERIES: Final[dict[str, str]] = {
    "/queue": "?name={queue}",
    "/job": "?queue={queue}&id=waits",
    "/edit": "?queue={queue}&id=waits",
    "/bulk": "?verb=cancel&q=queue:{queue}+place:schedule",
    "/recurrence": "?queue={queue}&name=r",
    "/batch": "?queue={queue}&id=b&ask=cancel",
    "/node": "?queue={queue}&batch=g&id=g.1",
    "/act": "?id={run}",
}
"""The parameters that pages need, about a queue of `seed`. Tests of all pages fail for one that is missing here."""


async def query_of(path: str, queue: str, app: Any, users: Consoles) -> str:
    """Return the parameters of a page."""
    query, run = QUERIES.get(path, ""), ""
    if "{run}" in query:
        async with users.signed_in(app, "operator", name="actor") as actor:
            run = (
                (await actor.send("/act/revive", q=f"queue:{queue} task:none")).headers["location"].partition("id=")[2]
            )
        await app.state.console.acts.wait()
    return query.format(queue=queue, run=run)


class Stream:
    """An open page: the events of its stream, as they come. httpx's transport would wait for its end."""

    def __init__(self, app: ASGIApp, path: str, session: str = "", *, cookie: str = COOKIE, **headers: str) -> None:
        self._app, self._path = app, path
        self._headers = {"host": "localhost", **({"cookie": f"{cookie}={session}"} if session else {}), **headers}
        self._leave = asyncio.Event()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.status = 0
        self._started = asyncio.Event()

    async def __aenter__(self) -> Stream:
        self._task = asyncio.create_task(self._run())
        async with asyncio.timeout(PATIENCE):
            await self._started.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave.set()
        assert self._task is not None
        async with asyncio.timeout(PATIENCE):
            await self._task

    async def _run(self) -> None:
        path, _, query = self._path.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in self._headers.items()],
            "client": ("127.0.0.1", 4711),
            "server": ("console", 80),
        }
        asked = False

        async def receive() -> Message:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await self._leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self._started.set()
            elif message.get("body"):
                self._chunks.put_nowait(message["body"])

        try:
            await self._app(scope, receive, send)
        finally:
            self._chunks.put_nowait(None)

    async def chunk(self) -> str | None:
        """Return the next part of the stream; None when it has ended."""
        async with asyncio.timeout(PATIENCE):
            found = await self._chunks.get()
        return None if found is None else found.decode()

    async def regions(self) -> dict[str, str]:
        """Return the regions of the next reading that has any, by their names."""
        while (text := await self.chunk()) is not None:
            if found := regions_of(text):
                return found
        raise AssertionError("the stream has ended")


def regions_of(text: str) -> dict[str, str]:
    read: Iterable[Any] = map(json.loads, re.findall(r"^event: region\n(?:id: \w+\n)?data: (.*)$", text, re.M))
    return {one["name"]: one["html"] for one in read}
