"""The users of redis.conf: each part of a system works under its own, and Redis has nothing to refuse."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import redis

from evsched import App, JobDead, StoreRefused, current_job, events, keys
from evsched.call import Call
from evsched.call import raw as raw_reply
from evsched.client import SyncClient
from evsched.config import Config
from evsched.connection import Subscription
from evsched.embedded import EmbeddedRedis
from evsched.store import Store
from evsched.top import Top
from tests.support.system import system

CONF = Path(__file__).parents[2] / "redis.conf"
USERS = re.findall(r"^# user (\w+) (.*)$", CONF.read_text(), re.MULTILINE)


@pytest.fixture
def own() -> Generator[EmbeddedRedis]:
    """A server that has the users of redis.conf."""
    with EmbeddedRedis() as server:
        raw: Any = redis.Redis.from_url(server.url, protocol=2, driver_info=None)
        for name, rules in USERS:
            if name != "default":
                raw.execute_command("ACL", "SETUSER", name, *words_of(rules))
        raw.close()
        yield server


def words_of(rules: str) -> list[str]:
    """Split rules, a parenthesis as one word."""
    return re.findall(r"\([^)]*\)|\S+", rules)


def url(server: EmbeddedRedis, user: str) -> str:
    return server.url.replace("unix://", f"unix://{user}:change-me@")


@pytest.mark.parametrize("named", [False, True], ids=["all queues", "one queue"])
async def test_each_part_works_under_its_own_user(own: EmbeddedRedis, queue: str, named: bool) -> None:
    app = App(url(own, "client"), queue=queue)

    @app.task
    async def hang() -> None:
        await current_job().progress(1, 2)
        await asyncio.Event().wait()

    @app.task
    async def noop() -> int:
        return 1

    dispatching = Config(url=url(own, "dispatcher"), queues=(queue,) if named else ())
    working = Config(url=url(own, "worker"), queues=(queue,), grace=0.2)
    client = SyncClient(url(own, "client"))
    observer = SyncClient(url(own, "observer"))
    async with system(dispatching, App(queue=queue), workers=0), system(working, app, dispatch=False) as whole:
        await whole.recorder.wait(events.WorkerStarted)
        app.move_to(url(own, "client"))
        client.send(Store(queue).limit({"concurrency": 5, "rate": 100, "rate:alice": 50, "concurrency:alice": 2}))
        jobs = await noop.using(group="alice").enqueue_many([()] * 9)
        assert [await job.result(10) for job in jobs] == [1] * 9
        client.send(Store(queue).pause())
        later = await noop.enqueue()
        client.send(Store(queue).resume())
        assert await later.result(10) == 1
        job = await hang.enqueue()
        await whole.recorder.wait(events.Started, lambda event: job.id in event.ids)
        assert observer.send(Store(queue).explain(job.id)).holder == whole.workers[0].id
        assert len(observer.send(Store(queue).survey())) == 1
        top = Top(url(own, "observer"), (queue,) if named else ())
        (presence,) = (await top.look()).presences
        assert [run.id for run in presence.runs] == [job.id]
        await top.close()
        await job.cancel()
        with pytest.raises(JobDead, match="cancelled"):
            await job.result(10)
    with pytest.raises(StoreRefused):
        observer.send(Store(queue).pause())
    for told in (keys.control(queue, "w"), keys.present(queue, "me"), keys.gate(queue)):
        with pytest.raises(StoreRefused, match="channel"):
            observer.send(Call(("PUBLISH", told, "x"), raw_reply))
    for heard in (keys.roll(queue), keys.progress(queue, "x"), keys.control(queue, "w")):
        ear = Subscription(url(own, "observer"))
        with pytest.raises(StoreRefused, match="channel"):
            await ear.open([], [heard])
    client.close()
    observer.close()
    raw: Any = redis.Redis.from_url(own.url, protocol=2, driver_info=None)
    refused = raw.execute_command("ACL", "LOG")
    raw.close()
    assert {entry[entry.index(b"username") + 1] for entry in refused} <= {b"observer"}
