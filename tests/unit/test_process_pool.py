"""The processes of a worker: when one is used again, how one ends, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from evsched.execution import process_pool
from evsched.execution.process_pool import CallHandler, HandlerMissing, ProcessDied, ProcessPool
from evsched.execution.run import Delivery, Run
from evsched.jobs.job import FetchedJob, encode
from evsched.jobs.steering import Snooze
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.anyio

HEAVY = "tests.support.heavy"


@pytest.fixture
async def pool() -> AsyncGenerator[ProcessPool]:
    pool = ProcessPool()
    yield pool
    await pool.close()


def order_of(name: str, *args: object) -> CallHandler:
    return CallHandler(HEAVY, name, FetchedJob("a", 1, 1.0, encode({"task": name, "args": args})), "q", 0.0)


def run_of(order: CallHandler, on_progress: Callable[[], None] | None = None) -> Run:
    return Run(order.job, Delivery("q", 1.0, 0.0, on_progress))


async def run(pool: ProcessPool, name: str, *args: object) -> Any:
    order = order_of(name, *args)
    return await pool.call(order, run_of(order))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_process_is_used_again_and_a_second_one_only_at_the_same_time(pool: ProcessPool) -> None:
    assert [await run(pool, "double", n) for n in range(3)] == [0, 2, 4]
    pid = await run(pool, "pid")
    assert await run(pool, "pid") == pid
    pids = set(await asyncio.gather(run(pool, "pid"), run(pool, "pid")))
    assert len(pids) == 2
    assert pid in pids


async def test_process_that_died_without_work_is_replaced(pool: ProcessPool) -> None:
    pid = await run(pool, "pid")
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert await run(pool, "double", 1) == 2
    assert gone(pid)


async def test_process_without_work_is_ended_after_some_time(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = await asyncio.gather(run(pool, "pid"), run(pool, "pid"))
    monkeypatch.setattr(process_pool, "_IDLE_MOST", -1.0)
    kept = await run(pool, "pid")
    assert [pid for pid in pids if not gone(pid)] == [kept]


@pytest.mark.parametrize("times", [1, 2])
async def test_cancelled_call_ends_the_process(pool: ProcessPool, tmp_path: Path, times: int) -> None:
    """A run may be cancelled again while its process ends."""
    pid, began = await run(pool, "pid"), asyncio.Event()
    os.mkfifo(tmp_path / "gate")
    order = order_of("climb", str(tmp_path / "gate"))
    climbing = asyncio.ensure_future(pool.call(order, run_of(order, began.set)))
    async with asyncio.timeout(PATIENCE):
        await began.wait()
        for _ in range(times):
            climbing.cancel()
            await asyncio.wait([climbing], timeout=0)
        await asyncio.wait([climbing])
        while times > 1 and not gone(pid):
            await asyncio.to_thread(os.sched_yield)
    assert gone(pid)
    assert await run(pool, "double", 1) == 2


async def test_run_whose_process_is_killed_before_the_handler_begins_has_not_entered_it(pool: ProcessPool) -> None:
    pid, order = await run(pool, "pid"), order_of("pid")
    os.kill(pid, signal.SIGSTOP)
    calling = asyncio.ensure_future(pool.call(order, called := run_of(order)))
    await checkpoint()  # the order is sent
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcessDied, match=r"its process died \(.*\) before its handler began$"):
        await calling
    assert not called.entered


async def test_run_that_is_cancelled_knows_that_its_handler_had_begun_a_moment_ago(
    pool: ProcessPool, tmp_path: Path
) -> None:
    await run(pool, "pid")
    await pool.ready(HEAVY, "spin")
    os.mkfifo(tmp_path / "gate")
    order = order_of("spin", str(tmp_path / "gate"))
    calling = asyncio.ensure_future(pool.call(order, called := run_of(order)))
    await checkpoint()  # the order is sent
    (tmp_path / "gate").read_text()  # the handler has begun, and the event loop has not read that yet
    assert not called.entered
    calling.cancel()
    await asyncio.wait([calling])
    assert called.entered


async def test_exit_code_of_a_process_that_is_killed_after_its_end_is_its_own(
    pool: ProcessPool, caplog: pytest.LogCaptureFixture
) -> None:
    process = await pool.find(HEAVY, "steer")
    with pytest.raises(ProcessDied, match="its process died"):
        await process.ask(order_of("steer", "die"))
    await pool.give_back(process)
    assert process._running.returncode == 3  # pyright: ignore[reportPrivateUsage]
    assert [record.getMessage() for record in caplog.records] == []


async def test_handler_that_writes_to_the_link_ends_its_process(
    pool: ProcessPool, caplog: pytest.LogCaptureFixture
) -> None:
    pid = await run(pool, "pid")
    with pytest.raises(ProcessDied, match="its process died"):
        await run(pool, "write_to_sockets")
    assert gone(pid)
    assert [record.getMessage() for record in caplog.records] == []


async def test_arguments_that_do_not_fit_the_code_on_disk_begin_no_handler(pool: ProcessPool) -> None:
    with pytest.raises(HandlerMissing, match="cannot run it: the arguments do not fit: Expected `int`"):
        await run(pool, "double", "x")


async def test_reason_that_utf_8_cannot_hold_crosses_the_link_as_escapes(pool: ProcessPool) -> None:
    with pytest.raises(Snooze, match=r"snoozed for at least 1.0 s: \\ud800"):
        await run(pool, "steer", "snooze")


async def test_module_may_add_to_the_path_of_its_process(
    pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adding.py").write_text("import sys\nsys.path.append('added')\ndef path(): return sys.path\n")
    monkeypatch.syspath_prepend(tmp_path)
    order = CallHandler("adding", "path", FetchedJob("a", 1, 1.0, b'{"task":"path"}'), "q", 0.0)
    before = await pool.call(order, run_of(order))
    assert before == [*sys.path, "added"]
    assert await run(pool, "double", 1) == 2
    assert await pool.call(order, run_of(order)) == before


async def test_nothing_is_left_when_the_pool_closes() -> None:
    before = set(Path("/dev/fd").iterdir())
    pool = ProcessPool()
    pids = [await run(pool, "pid")]
    await pool.find(HEAVY, "pid")  # and not given back
    pids.append(await run(pool, "pid"))
    await pool.close()
    assert [gone(pid) for pid in pids] == [True, True]
    assert set(Path("/dev/fd").iterdir()) == before


MAIN = """
import asyncio
from evsched.errors import EvschedError
from evsched.execution.process_pool import CallHandler
from evsched.execution.process_pool import ProcessPool
from evsched.execution.run import Delivery, Run
from evsched.jobs.job import FetchedJob

def double(number: int) -> int:
    return 2 * number

def fail() -> None:
    raise LookupError("no luck")

async def main():
    pool = ProcessPool()
    for name, payload in (("double", b'{"task":"t","args":[21]}'), ("fail", b'{"task":"t"}')):
        job = FetchedJob("a", 1, 1.0, payload)
        try:
            print(await pool.call(CallHandler("__main__", name, job, "q", 0.0), Run(job, Delivery("q", 1.0, 0.0))))
        except EvschedError as error:
            print(error)
    await pool.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.extra
def test_handler_may_be_in_the_main_module_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(MAIN)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.splitlines() == ["42", f"LookupError: no luck ({tmp_path}/program.py:13 in fail)"]
