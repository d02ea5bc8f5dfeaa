"""Unique jobs by the wire protocol: the commands of docs/protocol.md, as `producer` with the rights that it names."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from evsched import App, JobExists, Unique
from evsched.client.option_values import id_of_arguments
from evsched.config import Config
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support import hostile
from tests.support.patience import PATIENCE
from tests.support.system import system

PRODUCERS = 40
PAYLOAD = '{"task":"work","args":[7]}'
DOCS = (Path(__file__).parents[2] / "docs/protocol.md").read_text()
(RIGHTS,) = re.findall(r"^(\+unwatch \(.*\))$", DOCS, re.MULTILINE)


def enqueue(client: Any, queue: str, job_id: str, within: int) -> bool:
    """Enqueue a job if its id is free; return whether it was."""
    unique, record = f"evsched:{{{queue}}}:unique:{job_id}", f"evsched:{{{queue}}}:job:{job_id}"
    with client.pipeline() as pipe:
        while True:
            pipe.watch(unique, record)
            payload, finished = pipe.hmget(record, "payload", "finished")
            if pipe.pttl(unique) >= 0 or (payload and not finished):
                return False
            pipe.multi()
            pipe.delete(record, f"evsched:{{{queue}}}:reply:{job_id}")
            pipe.hset(record, "payload", PAYLOAD)
            if within:
                pipe.set(unique, "", ex=within)
            pipe.zadd(f"evsched:{{{queue}}}:schedule", {job_id: 0})
            try:
                pipe.execute()
            except redis.WatchError:
                continue
            return True


@pytest.fixture
def producer(raw: Any, server: EmbeddedRedis) -> Any:
    client = hostile.producer(raw, server.url)
    raw.execute_command("ACL", "SETUSER", "producer", *re.findall(r"\([^)]*\)|\S+", " ".join(RIGHTS.split())))
    return client


@pytest.mark.one_server
@pytest.mark.parametrize("within", [0, 3600])
async def test_one_of_many_clients_enqueues_a_unique_job_and_ours_finds_it(
    producer: Any, server: EmbeddedRedis, queue: str, within: int
) -> None:
    app, ran = App(queue=queue), list[int]()

    @app.task
    async def work(number: int) -> None:
        ran.append(number)

    job_id = id_of_arguments("work", [7], {})
    async with system(Config(url=server.url, queues=(queue,)), app) as whole:
        await whole.sender.send(Store(queue).pause())
        with ThreadPoolExecutor(PRODUCERS) as pool:
            made = [pool.submit(enqueue, producer, queue, job_id, within) for _ in range(PRODUCERS)]
        assert [one.result() for one in made].count(True) == 1
        once = work.using(unique=Unique())
        with pytest.raises(JobExists, match="has not ended yet"):
            await once.enqueue(number=7)
        await whole.sender.send(Store(queue).resume())
        await app.job(job_id).result(PATIENCE)
        assert enqueue(producer, queue, job_id, within) is not bool(within)
        if within:
            with pytest.raises(JobExists, match=r"free again when .* expires"):
                await once.enqueue(7)
        else:
            await app.job(job_id).result(PATIENCE)
            await (await once.enqueue(7)).result(PATIENCE)
    assert ran == ([7] if within else [7, 7, 7])
    producer.close()
