"""Code on disk that breaks while a worker runs: jobs wait if a new process cannot import their module."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from evsched import events
from evsched.app import App, find_app
from evsched.config import Config
from evsched.execution import deferral
from evsched.jobs.job import encode
from evsched.transport.embedded import EmbeddedRedis
from tests.support.system import system

CODE = """
import os
from evsched import App, Retry, current_job

app = App()
once = Retry(attempts=1)

@app.task(on="process", retry=once, retention=60)
def on_process() -> int:
    return current_job().attempt

@app.task(retry=Retry(attempts=3), retention=60)
async def in_loop() -> int:
    return current_job().attempt
"""

BROKEN = {
    "import": "import nothing_there",
    "exit": "import sys; sys.exit('no')",
    "dies": "import os; os._exit(3)",
    "no task": CODE.replace("def on_process", "def renamed").replace("def in_loop", "def renamed_too"),
    "deleted": None,
}


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=4, process_pool=1)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(deferral, "_SOON", 0.01)
    monkeypatch.setattr(deferral, "_LOOK_AGAIN", 0.05)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "code_on_disk.py"
    path.write_text(CODE)
    yield path
    sys.modules.pop(path.stem, None)


@pytest.fixture
def app(file: Path) -> App:
    return find_app(f"{file.stem}:app")


# A suspect of two deaths is isolated, so it needs a fresh process too.
@pytest.mark.extra
@pytest.mark.parametrize(("task", "suspect"), [("on_process", "0 0"), ("in_loop", "2 0")])
@pytest.mark.parametrize("broken", BROKEN)
async def test_jobs_wait_until_the_code_is_corrected_and_lose_no_attempt(
    config: Config, queue: str, raw: Any, file: Path, app: App, task: str, suspect: str, broken: str
) -> None:
    async with system(config, app) as running:
        text = BROKEN[broken]
        file.unlink() if text is None else file.write_text(text)
        raw.hset(f"evsched:{{{queue}}}:job:1", mapping={"payload": encode({"task": task})})
        raw.hset(f"evsched:{{{queue}}}:suspects", "1", suspect)
        raw.zadd(f"evsched:{{{queue}}}:schedule", {"1": 0})
        found = await running.recorder.wait(events.HandlerNotFound)
        assert found.task == task
        await running.recorder.wait(events.JobDeferred, count=3)
        assert len(running.recorder.of(events.HandlerNotFound)) == 1
        file.write_text(CODE)
        await running.recorder.wait(events.Completed)
        job = raw.hgetall(f"evsched:{{{queue}}}:job:1")
        assert (job[b"outcome"], job[b"result"]) == (b"done", b"1")
    assert not running.recorder.of(events.JobBuried)
    assert not running.recorder.of(events.Retrying)


@pytest.mark.parametrize(
    "hidden",
    ["random", *(pytest.param(name, marks=pytest.mark.extra) for name in ("typing", "json", "redis", "signal"))],
)
async def test_jobs_wait_while_a_file_hides_a_module_and_the_reason_names_it(
    config: Config, queue: str, raw: Any, file: Path, app: App, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    async with system(config, app) as running:
        shadow = file.with_name(f"{hidden}.py")
        shadow.write_text("mine = 1")
        raw.hset(f"evsched:{{{queue}}}:job:1", mapping={"payload": encode({"task": "on_process"})})
        raw.zadd(f"evsched:{{{queue}}}:schedule", {"1": 0})
        found = await running.recorder.wait(events.HandlerNotFound)
        assert f"; rename {shadow}, which a new process imports in place of" in found.reason
        shadow.unlink()
        await running.recorder.wait(events.Completed)
        assert raw.hget(f"evsched:{{{queue}}}:job:1", "result") == b"1"
    assert not running.recorder.of(events.Retrying)
