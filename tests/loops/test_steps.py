"""Steps, loops over rows and waits for signals, in each kind of handler: what a later run of the job does again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import App, GiveUp, Retry, current_job, events, process_events
from evsched.config import Config
from evsched.errors import ConfigError, JobMissing
from evsched.jobs.job import encode
from evsched.jobs.kept import STEPS_MOST
from evsched.jobs.record import JobStatus
from evsched.steps import resumable, step, wait_for
from evsched.store.store import Store
from evsched.transport.call import script
from evsched.transport.embedded import EmbeddedRedis
from tests.support import long_jobs
from tests.support.long_jobs import note, notes
from tests.support.patience import PATIENCE
from tests.support.proxy import Proxy
from tests.support.system import System, system


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=4, shutdown_grace=5.0, kill_grace=0.5, process_pool=1)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, queue: str) -> App:
    monkeypatch.setattr(long_jobs.app, "origin", "tests.support.long_jobs:app")
    monkeypatch.setattr(long_jobs.app, "queue", queue)
    return long_jobs.app


KINDS = ["steps", "steps_in_thread", "steps_in_process", "isolated"]


def put(raw: Any, queue: str, kind: str, *args: Any, isolated: str = "") -> None:
    """Schedule job `a`; "isolated": as if two workers had died that held it."""
    if kind == "isolated":
        kind = isolated
        raw.hset(f"evsched:{{{queue}}}:suspects", "a", "2 0")
    raw.hset(f"evsched:{{{queue}}}:job:a", mapping={"payload": encode({"task": kind, "args": args})})
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": 0})


async def status(running: System, queue: str) -> JobStatus:
    found = await running.app.client.status(queue, "a")
    assert found is not None
    return found


async def until_waiting(running: System, queue: str) -> JobStatus:
    await running.recorder.wait(events.JobSnoozed)
    found = await status(running, queue)
    assert found.waiting is not None
    return found


async def progress_of(raw: Any, running: System, queue: str, least: int) -> None:
    """Wait until the handler has reported this progress."""
    while (
        int((raw.hget(f"evsched:{{{queue}}}:job:a", "progress") or b'{"done":-1').split(b":")[1].strip(b"},")) < least
    ):
        await running.sender.send(Store(queue).survey())


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.extra] if kind != "steps" else []) for kind in KINDS]
)
async def test_finished_steps_are_not_run_again(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path, kind: str
) -> None:
    path = str(tmp_path / "notes")
    async with system(config, app) as running:
        put(raw, queue, kind, path, isolated="steps")
        assert await app.client.result(queue, "a", 20) == 8
        found = await status(running, queue)
    assert notes(path) == ["fetch1", "between", "between", "fetch2", "after", "between", "after"]
    assert (found.attempt, found.steps) == (3, ("one", "two"))


@pytest.mark.extra
async def test_result_is_the_same_in_the_first_run_and_later(config: Config, queue: str) -> None:
    app, seen = App(queue=queue), list[Any]()

    def pair() -> tuple[int, str]:
        return 1, "a"

    @app.task(retry=Retry(attempts=2, interval=0))
    async def twice() -> None:
        seen.append([await step("typed", pair), await step("any", lambda: (1, "a")), await step("none", print)])
        if current_job().attempt == 1:
            raise ValueError

    async with system(config, app):
        await (await twice.enqueue()).result(PATIENCE)
    assert seen == [[(1, "a"), [1, "a"], None]] * 2


@pytest.mark.extra
@pytest.mark.parametrize(
    ("code", "why"),
    [
        (lambda: step("a", object), "step 'a': the result is not JSON"),
        (lambda: step("a", lambda: float("nan")), "step 'a': the result has a number"),
        (lambda: step("a", lambda: "x" * STEPS_MOST), "too many: the steps of a job keep 262144 bytes in all"),
        (lambda: step("", int), "must be a text of 1 to 100 printable characters"),
        (lambda: wait_for("not a name"), "the name of a signal is 1 to 100"),
        (lambda: wait_for("a", -1), "the timeout is -1"),
    ],
)
async def test_mistake_that_no_attempt_can_change_ends_the_job(config: Config, queue: str, code: Any, why: str) -> None:
    app = App(queue=queue)

    @app.task
    async def wrong() -> None:
        await code()

    async with system(config, app) as running:
        job = await wrong.enqueue()
        buried = await running.recorder.wait(events.JobBuried)
        assert (await job.status()).steps == ()
    assert why in buried.reason


def wrong_number() -> int:
    return "x"  # pyright: ignore[reportReturnType] - as a user's may do


@pytest.mark.extra
async def test_step_whose_result_does_not_fit_names_its_function(config: Config, queue: str) -> None:
    app = App(queue=queue)

    @app.task
    async def job() -> None:
        await step("a", wrong_number)

    async with system(config, app) as running:
        await job.enqueue()
        buried = await running.recorder.wait(events.JobBuried)
    assert buried.reason.startswith("step 'a': its result does not fit the return type of wrong_number: ")


@pytest.mark.extra
async def test_name_that_is_used_twice_in_a_run_ends_the_job(config: Config, queue: str) -> None:
    app = App(queue=queue)

    @app.task
    async def wrong() -> None:
        for _ in range(2):
            await step("page", int)

    async with system(config, app) as running:
        await wrong.enqueue()
        assert "'step page' is used twice in one run" in (await running.recorder.wait(events.JobBuried)).reason


@pytest.mark.extra
async def test_step_that_raises_keeps_nothing(config: Config, queue: str) -> None:
    app, calls = App(queue=queue), list[int]()

    def risky() -> int:
        calls.append(current_job().attempt)
        if len(calls) == 1:
            raise ValueError
        return len(calls)

    @app.task(retry=Retry(attempts=2, interval=0))
    async def job() -> int:
        return await step("risky", risky)

    async with system(config, app):
        assert await (await job.enqueue()).result(PATIENCE) == 2
    assert calls == [1, 2]


@pytest.mark.extra
async def test_revived_job_goes_on_and_a_copy_starts_over(config: Config, queue: str) -> None:
    app, calls = App(queue=queue), list[str]()

    @app.task
    async def job() -> None:
        await step("one", lambda: calls.append("one"))
        calls.append("two")
        if len(calls) == 2:
            raise GiveUp("no")

    async with system(config, app) as running:
        found = await job.enqueue()
        await running.recorder.wait(events.JobBuried)
        assert await app.client.revive(queue, [found.id]) == 1
        await found.result(PATIENCE)
        assert calls == ["one", "two", "two"]
        await app.job(await app.client.run_again(queue, found.id)).result(PATIENCE)
    assert calls == ["one", "two", "two", "one", "two"]


WAITERS = ["approval", "approval_in_thread", "approval_in_process", "isolated"]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.extra] if kind != "approval" else []) for kind in WAITERS]
)
async def test_job_that_waits_holds_no_slot_and_goes_on_when_the_signal_comes(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path, kind: str
) -> None:
    path = str(tmp_path / "notes")
    async with system(config, app) as running:
        put(raw, queue, kind, path, isolated="approval")
        waiting = await until_waiting(running, queue)
        assert (waiting.reason or "").startswith("waiting for the signal approved, at most until ")
        assert (waiting.place, waiting.attempt, waiting.snoozes) == ("schedule", 0, 0)
        explained = await app.client.explain(queue, "a")
        assert await app.signal("a", "approved", {"by": "ann"})
        assert await app.client.result(queue, "a", 20) == {"by": "ann"}
        found = await status(running, queue)
    assert explained.sentence.startswith("waits for the signal approved since ")
    assert ", at most until " in explained.sentence
    assert notes(path) == ["fetch1", "waits", "waits"]
    assert (found.attempt, found.signals) == (1, ("approved",))


@pytest.mark.extra
async def test_signal_before_the_wait_needs_no_second_run(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path
) -> None:
    raw.hset(f"evsched:{{{queue}}}:job:a", "payload", encode({"task": "approval", "args": [str(tmp_path / "notes")]}))
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": 9e9})
    async with system(config, app):
        assert await app.signal("a", "approved", 1)
        assert not await app.signal("a", "approved", 2)
        await app.job("a").reschedule()
        assert await app.client.result(queue, "a", 10) == 1
        with pytest.raises(JobMissing, match="has ended"):
            await app.signal("a", "approved", 3)
    assert notes(tmp_path / "notes") == ["fetch1", "waits"]


@pytest.mark.extra
async def test_wait_that_is_over_gives_the_default_or_ends_the_job(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path
) -> None:
    async with system(config, app) as running:
        put(raw, queue, "approval_or_not", str(tmp_path / "notes"), 0.05)
        assert await app.client.result(queue, "a", 10) == ["nobody", None]
        put(raw, queue, "approval", str(tmp_path / "notes"), 0.05)
        buried = await running.recorder.wait(events.JobBuried)
        assert buried.reason.startswith("the signal approved did not come within 50 ms")
        with pytest.raises(JobMissing, match="is dead"):
            await app.signal("a", "approved")


@pytest.mark.extra
async def test_malformed_signal_is_refused_before_it_is_sent(config: Config, app: App, queue: str) -> None:
    app.move_to(config.url)
    for name, value in (("a b", 1), ("", 1), ("ok", object()), ("ok", float("inf")), ("ok", "x" * 40_000)):
        with pytest.raises(ConfigError):
            await app.signal("a", name, value)
    await app.close()


@pytest.mark.extra
async def test_signal_of_another_program_that_is_not_json_ends_the_job(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path
) -> None:
    raw.hset(f"evsched:{{{queue}}}:job:a", "signals", "approved\t1.0\t{\n")
    async with system(config, app) as running:
        put(raw, queue, "approval", str(tmp_path / "notes"))
        buried = await running.recorder.wait(events.JobBuried)
    assert buried.reason.startswith("the signal approved: its value is not JSON that can be read: ")


LOOPS = ["rows", "rows_in_thread", "rows_in_process", "isolated"]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.extra] if kind != "rows" else []) for kind in LOOPS]
)
async def test_worker_that_stops_ends_a_loop_between_two_rows(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path, kind: str
) -> None:
    path, last = str(tmp_path / "notes"), 400
    async with system(config, app) as running:
        put(raw, queue, kind, path, last, 0.005, isolated="rows")
        await progress_of(raw, running, queue, 20)
        running.workers[0].stop()
        await running.recorder.wait(events.JobSnoozed)
        handled = len(rows_of(path))
        assert handled < last
        running.work()
        await app.client.result(queue, "a", 30)
        found = await status(running, queue)
    # No row is repeated, although the loop was ended.
    assert rows_of(path) == list(range(last))
    assert found.attempt == 1


def rows_of(path: str) -> list[int]:
    return [int(word) for word in notes(path) if word.isdigit()]


@pytest.mark.extra
@pytest.mark.parametrize("kind", ["rows", "rows_in_thread"])
async def test_timeout_saves_the_place(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path, kind: str
) -> None:
    path = str(tmp_path / "notes")
    raw.hset(
        f"evsched:{{{queue}}}:job:a",
        "payload",
        encode({"task": kind, "args": [path, 60, 0.01], "timeout": 0.3}),
    )
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": 0})
    async with system(config, app):
        await app.client.result(queue, "a", 30)
    found = rows_of(path)
    assert sorted(set(found)) == list(range(60))
    # The row in which the run was cut short is repeated, none before it.
    assert len(found) <= 60 + notes(path).count("after:None") + 10


@pytest.mark.extra
async def test_loop_goes_on_behind_the_last_row_of_a_failed_attempt(config: Config, queue: str) -> None:
    app, seen = App(queue=queue), list[str]()

    async def letters() -> AsyncIterator[str]:
        for letter in "abcdef":
            yield letter

    @app.task(retry=Retry(attempts=3, interval=0))
    async def job() -> None:
        async for letter in resumable(letters(), key=str):
            seen.append(letter)
            if letter == "c" and current_job().attempt == 1:
                raise ValueError
        async for number in resumable([1, 2], key=int, name="numbers"):
            seen.append(str(number))
        if current_job().attempt == 2:
            raise ValueError

    async with system(config, app):
        await (await job.enqueue()).result(PATIENCE)
    assert "".join(seen) == "abccdef12"


@pytest.mark.one_server
async def test_place_is_saved_before_the_run_ends_though_redis_does_not_know_that_script(
    config: Config, raw: Any, queue: str
) -> None:
    """As after a failover, where another job has failed since."""
    app, seen = App(queue=queue), list[int]()

    @app.task(retry=Retry(attempts=2, interval=0))
    async def job() -> None:
        raw.script_flush()
        raw.script_load(script("retry").source)
        async for row in resumable([1, 2, 3], key=int):
            seen.append(row)
            if len(seen) == 2:
                raise ValueError

    async with system(config, app):
        await (await job.enqueue()).result(PATIENCE)
    assert seen == [1, 2, 2, 3]


@pytest.mark.extra
async def test_row_that_has_disappeared_is_not_passed_over_in_silence(config: Config, queue: str) -> None:
    app = App(queue=queue)

    @app.task(retry=Retry(attempts=2, interval=0))
    async def job() -> None:
        async for row in resumable([1, 2, 3] if current_job().attempt == 1 else [3, 4], key=int):
            if row == 3:
                raise ValueError

    async with system(config, app) as running:
        await job.enqueue()
        assert "no row has the key '2'" in (await running.recorder.wait(events.JobBuried)).reason


@pytest.mark.extra
async def test_step_does_not_begin_in_a_worker_that_stops(config: Config, queue: str, tmp_path: Path) -> None:
    app, path, go = App(queue=queue), str(tmp_path / "notes"), asyncio.Event()

    @app.task
    async def job() -> None:
        await step("one", note, path, "one")
        current_job().progress(1)
        await go.wait()
        await step("two", note, path, "two")

    async with system(config, app) as running:
        found = await job.enqueue()
        while (await found.status()).progress is None:
            pass
        running.workers[0].stop()
        await running.recorder.wait(events.WorkerDraining)
        go.set()
        await running.recorder.wait(events.JobSnoozed)
        assert notes(path) == ["one"]
        running.work()
        await found.result(PATIENCE)
    assert notes(path) == ["one", "two"]


async def test_worker_that_hands_back_a_row_saves_the_place_before_it(config: Config, queue: str) -> None:
    app, seen, stuck = App(queue=queue), list[int](), asyncio.Event()

    @app.task
    async def job() -> None:
        async for row in resumable(range(9), key=int, every=60.0):
            seen.append(row)
            if row == 5 and seen.count(5) == 1:
                stuck.set()
                await asyncio.Event().wait()

    async with system(replace(config, shutdown_grace=0.0), app) as running:
        found = await job.enqueue()
        await stuck.wait()
        running.workers[0].stop()
        await running.recorder.wait(events.WorkerStopped)
        running.work()
        await found.result(PATIENCE)
    assert seen == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8]


@pytest.mark.extra
async def test_step_whose_reply_is_lost_waits_for_redis(own: EmbeddedRedis, queue: str) -> None:
    app, go, began = App(queue=queue), asyncio.Event(), asyncio.Event()

    @app.task
    async def job() -> int:
        began.set()
        await go.wait()
        return await step("one", lambda: 7)

    async with Proxy(str(own.socket)) as proxy:
        config = Config(url=f"redis://{proxy.host}:{proxy.port}/0", queues=(queue,), shutdown_grace=5.0)
        async with system(config, app) as running:
            found = await job.enqueue()
            await began.wait()
            proxy.swallow("down")
            go.set()
            await running.recorder.wait(process_events.RedisDown)
            proxy.heal()
            assert await found.result(20) == 7
