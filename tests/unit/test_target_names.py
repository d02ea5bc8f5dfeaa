"""Names are looked up once at a time, in the hosts file and in DNS; an unanswered one delays no other."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Sequence

import pytest

from evsched import GiveUp, RetryLater
from evsched.client.target_tasks import read_request
from evsched.targets.intake import Transfer
from evsched.targets.session import Session
from tests.support.endpoint import Endpoint, Reply, always
from tests.support.names import dns
from tests.support.outbound import new_session, send
from tests.support.patience import PATIENCE

CLOSING = always(Reply(headers={"connection": "close"}))


async def test_simultaneous_requests_share_one_lookup() -> None:
    asked, begun, go = Counter[str](), asyncio.Event(), asyncio.Event()

    async def find(host: str) -> Sequence[str]:
        asked[host] += 1
        begun.set()
        await go.wait()
        return ["127.0.0.1"]

    async with Endpoint(CLOSING) as endpoint, new_session(find) as session:
        url = f"http://slow.test:{endpoint.port}/"
        sending = [asyncio.create_task(send(session, url)) for _ in range(50)]
        await asyncio.wait_for(begun.wait(), PATIENCE)
        sending[0].cancel()
        go.set()
        _, *found = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), PATIENCE)
        assert found == [200] * 49
        assert asked["slow.test"] == 1
        assert await send(session, url) == 200
        assert asked["slow.test"] == 2  # nothing is remembered


async def test_unanswered_lookups_do_not_delay_others() -> None:
    async with dns("127.0.0.1") as (server, names), Session([], names=names) as session:
        dead = list[asyncio.Task[int]]()
        for n in range(600):
            dead.append(asyncio.create_task(send(session, f"http://n{n}.dead.test/")))
            await asyncio.wait_for(server.unanswered.acquire(), PATIENCE)
        for task in dead[:300]:
            task.cancel()  # their jobs give up
        with pytest.raises(GiveUp, match=r"fine\.test has the address 127\.0\.0\.1, which is not public"):
            await send(session, "http://fine.test/")
        assert not any(task.done() for task in dead[300:])
        for task in dead:
            task.cancel()
        await asyncio.gather(*dead, return_exceptions=True)


async def test_an_address_needs_no_lookup() -> None:
    asked = list[str]()

    def find(host: str) -> Sequence[str]:
        asked.append(host)
        return []

    async with Endpoint(hosts=("127.0.0.1",)) as endpoint, new_session(find) as session:
        assert await send(session, endpoint.url) == 200
    assert asked == []


async def test_ten_addresses_of_a_host_are_tried() -> None:
    async with dns(*(f"127.0.1.{n}" for n in range(1, 26))) as (_, names):
        found = await names().resolve("many.test", 80, socket.AF_UNSPEC)
    assert len({one["host"] for one in found}) == 10


@pytest.mark.parametrize("host", ["localhost", socket.gethostname()])
async def test_the_file_of_hosts_is_asked_before_the_dns(host: str) -> None:
    own = {found[4][0] for found in socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)}
    async with dns("192.0.2.1") as (server, make_names):
        names = make_names()
        found = await names.resolve(host, 80, socket.AF_UNSPEC)
        await names.close()
    assert {one["host"] for one in found} & own
    assert server.asked == []


async def test_a_name_that_does_not_exist_is_looked_up_again() -> None:
    def find(host: str) -> Sequence[str]:
        raise OSError(None, "Domain name not found")

    async with new_session(find) as session:
        for _ in range(2):
            with pytest.raises(RetryLater, match=r"the address of shop.test cannot be found: Domain name not found"):
                await send(session, "http://shop.test/")


async def test_name_without_an_address_is_reported() -> None:
    async with dns() as (_, names), Session([], names=names) as session:
        with pytest.raises(RetryLater, match=r"the address of shop.test cannot be found: "):
            await send(session, "http://shop.test/")


async def test_unfinished_request_names_the_step_it_waits_for() -> None:
    async with dns() as (server, names), Session([], names=names) as session:
        request = read_request("http://n.dead.test/", "GET", {}, None)
        transfer = Transfer(request.target)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await session.send(request, {}, transfer)
        assert transfer.missing == "the address of n.dead.test was not found"
        assert transfer.arrived() is None
    assert server.asked
