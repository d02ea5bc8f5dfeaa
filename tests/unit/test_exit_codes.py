"""The exit code of a process of the pool is read by asyncio, whatever signals the process gets meanwhile."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from evsched.execution import exit_codes, process_pool
from evsched.execution.process_pool import ProcessDied
from tests.support import heavy
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def asyncio_reads_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have asyncio's thread read an exit code only after something has signalled the process, which has ended."""
    signalled, waitpid = threading.Event(), os.waitpid
    send_signal: Any = subprocess.Popen[bytes].send_signal

    def signal_then_set(process: Any, number: int) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        send_signal(process, number)
        signalled.set()

    def wait_for_signal(pid: int, options: int) -> tuple[int, int]:
        if threading.current_thread() is not threading.main_thread():
            signalled.wait(PATIENCE)
        return waitpid(pid, options)

    monkeypatch.setattr(subprocess.Popen, "send_signal", signal_then_set)
    monkeypatch.setattr(os, "waitpid", wait_for_signal)


async def test_the_death_of_a_process_of_the_pool_logs_no_unknown_child(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ProcessDied):
        await process_pool.call(lambda _: None, heavy.die)
    assert [record.getMessage() for record in caplog.records] == []


async def test_the_exit_code_of_a_process_that_is_killed_after_its_end_is_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exit_codes.leave_to_asyncio()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(3)")
    process.kill()
    assert await process.wait() == 3
    assert [record.getMessage() for record in caplog.records] == []
