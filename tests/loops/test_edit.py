"""An edit of a job from Python: what it changes and keeps, and what it refuses without a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from evsched import ConfigError, JobChanged, JobMissing, JobRunning, keys
from evsched.client.client import Client
from evsched.client.operations import Send, Step
from evsched.jobs.job import Payload
from evsched.jobs.redaction import REDACTED
from evsched.store.client_calls import New
from evsched.transport.embedded import EmbeddedRedis

FAR = 2e9


@pytest.fixture
async def client(server: EmbeddedRedis) -> AsyncGenerator[Client]:
    client = Client(server.url)
    yield client
    await client.close()


async def put(client: Client, queue: str, payload: bytes, **more: Any) -> None:
    await client.enqueue(queue, [New("a", payload, due=FAR, **more)])


def payload_of(raw: Any, queue: str) -> bytes:
    return raw.hget(f"evsched:{{{queue}}}:job:a", "payload")


async def test_edit_changes_the_given_parts_and_keeps_the_rest(client: Client, queue: str, raw: Any) -> None:
    before = (
        b'{"task":"t","args":[12345678901234567890123,2.50],"kwargs":{"a":1},"timeout":9,"tags":["x"],"meta":{"m":1}}'
    )
    await put(client, queue, before, priority=3, group="g")
    shown = await client.status(queue, "a")
    assert shown is not None
    args = [*shown.payload["args"], True]
    done = await client.edit(queue, "a", args=args, priority=None, group="h", delay=timedelta(days=1))
    assert done.changed == ("args", "priority", "group", "due")
    after = await client.status(queue, "a")
    assert after is not None
    assert (after.priority, after.group, after.tags, after.due) == (5, "h", ("x",), done.due)
    assert payload_of(raw, queue) == (
        b'{"task":"t","kwargs":{"a":1},"timeout":9,"tags":["x"],"meta":{"m":1},"args":[12345678901234567890123,2.50,true]}'
    )
    assert (await client.edit(queue, "a", args=args, group="h")).changed == ()
    assert (await client.status(queue, "a")) == after, "an edit that changes nothing writes nothing"


async def test_redacted_arguments_keep_their_values(client: Client, queue: str, raw: Any) -> None:
    await put(client, queue, b'{"task":"t","args":["card",1],"kwargs":{"pin":7,"b":2},"redact":["1","pin"]}')
    shown = await client.status(queue, "a")
    assert shown is not None
    assert shown.payload["args"] == [REDACTED, 1]
    await client.edit(queue, "a", args=[REDACTED, 5], kwargs={"pin": REDACTED, "b": 3}, version=shown.version)
    assert msgspec.json.decode(payload_of(raw, queue), type=Payload) == Payload(
        "t", ["card", 5], {"pin": 7, "b": 3}, redact=("1", "pin")
    )
    await client.edit(queue, "a", args=["another", 5])
    assert msgspec.json.decode(payload_of(raw, queue))["args"] == ["another", 5]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"args": [REDACTED, REDACTED]},
            "argument 2 is \\[redacted\\], which stands for a value that was there before",
        ),
        ({"kwargs": {"x": REDACTED}}, "argument 'x' is"),
        ({"kwargs": {"pin": 1}}, "argument 1 would be shown from now on"),
        ({"args": ["x" * 300_000]}, "more than 262144"),
        ({"args": "abc"}, "args is of type str: give a list"),
        ({"kwargs": ["a"]}, "kwargs is of type list: give a dict"),
        ({"kwargs": {"\ud800": 1}}, "must be JSON"),
        ({"args": [{1, 2}, float("nan")]}, "cannot hold"),
        ({"args": [object()]}, "must be JSON"),
        ({"priority": 10}, "priority is 10"),
        ({"group": "a}"}, "group is 'a}'"),
        ({"tags": ["a b"]}, "tags is"),
        ({"due": 1, "delay": 1}, "due and delay"),
    ],
)
async def test_edit_that_is_not_valid_changes_nothing(
    client: Client, queue: str, raw: Any, changes: dict[str, Any], sentence: str
) -> None:
    """The pin may be the first argument, as long as no argument has this name."""
    await put(client, queue, b'{"task":"t","args":[1234],"redact":["pin"]}')
    before = raw.hgetall(f"evsched:{{{queue}}}:job:a")
    with pytest.raises(ConfigError, match=sentence):
        await client.edit(queue, "a", **changes)
    assert raw.hgetall(f"evsched:{{{queue}}}:job:a") == before


@pytest.mark.parametrize(
    "changes",
    [{"args": "SEKRIT9"}, {"kwargs": {"card": "SEKRIT9", 1: 2}}, {"args": ["SEKRIT9\ud800"]}],
)
async def test_refusal_of_an_edit_does_not_repeat_or_keep_a_value(
    client: Client, queue: str, changes: dict[str, Any]
) -> None:
    """Its caller may log it with its context, and the value may be redacted."""
    await put(client, queue, b'{"task":"t","args":[1],"kwargs":{"card":2},"redact":["card"]}')
    with pytest.raises(ConfigError) as caught:
        await client.edit(queue, "a", **changes)
    assert "SEKRIT9" not in f"{caught.value}{caught.value.__context__!r}"


@pytest.mark.parametrize("payload", [b"{", b"[]", b'{"task":1}', b'{"task":"t","args":1}', b'{"task":"t","redact":1}'])
async def test_job_that_no_worker_can_run_is_not_edited(client: Client, queue: str, raw: Any, payload: bytes) -> None:
    await put(client, queue, payload)
    with pytest.raises(ConfigError, match="drop"):
        await client.edit(queue, "a", args=[1])
    assert payload_of(raw, queue) == payload


async def test_target_is_checked_as_when_it_is_enqueued(client: Client, queue: str, raw: Any) -> None:
    await put(client, queue, b'{"task":"evsched.http","args":["https://a.test/x"]}')
    with pytest.raises(ConfigError, match="url"):
        await client.edit(queue, "a", args=["nonsense"])
    assert b"a.test" in payload_of(raw, queue)


async def test_edit_of_a_version_that_is_gone_is_refused(client: Client, queue: str) -> None:
    await put(client, queue, b'{"task":"t","args":[1]}')
    first = await client.status(queue, "a")
    assert first is not None
    await client.edit(queue, "a", priority=9)
    with pytest.raises(JobChanged, match="look at it again"):
        await client.edit(queue, "a", args=[2], version=first.version)
    second = await client.status(queue, "a")
    assert second is not None
    assert (second.payload["args"], second.priority) == ([1], 9)


@pytest.mark.parametrize("versioned", [False, True])
async def test_edit_beside_another_one_applies_to_its_result_or_is_refused(
    server: EmbeddedRedis, client: Client, queue: str, versioned: bool
) -> None:
    class Slow(Client):
        """Another edits the job after the first reading."""

        edited = False

        async def perform(self, step: Step) -> Any:
            if isinstance(step, Send) and step.call.name == "reschedule" and not self.edited:
                self.edited = True
                await client.edit(queue, "a", priority=9)
            return await super().perform(step)

    await put(client, queue, b'{"task":"t","args":[1]}')
    status, slow = await client.status(queue, "a"), Slow(server.url)
    assert status is not None
    if versioned:
        with pytest.raises(JobChanged):
            await slow.edit(queue, "a", args=[2], version=status.version)
    else:
        await slow.edit(queue, "a", args=[2])
    after = await client.status(queue, "a")
    await slow.close()
    assert after is not None
    assert (after.payload["args"], after.priority) == ([1] if versioned else [2], 9)


@pytest.mark.extra
async def test_job_whose_worker_is_not_known_yet_is_held_by_a_worker(client: Client, queue: str, raw: Any) -> None:
    await put(client, queue, b'{"task":"t","args":[1]}')
    root = f"evsched:{{{queue}}}:"
    raw.zrem(f"{root}schedule", "a")
    raw.rpush(f"{root}processing:w", "a")  # fetched, and not started yet
    raw.zadd(f"{root}leases", {"w": 9e9})
    with pytest.raises(JobRunning, match=r"^a has begun: a worker holds it$"):
        await client.edit(queue, "a", args=[2])


@pytest.mark.extra
async def test_inline_and_missing_jobs_are_not_edited(client: Client, queue: str) -> None:
    with pytest.raises(ConfigError, match="an inline job is its own description"):
        await client.edit(queue, '{"task":"t"}', args=[1])
    with pytest.raises(JobMissing, match="nobody neither waits nor is dead"):
        await client.edit(queue, "nobody", args=[1])


@pytest.mark.parametrize("dies", ["before", "meanwhile"])
@pytest.mark.parametrize("when", [{"due": FAR}, {"delay": 60}])
async def test_dead_job_is_given_no_due(
    server: EmbeddedRedis, client: Client, queue: str, raw: Any, dies: str, when: dict[str, Any]
) -> None:
    class Slow(Client):
        async def perform(self, step: Step) -> Any:
            if isinstance(step, Send) and step.call.name == "reschedule":
                die()
            return await super().perform(step)

    def die() -> None:
        raw.zrem(keys.schedule(queue), "a")
        raw.zadd(f"{keys.root(queue)}dead", {"a": 1e9})

    await put(client, queue, b'{"task":"t","args":[1]}')
    slow = Slow(server.url)
    if dies == "before":
        die()
    before = raw.hgetall(f"evsched:{{{queue}}}:job:a")
    with pytest.raises(ConfigError, match="a dead job has no due: revive it, then reschedule it"):
        await slow.edit(queue, "a", args=[2], **when)
    assert raw.hgetall(f"evsched:{{{queue}}}:job:a") == before
    assert (await slow.edit(queue, "a", args=[2])).changed == ("args",)
    await slow.close()


async def test_edits_at_once_without_a_version_all_apply(client: Client, queue: str) -> None:
    await put(client, queue, b'{"task":"t","args":[1]}')
    done = await asyncio.gather(*(client.edit(queue, "a", args=[f"{at}"]) for at in range(30)))
    assert {one.changed for one in done} == {("args",)}


async def test_payload_cap_of_the_client_limits_an_edit(client: Client, queue: str, raw: Any) -> None:
    await put(client, queue, b'{"task":"t"}')
    before = payload_of(raw, queue)
    with pytest.raises(ConfigError, match="more than 100"):
        await client.with_codec(None, payload_cap=100).edit(queue, "a", args=["x" * 100])
    assert payload_of(raw, queue) == before
    await client.with_codec(None, payload_cap=200).edit(queue, "a", args=["x" * 100])
    assert len(payload_of(raw, queue)) > 100
