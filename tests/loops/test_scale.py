"""An autoscaler scales workers by `/scale`: a stand-in that makes the requests of KEDA's metrics-api trigger.

There is no cluster and no KEDA here. The stand-in follows KEDA's source: only the status 200 counts, the value is a
number at a place in the JSON, and an error changes nothing.
"""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from evsched import keys
from evsched.api import api_request
from evsched.jobs.job import Done
from evsched.shards import Shards
from evsched.store import server as about
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.api import READ, Caller, calling
from tests.support.sent import Sent

JOB = b'{"task":"t"}'


class Keda:
    """One ScaledObject with one trigger, and the autoscaler that KEDA makes for it.

    `target`: the targetValue, which is jobs for each replica. The cooldown period is 0.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, target: int, most: int = 10) -> None:
        self._http, self._url, self._target, self._most = http, url, target, most
        self.replicas = 0
        self.errors = list[str]()

    async def _value(self) -> float:
        """Return the metric, as the trigger with authMode `bearer` and valueLocation `jobs` reads it."""
        response = await self._http.get(self._url, headers={"Authorization": f"Bearer {READ}"})
        if response.status_code != 200:
            raise ConnectionError(f"{response.status_code} {response.json()['code']}")
        value = response.json()["jobs"]
        assert type(value) is int, "a number of JSON"
        return value

    async def poll(self) -> int:
        """Poll once, as KEDA does, then as the autoscaler does while there are replicas; return their number."""
        try:
            is_active = await self._value() > 0
            self.replicas = max(self.replicas, 1) if is_active else 0
            if self.replicas:  # the autoscaler divides by the target, and never goes to zero by itself
                self.replicas = max(1, min(self._most, math.ceil(await self._value() / self._target)))
        except ConnectionError as error:
            self.errors.append(str(error))
        return self.replicas


@pytest.fixture
def path(queue: str) -> str:
    return f"/v1/queues/{queue}/scale"


async def test_reply_has_the_jobs_of_each_place(
    api: Caller, path: str, queue: str, sender: BatchingSender, store: Store
) -> None:
    await sender.send(store.enqueue([New(f"j{n}", JOB) for n in range(20)]))
    await sender.send(store.dispatch(limit=18, cap=1000))
    await sender.send(store.start("w", (), hold=1, lease=15))
    reply = await api.ask("GET", path, token=READ)
    assert reply.status_code == 200
    numbers = {"due": 2, "backlog": 1, "ready": 16, "processing": 1, "workers": 1, "next_due_in": 0.0}
    assert reply.json() == {"queue": queue, "jobs": 20, **numbers}


async def test_worker_is_there_before_the_job_is_due_and_gone_when_it_has_ended(
    api: Caller, path: str, sender: BatchingSender, store: Store
) -> None:
    now = await sender.send(about.clock())
    await sender.send(store.enqueue([New("later", JOB, due=now + 1000)]))
    late, early = Keda(api.client, path, 4), Keda(api.client, f"{path}?lead=2000", 4)
    assert (await late.poll(), await early.poll()) == (0, 1)
    seconds = (await api.ask("GET", path)).json()["next_due_in"]
    assert 0 < seconds <= 1000
    await sender.send(store.reschedule("later", None))
    await sender.send(store.enqueue([New(f"j{n}", JOB) for n in range(8)]))
    assert await late.poll() == 3, "4 jobs for each worker"
    await sender.send(store.dispatch(limit=99, cap=1000))
    runs = (await sender.send(store.start("w", (), hold=9, lease=15))).jobs
    assert await late.poll() == 3, "the jobs that run still want their slots"
    await sender.send(store.complete("w", [(run, Done(b"null", 60, False)) for run in runs[:5]]))
    assert await late.poll() == 1
    await sender.send(store.complete("w", [(run, Done(b"null", 60, False)) for run in runs[5:]]))
    assert await late.poll() == 0
    assert (await api.ask("GET", path)).json()["next_due_in"] is None
    assert late.errors == []


async def test_outage_of_redis_is_no_queue_without_jobs(own: EmbeddedRedis, client: Any, path: str, queue: str) -> None:
    client.zadd(keys.schedule(queue), {'{"task":"t"}': 0})
    async with calling(own.url) as api:
        keda = Keda(api.client, path, 1)
        assert await keda.poll() == 1
        own.stop()
        assert (await api.ask("GET", path)).json()["code"] == "redis-away"
        assert await keda.poll() == 1
        own.start()
        assert await keda.poll() == 1
        client.flushall()
        assert await keda.poll() == 1, "Redis has lost its data"
    assert keda.errors == ["503 redis-away", "404 no-such-queue"]


async def test_number_of_shards_that_was_never_read_is_an_outage(own: EmbeddedRedis, path: str) -> None:
    own.stop()
    async with calling(own.url) as api:
        keda = Keda(api.client, path, 1)
        await keda.poll()
    assert keda.errors == ["503 redis-away"]


async def test_misspelt_queue_and_a_caller_without_a_token_are_errors(api: Caller, path: str) -> None:
    assert (await api.ask("GET", path)).json()["code"] == "no-such-queue"
    assert (await api.ask("GET", path, token=None)).status_code == 401
    for lead in ("-1", "nan", "86401", "soon"):
        assert (await api.ask("GET", f"{path}?lead={lead}")).status_code == 422, lead


async def test_api_of_one_queue_refuses_it_too_while_it_is_unused(server: EmbeddedRedis, path: str, queue: str) -> None:
    async with calling(server.url, queues=(queue,)) as api:
        assert (await api.ask("GET", path)).json()["code"] == "no-such-queue"


@pytest.mark.one_server
async def test_shards_count_as_one_queue_with_one_command_for_each(
    api: Caller,
    path: str,
    queue: str,
    sender: BatchingSender,
    server: EmbeddedRedis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await sender.send(about.set_shards(queue, 3))
    parts = Shards({queue: 3}).all_of(queue)
    for part in parts:
        await sender.send(Store(part).enqueue([New("a", JOB, due=5.0)]))
    assert (await api.ask("GET", path)).json()["jobs"] == len(parts)
    monkeypatch.setattr(api_request, "_KEPT", math.inf)  # the numbers of shards are known
    with Sent(server.url) as sent:
        assert (await api.ask("GET", path)).status_code == 200
        assert [command.partition(" ")[0] for command in sent.commands()] == ["EVALSHA"] * len(parts)
