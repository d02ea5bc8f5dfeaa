"""What a process tells its worker: the newest is heard, by the run whose it is, and nothing is left behind."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from evsched.jobs.current_job import Progress
from evsched.worker import relay
from evsched.worker.relay import Line, Teller
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.anyio


class Heard:
    """What was heard, and a way to wait for it."""

    def __init__(self) -> None:
        self.all = list[Progress]()
        self._news = asyncio.Event()

    def __call__(self, progress: Progress) -> None:
        self.all.append(progress)
        self._news.set()

    async def until(self, wanted: Progress) -> None:
        async with asyncio.timeout(PATIENCE):
            while wanted not in self.all:
                self._news.clear()
                await self._news.wait()


async def test_the_newest_is_heard_however_much_is_told() -> None:
    heard = Heard()
    with relay.receive(heard) as line:
        teller = Teller(line)
        for n in range(10_000):
            teller.tell(Progress(n, 10_000))
        await heard.until(Progress(9999, 10_000))
        assert len(heard.all) < 100
        note = "\x00" * 200
        teller.tell(Progress(1e300, -1e300, note))
        await heard.until(Progress(1e300, -1e300, note))
        assert teller.end() == Progress(1e300, -1e300, note)


async def test_each_run_hears_its_own_alone() -> None:
    one, two = Heard(), Heard()
    with relay.receive(one) as line_one, relay.receive(two) as line_two:
        first, second, stranger = Teller(line_one), Teller(line_two), Teller(Line(line_one.address, b"x" * 16))
        stranger.tell(Progress(3))
        first.tell(Progress(1))
        second.tell(Progress(2))
        await one.until(Progress(1))
        await two.until(Progress(2))
        assert (one.all, two.all) == ([Progress(1)], [Progress(2)])
        for teller in (first, second, stranger):
            teller.end()


async def test_what_is_no_progress_is_passed_over() -> None:
    heard = Heard()
    with relay.receive(heard) as line, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
        mouth.connect(line.address.encode("latin-1") if line.address.startswith("\0") else line.address)
        for rubbish in (b"", b"x", line.key, line.key + b"[", line.key + b"x" * 100_000):
            mouth.send(rubbish)
        teller = Teller(line)
        teller.tell(Progress(1))
        await heard.until(Progress(1))
        assert heard.all == [Progress(1)]
        teller.end()


async def test_a_worker_that_is_gone_stops_nobody() -> None:
    with relay.receive(Heard()) as line:
        pass
    teller = Teller(line)
    teller.tell(Progress(1))
    teller.tell(Progress(2))
    assert teller.end() == Progress(2)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
async def test_nothing_is_left_behind(platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux" and platform == "linux":
        pytest.skip("names that are no files are Linux's own")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    heard = Heard()
    with relay.receive(heard) as line:
        teller = Teller(line)
        teller.tell(Progress(1))
        await heard.until(Progress(1))
        teller.end()
        assert line.address.startswith("\0") is (platform == "linux")
        assert bool(list(tmp_path.iterdir())) is (platform != "linux")
    assert list(tmp_path.iterdir()) == []
    assert teller._thread is not None  # pyright: ignore[reportPrivateUsage]
    await asyncio.to_thread(teller._thread.join, PATIENCE)  # pyright: ignore[reportPrivateUsage]
