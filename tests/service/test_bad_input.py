"""Bad input: the job goes to dead with a reason that says what to correct, and the next job runs on time."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from evsched import App, current_job, events
from evsched.config import Config
from evsched.display import escape
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.system import System, system


@pytest.fixture
async def running(server: EmbeddedRedis, queue: str) -> AsyncGenerator[System]:
    app = App(queue=queue)

    @app.task
    async def add(a: int, b: int = 0) -> int:
        return a + b

    @app.task
    async def lateness() -> float:
        return current_job().lateness

    async with system(
        Config(url=server.url, queues=(queue,), payload_cap=256 * 1024, unknown_task_grace=0.0), app
    ) as found:
        yield found


DEEP = b"[" * 100_000 + b"]" * 100_000

RECORDS: dict[str, tuple[bytes | dict[str, Any], str]] = {
    "malformed": (b'{"task":"add",', "correct it and enqueue the job again"),
    "array": (b"[1,2]", "Expected `object`, got `array`"),
    "number": (b"17", "Expected `object`, got `int`"),
    "no task": (b'{"args":[1]}', "missing required field `task`"),
    "unknown task": (b'{"task":"ad","args":[1]}', "did you mean 'add'?"),
    "unknown field": (b'{"task":"add","arg":[1]}', "unknown field `arg`"),
    "wrong type": (b'{"task":"add","args":["1"]}', "Expected `int`, got `str` - at `$.args[0]`"),
    "too many": (b'{"task":"add","args":[1,2,3]}', "takes 2 arguments, got 3"),
    "missing": (b'{"task":"add"}', "needs 'a'"),
    "unknown name": (b'{"task":"add","args":[1],"kwargs":{"c":1}}', "takes no 'c'"),
    "NaN": (b'{"task":"add","args":[NaN]}', "correct it"),
    "not UTF-8": (b'{"task":"add","args":["\xff"]}', "correct it"),
    "pickle": (pickle.dumps({"task": "add"}), "correct it"),
    "deep": (b'{"task":"add","args":' + DEEP + b"}", "correct it"),
    "large": (b'{"task":"add","args":["' + b"x" * 300_000 + b'"]}', "pass a reference"),
    "bad retry": (b'{"task":"add","args":[1],"retry":{"attempts":0}}', "attempts is 0, must be 1 to 1000"),
    "timeout 0": (b'{"task":"add","args":[1],"timeout":0}', "timeout is 0, must be over 0 s"),
    "timeout below 0": (b'{"task":"add","args":[1],"timeout":-0.5}', "timeout is -0.5, must be over 0 s"),
    "expired": (b'{"task":"add","args":[1],"expires":1}', "expired"),
    "priority 12": ({"payload": b'{"task":"add","args":[1]}', "priority": "12"}, "from 0 to 9"),
    "priority text": ({"payload": b'{"task":"add","args":[1]}', "priority": "high"}, "from 0 to 9"),
}

MEMBERS: dict[str, tuple[bytes, str]] = {
    "malformed": (b'{"task":"add"', "not valid JSON"),
    "deep": (b'{"task":"add","args":' + DEEP + b"}", "not valid JSON"),
    "large": (b'{"task":"add","args":["' + b"x" * 300_000 + b'"]}', "pass a reference"),
    "id of a wrong kind": (b'{"task":"add","id":7}', "put it in quotes"),
    "id with a space": (b'{"task":"add","id":"a b"}', "A-Z a-z 0-9"),
    "priority with a fraction": (b'{"task":"add","args":[1],"priority":7.5}', "from 0 to 9"),
}

IDS: dict[str, bytes] = {
    "long": b"x" * 201,
    "1 MB": b"x" * 1_000_000,
    "space": b"a b",
    "newline and escape": b"a\n\x1b[31m",
    "not UTF-8": b"\xff\xfe",
    "empty": b"",
}


async def check(running: System, raw: Any, queue: str, job_id: str, reason: str) -> None:
    """Check that the job is dead for that reason, reported once and escaped, and that the next job runs on time."""
    buried = await running.recorder.wait(events.JobBuried, lambda event: event.id == job_id)
    assert reason in buried.reason
    assert escape(buried.reason).isprintable()
    assert raw.zscore(f"evsched:{{{queue}}}:dead", job_id) is not None
    assert reason in raw.hget(f"evsched:{{{queue}}}:job:{job_id}", "reason").decode()
    raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"lateness","id":"next"}': 0})
    await running.recorder.wait(events.Completed, lambda event: event.ids == ["next"])
    assert 0 <= float(raw.hget(f"evsched:{{{queue}}}:job:next", "result")) < PATIENCE
    assert len([event for event in running.recorder.of(events.JobBuried) if event.id == job_id]) == 1


@pytest.mark.parametrize("name", RECORDS)
async def test_a_job_with_a_bad_record_goes_to_dead(running: System, raw: Any, queue: str, name: str) -> None:
    fields, reason = RECORDS[name]
    mapping: Any = fields if isinstance(fields, dict) else {"payload": fields}
    raw.hset(f"evsched:{{{queue}}}:job:bad", mapping=mapping)
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"bad": 0})
    await check(running, raw, queue, "bad", reason)


@pytest.mark.parametrize("name", MEMBERS)
async def test_a_bad_inline_job_goes_to_dead(running: System, raw: Any, queue: str, name: str) -> None:
    member, reason = MEMBERS[name]
    raw.zadd(f"evsched:{{{queue}}}:schedule", {member: 0})
    await check(running, raw, queue, hashlib.sha1(member).hexdigest(), reason)
    assert raw.hget(f"evsched:{{{queue}}}:job:{hashlib.sha1(member).hexdigest()}", "payload") == member


@pytest.mark.parametrize("name", IDS)
async def test_a_job_with_a_bad_id_goes_to_dead(running: System, raw: Any, queue: str, name: str) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {IDS[name]: 0})
    job_id = f"bad-{hashlib.sha1(IDS[name]).hexdigest()}"
    await check(running, raw, queue, job_id, "schedule it again under such an id")
    assert raw.hget(f"evsched:{{{queue}}}:job:{job_id}", "member") == IDS[name][:1024]


@pytest.mark.parametrize("task", ["tabnanny", "tabnanny:check", "tabnanny.check", "os:system"])
async def test_nothing_that_a_payload_names_is_imported(running: System, raw: Any, queue: str, task: str) -> None:
    raw.hset(f"evsched:{{{queue}}}:job:bad", "payload", f'{{"task":"{task}","args":["false"]}}')
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"bad": 0})
    await check(running, raw, queue, "bad", f"unknown task {task!r}")
    assert "tabnanny" not in sys.modules


async def test_a_job_without_a_record_goes_to_dead(running: System, raw: Any, queue: str) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"bad": 0})
    await check(running, raw, queue, "bad", "no payload in its record: HSET")


async def test_a_job_whose_record_is_written_late_runs(running: System, raw: Any, queue: str) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"late": 0})
    # The pauses between looks grow from 10 ms on: at the fifth, the record is late by more than 0.1 s.
    await running.recorder.wait(events.Woken, lambda event: event.queue == queue, count=6)
    raw.hset(f"evsched:{{{queue}}}:job:late", "payload", '{"task":"lateness"}')
    await running.recorder.wait(events.Completed, lambda event: event.ids == ["late"])
    assert not running.recorder.of(events.JobBuried)


async def test_a_job_whose_record_is_not_a_hash_goes_to_dead(running: System, raw: Any, queue: str) -> None:
    raw.rpush(f"evsched:{{{queue}}}:job:list", "x")
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"list": 0})
    await check(running, raw, queue, f"bad-{hashlib.sha1(b'list').hexdigest()}", "is not a hash")
