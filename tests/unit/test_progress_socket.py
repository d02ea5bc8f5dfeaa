"""What a process reports to its worker: the newest report reaches its own run, and nothing is left behind."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from evsched.execution import progress_socket
from evsched.execution.progress_socket import ProgressSender, SocketAddress
from evsched.jobs.current_job import Progress
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.anyio


class Received:
    """What was received, and a way to wait for it."""

    def __init__(self) -> None:
        self.all = list[Progress]()
        self._arrived = asyncio.Event()

    def __call__(self, progress: Progress) -> None:
        self.all.append(progress)
        self._arrived.set()

    async def until(self, wanted: Progress) -> None:
        async with asyncio.timeout(PATIENCE):
            while wanted not in self.all:
                self._arrived.clear()
                await self._arrived.wait()


async def test_the_newest_report_arrives_however_many_there_are() -> None:
    received = Received()
    with progress_socket.receive(received) as address:
        sender = ProgressSender(address)
        for n in range(10_000):
            sender.report(Progress(n, 10_000))
        await received.until(Progress(9999, 10_000))
        assert len(received.all) < 100
        note = "\x00" * 200
        sender.report(Progress(1e300, -1e300, note))
        await received.until(Progress(1e300, -1e300, note))
        assert sender.end() == Progress(1e300, -1e300, note)


async def test_each_run_receives_only_its_own_reports() -> None:
    one, two = Received(), Received()
    with progress_socket.receive(one) as address_one, progress_socket.receive(two) as address_two:
        first, second, stranger = (
            ProgressSender(address_one),
            ProgressSender(address_two),
            ProgressSender(SocketAddress(address_one.address, b"x" * 16)),
        )
        stranger.report(Progress(3))
        first.report(Progress(1))
        second.report(Progress(2))
        await one.until(Progress(1))
        await two.until(Progress(2))
        assert (one.all, two.all) == ([Progress(1)], [Progress(2)])
        for sender in (first, second, stranger):
            sender.end()


async def test_malformed_datagrams_are_ignored() -> None:
    received = Received()
    with progress_socket.receive(received) as address, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as raw:
        raw.connect(address.address.encode("latin-1") if address.address.startswith("\0") else address.address)
        for rubbish in (b"", b"x", address.key, address.key + b"[", address.key + b"x" * 100_000):
            raw.send(rubbish)
        sender = ProgressSender(address)
        sender.report(Progress(1))
        await received.until(Progress(1))
        assert received.all == [Progress(1)]
        sender.end()


async def test_reports_to_a_worker_that_is_gone_raise_nothing() -> None:
    with progress_socket.receive(Received()) as address:
        pass
    sender = ProgressSender(address)
    sender.report(Progress(1))
    sender.report(Progress(2))
    assert sender.end() == Progress(2)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
async def test_nothing_is_left_behind(platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux" and platform == "linux":
        pytest.skip("only Linux has socket names that are not files")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    received = Received()
    with progress_socket.receive(received) as address:
        sender = ProgressSender(address)
        sender.report(Progress(1))
        await received.until(Progress(1))
        sender.end()
        assert address.address.startswith("\0") is (platform == "linux")
        assert bool(list(tmp_path.iterdir())) is (platform != "linux")
    assert list(tmp_path.iterdir()) == []
    assert sender._thread is not None  # pyright: ignore[reportPrivateUsage]
    await asyncio.to_thread(sender._thread.join, PATIENCE)  # pyright: ignore[reportPrivateUsage]
