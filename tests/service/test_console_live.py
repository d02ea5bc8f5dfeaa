"""Open pages of the console: what they cost Redis, that a closed one costs nothing, and how they end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from evsched.console import live
from evsched.console.console_app import PAGES
from evsched.console.page import View
from evsched.console.users import COOKIE
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli
from tests.support.console import Consoles, Found, Stream, consoles, query_of, seed
from tests.support.patience import PATIENCE
from tests.support.sent import Sent

pytestmark = pytest.mark.one_server

LIVE = [view for view in PAGES if view.every is not None]
IDS = [view.name for view in LIVE]


@pytest.fixture
def users(server: EmbeddedRedis) -> Generator[Consoles]:
    with consoles(server.url) as found:
        yield found


@pytest.fixture
async def app(users: Consoles) -> AsyncGenerator[Any]:
    users.token("root", "admin")
    async with users.app() as app:
        yield app


async def read(stream: Stream, count: int) -> None:
    """Wait until a page has been read this many times more."""
    while count > 0:
        text = await stream.chunk()
        assert text is not None, "the stream has ended"
        count -= text.count("event: read\n")


def hub_of(app: Any) -> live.Hub:
    return app.state.console.hub


@pytest.mark.parametrize("view", LIVE, ids=IDS)
@pytest.mark.extra
async def test_open_page_costs_at_most_two_commands_a_second(
    users: Consoles, app: Any, queue: str, raw: Any, server: EmbeddedRedis, view: View
) -> None:
    seed(raw, queue)
    async with users.signed_in(app, "viewer") as viewer:
        query = await query_of(view.path, queue, app, users)
        with Sent(server.url) as sent:
            begun = time.monotonic()
            async with Stream(app, f"/live{view.path}{query}", viewer.session) as stream:
                await read(stream, 1)
                once = len(sent.commands())
                # It rests for as long as these may take; a reading that is not the first costs less, as hours are kept.
                await read(stream, 2)
                passed = time.monotonic() - begun
                more = sent.commands()
        assert len(more) <= live.PAGE_RATE * passed + once, more


async def test_reader_rests_for_what_it_has_cost(users: Consoles, app: Any, queue: str, raw: Any) -> None:
    seed(raw, queue)
    hub, rests = hub_of(app), list[float]()

    async def reread() -> live.PageReading:
        return live.PageReading({}, "", 8)

    async def still() -> bool:
        return True

    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noted(delay: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        rests.append(delay)
        return call_later(delay, *args, **options)

    loop.call_later = noted  # pyright: ignore[reportAttributeAccessIssue]
    try:
        for open_pages, least in ((1, 8 / live.PAGE_RATE), (100, 100 * 8 / live.TOTAL_RATE)):
            streams = [hub.stream(str(number), reread, 0.1, still) for number in range(open_pages)]
            waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
            await asyncio.gather(*waiting)
            assert hub.open == open_pages
            rests.clear()
            last = hub.stream("last", reread, 0.1, still)
            await anext(last)
            assert max(rests) == pytest.approx(
                least * (open_pages + 1) / open_pages if open_pages > 9 else least, rel=0.1
            )
            for stream in (*streams, last):
                await stream.aclose()
            assert hub.open == 0
    finally:
        del loop.call_later  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.extra
async def test_hundred_open_pages_cost_at_most_twenty_commands_a_second(
    users: Consoles, app: Any, queue: str, raw: Any, server: EmbeddedRedis
) -> None:
    seed(raw, queue)
    async with users.signed_in(app, "viewer") as viewer, AsyncExitStack() as pages:
        with Sent(server.url) as sent:
            streams = [
                await pages.enter_async_context(
                    Stream(app, f"/live/job?queue={queue}&id=waits&number={number}", viewer.session)
                )
                for number in range(100)
            ]
            for stream in streams:
                await read(stream, 1)
            assert hub_of(app).open == 100
            first = len(sent.commands())
            # Those that were opened first have rested for too short a time, once, because fewer were open then.
            begun, readings = time.monotonic(), 0
            while readings < 150:
                done, rest = await asyncio.wait(
                    [asyncio.ensure_future(read(stream, 1)) for stream in streams],
                    timeout=PATIENCE,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                readings += len(done)
                for one in rest:
                    one.cancel()
                await asyncio.gather(*rest, return_exceptions=True)
            passed = time.monotonic() - begun
            assert len(sent.commands()) <= live.TOTAL_RATE * passed + first


async def test_closed_page_costs_nothing(
    users: Consoles, app: Any, queue: str, raw: Any, server: EmbeddedRedis
) -> None:
    seed(raw, queue)
    other = f"{queue}-other"
    seed(raw, other)
    async with users.signed_in(app, "viewer") as viewer:
        with Sent(server.url) as sent:
            async with Stream(app, f"/live/job?queue={other}&id=waits", viewer.session) as still_open:
                async with Stream(app, f"/live/job?queue={queue}&id=waits", viewer.session) as stream:
                    await read(stream, 1)
                    assert hub_of(app).open == 2
                    readers = hub_of(app)._readers  # pyright: ignore[reportPrivateUsage]
                    reader = [*readers.values()][-1]  # of the page that was opened last
                assert hub_of(app).open == 1
                assert any(queue in line and other not in line for line in sent.commands())
                await asyncio.wait([reader.task], timeout=PATIENCE)
                await read(still_open, 3)
                lines = sent.commands()
                assert any(other in line for line in lines), "the other page is read"
                assert not any(queue in line and other not in line for line in lines)


async def test_viewers_of_one_address_share_one_reader(users: Consoles, app: Any, queue: str, raw: Any) -> None:
    seed(raw, queue)
    path = f"/live/queue?name={queue}"
    async with (
        users.signed_in(app, "viewer", name="ann") as ann,
        users.signed_in(app, "viewer", name="bob") as bob,
        users.signed_in(app, "operator", name="eve") as eve,
        Stream(app, path, ann.session) as first,
        Stream(app, path, bob.session) as second,
        Stream(app, path, ann.session) as third,
    ):
        regions = await asyncio.gather(first.regions(), second.regions(), third.regions())
        assert regions[0] == regions[1] == regions[2] != {}
        assert hub_of(app).open == 1
        async with Stream(app, path, eve.session) as fourth:
            await fourth.regions()
            assert hub_of(app).open == 2, "an operator has buttons"


@pytest.mark.parametrize("role", ["viewer", "operator"])
@pytest.mark.parametrize("view", LIVE, ids=IDS)
@pytest.mark.extra
async def test_region_is_of_no_user(users: Consoles, app: Any, queue: str, raw: Any, view: View, role: Any) -> None:
    """Readers are shared, so a region must not have the proof, the name or the session of the one who came first."""
    seed(raw, queue)
    query = await query_of(view.path, queue, app, users)
    async with users.signed_in(app, role, name="ann-the-first") as ann:
        page = (await ann.get(view.path + query)).text
        async with Stream(app, f"/live{view.path}{query}", ann.session) as stream:
            regions = await stream.regions()
        assert regions
        for name, html in regions.items():
            if role == "operator":  # some regions are only for them
                assert f'data-live="{name}"' in page, "the page has the element that is replaced"
            assert f'data-live="{name}"' in html.partition(">")[0], "it is the region's own element"
            for secret in (await ann.proof(), ann.session, "ann-the-first"):
                assert secret not in html, name


@pytest.mark.parametrize("ended", ["signed out", pytest.param("token deleted", marks=pytest.mark.extra)])
async def test_session_that_has_ended_closes_its_streams(
    users: Consoles, app: Any, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    monkeypatch.setattr(live, "_BEAT", 0.05)
    seed(raw, queue)
    path = f"/live/job?queue={queue}&id=waits"
    async with (
        users.signed_in(app, "viewer", name="ann") as ann,
        users.signed_in(app, "admin", name="bob") as bob,
        Stream(app, path, ann.session) as stream,
        Stream(app, path, bob.session) as others,
    ):
        await asyncio.gather(stream.regions(), read(others, 1))
        if ended == "signed out":
            await ann.send("/sign-out")
        else:
            await bob.send("/act/remove-token", name="ann")
        last = ""
        while (text := await stream.chunk()) is not None:
            last = text
        assert "event: ended" in last
        assert await others.chunk() is not None, "the page of another user goes on"


async def test_page_that_fails_says_so_and_ends_when_it_has_a_bug(
    users: Consoles, app: Any, queue: str, raw: Any
) -> None:
    async with users.signed_in(app, "viewer") as viewer:
        async with Stream(app, f"/live/job?queue={queue}&id=gone", viewer.session) as stream:
            text = await stream.chunk() or ""
            assert "event: problem" in text
            assert "There is no job gone" in text
        async with Stream(app, "/live/act?id=gone", viewer.session) as stream:
            assert "does not know the act any more" in (await stream.chunk() or "")

    async def fail() -> live.PageReading:
        raise RuntimeError("a bug")

    async def still() -> bool:
        return True

    caught = list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context))
    async with asyncio.timeout(PATIENCE):
        assert [part async for part in hub_of(app).stream("x", fail, 1, still)] == []
    assert hub_of(app).open == 0


async def test_streams_are_not_for_pages_of_other_sites(users: Consoles, app: Any) -> None:
    async with (
        users.signed_in(app, "viewer") as viewer,
        Stream(app, "/live/", viewer.session, **{"sec-fetch-site": "cross-site"}) as stream,
    ):
        assert stream.status == 403


@pytest.mark.extra
async def test_number_of_different_open_pages_is_limited(
    users: Consoles, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evsched.console.console_app._OPEN_MOST", 1)
    async with users.signed_in(app, "viewer") as viewer, Stream(app, "/live/?a", viewer.session) as first:
        await first.regions()
        async with Stream(app, "/live/?b", viewer.session) as second:
            assert second.status == 503


async def test_console_ends_at_once_with_open_streams(cli: Cli, server: EmbeddedRedis, queue: str, raw: Any) -> None:
    seed(raw, queue)
    with consoles(server.url) as users, cli.started("console", "--port", "0") as (child, log):
        users.token("root", "admin")
        url = log.until("ConsoleStarted")["url"]
        async with users.browser_of(url) as browser:
            await browser.sign_in(users.token("ann", "viewer"))
            path = f"/live/queue?name={queue}"
            async with browser.http.stream("GET", path, headers={"Cookie": f"{COOKIE}={browser.session}"}) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                assert answer.headers["content-security-policy"]
                chunks = answer.aiter_raw()
                assert b"event: read" in await anext(chunks)
                child.send_signal(signal.SIGTERM)
                async with asyncio.timeout(PATIENCE):
                    async for _ in chunks:
                        pass
        assert await asyncio.to_thread(child.wait, PATIENCE) == 0
        log.rest()
        assert [line for line in log.lines if line.get("level") != "info"] == []


async def test_api_serves_the_console_too(cli: Cli, server: EmbeddedRedis, queue: str, raw: Any) -> None:
    seed(raw, queue)
    cli.environment |= {"EVSCHED_API_WRITE_TOKENS": "a-token-that-may-write-too"}
    with consoles(server.url) as users, cli.started("api", "--port", "0", "--console") as (child, log):
        url = log.until("ApiStarted")["url"]
        async with users.browser_of(url, "/console") as browser:
            answer = await browser.http.get("/console")
            assert (answer.status_code, answer.headers["location"]) == (307, "/console/")
            page = await browser.get("/queue", params={"name": queue})
            assert 'href="/console/static/console.css' in page.text
            proof = Found(page.text).fields["proof"]
            answer = await browser.send("/act/pause", proof=proof, queue=queue)
            assert answer.headers["location"].startswith("/console/queue?")
            assert (await browser.http.get("/healthz")).json()["ok"] is True
            assert (await browser.http.get(f"/v1/queues/{queue}/jobs")).status_code == 401
            child.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.wait, PATIENCE) == 0
