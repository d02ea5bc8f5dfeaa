"""The task `evsched.forward`: valid payloads, and messages that arrive at streams, lists and channels."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from evsched import App, JobDead, Retry, events
from evsched.client.target_tasks import ForwardJob, target_task
from evsched.client.task_handle import TaskHandle
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.targets.forward import RETRY, Destinations, Forwarder, read_destinations
from evsched.targets.targets_app import make_app
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client
from tests.support.system import system

Forward = TaskHandle[..., Any]


def forward_to(queue: str, *allowed: str, **urls: str) -> tuple[App, Forward]:
    """Return an app that has the task, and allows these destinations."""
    environment = {f"EVSCHED_FORWARD_URL_{name.upper()}": url for name, url in urls.items()}
    forwarder = Forwarder(read_destinations(allowed, environment))
    app = App(queue=queue, lifespan=lambda: forwarder)
    app.tasks.add(task := target_task("evsched.forward", ForwardJob, forwarder.forward, RETRY))
    return app, TaskHandle(app, task)


async def end_of(forward: Forward, *args: Any, job_id: str = "j", **kwargs: Any) -> str:
    """Return "done", or why the job is dead."""
    job = await forward.using(retry=Retry(attempts=1), id=job_id).enqueue(*args, **kwargs)
    try:
        assert await job.result(PATIENCE) is None
    except JobDead as error:
        return str(error)
    return "done"


@pytest.mark.one_server
async def test_messages_arrive_with_the_id_of_the_job(config: Config, raw: Any, queue: str) -> None:
    app, forward = forward_to(queue, f"stream:{queue}*", f"list:{queue}*", f"channel:{queue}*")
    message = {"n": [1, 2.5, None, "\u20ac\n"]}
    async with system(config, app):
        assert await end_of(forward, f"stream:{queue}:s", message, most=1000) == "done"
        ((_, fields),) = raw.xrange(f"{queue}:s")
        assert (fields[b"id"], json.loads(fields[b"message"])) == (b"j", message)

        assert await end_of(forward, f"list:{queue}:l", message) == "done"
        assert await end_of(forward, f"list:{queue}:l", "bare", bare=True) == "done"
        assert await end_of(forward, f"list:{queue}:l", 7, bare=True, end="left") == "done"
        first, second, third = raw.lrange(f"{queue}:l", 0, -1)
        assert (first, json.loads(second), third) == (b"7", {"id": "j", "message": message}, b'"bare"')

        with raw.pubsub() as subscription:
            subscription.subscribe(f"{queue}:c")
            assert subscription.get_message(timeout=PATIENCE)["type"] == "subscribe"
            assert await end_of(forward, f"channel:{queue}:c", message) == "done"
            assert json.loads(subscription.get_message(timeout=PATIENCE)["data"]) == {"id": "j", "message": message}


async def test_messages_to_another_redis_arrive(config: Config, queue: str, own: EmbeddedRedis, client: Any) -> None:
    app, forward = forward_to(queue, "stream@other:news", "list@other:news:*", "channel@other:news", other=own.url)
    async with system(config, app):
        with client.pubsub() as subscription:
            subscription.subscribe("news")
            assert subscription.get_message(timeout=PATIENCE)["type"] == "subscribe"
            assert await end_of(forward, "channel@other:news", 1) == "done"
            assert json.loads(subscription.get_message(timeout=PATIENCE)["data"]) == {"id": "j", "message": 1}
        assert await end_of(forward, "stream@other:news", 2, most=5) == "done"
        assert [fields for _, fields in client.xrange("news")] == [{b"id": b"j", b"message": b"2"}]
        assert await end_of(forward, "list@other:news:l", 3, end="left") == "done"
        assert await end_of(forward, "list@other:news:l", 4, bare=True) == "done"
        assert client.lrange("news:l", 0, -1) == [b'{"id":"j","message":3}', b"4"]
        reason = await end_of(forward, "list@other:news:l", 5, most=5, job_id="k")
        assert "a list has no option most" in reason
        client.set("news", "x")
        assert "of other: the key has another type" in await end_of(forward, "stream@other:news", 2, job_id="l")


async def _answer_without_end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Announce an answer of 2 GB to a Redis client; to an AMQP client, a frame of 808 MB."""
    writer.write(b"$2000000000\r\n")
    with contextlib.suppress(OSError):
        while True:
            writer.write(bytes(65536))
            await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("to", "url", "reason"),
    [
        ("stream@server:news", "redis://127.0.0.1:{}", "reply is longer than 1048576 bytes: is it a Redis?"),
        ("queue@server:news", "amqp://127.0.0.1:{}", "frame has 808464433 bytes, more than 4194304: is it an AMQP"),
    ],
)
async def test_an_answer_without_end_is_not_kept(config: Config, queue: str, to: str, url: str, reason: str) -> None:
    server = await asyncio.start_server(_answer_without_end, "127.0.0.1", 0)
    app, forward = forward_to(queue, to, server=url.format(server.sockets[0].getsockname()[1]))
    async with system(config, app):
        assert reason in await end_of(forward, to, 1)
    server.close()


async def test_a_server_that_does_not_answer_leaves_slots_to_other_messages(
    config: Config, raw: Any, queue: str
) -> None:
    connected, to, mine = asyncio.Event(), "stream@silent:news", f"{{{queue}}}:s"

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        slots = structs.replace(
            config, concurrency=8, origin_concurrency=2, forward_destinations=(to, f"stream:{mine}")
        )
        variables = {"EVSCHED_FORWARD_URL_SILENT": f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        app = make_app(slots, variables)
        async with system(slots, app):
            await app.forward.using(queue=queue).enqueue_many([(to, n) for n in range(40)])
            await asyncio.wait_for(connected.wait(), PATIENCE)
            jobs = await app.forward.using(queue=queue).enqueue_many([(f"stream:{mine}", n) for n in range(8)])
            for job in jobs:
                assert await job.result(PATIENCE) is None
            assert int(raw.hget(f"evsched:{{{queue}}}:in_flight", "#origin:silent") or 0) <= 2
    assert raw.xlen(mine) == 8


async def _end_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _answer_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            _end_at_once,
            "the broker server ended the connection, or does not speak AMQP 0-9-1: is it an AMQP broker?",
        ),
        (_answer_nothing, "the broker server did not answer: is it up, and is it an AMQP broker?"),
    ],
)
async def test_server_that_is_not_a_broker_is_reported_in_a_sentence(
    config: Config, queue: str, answer: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evsched.targets.broker._CONNECT_WITHIN", 0.5)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    app, forward = forward_to(queue, "queue@server:news", server=f"amqp://user:serve@127.0.0.1:{port}")
    async with system(config, app):
        assert await end_of(forward, "queue@server:news", 1) == f"j is dead: attempt 1 of 1: {reason}"
    server.close()


async def test_message_waits_for_memory_of_another_redis_without_losing_attempts(
    config: Config, queue: str, own: EmbeddedRedis, client: Any
) -> None:
    app, forward = forward_to(queue, "stream@other:news", other=own.url)
    client.config_set("maxmemory", 1)
    async with system(config, app) as running:
        job = await forward.using(retry=Retry(attempts=1)).enqueue("stream@other:news", 1)
        snoozed = await running.recorder.wait(events.JobSnoozed, count=2)
        assert "the message to stream 'news' of other: its memory is full: raise `maxmemory`" in snoozed.reason
        client.config_set("maxmemory", 0)
        assert await job.result(PATIENCE) is None
        assert client.xlen("news") == 1


async def test_unreachable_server_is_retried_and_its_password_is_not_shown(config: Config, queue: str) -> None:
    with EmbeddedRedis(port=0) as other:
        url = other.url.replace("://", "://:hunter2@")
        raw = plain_client(other.url)
        raw.config_set("requirepass", "hunter2")
        raw.close()
        app, forward = forward_to(queue, "stream@other:news", other=url)
        async with system(config, app) as running:
            assert await end_of(forward, "stream@other:news", 1) == "done"
            other.kill()
            job = await forward.using(retry=Retry(attempts=100, interval=0.05, factor=1, jitter=0)).enqueue(
                "stream@other:news", 2
            )
            retrying = await running.recorder.wait(events.Retrying, count=2)
            assert "the message to stream 'news' of other" in retrying.reason
            assert "hunter2" not in retrying.reason
            await job.cancel()


@pytest.mark.parametrize(
    ("to", "options", "reason"),
    [
        ("stream:secrets", {}, "are not allowed"),
        ("list:orders", {}, "are not allowed"),
        ("stream@other:orders", {}, "are not allowed"),
        ("stream:orders\n", {}, "are not allowed"),
        ("stream:evsched:{default}:job:1", {}, "are evsched's own"),
        ("channel:evsched:{default}:control:w", {}, "are evsched's own"),
        ("channel:__sentinel__:hello", {}, "channels that begin with __ are Redis's own"),
        ("queue:orders", {}, "needs the name of its broker"),
        ("stream:secrets", {}, "at all workers of the queue, and then bring the job back with `evsched dead revive`"),
        ("set:orders", {}, "is not a destination"),
        ("stream@OTHER:orders", {}, "is not a destination: .* SERVER are in lower case"),
        ("", {}, "is not a destination"),
        ("redis://:hunter2@localhost/", {}, "is not a destination"),
        ("stream:orders", {"end": "left"}, "a stream has no option end"),
        ("stream:orders", {"bare": True}, "a stream has no option bare"),
        ("stream:orders", {"routing_key": "x"}, "a stream has no option routing_key"),
        ("channel:orders", {"most": 5}, "a channel has no option most"),
        (
            "exchange@rabbit:x",
            {"routing_key": "\u00e9" * 128},
            "routing_key has 256 bytes, and AMQP allows 255 at most",
        ),
        ("queue@rabbit:" + "\u00e9" * 128, {}, "the name of the queue has 256 bytes, and AMQP allows 255"),
        ("exchange@rabbit:" + "x" * 128, {}, "its name must have 1 to 127 characters of A-Z"),
        ("exchange@rabbit:caf\u00e9", {}, "messages cannot be sent to exchange 'caf\u00e9': its name must have"),
    ],
)
async def test_forbidden_or_invalid_destination_is_buried_at_once(
    config: Config, queue: str, to: str, options: Mapping[str, Any], reason: str
) -> None:
    allowed = ("stream:orders", "channel:*", "exchange@rabbit:*", "queue@rabbit:*")
    app, forward = forward_to(queue, *allowed, rabbit="amqp://127.0.0.1:1")
    async with system(config, app) as running:
        job = await forward.enqueue(to, 1, **options)
        with pytest.raises(JobDead, match=reason):
            await job.result(PATIENCE)
        assert not running.recorder.of(events.Retrying)


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("stream:sekret", r"messages to \[redacted\] are not allowed"),
        ("queue:sekret", "is not a destination: write stream:NAME"),
        ("exchange@rabbit:sekr\u00e9t", r"messages cannot be sent to exchange \[redacted\]"),
        ("list:orders:sekret", r"Redis refused the message to \[redacted\]"),
    ],
)
async def test_redacted_destination_is_in_no_reason(config: Config, raw: Any, queue: str, to: str, reason: str) -> None:
    raw.set("orders:sekret", "no list")
    app, forward = forward_to(queue, "list:orders:*", "exchange@rabbit:*", rabbit="amqp://127.0.0.1:1")
    async with system(config, app):
        job = await forward.using(redact=("to",), retry=Retry(attempts=1)).enqueue(to, 1)
        with pytest.raises(JobDead, match=reason) as dead:
            await job.result(PATIENCE)
    assert "sekr" not in str(dead.value)


async def test_a_payload_without_a_message_is_refused(config: Config, raw: Any, queue: str) -> None:
    app, _ = forward_to(queue, "stream:orders")
    async with system(config, app) as running:
        raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"evsched.forward","kwargs":{"to":"stream:orders"}}': 0})
        buried = await running.recorder.wait(events.JobBuried)
        assert "message" in buried.reason


@pytest.mark.parametrize(
    ("allowed", "url", "message"),
    [
        ("orders", "", "has 'orders', which is not a destination: write stream:NAME"),
        ("stream:evsched:x", "", "are evsched's own"),
        ("channel:__keyspace@0__:*", "", "channels that begin with __ are Redis's own"),
        ("stream@other:orders", "", "names the server other: set EVSCHED_FORWARD_URL_OTHER"),
        ("stream@other:orders", "amqp://u:hunter2@localhost", "EVSCHED_FORWARD_URL_OTHER: the URL of Redis"),
        ("queue@other:orders", "redis://u:hunter2@localhost", "EVSCHED_FORWARD_URL_OTHER is not the URL of an AMQP"),
        ("queue@other:orders", "amqp://u:hunter2@localhost:x", "EVSCHED_FORWARD_URL_OTHER is not the URL of an AMQP"),
        ("queue@other:orders", "amqp://u:hunter2", "EVSCHED_FORWARD_URL_OTHER is not the URL of an AMQP"),
    ],
)
def test_settings_that_are_not_valid_are_refused_without_a_password(allowed: str, url: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_destinations([allowed], {"EVSCHED_FORWARD_URL_OTHER": url})
    assert message in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_star_in_an_allowed_name_matches_any_characters() -> None:
    destinations = read_destinations(["stream:a*z", "list:x.y"], {})
    assert isinstance(destinations, Destinations)
    for name in ("stream:az", "stream:a:b\nz"):
        assert destinations.find(name).name == name.removeprefix("stream:")
    for name in ("stream:a", "stream:azb", "list:xzy", "list:x.y.z"):
        with pytest.raises(Exception, match="are not allowed"):
            destinations.find(name)
