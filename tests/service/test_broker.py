"""Messages that jobs forward to an AMQP broker, a real RabbitMQ. tests/chaos/test_forward.py kills it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from functools import partial
from itertools import zip_longest
from pathlib import Path

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

from evsched import Retry, events
from evsched.config import Config
from evsched.jobs.steering import RetryLater, Snooze
from evsched.targets.broker import Broker
from evsched.transport.embedded import EmbeddedRedis
from tests.loops.test_forward_task import Forward, end_of, forward_to
from tests.support.patience import PATIENCE
from tests.support.rabbit import LARGEST, PROGRAM, Rabbit
from tests.support.system import System, system

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="RabbitMQ is not installed (Debian: rabbitmq-server)")

COUNT = 200

SLOTS = 100

REFUSED = [
    ("queue@rabbit:nowhere", None, "the broker rabbit could not route the message: there is no queue 'nowhere'"),
    (
        "exchange@rabbit:events",
        "user.deleted",
        "no queue is bound to exchange 'events' for the routing key 'user.deleted'",
    ),
    ("exchange@rabbit:nowhere", "x", "rabbit could not route the message: there is no exchange 'nowhere'"),
    ("queue@rabbit:full", None, "the broker rabbit refused the message to queue 'full': a queue may be full"),
    (
        "exchange@rabbit:amq.rabbitmq.trace",
        "x",
        "rabbit refused the message to exchange 'amq.rabbitmq.trace': the user",
    ),
    ("queue@away:orders", None, "the broker away cannot be reached: Connection refused"),
    ("queue@misspelt:orders", None, "the broker misspelt has no virtual host of the name in its URL"),
    ("queue@stranger:orders", None, "the broker stranger refused the user or the password in its URL"),
]
"""Destination, routing key, and why the message cannot be sent."""


async def taken(queue: AbstractQueue, count: int) -> list[AbstractIncomingMessage]:
    """Take `count` messages from a queue, and acknowledge them."""
    found = list[AbstractIncomingMessage]()
    async with queue.iterator(timeout=PATIENCE) as messages:
        async for message in messages:
            await message.ack()
            found.append(message)
            if len(found) == count:
                break
    return found


@pytest.mark.long
async def test_messages_are_on_their_queues_when_their_jobs_are_done(
    server: EmbeddedRedis, queue: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One test for all, because a RabbitMQ takes long to start."""
    caplog.set_level(logging.DEBUG)
    with Rabbit(tmp_path) as rabbit:
        app, forward = forward_to(
            queue,
            *("queue@rabbit:*", "exchange@rabbit:*", "queue@misspelt:*", "queue@stranger:*", "queue@away:*"),
            f"stream:{queue}",
            rabbit=rabbit.url,
            misspelt=f"{rabbit.url}nowhere",
            stranger=rabbit.url.replace(rabbit.user, "nobody"),
            away="amqp://127.0.0.1:1/",
        )
        reader = await aio_pika.connect(rabbit.url)
        channel = await reader.channel()
        orders = await channel.declare_queue("orders", durable=True)
        topics = await channel.declare_exchange("events", "topic", durable=True)
        created = await channel.declare_queue("created", durable=True)
        await created.bind(topics, "*.created")
        full = await channel.declare_queue("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        async with system(Config(url=server.url, queues=(queue,), concurrency=SLOTS), app) as running:
            jobs = await forward.using(retry=Retry(attempts=1)).enqueue_many(
                [("queue@rabbit:orders", {"n": n}) for n in range(COUNT)]
            )
            # Meanwhile some cannot be sent, which must disturb no other.
            reasons = [
                await end_of(forward, to, 1, job_id=f"dead{n}", routing_key=key)
                for n, (to, key, _) in enumerate(REFUSED)
            ]
            for job in jobs:
                assert await job.result(PATIENCE) is None
            messages = {message.message_id: message for message in await taken(orders, COUNT)}
            assert messages.keys() == {job.id for job in jobs}
            first = messages[jobs[0].id]
            assert (json.loads(first.body), first.content_type, first.delivery_mode) == (
                {"n": 0},
                "application/json",
                2,
            )

            assert await end_of(forward, "exchange@rabbit:events", "hi", routing_key="user.created") == "done"
            (message,) = await taken(created, 1)
            assert (message.message_id, message.body, message.routing_key) == ("j", b'"hi"', "user.created")
            assert full.declaration_result.message_count == 0
            await published_once_although_the_broker_was_low_on_memory(running, forward, rabbit, orders)
        caplog.set_level(logging.WARNING)
        await no_message_is_harmed_by_another(rabbit)
        await reader.close()
        await nothing_is_published_while_the_broker_takes_nothing(rabbit)
        await closed_although_the_broker_reads_nothing(rabbit)
    for reason, (_, _, why) in zip(reasons, REFUSED, strict=True):
        assert why in reason
    assert rabbit.password not in caplog.text + str(reasons)
    assert "0x" not in str(reasons)


async def no_message_is_harmed_by_another(rabbit: Rabbit) -> None:
    """Every second message has the broker close its channel, in each way in which it does."""
    broker = Broker("rabbit", rabbit.add_user("limited", writes="^(nowhere|amq\\.default|amq\\.direct)$"))
    refused = [
        ("nowhere", b"1", "there is no exchange 'nowhere'"),
        ("events", b"1", "refused the message to exchange 'events': the user in its URL may not write there"),
        ("amq.direct", bytes(LARGEST + 1), f"it has {LARGEST + 1} bytes, which may be more than the broker allows"),
    ]
    for round_ in range(5):
        good = [broker.publish("", "created", f"good{n}", f"{round_}-{n}", b"1") for n in range(COUNT)]
        bad = [
            broker.publish(refused[n % 3][0], "created", f"bad{n}", f"{round_}-{n}", refused[n % 3][1])
            for n in range(15 if round_ else COUNT)
        ]
        mixed = [one for pair in zip_longest(good, bad) for one in pair if one is not None]
        ends = await asyncio.gather(*mixed, return_exceptions=True)
        assert Counter(map(type, ends)) == {type(None): len(good), RetryLater: len(bad)}, ends
        for n, end in enumerate(end for end in ends if end is not None):
            assert refused[n % 3][2] in str(end)
    await broker.close()


async def published_once_although_the_broker_was_low_on_memory(
    running: System, forward: Forward, rabbit: Rabbit, orders: AbstractQueue
) -> None:
    """The broker blocks the connection for longer than a job waits for it, and other jobs run meanwhile."""
    rabbit.low_on_memory(low=True)
    jobs = await forward.using(retry=Retry(attempts=1)).enqueue_many([("queue@rabbit:orders", 1)] * (2 * SLOTS))
    other = await forward.enqueue(f"stream:{running.app.queue}", 1)
    assert await other.result(PATIENCE) is None
    for job in jobs:
        snoozed = await running.recorder.wait(events.JobSnoozed, partial(is_of, job.id), count=2)
        assert "the broker rabbit takes no messages now (connection.blocked)" in snoozed.reason
    rabbit.low_on_memory(low=False)
    for job in jobs:
        assert await job.result(PATIENCE) is None
    assert {str(message.message_id) for message in await taken(orders, len(jobs))} == {job.id for job in jobs}
    assert (await orders.declare()).message_count == 0


def is_of(job_id: str, event: events.JobSnoozed) -> bool:
    return event.id == job_id


async def nothing_is_published_while_the_broker_takes_nothing(rabbit: Rabbit) -> None:
    broker = Broker("rabbit", rabbit.url)
    # More than one channel is open then.
    await asyncio.gather(*(broker.publish("", "orders", f"early{n}", f"early{n}", b"1") for n in range(10)))
    rabbit.low_on_memory(low=True)
    with pytest.raises(Snooze):
        await broker.publish("", "orders", "first", "first", b"1")  # the broker tells only those who publish
    for key in ("a", "b"):
        with pytest.raises(Snooze):  # and not that a message of this id is under way
            await broker.publish("", "orders", "late", key, b"1")
    await broker.close()
    rabbit.low_on_memory(low=False)


async def closed_although_the_broker_reads_nothing(rabbit: Rabbit) -> None:
    rabbit.low_on_memory(low=True)
    before = asyncio.all_tasks()
    broker = Broker("rabbit", rabbit.url)
    big = bytes(1_000_000)  # more than fits between the two in all
    ends = await asyncio.gather(
        *(broker.publish("", "orders", f"big{n}", f"big{n}", big) for n in range(30)), return_exceptions=True
    )
    assert {type(end) for end in ends} == {Snooze}
    await broker.close()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(asyncio.all_tasks() - before), return_exceptions=True)
