"""Queues with shards, on one server and on a cluster: their jobs, limits, recurrences and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evsched import App, Job, JobMissing, keys
from evsched.client.task_handle import AsyncTask
from evsched.shards import Shards
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli, Log, terminate
from tests.support.cluster import PLACES, foreign_client, started
from tests.support.web import scrape

pytestmark = pytest.mark.anyio

TASKS = """
import asyncio, os
from evsched import App, current_job

app = App(queue="mail", shards={"mail": 12, "sms": 3})
app.limit("mail", concurrency=26)
app.limit("sms", concurrency=8)

def note(line):
    with open("ran", "a") as file:
        print(line, file=file)

@app.task
async def send(number: int) -> str:
    note(f"+ {current_job().queue} {number}")
    await asyncio.sleep(0.01)
    note(f"- {current_job().queue} {number}")
    return current_job().queue

@app.task(queue="sms", name="text")
async def text(number: int) -> str:
    return await send(number)

@app.recurring(every=1, overlap="allow")
@app.task(retention=60)
async def tick() -> None:
    note(f"tick {current_job().queue} {current_job().planned}")

other = App(queue="sms:1")  # its name is that of a shard

@other.task(name="plain", queue="news:0")
async def plain() -> str:
    return current_job().queue
"""

COUNTS = {"mail": 12, "sms": 3}


@pytest.fixture(scope="module", params=PLACES)
def url(request: pytest.FixtureRequest, server: EmbeddedRedis) -> Generator[str]:
    with started(request.param, server.server) as found:
        yield found


@pytest.fixture
def raw(url: str) -> Generator[Any]:
    with foreign_client(url) as client:
        client.flushall()
        yield client
        client.flushall()


@pytest.fixture
def cli(url: str, raw: Any, tmp_path: Path) -> Cli:
    (tmp_path / "tasks.py").write_text(TASKS)
    return Cli(url, tmp_path)


def schedule(foreign: Any, queue: str, job_id: str, payload: str, due: float) -> None:
    foreign.hset(keys.job(queue, job_id), mapping={"payload": payload})
    foreign.zadd(keys.schedule(queue), {job_id: due})


@contextmanager
def serving(cli: Cli, workers: int = 1) -> Generator[list[Log]]:
    """Run a dispatcher, and workers that serve both queues."""
    with ExitStack() as stack:
        logs = list[Log]()
        for words in [("dispatcher", "--metrics-port", "0"), *[("worker", "tasks:app")] * workers]:
            child = cli.start(*words)
            stack.callback(terminate, child)
            logs.append(Log(child))
            logs[-1].until("DispatcherStarted", "WorkerStarted")
        yield logs


class Program(NamedTuple):
    """A program that enqueues, in another process than the workers."""

    app: App
    send: AsyncTask[[int], str]
    text: AsyncTask[[int], str]


@pytest.fixture
async def program(url: str) -> AsyncGenerator[Program]:
    app = App(url, queue="mail", shards=COUNTS)

    @app.task
    async def send(number: int) -> str:
        raise NotImplementedError

    @app.task(queue="sms")
    async def text(number: int) -> str:
        raise NotImplementedError

    yield Program(app, send, text)
    await app.close()


async def enqueue(task: AsyncTask[[int], str], jobs: int, delay: float = 0.0) -> list[Job[str]]:
    return await task.using(delay=delay).enqueue_many([(number,) for number in range(jobs)])


def ran(cli: Cli) -> list[list[str]]:
    return [line.split() for line in (cli.folder / "ran").read_text().splitlines()]


async def test_jobs_are_spread_over_all_shards_and_each_runs_once(cli: Cli, program: Program) -> None:
    with serving(cli, workers=2):
        mails = await enqueue(program.send, 600)
        texts = await enqueue(program.text, 200)
        assert {await job.result() for job in mails} == {"mail"}
        assert {await job.result() for job in texts} == {"sms"}
        used = {(await job.status()).queue for job in (*mails, *texts)}
        assert used == {f"mail:{n}" for n in range(12)} | {f"sms:{n}" for n in range(3)}
    begun = Counter((queue, number) for sign, queue, number in ran(cli) if sign == "+")
    assert len(begun) == 800
    assert set(begun.values()) == {1}


@pytest.mark.long
async def test_a_limit_holds_over_all_shards_and_all_workers(cli: Cli, program: Program) -> None:
    with serving(cli, workers=2):
        for job in await enqueue(program.send, 400):
            await job.result()
    running = most = 0
    for sign, queue, _ in ran(cli):
        if queue == "mail" and sign in "+-":
            running += 1 if sign == "+" else -1
            most = max(most, running)
    assert 13 < most <= 26


@pytest.mark.long
async def test_indivisible_limit_is_reported_at_start(cli: Cli) -> None:
    text = TASKS.replace("concurrency=26", "concurrency=12")
    (cli.folder / "tasks.py").write_text(text)
    done = cli.process("worker", "tasks:app")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "limit concurrency of queue mail is 12: it is divided among 12 shards" in done.stderr


@pytest.mark.long
async def test_job_runs_and_is_found_in_a_shard_chosen_by_a_client(cli: Cli, raw: Any, program: Program) -> None:
    app, job_id = program.app, "order-1"
    home = Shards(COUNTS).home("mail", job_id)
    others = [name for name in Shards(COUNTS).all_of("mail") if name != home]
    job, missing = app.job(job_id), app.job("order-2")
    for queue in (others[0], "mail"):
        schedule(raw, queue, job_id, '{"task":"send","args":[1]}', 4e9)
        assert (await job.status()).queue == queue
        await job.reschedule(delay=3600)
        assert await job.cancel() == "schedule"
        with pytest.raises(JobMissing):
            await job.status()
    for act in (missing.status, missing.cancel, missing.reschedule, missing.result):
        with pytest.raises(JobMissing):
            await act()
    schedule(raw, others[1], "order-3", '{"task":"send","args":[2]}', 0)
    with serving(cli):
        assert await app.job("order-3").result() == "mail"


@pytest.mark.long
async def test_recurrence_of_a_sharded_queue_runs_each_time_once(cli: Cli, program: Program) -> None:
    ticks = list[list[str]]()
    with serving(cli, workers=2):
        while len(ticks) < 3:
            (job,) = await enqueue(program.send, 1)
            await job.result()
            ticks = [words for words in ran(cli) if words[0] == "tick"]
    assert {words[1] for words in ticks} == {"mail"}
    assert len({words[2] for words in ticks}) == len(ticks) >= 3


@pytest.mark.long
async def test_metrics_have_no_separate_series_for_shards(cli: Cli, program: Program) -> None:
    with serving(cli) as (log, _):
        for job in [*await enqueue(program.send, 60), *await enqueue(program.text, 20)]:
            await job.result()
        await enqueue(program.text, 30, delay=3600)
        found = await scrape(log.until("Listening")["url"])
        assert found.labels("queue_jobs", "queue") >= {"mail", "sms"}
        assert not [name for name in found.labels("queue_jobs", "queue") if name.startswith(("mail:", "sms:"))]
        assert found("queue_jobs", queue="sms", place="schedule") == 30
        assert found("queue_workers", queue="mail") == 1


@pytest.mark.long
async def test_a_dispatcher_that_names_a_queue_serves_its_shards(cli: Cli, raw: Any, program: Program) -> None:
    cli.environment["EVSCHED_QUEUES"] = "mail"
    raw.zadd(keys.SHARDS, {"mail": 12})
    with serving(cli):
        for job in await enqueue(program.send, 60):
            assert await job.result() == "mail"


@pytest.mark.long
async def test_a_queue_that_is_only_named_like_a_shard_is_a_queue(cli: Cli, url: str, raw: Any) -> None:
    app = App(url, queue="news:0")
    with serving(cli), cli.running("worker", "tasks:other", "--queue", "news:0", until="WorkerStarted"):
        schedule(raw, "news:0", "a", '{"task":"plain"}', 0)
        assert await app.job("a").result() == "news:0"
    await app.close()
