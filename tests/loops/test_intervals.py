"""Recurrences made without the code of their task are checked against the retry policy that a worker published."""

from __future__ import annotations

from typing import Any

import pytest

from evsched import App, ConfigError, Declared, Retry, process_events
from evsched.config import Config
from evsched.diagnostics.queue_checks import broken_recurrences
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender
from tests.support.system import system

OFTEN = Declared(name="often", rule="every 60", payload=b'{"task":"slow"}')


@pytest.fixture
def app(queue: str) -> App:
    app = App(queue=queue)

    @app.task(retry=Retry(attempts=3, interval=60))
    async def slow() -> None: ...

    return app


async def test_too_frequent_recurrence_is_refused_once_the_policy_is_known(
    config: Config, app: App, queue: str
) -> None:
    async with system(config, app, dispatch=False):
        with pytest.raises(ConfigError, match="it recurs after 60 s, and the retries of one occurrence may take"):
            await app.client.declare(queue, OFTEN)
        await app.client.declare(queue, Declared(name="r", rule="@daily", payload=OFTEN.payload))
        await app.client.declare(queue, Declared(name="r", rule="every 60", payload=OFTEN.payload, overlap="allow"))


async def test_too_frequent_recurrence_of_another_client_is_a_finding(
    config: Config, app: App, queue: str, raw: Any, sender: BatchingSender
) -> None:
    root = f"evsched:{{{queue}}}:"
    raw.hset(f"{root}recurrence:often", mapping={"rule": "every 60", "payload": OFTEN.payload})
    raw.zadd(f"{root}recurrences", {"often": 0})
    assert await broken_recurrences(sender, [queue], pause=0) == []
    async with system(config, app, dispatch=False):
        pass
    (found,) = await broken_recurrences(sender, [queue], pause=0)
    assert (found.check, found.level, found.where) == ("recurrence-too-frequent", "warning", f"queue {queue}, often")
    raw.hset(f"{root}recurrence:often", "after", "end")
    assert await broken_recurrences(sender, [queue], pause=0) == []


async def test_worker_starts_even_if_it_cannot_publish_its_policies(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    raw.set(f"evsched:{{{queue}}}:tasks", "x")
    async with system(config, app) as running:
        assert running.recorder.of(process_events.RedisFailed)
        await running.sender.send(Store(queue).wake())
    raw.delete(f"evsched:{{{queue}}}:tasks")
