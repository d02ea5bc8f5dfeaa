"""Steps and signals by commands, over HTTP and from other clients; and a worker that is killed between two steps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from evsched.client.client import SyncClient
from evsched.testing import Clock, clock, evsched_server
from evsched.transport.embedded import EmbeddedRedis
from tests.support import long_jobs
from tests.support.api import calling
from tests.support.cli import Cli
from tests.support.long_jobs import notes
from tests.support.patience import PATIENCE

__all__ = ["clock", "evsched_server"]

SHORT = {"EVSCHED_LEASE": "1", "EVSCHED_TEST_HEARTBEAT": "0.2"}

TASKS = """
import os
from pathlib import Path
from evsched import App, Retry
from evsched.steps import step, wait_for

app = App()

def note(path, text):
    with open(path, "a") as file:
        file.write(f"{text}\\n")

def die_first(path):
    died = "died" in Path(path).read_text()
    note(path, "died")
    if not died:
        os.kill(os.getpid(), 9)

@app.task(retry=Retry(attempts=5))
async def job(path):
    await step("one", note, path, "one")
    await step("two", die_first, path)
    await step("three", note, path, "three")
    return await wait_for("approved", 60)
"""


@pytest.fixture
def cli(server: EmbeddedRedis, tmp_path: Path) -> Cli:
    (tmp_path / "tasks.py").write_text(TASKS)
    return Cli(server.url, tmp_path)


@pytest.fixture
def client(server: EmbeddedRedis) -> Any:
    client = SyncClient(server.url)
    yield client
    client.close()


async def until_waiting(client: SyncClient, queue: str, job: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (status := client.status(queue, job)) is None or status.waiting is None:
            await asyncio.to_thread(client.now, queue)


@pytest.mark.anyio
async def test_job_of_a_killed_worker_goes_on_behind_its_steps_and_waits_for_a_signal(
    cli: Cli, client: SyncClient, queue: str, tmp_path: Path
) -> None:
    path = tmp_path / "notes"
    with cli.started("dispatcher", "--queue", queue, environment=SHORT):
        with cli.started("worker", "tasks:app", "--queue", queue, environment=SHORT) as (worker, _):
            assert cli.run("enqueue", "job", json.dumps(str(path)), "--queue", queue, "--id", "a").returncode == 0
            await asyncio.to_thread(worker.wait, PATIENCE)
        with cli.started("worker", "tasks:app", "--queue", queue, environment=SHORT):
            await until_waiting(client, queue, "a")
            shown, explained = cli.run("show", "a", "--queue", queue), cli.run("explain", "a", "--queue", queue)
            sent = cli.run("signal", "a", "approved", '{"by": "ann"}', "--queue", queue)
            assert await asyncio.to_thread(client.result, queue, "a", PATIENCE) == {"by": "ann"}
    assert notes(path) == ["one", "died", "died", "three"]
    assert "one, two, three" in shown.stdout
    assert "for the signal approved since " in shown.stdout
    assert "waits for the signal approved since " in explained.stdout
    assert (sent.returncode, sent.stdout) == (0, "a waited for the signal approved, and is due now\n")
    again = cli.run("signal", "a", "approved", "--queue", queue)
    assert (again.returncode, "has ended" in again.stderr) == (1, True)


@pytest.mark.extra
def test_signals_of_an_operator_are_in_the_audit_trail(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    cli.run("enqueue", "job", '"x"', *of, "--id", "a", "--in", "1h")
    kept = cli.run("signal", "a", "ok", "1", *of, "--as", "ann")
    assert kept.stdout == "a does not wait for the signal ok yet: it is kept until then\n"
    known = cli.run("signal", "a", "ok", "2", *of, "--as", "bob")
    assert known.stdout == "the signal ok had come to a before: nothing was changed\n"
    for wrong in (("a", "o k"), ("a", "ok", "{"), ("b", "ok")):
        refused = cli.run("signal", *wrong, *of)
        assert (refused.returncode in (1, 2), refused.stderr.count("\n")) == (True, 1)
    (act,) = cli.json("audit", *of)
    assert (act["who"], act["act"], act["what"], act["ids"]) == ("ann", "signal", {"signal": "ok"}, ["a"])


@pytest.mark.extra
def test_another_client_sends_a_signal_with_the_documented_call(cli: Cli, queue: str, raw: Any) -> None:
    cli.run("enqueue", "job", '"x"', "--queue", queue, "--id", "a", "--in", "1h")
    sha = raw.script_load(cli.run("script", "signal").stdout)
    words = f"evsched:{{{queue}}}:", "", "a", "approved", '{"by":"ann"}', ""
    assert raw.evalsha(sha, 1, *words) == b"kept"
    assert raw.evalsha(sha, 1, *words) == b"known"
    assert cli.json("show", "a", "--queue", queue)["signals"] == ["approved"]


@pytest.mark.extra
@pytest.mark.anyio
async def test_signal_over_http(server: EmbeddedRedis, cli: Cli, queue: str) -> None:
    cli.run("enqueue", "job", '"x"', "--queue", queue, "--id", "a", "--in", "1h")
    path = f"/v1/queues/{queue}/jobs"
    async with calling(server.url) as api:
        sent = await api.ask("POST", f"{path}/a/signals", {"name": "ok", "value": [1]})
        assert (sent.status_code, sent.json()) == (200, {"id": "a", "signal": "ok", "done": "kept"})
        assert (await api.ask("POST", f"{path}/a/signals", {"name": "ok"})).json()["done"] == "known"
        assert (await api.ask("POST", f"{path}/b/signals", {"name": "ok"})).status_code == 404
        assert (await api.ask("POST", f"{path}/a/signals", {"name": "o k"})).status_code in (400, 422)
        shown = (await api.ask("GET", f"{path}/a")).json()
    assert (shown["signals"], shown["steps"], shown["waiting"]) == (["ok"], [], None)


@pytest.mark.extra
@pytest.mark.anyio
async def test_signal_for_which_a_job_has_no_room_is_refused_with_a_sentence(
    server: EmbeddedRedis, cli: Cli, queue: str
) -> None:
    cli.run("enqueue", "job", '"x"', "--queue", queue, "--id", "a", "--in", "1h")
    why = "a has no room for the signal three: the signals of a job have at most 65536 bytes in all, with their names"
    async with calling(server.url) as api:
        path, value = f"/v1/queues/{queue}/jobs/a/signals", "x" * 32_700
        for name in ("one", "two"):
            assert (await api.ask("POST", path, {"name": name, "value": value})).json()["done"] == "kept"
        refused = await api.ask("POST", path, {"name": "three", "value": value})
    assert (refused.status_code, refused.json()["code"], refused.json()["detail"]) == (422, "invalid", why)
    shown = cli.run("signal", "a", "three", f'"{value}"', "--queue", queue)
    assert (shown.returncode, shown.stderr) == (2, f"evsched: {why}\n")


@pytest.fixture
def evsched_app() -> Any:
    return long_jobs.app


@pytest.mark.extra
@pytest.mark.anyio
async def test_clock_of_a_test_runs_steps_and_waits(clock: Clock, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    job = await long_jobs.approval.enqueue(path, 3600.0)
    (first,) = await clock.advance(minutes=10)
    assert first.outcome == "snoozed"
    await long_jobs.app.signal(job.id, "approved", 7)
    (second,) = await clock.advance(seconds=1)
    assert (second.outcome, second.result) == ("done", 7)
    assert notes(path) == ["fetch1", "waits", "waits"]
    late = await long_jobs.approval.enqueue(path, 3600.0)
    runs = await clock.advance(hours=2)
    assert [run.outcome for run in runs] == ["snoozed", "dead"]
    assert (await late.status()).reason == (
        "the signal approved did not come within 1h 00m: send it, or revive the job to wait again"
    )
