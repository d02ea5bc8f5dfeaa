"""A browser of the console, over the real application: it loads pages and sends their forms."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette

from evsched.config import Config
from evsched.console.console_app import Console, create


class Browser:
    """The user of a console without tokens: an admin, whose name is `local`."""

    def __init__(self, app: Starlette, client: httpx.AsyncClient) -> None:
        self.app, self.client = app, client
        self.console: Console = app.state.console

    async def page(self, path: str) -> str:
        """Return the HTML of a page."""
        found = await self.client.get(path)
        assert found.status_code == 200, found.text
        return found.text

    async def data(self, path: str) -> Any:
        """Return what a page shows as JSON."""
        found = await self.client.get(path)
        assert found.headers["content-type"] == "application/json"
        return found.json()

    async def act(self, page: str, name: str, **fields: str) -> httpx.Response:
        """Send a form with the proof of a page."""
        proof = re.search(r'name="proof" value="(\w+)"', await self.page(page))
        assert proof is not None
        return await self.client.post(f"/act/{name}", data={"proof": proof[1], **fields})


def words(html: str) -> str:
    """Return the text of a page."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@asynccontextmanager
async def browsing(url: str, **settings: Any) -> AsyncGenerator[Browser]:
    app = create(Config(url=url, **settings), alone=True)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield Browser(app, client)
    await app.state.console.close()
