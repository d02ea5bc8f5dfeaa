"""The wire protocol, spoken by foreign clients: redis-cli, and Node's `redis`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from evsched import App, GiveUp, current_job, events
from evsched.config import Config
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.system import System, system

Send = Callable[..., Awaitable[list[Any]]]

_NODE = Path(__file__).parent / "node"


async def _run(*words: str) -> str:
    child = await asyncio.create_subprocess_exec(*words, stdout=-1, stderr=-1)
    out, err = await asyncio.wait_for(child.communicate(), PATIENCE)
    assert child.returncode == 0, err.decode()
    return out.decode()


@pytest.fixture(params=["redis-cli", "node"])
def send(request: pytest.FixtureRequest, server: EmbeddedRedis) -> Send:
    """Send commands, each a list of words; return their replies."""
    socket = str(server.socket)

    async def by_cli(*commands: list[str]) -> list[Any]:
        return [json.loads(await _run("redis-cli", "-s", socket, "--json", *command)) for command in commands]

    async def by_node(*commands: list[str]) -> list[Any]:
        return json.loads(await _run("node", str(_NODE / "client.mjs"), socket, json.dumps(commands)))

    if request.param == "redis-cli":
        if shutil.which("redis-cli") is None:
            pytest.skip("redis-cli is not installed (Debian: redis-tools)")
        return by_cli
    if shutil.which("node") is None or not (_NODE / "node_modules/redis").is_dir():
        pytest.skip("node or its package redis is not installed (npm install --prefix tests/service/node redis)")
    return by_node


@pytest.fixture
async def running(server: EmbeddedRedis, queue: str) -> AsyncGenerator[System]:
    app = App(queue=queue)

    @app.task
    async def lateness() -> float:
        return current_job().lateness

    @app.task
    async def refuse() -> None:
        raise GiveUp("the account is closed")

    async with system(Config(url=server.url, queues=(queue,)), app) as found:
        yield found


def job(task: str = "lateness", **more: Any) -> str:
    return json.dumps({"task": task, **more})


def record(reply: Any) -> dict[str, str]:
    """Return a record from a reply to HGETALL, which is a dict or a list, depending on the client."""
    return cast("dict[str, str]", reply) if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


async def ended(running: System, job_id: str) -> None:
    await running.recorder.wait(events.Completed, lambda event: job_id in event.ids)


@pytest.mark.extra
@pytest.mark.one_server
async def test_one_zadd_schedules_a_job_that_runs_when_it_is_due(send: Send, running: System, queue: str) -> None:
    member = job(args=[], retention=60)
    job_id = hashlib.sha1(member.encode()).hexdigest()
    due = time.time() + 0.6
    await send(["ZADD", f"evsched:{{{queue}}}:schedule", str(due), member])
    await ended(running, job_id)
    (reply,) = await send(["HGETALL", f"evsched:{{{queue}}}:job:{job_id}"])
    found = record(reply)
    assert found["outcome"] == "done"
    assert 0 <= float(found["result"]) < PATIENCE
    assert float(found["started"]) >= float(found["due"]) == pytest.approx(due, abs=1e-5)


@pytest.mark.extra
@pytest.mark.one_server
async def test_hset_and_zadd_schedule_a_job_whose_record_has_its_outcome(
    send: Send, running: System, queue: str
) -> None:
    await send(
        ["HSET", f"evsched:{{{queue}}}:job:42", "payload", job(), "priority", "7", "group", "alice"],
        ["ZADD", f"evsched:{{{queue}}}:schedule", "0", "42"],
    )
    await ended(running, "42")
    (reply,) = await send(["HGETALL", f"evsched:{{{queue}}}:job:42"])
    found = record(reply)
    assert (found["outcome"], found["attempt"], found["priority"], found["group"]) == ("done", "1", "7", "alice")
    assert 0 <= float(found["result"]) < PATIENCE


@pytest.mark.one_server
async def test_zadd_xx_reschedules_a_job_and_zrem_cancels_it(send: Send, running: System, queue: str, raw: Any) -> None:
    schedule = f"evsched:{{{queue}}}:schedule"
    await send(
        *(["HSET", f"evsched:{{{queue}}}:job:{name}", "payload", job()] for name in ("nearer", "later", "gone")),
        ["ZADD", schedule, str(time.time() + 3600), "nearer", str(time.time() + 3600), "later"],
        ["ZADD", schedule, str(time.time() + 3600), "gone"],
        ["ZADD", schedule, "XX", str(time.time() + 7200), "later"],
        ["ZREM", schedule, "gone"],
        ["ZADD", schedule, "XX", "0", "nearer"],
    )
    await ended(running, "nearer")
    assert [name for event in running.recorder.of(events.Started) for name in event.ids] == ["nearer"]
    assert raw.zrange(schedule, 0, -1) == [b"later"]
    assert raw.zscore(schedule, "later") > time.time() + 3600


@pytest.mark.extra
@pytest.mark.one_server
async def test_blpop_receives_the_outcome_of_a_job_with_a_reply(send: Send, running: System, queue: str) -> None:
    schedule = f"evsched:{{{queue}}}:schedule"
    *_, done, dead = await send(
        ["HSET", f"evsched:{{{queue}}}:job:good", "payload", job(reply=True)],
        ["ZADD", schedule, "0", "good"],
        ["ZADD", schedule, "0", job("refuse", id="bad", reply=True)],
        ["BLPOP", f"evsched:{{{queue}}}:reply:good", str(PATIENCE)],
        ["BLPOP", f"evsched:{{{queue}}}:reply:bad", str(PATIENCE)],
    )
    good, bad = json.loads(done[1]), json.loads(dead[1])
    assert (good["id"], good["outcome"], good["result"] >= 0) == ("good", "done", True)
    assert bad == {"id": "bad", "outcome": "dead", "result": None, "reason": "the account is closed"}
    (reply,) = await send(["HGETALL", f"evsched:{{{queue}}}:job:bad"])
    assert record(reply)["reason"] == "the account is closed"


@pytest.mark.extra
@pytest.mark.one_server
async def test_hset_and_zadd_make_a_recurrence(send: Send, running: System, queue: str) -> None:
    name, root = "clock", f"evsched:{{{queue}}}:"
    payload = json.dumps({"task": "lateness", "retry": {"attempts": 1}})
    await send(
        ["HSET", f"{root}recurrence:{name}", "rule", "* * * * * *", "zone", "Europe/Berlin", "payload", payload],
        ["ZADD", f"{root}recurrences", "0", name],
    )
    await running.recorder.wait(events.Completed, count=2)
    (reply,) = await send(["HGETALL", f"{root}recurrence:{name}"])
    assert int(record(reply)["runs"]) >= 2
    assert record(reply)["last_outcome"] == "done"
    ids = [job_id for event in running.recorder.of(events.Completed) for job_id in event.ids]
    assert all(job_id.startswith("clock@") for job_id in ids)
    assert len(set(ids)) == len(ids)
    await send(["ZREM", f"{root}recurrences", name], ["DEL", f"{root}recurrence:{name}"])
