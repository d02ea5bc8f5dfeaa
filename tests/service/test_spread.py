"""Jobs are spread evenly over real workers, and none waits while a slot is free anywhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from evsched import App, Job
from evsched.transport.call import text
from tests.support.cli import Cli
from tests.support.patience import PATIENCE
from tests.support.snapshot import light_fields

pytestmark = pytest.mark.anyio

TASKS = """
import asyncio
import time

from evsched import App

app = App()

@app.task
async def compute(after: float) -> None:
    if after:
        await asyncio.sleep(after)
    time.sleep(0.03)  # the event loop is busy, as with a computation

@app.task
async def wait(path: str) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    await reader.read()
    writer.close()
"""


@pytest.fixture
def cli(cli: Cli) -> Cli:
    (cli.folder / "tasks.py").write_text(TASKS)
    return cli


@pytest.fixture
async def app(server: Any, queue: str) -> AsyncGenerator[App]:
    app = App(server.url, queue=queue)
    yield app
    await app.close()


@contextmanager
def serving(cli: Cli, queue: str, *slots: int) -> Generator[None]:
    """Run a dispatcher, and a worker with each of these numbers of slots."""
    with ExitStack() as stack:
        stack.enter_context(cli.running("dispatcher", "--queue", queue, until="DispatcherStarted"))
        for count in slots:
            words = ("worker", "tasks:app", "--queue", queue, "--concurrency", str(count))
            stack.enter_context(cli.running(*words, until="WorkerStarted"))
        yield


class Waiting:
    """The runs of `wait`, which last until they are let go."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()
        self._writers = list[asyncio.StreamWriter]()

    async def on_run(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        self._writers.append(writer)
        self._changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.count < count:
                await self._changed.wait()
                self._changed.clear()

    def let_go(self) -> None:
        while self._writers:
            self._writers.pop().close()


@asynccontextmanager
async def waiting(path: Path) -> AsyncGenerator[Waiting]:
    runs = Waiting()
    # All connect at once, and a connection for which there is no room in the backlog fails.
    async with await asyncio.start_unix_server(runs.on_run, path, backlog=512):
        yield runs
        runs.let_go()


def shares(raw: Any, queue: str, jobs: Sequence[Job[Any]]) -> list[int]:
    """Return how many of these jobs each worker has run, or is running."""
    root = f"evsched:{{{queue}}}:"
    light = {job.decode(): light_fields(one.decode()).get("worker") for job, one in raw.hgetall(f"{root}light").items()}
    workers = (light.get(job.id) or text(raw.hget(f"{root}job:{job.id}", "worker") or b"") for job in jobs)
    ran = Counter(worker for worker in workers if worker)
    return sorted(ran.values())


async def until_waiting(raw: Any, queue: str, workers: int) -> None:
    """Wait until `workers` workers wait for a job: one that has just started takes nothing yet."""
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(raw.zcard, f"evsched:{{{queue}}}:idle") < workers:
            pass


@pytest.mark.extra
@pytest.mark.one_server
@pytest.mark.parametrize("after", [0.0, 0.005])
@pytest.mark.parametrize("slots", [8, 256])
async def test_jobs_that_keep_the_event_loop_busy_are_shared(
    cli: Cli, app: App, queue: str, raw: Any, after: float, slots: int
) -> None:
    @app.task
    async def compute(after: float) -> None: ...

    # Some 50 each. A worker that the machine stops in the few milliseconds in which the jobs are taken has far fewer,
    # which happens once; one that is kept from its share has almost none each time.
    rounds = list[list[int]]()
    with serving(cli, queue, slots, slots):
        while not rounds or (min(rounds[-1]) < 20 and len(rounds) < 5):
            await until_waiting(raw, queue, 2)
            jobs = await compute.enqueue_many([(after,)] * 100)
            await asyncio.gather(*(job.result(PATIENCE) for job in jobs))
            rounds.append(shares(raw, queue, jobs))
            assert sum(rounds[-1]) == 100
    assert (len(rounds[-1]), min(rounds[-1]) >= 20) == (2, True), rounds


@pytest.mark.extra
async def test_no_job_waits_while_a_slot_is_free_in_a_large_or_a_small_worker(
    cli: Cli, app: App, queue: str, raw: Any, tmp_path: Path
) -> None:
    @app.task
    async def wait(path: str) -> None: ...

    async with waiting(tmp_path / "socket") as runs:
        with serving(cli, queue, 256, 4):
            jobs = await wait.enqueue_many([(str(tmp_path / "socket"),)] * 300)
            await runs.until(260)
            assert shares(raw, queue, jobs) == [4, 256]
            runs.let_go()
            await runs.until(300)
            runs.let_go()
            await asyncio.gather(*(job.result(PATIENCE) for job in jobs))
