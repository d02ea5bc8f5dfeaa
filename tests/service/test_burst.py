"""`worker --burst` recovers and runs the jobs of killed workers before it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched import App
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli

TASKS = """
from evsched import App

app = App()

@app.task
async def work() -> None: ...
"""


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    (cli.folder / "tasks.py").write_text(TASKS)
    cli.environment |= {"EVSCHED_QUEUES": queue, "EVSCHED_LEASE": "2", "EVSCHED_TEST_HEARTBEAT": "0.5"}
    return cli


@pytest.fixture
def held(queue: str, raw: Any) -> Callable[[float], str]:
    """Return a function that leaves a job with a worker whose lease ends in the given seconds."""

    def leave(left: float) -> str:
        root = f"evsched:{{{queue}}}:"
        now = float(raw.time()[0])
        record = {"payload": '{"task":"work"}', "due": now - 99, "worker": "w", "attempt": 1, "started": now - 9}
        raw.hset(f"{root}job:held", mapping=record)
        raw.rpush(f"{root}processing:w", "held")
        raw.zadd(f"{root}leases", {"w": now + left})
        return f"{root}job:held"

    return leave


@pytest.mark.extra
def test_burst_runs_jobs_of_a_dead_worker(cli: Cli, raw: Any, held: Callable[[float], str]) -> None:
    record = held(-1)
    assert cli.run("worker", "tasks:app", "--burst").returncode == 0
    assert raw.hget(record, "outcome") == b"done"


@pytest.mark.extra
def test_burst_does_not_run_jobs_of_a_live_worker(cli: Cli, raw: Any, held: Callable[[float], str]) -> None:
    record = held(60)
    assert cli.run("worker", "tasks:app", "--burst").returncode == 0
    assert raw.hget(record, "outcome") is None


def test_burst_does_not_wait_for_jobs_of_a_paused_batch(cli: Cli, queue: str, raw: Any, server: EmbeddedRedis) -> None:
    app = App(server.url, queue=queue)

    async def work() -> None: ...

    task = app.task(work)
    with app.sync() as client, client.batch("b") as batch:
        batch.add(task)
        batch.pause()
    assert cli.run("worker", "tasks:app", "--burst").returncode == 0
    assert raw.hget(f"evsched:{{{queue}}}:job:b.0", "outcome") is None
    assert raw.zrange(f"evsched:{{{queue}}}:backlog:batch:{queue}/b", 0, -1) == [b"b.0"]


@pytest.mark.extra
def test_the_app_has_the_flags_of_its_worker(cli: Cli) -> None:
    (cli.folder / "tasks.py").write_text(f"{TASKS}\nprint(app.payload_cap)")
    assert cli.run("worker", "tasks:app", "--burst", "--payload-cap", "5000").stdout == "5000\n"


def test_explain_says_that_no_dispatcher_is_there_to_requeue_a_job(
    cli: Cli, queue: str, held: Callable[[float], str]
) -> None:
    held(-1)
    assert "no dispatcher is connected to requeue the job" in cli.run("explain", "held", "--queue", queue).stdout
