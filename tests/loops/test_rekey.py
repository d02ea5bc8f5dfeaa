"""`evsched rekey`: values move to the newest key wherever they lie, while all runs, and wherever it is interrupted."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from evsched import App, GiveUp, events
from evsched.codec import Codec
from evsched.codec.rekey import Rekey
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.jobs.job import encode
from evsched.jobs.sealed import seal_payload
from evsched.steps import step, wait_for
from evsched.transport.embedded import EmbeddedRedis
from tests.loops.test_sealed_jobs import everything, put
from tests.support.patience import PATIENCE
from tests.support.sealed_jobs import NEW, OLD, SECRET, THIRD
from tests.support.system import system

BOTH = {"old": OLD, "new": NEW}
LOAD = int(os.environ.get("REKEYED_JOBS", "300"))
"""Jobs of the test under load."""


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=8, shutdown_grace=0.2)


class Program(NamedTuple):
    """An app with a task for each way in which a value is kept."""

    app: App
    pay: Any
    give_up: Any
    approve: Any
    hold: Any
    done: list[str]
    held: asyncio.Event


def program(queue: str, url: str, codec: Codec) -> Program:
    app, done, held = App(url, queue=queue, codec=codec), list[str](), asyncio.Event()

    @app.task(retention=600)
    async def pay(account: str, *more: Any) -> list[str]:
        done.append(account)
        return [account]

    @app.task
    async def give_up(account: str) -> None:
        raise GiveUp("no")

    @app.task
    async def approve(account: str) -> list[Any]:
        return [await step("look up", lambda: account), await wait_for("approved", 600)]

    @app.task
    async def hold(account: str) -> str:
        await held.wait()
        return account

    app.recurring(every=timedelta(hours=1), args=[SECRET], name="hourly")(pay)
    return Program(app, pay, give_up, approve, hold, done, held)


async def rekey(app: App, codec: Codec, most: int = 1_000_000) -> Rekey:
    """Make at most this number of steps."""
    work = Rekey(app.client.stores(app.queue), codec)
    for _ in range(most):
        if not await app.client.run(work.step()):
            break
    return work


def sealed_by(raw: Any, key: str) -> int:
    """Return how many values in Redis a key has sealed."""
    return len(re.findall(rb'"key":"%s"' % key.encode(), everything(raw)))


async def seed(one: Program, config: Config, raw: Any, queue: str) -> None:
    """Put a value that the codec has sealed into each place where one can lie."""
    app = one.app
    async with system(config, app) as running:
        await one.pay.using(id="finished").enqueue(SECRET)
        await one.give_up.using(id="dead").enqueue(SECRET)
        await one.approve.using(id="approved").enqueue(SECRET)
        await running.recorder.wait(events.Completed)
        await running.recorder.wait(events.JobBuried)
        await running.recorder.wait(events.JobSnoozed)
        await app.client.pause(queue)
        await one.pay.using(id="backlog").enqueue(SECRET)
        member = await seal_payload(one.app.codec, encode({"task": "pay", "args": [SECRET, 1]}))  # pyright: ignore[reportArgumentType]
        raw.zadd(f"evsched:{{{queue}}}:schedule", {member: 0})
        await running.recorder.until(lambda: raw.zcard(f"evsched:{{{queue}}}:backlog") == 2)
    app.move_to(config.url)
    await app.signal("approved", "approved", {"by": SECRET})
    await one.pay.using(id="scheduled", delay=5000).enqueue(SECRET)
    for n, named in enumerate(({}, {"id": "inline"})):
        payload = encode({"task": "pay", "args": [SECRET, n + 2]} | named)
        member = await seal_payload(one.app.codec, payload, named.get("id", ""))  # pyright: ignore[reportArgumentType]
        raw.zadd(f"evsched:{{{queue}}}:schedule", {member: 9e9})
    graph = app.graph("g")
    graph.add("load", one.pay.s(SECRET))
    graph.follow("save", one.pay.s(SECRET))
    await graph.enqueue()
    await app.close()


async def test_all_places_have_the_newest_key_afterwards_and_the_old_one_can_go(
    config: Config, raw: Any, queue: str
) -> None:
    old = program(queue, config.url, Codec({"old": OLD}))
    await seed(old, config, raw, queue)
    codec = Codec(BOTH, write="new")
    both = program(queue, config.url, codec)
    work = await rekey(both.app, codec)
    assert (work.result.changed, dict(work.result.missing)) == (0, {})
    assert (sealed_by(raw, "old"), sealed_by(raw, "new")) == (0, work.result.done)
    assert work.result.done == 14
    again = await rekey(both.app, codec)
    assert again.result.done == 0
    await both.app.close()
    new = program(queue, config.url, Codec({"new": NEW}))
    async with system(config, new.app) as running:
        client = new.app.client
        await client.resume(queue)
        await client.revive(queue, ["dead"])
        assert await client.result(queue, "approved", PATIENCE) == [SECRET, {"by": SECRET}]
        assert (await new.app.known_batch("g").wait(PATIENCE)).state == "done"
        for member in raw.zrangebyscore(f"evsched:{{{queue}}}:schedule", 8e9, "+inf"):
            raw.zadd(f"evsched:{{{queue}}}:schedule", {member: 0})
        await client.reschedule(queue, "scheduled")
        await client.trigger(queue, "hourly")
        assert await client.result(queue, "finished", PATIENCE) == [SECRET]
        await running.recorder.until(lambda: len(new.done) == 8)
        buried = running.recorder.of(events.JobBuried)
        assert [event.reason for event in buried] == ["no"]


async def test_run_that_goes_on_is_not_disturbed_and_its_next_payload_is_found(
    config: Config, raw: Any, queue: str
) -> None:
    old = program(queue, config.url, Codec({"old": OLD}))
    async with system(config, old.app) as running:
        await old.hold.using(id="a").enqueue(SECRET)
        await running.recorder.wait(events.Started)
        await old.hold.using(id="a", on_conflict="replace", delay=5000).enqueue(SECRET)
        work = await rekey(old.app, Codec(BOTH, write="new"))
        assert work.result.done == 3, "the run, the next one, and the recurrence"
        assert sealed_by(raw, "old") == 0
        old.held.set()
        await running.recorder.wait(events.Completed)
    assert sealed_by(raw, "new") == 2


async def test_another_pass_does_the_rest_wherever_one_was_interrupted(config: Config, raw: Any, queue: str) -> None:
    old = program(queue, config.url, Codec({"old": OLD}))
    await seed(old, config, raw, queue)
    await rekey(old.app, Codec(BOTH, write="new"))  # afterwards no job is light: none has its payload twice
    await old.app.close()
    count, left = sealed_by(raw, "new"), set[int]()
    for steps in range(1, 60):
        codec = Codec(BOTH, write=("new", "old")[steps % 2])
        one = program(queue, config.url, codec)
        work = await rekey(one.app, codec, steps)
        left.add(count - sealed_by(raw, codec.write))
        assert sealed_by(raw, "old") + sealed_by(raw, "new") == count
        await rekey(one.app, codec)
        assert sealed_by(raw, codec.write) == count
        await one.app.close()
        if work.result.done == count:
            break
    assert len(left) > 3, "some were interrupted in the middle"
    assert 0 in left


async def test_values_of_a_missing_key_are_counted_and_left(config: Config, raw: Any, queue: str) -> None:
    old = program(queue, config.url, Codec({"old": OLD}))
    await old.pay.using(delay=5000).enqueue(SECRET)
    put(raw, queue, b'{"task":"pay","sealed":5}', "malformed", 9e9)
    put(raw, queue, b'not "sealed" JSON', "garbage", 9e9)
    raw.hset(f"evsched:{{{queue}}}:batch_nodes:g", mapping={"0": b'{"sealed":1}'})
    raw.zadd(f"evsched:{{{queue}}}:batches", {"g": 1})
    before = everything(raw)
    work = await rekey(old.app, Codec({"new": NEW}))
    assert (work.result.done, dict(work.result.missing)) == (0, {"old": 1})
    assert everything(raw) == before
    await old.app.close()
    with pytest.raises(ConfigError, match="the codec has no key to write"):
        Rekey([], Codec())


@pytest.mark.extra
async def test_no_job_is_unreadable_while_keys_change_twice_under_load(
    config: Config, raw: Any, queue: str, recorder: Any
) -> None:
    """Each key is added everywhere before it writes, and removed after `rekey`; REKEYED_JOBS=10000 takes minutes."""
    rings: list[tuple[dict[str, bytes], str]] = [
        ({"old": OLD, "new": NEW}, "old"),
        ({"old": OLD, "new": NEW}, "new"),
        ({"new": NEW, "third": THIRD}, "new"),
        ({"new": NEW, "third": THIRD}, "third"),
        ({"third": THIRD}, "third"),
    ]
    programs = [program(queue, config.url, Codec(ring, write=write)) for ring, write in rings]
    total, part = 0, LOAD // len(rings)
    done: Callable[[], int] = lambda: sum(len(one.done) for one in programs)  # noqa: E731
    for at, one in enumerate(programs):
        async with system(config, one.app, recorder, workers=2):
            batch = [(f"{SECRET}-{total + n}",) for n in range(part)]
            total += part
            await one.pay.enqueue_many(batch[: part // 2])
            spread = [one.pay.using(delay=n % 20 / 10).enqueue(*call) for n, call in enumerate(batch[part // 2 :])]
            await asyncio.gather(*spread)
            if at % 2:  # from now on only the newest key writes, and after this pass only it is needed
                codec = one.app.codec
                assert isinstance(codec, Codec)
                work = await rekey(one.app, codec)
                assert dict(work.result.missing) == {}
                assert sealed_by(raw, "old" if codec.write == "new" else "new") == 0
    async with system(config, programs[-1].app, recorder):
        await recorder.until(lambda: done() >= total, limit=10 * PATIENCE)
    assert recorder.of(events.JobBuried) == []
    assert len({account for one in programs for account in one.done}) == total
    assert SECRET.encode() not in everything(raw)
