"""Messages that jobs forward, while workers or the broker are killed: none is lost, and in Redis none is doubled."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

import aio_pika
import pytest

from evsched import Retry
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.client.target_tasks import QUEUE
from tests.chaos.conftest import Fleet
from tests.support.rabbit import PROGRAM, Rabbit

SHORT = {"EVSCHED_LEASE": "1.5", "EVSCHED_TEST_HEARTBEAT": "0.3"}
KILLS = 50
WORKERS = 3
BATCH = 500
STREAM = "chaos-news"
FAST = Retry(attempts=500, interval=0.2, max_interval=2.0, jitter=0.1)


@pytest.fixture(autouse=True)
def the_server_is_empty(raw: Any) -> None:
    raw.flushdb()


class Producer(Thread):
    """Keeps jobs waiting that forward messages to a destination, until it is stopped."""

    def __init__(self, url: str, raw: Any, to: str) -> None:
        super().__init__(daemon=True)
        self.ids = list[str]()
        self._client = SyncClient(url)
        self._raw = raw
        self._to = to
        self._stopping = Event()

    def run(self) -> None:
        waiting = [f"evsched:{{{QUEUE}}}:{place}" for place in ("schedule", "backlog", "backlog:origin:rabbit")]
        while not self._stopping.wait(0.02):
            if sum(map(self._raw.zcard, waiting)) < BATCH:
                ids = [f"m{n}" for n in range(len(self.ids), len(self.ids) + BATCH)]
                options = [JobOptions(id=job_id, retention=3600, retry=FAST) for job_id in ids]
                self._client.enqueue(QUEUE, [new_job("evsched.forward", (self._to, 1), {}, one) for one in options])
                self.ids += ids

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._client.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2))
def test_fifty_kills_of_workers_that_forward_to_their_own_redis(fleet: Fleet, raw: Any, seed: int) -> None:
    """Each message is in the stream exactly once."""
    rng = random.Random(seed)
    fleet.start("dispatcher", **SHORT)
    workers = [start_worker(fleet, f"stream:{STREAM}") for _ in range(WORKERS)]
    producer = Producer(fleet.url, raw, f"stream:{STREAM}")
    producer.start()
    held = 0
    for n in range(KILLS):
        victim = n % WORKERS
        wait_for_messages(raw, STREAM, more=200)
        time.sleep(rng.uniform(0, 0.02))
        workers[victim].kill()
        workers[victim].wait()
        held += sum(raw.llen(key) for key in raw.keys(f"evsched:{{{QUEUE}}}:processing:*"))
        workers[victim] = start_worker(fleet, f"stream:{STREAM}")
    producer.stop()
    wait_until_idle(raw)
    sent = Counter(fields[b"id"].decode() for fields in entries(raw, STREAM))
    assert sent.keys() == {*producer.ids}
    assert [job for job, count in sent.items() if count > 1] == []
    assert outcomes(raw, producer.ids) == {b"done": len(producer.ids)}
    print(f"{KILLS} kills; {len(sent)} messages, each once; jobs were held at the moments of the kills: {held}")
    assert held


@pytest.mark.timeout(300)
@pytest.mark.skipif(PROGRAM is None, reason="RabbitMQ is not installed (Debian: rabbitmq-server)")
def test_a_broker_that_is_killed_and_restarted_under_load(fleet: Fleet, raw: Any, tmp_path: Path) -> None:
    with Rabbit(tmp_path) as rabbit:
        asyncio.run(declare(rabbit.url))
        for _ in range(2):
            start_worker(fleet, "queue@rabbit:orders", EVSCHED_FORWARD_URL_RABBIT=rabbit.url)
        fleet.start("dispatcher", **SHORT)
        producer = Producer(fleet.url, raw, "queue@rabbit:orders")
        producer.start()
        for n in range(3):
            wait_for_done(raw, producer, more=1500)
            rabbit.kill()
            time.sleep(n)
            rabbit.start()
        wait_for_done(raw, producer, more=1500)
        producer.stop()
        wait_until_idle(raw)
        received = asyncio.run(drain(rabbit.url))
    assert received.keys() == {*producer.ids}
    assert outcomes(raw, producer.ids) == {b"done": len(producer.ids)}
    again = sum(count - 1 for count in received.values())
    print(f"3 kills of the broker; {len(received)} messages, none lost; {again} arrived again")


def start_worker(fleet: Fleet, to: str, **settings: str) -> Any:
    return fleet.start(
        "worker", "evsched.targets:app", "--forward-destination", to, "--concurrency", "50", **SHORT, **settings
    )


def wait_for_messages(raw: Any, stream: str, more: int) -> None:
    until, enough = time.monotonic() + 60, raw.xlen(stream) + more
    while raw.xlen(stream) < enough:
        assert time.monotonic() < until, "no messages arrive"
        time.sleep(0.01)


def wait_for_done(raw: Any, producer: Producer, more: int) -> None:
    """Wait until `more` further jobs have ended."""
    until, enough = time.monotonic() + 60, done(raw, producer) + more
    while done(raw, producer) < enough:
        assert time.monotonic() < until, "no messages arrive"
        time.sleep(0.05)


def done(raw: Any, producer: Producer) -> int:
    return outcomes(raw, producer.ids[:])[b"done"]


def outcomes(raw: Any, ids: Sequence[str]) -> Counter[bytes | None]:
    pipe = raw.pipeline(transaction=False)
    for job_id in ids:
        pipe.hget(f"evsched:{{{QUEUE}}}:job:{job_id}", "outcome")
    return Counter(pipe.execute())


def entries(raw: Any, stream: str) -> Iterator[dict[bytes, bytes]]:
    last = "-"
    while some := raw.xrange(stream, last, "+", 1000):
        yield from (fields for _, fields in some)
        last = f"({some[-1][0].decode()}"


def wait_until_idle(raw: Any) -> None:
    until = time.monotonic() + 120
    while any(
        key.rpartition(b":")[2] in (b"schedule", b"backlog", b"ready") or b":processing:" in key
        for key in raw.keys(f"evsched:{{{QUEUE}}}:*")
        if b":job:" not in key
    ):
        assert time.monotonic() < until, "jobs were lost, or hang"
        time.sleep(0.2)


async def declare(url: str) -> None:
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    await channel.declare_queue("orders", durable=True)
    await connection.close()


async def drain(url: str) -> Counter[str]:
    """Take all messages; return how often each id has arrived."""
    found = Counter[str]()
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    orders = await channel.declare_queue("orders", durable=True, passive=True)
    while (message := await orders.get(no_ack=True, fail=False)) is not None:
        found[str(message.message_id)] += 1
    await connection.close()
    return found
