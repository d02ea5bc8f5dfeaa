"""Jobs of an app with a codec: nothing of them is readable in Redis, and all that evsched does works with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import pytest

from evsched import App, BadResult, EndedJob, JobDead, Unique, events
from evsched.client.client import Client
from evsched.codec import Codec
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.jobs.job import decode, encode
from evsched.jobs.sealed import seal_payload
from evsched.testing import Clock
from evsched.transport.embedded import EmbeddedRedis
from tests.support import sealed_jobs
from tests.support.patience import PATIENCE
from tests.support.sealed_jobs import NEW, OLD, SECRET, pay, pay_in_process, pay_in_steps, pay_in_thread
from tests.support.system import system

MARK = "[encrypted with key old]"


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=8, shutdown_grace=0.2, kill_grace=0.2, process_pool=1)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, queue: str) -> App:
    monkeypatch.setattr(sealed_jobs.app, "origin", "tests.support.sealed_jobs:app")
    monkeypatch.setattr(sealed_jobs.app, "queue", queue)
    for task in (pay, pay_in_thread, pay_in_process, pay_in_steps, sealed_jobs.pay_in_steps_in_process):
        monkeypatch.setattr(task, "_queue", queue)
    return sealed_jobs.app


@pytest.fixture
async def keyless(server: EmbeddedRedis) -> AsyncGenerator[Client]:
    """A client without a codec."""
    found = Client(server.url)
    yield found
    await found.close()


def everything(raw: Any) -> bytes:
    """Return all that Redis has, as one text."""
    found = list[Any]()
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": raw.hgetall,
        b"zset": lambda key: raw.zrange(key, 0, -1),
        b"list": lambda key: raw.lrange(key, 0, -1),
        b"stream": lambda key: raw.xrange(key),
        b"set": raw.smembers,
        b"string": raw.get,
        b"none": lambda key: None,  # it has gone since the scan
    }
    for key in sorted(raw.scan_iter(count=1000)):
        found += [key, read[raw.type(key)](key)]
    return repr(found).encode()


def record(raw: Any, queue: str, job: str = "a") -> dict[str, bytes]:
    return {name.decode(): value for name, value in raw.hgetall(f"evsched:{{{queue}}}:job:{job}").items()}


def put(raw: Any, queue: str, payload: dict[str, Any] | bytes, job: str = "a", due: float = 0) -> None:
    text = payload if isinstance(payload, bytes) else encode(payload)
    raw.hset(f"evsched:{{{queue}}}:job:{job}", mapping={"payload": text})
    raw.zadd(f"evsched:{{{queue}}}:schedule", {job: due})


@pytest.mark.parametrize("kind", [pay, pay_in_thread, pytest.param(pay_in_process, marks=pytest.mark.extra)])
async def test_job_runs_and_none_of_its_values_is_in_redis(
    config: Config, app: App, raw: Any, queue: str, keyless: Client, kind: Any
) -> None:
    async with system(config, app) as running:
        job = await kind.using(id="a", reply=True, tags=["t:1"]).enqueue(SECRET, cents=500)
        waiting = decode(record(raw, queue)["payload"])
        assert await job.result(PATIENCE) == {"paid": SECRET, "cents": 500}
        status = await job.status()
        assert SECRET.encode() not in everything(raw)
        shown = await keyless.status(queue, "a")
        with pytest.raises(BadResult, match=r"its result is sealed, \[encrypted with key old\]"):
            await keyless.result(queue, "a", PATIENCE)
        await running.recorder.wait(events.Completed)
    assert {name: waiting[name] for name in ("task", "tags", "reply")} == {
        "task": kind.name,
        "tags": ["t:1"],
        "reply": True,
    }
    assert waiting["sealed"].keys() == {"data", "key", "of"}
    assert (status.payload["args"], status.payload["kwargs"]) == ([SECRET], {"cents": 500})
    assert (status.result, status.sealed, status.tags) == ({"paid": SECRET, "cents": 500}, False, ("t:1",))
    assert shown is not None
    assert (shown.payload["sealed"], shown.result, shown.sealed, shown.task) == (MARK, MARK, True, kind.name)


@pytest.mark.extra
async def test_isolated_run_has_the_arguments_and_seals_its_result(
    config: Config, app: App, raw: Any, queue: str
) -> None:
    async with system(config, app):
        await pay.using(id="a", delay=0.3).enqueue(SECRET)
        raw.hset(f"evsched:{{{queue}}}:suspects", "a", "2 0")  # as if two workers had died that held it
        assert await app.client.result(queue, "a", PATIENCE) == {"paid": SECRET, "cents": 1}
        assert SECRET.encode() not in everything(raw)


@pytest.mark.parametrize(
    "kind", [pay_in_steps, pytest.param(sealed_jobs.pay_in_steps_in_process, marks=pytest.mark.extra)]
)
async def test_results_of_steps_and_values_of_signals_are_sealed(
    config: Config, app: App, raw: Any, queue: str, kind: Any
) -> None:
    async with system(config, app) as running:
        job = await kind.using(id="a").enqueue(SECRET)
        await running.recorder.wait(events.JobSnoozed)
        assert (await job.status()).steps == ("look up",)
        await job.signal("approved", {"by": SECRET})
        assert await job.result(PATIENCE) == [[SECRET], {"by": SECRET}]
        assert SECRET.encode() not in everything(raw)


async def test_program_without_an_event_loop_seals_and_opens(config: Config, app: App, raw: Any) -> None:
    async with system(config, app):

        def call() -> Any:
            with app.sync() as client:
                job = client.enqueue(pay, SECRET)
                return job.result(PATIENCE), job.status().payload["args"]

        assert await asyncio.to_thread(call) == ({"paid": SECRET, "cents": 1}, [SECRET])
        assert SECRET.encode() not in everything(raw)


async def test_plain_jobs_of_other_clients_run_unless_the_codec_refuses_them(
    config: Config, app: App, raw: Any, queue: str
) -> None:
    strict = App(queue=queue, codec=Codec({"old": OLD}, accept_plain=["told"]))
    strict.task(name="pay")(pay.handler)
    ended = asyncio.Queue[EndedJob]()

    @strict.task
    async def told(job: EndedJob) -> None:
        await ended.put(job)

    done = strict.task(name="hooked", on_done=told)(pay.handler)
    async with system(config, app):
        put(raw, queue, {"task": "pay", "args": ["x"]})
        assert await app.client.result(queue, "a", PATIENCE) == {"paid": "x", "cents": 1}
    async with system(config, strict):
        put(raw, queue, {"task": "pay", "args": ["x"]}, "b")
        with pytest.raises(JobDead, match="not encrypted, and the codec of the app takes no others"):
            await strict.client.result(queue, "b", PATIENCE)
        compressed = await seal_payload(Codec(compress_above=0), encode({"task": "pay", "args": ["x" * 999]}), "c")
        put(raw, queue, compressed, "c")
        with pytest.raises(JobDead, match="not encrypted"):
            await strict.client.result(queue, "c", PATIENCE)
        await done.enqueue(SECRET)
        assert (await asyncio.wait_for(ended.get(), PATIENCE)).result == {"paid": SECRET, "cents": 1}
        assert SECRET.encode() not in everything(raw)


async def test_job_without_its_key_is_dead_and_runs_once_the_key_is_there(
    config: Config, app: App, raw: Any, queue: str
) -> None:
    rotated = App(queue=queue, codec=Codec({"new": NEW}))
    rotated.task(name="pay")(pay.handler)
    app.move_to(config.url)
    await pay.using(id="a").enqueue(SECRET)
    await app.close()
    async with system(config, rotated) as running:
        buried = await running.recorder.wait(events.JobBuried)
        why = "its arguments cannot be read: key 'old' is missing, and this codec has 'new': give it that key"
        assert buried.reason == f"{why}. Revive the job when it can be read"
        assert record(raw, queue)["reason"].decode() == buried.reason
    both = App(queue=queue, codec=Codec({"old": OLD, "new": NEW}, write="new"))
    both.task(name="pay")(pay.handler)
    async with system(config, both):
        await both.client.revive(queue, ["a"])
        assert await both.client.result(queue, "a", PATIENCE) == {"paid": SECRET, "cents": 1}
    assert decode(record(raw, queue)["result"])["evsched.sealed"]["key"] == "new"


async def test_worker_without_a_codec_buries_a_sealed_job_and_knows_its_hooks(
    config: Config, app: App, queue: str
) -> None:
    plain, ended = App(queue=queue), asyncio.Queue[EndedJob]()

    @plain.task
    async def told(job: EndedJob) -> None:
        await ended.put(job)

    plain.task(name="pay", on_dead=told)(pay.handler)
    app.move_to(config.url)
    await pay.enqueue(SECRET)
    await app.close()
    async with system(config, plain):
        found = await asyncio.wait_for(ended.get(), PATIENCE)
    assert found.reason is not None
    assert found.reason.startswith(f"its arguments are sealed, {MARK}, and this worker has no codec")


@pytest.mark.parametrize("change", ["ciphertext", "swapped", "task", "replayed"])
async def test_payload_that_somebody_changed_in_redis_is_dead_and_never_run(
    config: Config, app: App, raw: Any, queue: str, change: str
) -> None:
    app.move_to(config.url)
    for job, account in (("a", "mine"), ("b", "theirs")):
        await pay.using(id=job, delay=1000).enqueue(account)
    await app.close()
    mine, theirs = (decode(record(raw, queue, job)["payload"]) for job in ("a", "b"))
    why = "key 'old' does not fit: the ciphertext was changed"
    if change == "ciphertext":
        data = mine["sealed"]["data"]
        mine["sealed"]["data"] = data[:-8] + ("A" if data[-8] != "A" else "B") + data[-7:]
    elif change == "swapped":
        mine["sealed"], why = theirs["sealed"], "it was sealed for job b, and somebody has put it into job a"
    elif change == "task":
        mine["task"] = "pay_in_thread"
    else:
        mine["sealed"] = theirs["sealed"] | {"of": "a"}
    async with system(config, app) as running:
        put(raw, queue, mine)
        buried = await running.recorder.wait(events.JobBuried)
    assert why in buried.reason
    assert running.recorder.of(events.Completed) == []


async def test_hooks_batches_and_graphs_pass_sealed_results_on(config: Config, app: App, raw: Any, queue: str) -> None:
    own = App(queue=queue, codec=Codec({"old": OLD}))

    @own.task
    async def load(account: str) -> list[str]:
        return [account]

    @own.task
    async def save(prefix: str, rows: list[str]) -> str:
        return prefix + rows[0]

    @own.task
    async def each(row: str) -> str:
        return row

    async with system(config, own):
        found = await own.chain(load.s(SECRET), save.s("to:")).enqueue()
        assert await found.result(timeout=PATIENCE) == f"to:{SECRET}"
        assert await found.result("load", timeout=PATIENCE) == [SECRET]
        async with own.batch() as batch:
            await batch.add(load, SECRET)
        await batch.wait(PATIENCE)
        assert await batch.results() == [[SECRET]]
        graph = own.graph()
        graph.add("load", load.s(SECRET))
        graph.each("rows", each.s(), over="load")
        fanned = await graph.enqueue()
        with pytest.raises(
            JobDead, match=r"the result of load is sealed, \[encrypted with key old\], so its items are"
        ):
            await fanned.result("rows", timeout=PATIENCE)
        assert SECRET.encode() not in everything(raw)


async def test_recurrence_is_sealed_and_declared_once_by_all_workers(config: Config, raw: Any, queue: str) -> None:
    own = App(queue=queue, codec=Codec({"old": OLD}))

    @own.recurring(every=timedelta(seconds=3600), args=[SECRET])
    @own.task
    async def report(account: str) -> str:
        return account

    async with system(config, own, workers=2) as running:
        job = await own.client.trigger(queue, "report")
        assert await own.client.result(queue, job, PATIENCE) == SECRET
        assert SECRET.encode() not in everything(raw)
    declared = running.recorder.of(events.RecurrenceDeclared)
    assert [event.done for event in declared] == ["made"]


async def test_edit_opens_the_arguments_and_seals_them_again(
    config: Config, app: App, raw: Any, queue: str, keyless: Client
) -> None:
    app.move_to(config.url)
    await pay.using(id="a", delay=1000).enqueue(SECRET, cents=5)
    before = await app.client.status(queue, "a")
    assert before is not None
    with pytest.raises(ConfigError, match=r"are sealed, and this program has no codec: .* need EVSCHED_CODEC"):
        await keyless.edit(queue, "a", kwargs={"cents": 6})
    with pytest.raises(ConfigError, match="are sealed, and this program has no codec"):
        await keyless.edit(queue, "a", args=[], kwargs={}, priority=9)
    assert (await keyless.edit(queue, "a", priority=9)).changed == ("priority",)
    edited = await app.client.edit(queue, "a", kwargs={"cents": 6})
    assert edited.changed == ("kwargs",)
    after = await app.client.status(queue, "a")
    assert after is not None
    assert (after.payload["args"], after.payload["kwargs"], after.priority) == ([SECRET], {"cents": 6}, 9)
    assert (await app.client.edit(queue, "a", args=[SECRET])).changed == ()
    assert SECRET.encode() not in everything(raw)
    assert before.version != after.version
    await app.close()


async def test_inline_jobs_with_an_id_and_without_run(config: Config, app: App, queue: str, raw: Any) -> None:
    assert app.codec is not None
    async with system(config, app) as running:
        for named in ({}, {"id": "a"}):
            payload = encode({"task": "pay", "args": [SECRET], "retention": 60} | named)
            member = await seal_payload(app.codec, payload, named.get("id", ""))
            raw.zadd(f"evsched:{{{queue}}}:schedule", {member: 0})
        await running.recorder.until(lambda: sum(len(one.tasks) for one in running.recorder.of(events.Completed)) == 2)
        assert await app.client.result(queue, "a", PATIENCE) == {"paid": SECRET, "cents": 1}
        assert SECRET.encode() not in everything(raw)


async def test_copy_of_a_job_has_its_arguments_under_its_own_id(
    config: Config, app: App, queue: str, keyless: Client
) -> None:
    async with system(config, app):
        await (await pay.using(id="a").enqueue(SECRET)).result(PATIENCE)
        with pytest.raises(ConfigError, match="the arguments of a are sealed, and this program has no codec"):
            await keyless.run_again(queue, "a")
        copy = await app.client.run_again(queue, "a")
        assert await app.client.result(queue, copy, PATIENCE) == {"paid": SECRET, "cents": 1}


async def test_redacted_argument_of_an_opened_payload_stays_hidden(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    app.move_to(config.url)
    await pay.using(id="a", delay=1000, redact=["account"]).enqueue(SECRET, cents=5)
    found = await app.client.status(queue, "a")
    assert found is not None
    assert (found.payload["args"], found.payload["kwargs"]) == (["[redacted]"], {"cents": 5})
    edited = await app.client.edit(queue, "a", args=["[redacted]"], kwargs={"cents": 6})
    assert edited.changed == ("kwargs",)
    await app.close()
    async with system(config, app):
        await app.client.reschedule(queue, "a")
        assert await app.client.result(queue, "a", PATIENCE) == {"paid": SECRET, "cents": 6}


async def test_unique_jobs_of_a_codec_with_an_id_key_meet_and_their_ids_tell_nothing(
    config: Config, queue: str
) -> None:
    ids = list[str]()
    for key in (None, OLD, OLD, NEW):
        own = App(config.url, queue=queue, codec=Codec({"a": OLD}, id_key=key))
        task = own.task(name="pay")(pay.handler)
        job = await task.using(unique=Unique(), delay=1000, on_conflict="keep").enqueue(SECRET)
        ids.append(job.id)
        await own.close()
    assert ids[1] == ids[2]
    assert len({*ids}) == 3


async def test_job_waits_while_the_store_fails_and_is_dead_if_its_data_is_gone(
    config: Config, queue: str, raw: Any
) -> None:
    stored, broken = dict[str, bytes](), [True]

    async def put_there(name: str, data: bytes) -> None:
        stored[name] = data

    async def get(name: str) -> bytes:
        if broken:
            raise ConnectionError("no route")
        return stored[name]

    own = App(queue=queue, codec=Codec({"old": OLD}, put=put_there, get=get, put_above=1000, compress_above=None))
    task = own.task(name="pay")(pay.handler)
    own.move_to(config.url)
    large = "x" * 300_000
    await task.using(id="a").enqueue(large)
    with own.sync() as client:
        await asyncio.to_thread(client.enqueue, task.using(id="b"), large)
    assert len(stored) == 2, "the data is there before the job is"
    await own.close()
    async with system(config, own) as running:
        await running.recorder.wait(events.JobDeferred, lambda event: event.cause == "store", count=2)
        reason = record(raw, queue)["reason"].decode()
        assert reason.startswith("its arguments cannot be read: the store does not give '")
        broken.clear()
        await own.client.reschedule(queue, "a")
        assert (await own.client.result(queue, "a", PATIENCE))["paid"] == large
        assert len(stored) == 3, "the result is there too"
        assert "ref" in decode(record(raw, queue)["result"])["evsched.sealed"]
        stored.clear()
        await own.client.reschedule(queue, "b")
        with pytest.raises(JobDead, match=r"the store has nothing under '.*' any more: restore it there"):
            await own.client.result(queue, "b", PATIENCE)


async def test_payload_that_is_too_large_once_it_is_sealed_is_refused(config: Config, queue: str) -> None:
    own = App(config.url, queue=queue, codec=Codec({"old": OLD}, compress_above=None))
    task = own.task(name="pay")(pay.handler)
    with pytest.raises(ConfigError, match=r"task pay: the payload has \d+ bytes once it is sealed, more than 262144"):
        await task.enqueue("x" * 250_000)


async def test_clock_of_a_test_runs_sealed_jobs(server: EmbeddedRedis, queue: str) -> None:
    own = App(queue=queue, codec=Codec({"old": OLD}))
    task = own.task(name="pay")(pay.handler)
    now = Clock(own, server.url)
    job = await task.using(delay=3600).enqueue(SECRET)
    (ran,) = await now.advance(hours=1)
    assert ran.outcome == "done"
    assert await job.result() == {"paid": SECRET, "cents": 1}
    now.close()
