"""The files of a worker that sends requests to many hosts: idle connections make room for others."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys

import pytest

from evsched import RetryLater
from evsched.targets import files, network
from evsched.targets import pool as pools
from evsched.targets.addresses import Address
from tests.support.endpoint import Endpoint
from tests.support.outbound import Tls, new_pool, send
from tests.support.patience import PATIENCE


async def test_the_connection_that_was_idle_for_the_longest_time_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_KEPT", 3600.0)
    monkeypatch.setattr(files, "_allowed", lambda: 8)
    async with Endpoint() as endpoint, new_pool() as pool:
        urls = [f"http://host{n}.test:{endpoint.port}/" for n in range(20)]
        for url in urls:
            assert await send(pool, url) == 200
        for _ in range(16):
            await asyncio.wait_for(endpoint.ended.acquire(), PATIENCE)
        for url in urls[-4:]:
            assert await send(pool, url) == 200
        assert endpoint.connections == 20
        assert await send(pool, urls[0]) == 200
        assert endpoint.connections == 21


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
async def test_a_connection_with_tls_makes_room_too(tls: Tls, monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setattr(pools, "_KEPT", 3600.0)
    monkeypatch.setattr(files, "_allowed", lambda: 2)
    async with Endpoint(tls=tls(protocol)) as endpoint, new_pool() as pool:
        for host in ("shop.test", "127.0.0.1"):
            assert await send(pool, f"https://{host}:{endpoint.port}/") == 200
        await asyncio.wait_for(endpoint.ended.acquire(), PATIENCE)


def no_delay(failures: int) -> float:
    return 0.0


async def test_when_the_system_allows_no_more_files_idle_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_one, refusals = network._open_one, 0  # pyright: ignore[reportPrivateUsage]

    async def open_sometimes(address: Address, port: int) -> socket.socket:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await open_one(address, port)

    monkeypatch.setattr(network, "_open_one", open_sometimes)
    monkeypatch.setattr(files, "reconnect_delay", no_delay)
    monkeypatch.setattr(pools, "_KEPT", 3600.0)
    async with Endpoint() as endpoint, new_pool() as pool:
        for n in range(3):
            assert await send(pool, f"http://host{n}.test:{endpoint.port}/") == 200
        refusals = 9
        assert await send(pool, f"http://other.test:{endpoint.port}/") == 200
        for _ in range(3):
            await asyncio.wait_for(endpoint.ended.acquire(), PATIENCE)
        refusals = 10
        with pytest.raises(RetryLater, match="cannot be connected to: Too many open files"):
            await send(pool, f"http://host0.test:{endpoint.port}/")


@pytest.mark.extra
@pytest.mark.parametrize(("before", "after"), [("(256, 4096)", "(4096, 4096)"), ("(256, 256)", "(256, 256)")])
def test_a_worker_raises_its_limit(before: str, after: str) -> None:
    program = f"""
import resource
from evsched.targets.files import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, {before})
raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == after
