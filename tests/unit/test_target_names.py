"""Names are looked up once at a time, and one that is not found keeps no other waiting."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncGenerator

import pytest

from evsched import RetryLater
from evsched.client.target_url import read_url
from evsched.targets import names as module
from evsched.targets.addresses import Address
from evsched.targets.names import Names
from evsched.targets.network import Connector
from tests.support.patience import PATIENCE


class Resolver:
    """Answers for the domain `fine` at once, and for all others when it is let go."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.go = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Semaphore(0)

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked[host] += 1
        if not host.endswith("fine"):
            self._loop.call_soon_threadsafe(self._begun.release)
            self.go.wait(PATIENCE)
        return ["93.184.216.34"]

    async def begun(self, count: int = 1) -> None:
        """Wait until that many lookups hang."""
        for _ in range(count):
            await asyncio.wait_for(self._begun.acquire(), PATIENCE)


@pytest.fixture
async def resolver() -> AsyncGenerator[Resolver]:
    found = Resolver()
    yield found
    found.go.set()


async def test_a_name_is_looked_up_once_for_all_who_ask_at_one_time(resolver: Resolver) -> None:
    names = Names(resolver)
    asking = [asyncio.create_task(names.find("slow", 80)) for _ in range(50)]
    await resolver.begun()
    asking[0].cancel()
    resolver.go.set()
    _, *found = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), PATIENCE)
    assert found == [["93.184.216.34"]] * 49
    assert resolver.asked["slow"] == 1
    await asyncio.wait_for(names.find("slow", 80), PATIENCE)
    assert resolver.asked["slow"] == 2  # nothing is remembered


async def test_names_that_hang_keep_no_other_waiting(resolver: Resolver) -> None:
    connector = Connector([], resolver)
    hanging = [asyncio.create_task(_addresses(connector, f"{n}.slow")) for n in range(300)]
    await resolver.begun(300)
    for task in hanging[:200]:
        task.cancel()  # their jobs give up, and the system goes on
    await asyncio.gather(*hanging[:200], return_exceptions=True)
    assert len(await _addresses(connector, "is.fine")) == 1
    resolver.go.set()
    await asyncio.gather(*hanging[200:])


async def test_an_address_needs_no_lookup(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOKUPS", 1)
    connector = Connector([], resolver)
    hanging = asyncio.create_task(_addresses(connector, "slow"))
    await resolver.begun()
    for host in ("93.184.216.34", "[2606:2800:220:1::1]"):
        assert len(await _addresses(connector, host)) == 1
    resolver.go.set()
    await hanging
    assert set(resolver.asked) == {"slow"}


async def test_a_lookup_that_nobody_waits_for_any_more_is_not_begun(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOKUPS", 1)
    names = Names(resolver)
    first, waits = (asyncio.create_task(names.find(host, 80)) for host in ("slow", "later"))
    await resolver.begun()
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    resolver.go.set()
    await first
    await asyncio.wait_for(names.find("is.fine", 80), PATIENCE)
    assert resolver.asked == {"slow": 1, "is.fine": 1}


async def test_a_name_that_does_not_exist_is_looked_up_again() -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    connector = Connector([], resolve)
    for _ in range(2):
        with pytest.raises(RetryLater, match=r"the address of shop.test cannot be found: Name or service not known"):
            await _addresses(connector, "shop.test")


async def test_a_system_without_room_for_a_thread(monkeypatch: pytest.MonkeyPatch, resolver: Resolver) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    names = Names(resolver)
    with monkeypatch.context() as patched, contextlib.suppress(OSError):
        patched.setattr(module.Thread, "start", start)
        await names.find("is.fine", 80)
        pytest.fail("no thread was started")
    assert await names.find("is.fine", 80) == ["93.184.216.34"]


async def _addresses(connector: Connector, host: str) -> list[Address]:
    return await asyncio.wait_for(connector.addresses(read_url(f"http://{host}/")), PATIENCE)
