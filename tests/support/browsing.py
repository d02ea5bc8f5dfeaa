"""A browser without a screen: asks the real application of the console for pages, and sends their forms."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import pytest
from starlette.applications import Starlette

from evsched.config import Config
from evsched.console.console_app import Console, create
from evsched.console.live import Reread

_INLINE: Final = re.compile(r"</?(?:a|abbr|b|code|kbd|span|time)\b[^>]*>")
"""Tags that leave no gap between words."""
_TAG: Final = re.compile(r"<[^>]*>")


class Browser:
    """Opens pages as an admin, unless `role` signs in another."""

    def __init__(self, app: Starlette, client: httpx.AsyncClient) -> None:
        self.app, self.client = app, client
        self.console: Console = app.state.console

    async def page(self, path: str, **query: str) -> str:
        """Return the HTML of a page that there is."""
        response = await self.client.get(path, params=query or None, follow_redirects=True)
        assert response.status_code == 200, response.text
        return response.text

    async def settled(self, path: str, **query: str) -> str:
        """Return the HTML of a page that is read little by little, once all is read."""
        while re.search("Counted so far|more follow", page := await self.page(path, **query)):
            pass
        return page

    async def words(self, path: str, **query: str) -> str:
        """Return what a page says once all is read, without its tags, each gap one space."""
        return words(await self.settled(path, **query))

    async def data(self, path: str) -> Any:
        """Return what a page shows as JSON."""
        found = await self.client.get(path)
        assert found.headers["content-type"] == "application/json"
        return found.json()

    async def regions(self, path: str, **query: str) -> dict[str, str]:
        """Return what an open page gets: the HTML of its live regions by their names."""
        caught = list[Reread]()

        async def stream(_key: str, reread: Reread, *_: Any) -> AsyncGenerator[bytes]:
            caught.append(reread)
            yield b""

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.console.hub, "stream", stream)
            await self.client.get(f"/live{path}", params=query or None)
        return (await caught[0]()).regions

    async def send(self, page: str, act: str, **fields: str) -> str:
        """Send a form with the proof of a page; return what the page says to which it leads."""
        answer = await self._post(page, act, fields)
        target = answer.headers.get("location")
        return words(answer.text if target is None else await self.page(target))

    async def act(self, path: str, act: str, **fields: str) -> httpx.Response:
        """Send a form with the proof of the page of a path; return the answer itself."""
        return await self._post(await self.page(path), act, fields)

    async def _post(self, page: str, act: str, fields: dict[str, str]) -> httpx.Response:
        proof = re.search(r'name="proof" value="([^"]+)"', page)
        assert proof, "the page has no form"
        return await self.client.post(f"/act/{act}", data={"proof": proof[1], **fields})


def words(page: str) -> str:
    """Return what a page says, without its tags, each gap one space."""
    body = re.sub(r"(?s)<(script|style|head)\b.*?</\1>", " ", page)
    text = _TAG.sub(" ", _INLINE.sub("", body.replace("><", "> <")))
    return re.sub(r"\s+", " ", html.unescape(text)).strip()


@asynccontextmanager
async def browsing(url: str, **settings: Any) -> AsyncGenerator[Browser]:
    """Yield a browser of a console without tokens, as it runs on loopback."""
    app = create(Config(url=url, **settings), alone=True)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield Browser(app, client)
