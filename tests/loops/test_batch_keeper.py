"""Batches with real dispatchers and workers: each callback once, whatever the queues, whoever dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest
from msgspec.structs import replace

from evsched import App, EndedBatch, JobExists, JobLate, Retry, events
from evsched.batches.batch import batch_of_job
from evsched.config import Config
from evsched.errors import BadArguments, ConfigError, JobMissing
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender
from tests.support.patience import PATIENCE
from tests.support.system import System, system


class Ends:
    """The callbacks that have run."""

    def __init__(self) -> None:
        self.calls: list[EndedBatch] = []
        self.came = asyncio.Event()

    def outcomes(self) -> list[str]:
        return sorted(call.outcome for call in self.calls)

    async def wait(self, outcome: str, count: int = 1) -> EndedBatch:
        async with asyncio.timeout(PATIENCE):
            while Counter(call.outcome for call in self.calls)[outcome] < count:
                self.came.clear()
                await self.came.wait()
        return [call for call in self.calls if call.outcome == outcome][-1]


class Tasks:
    """An app whose tasks a test needs."""

    def __init__(self, app: App) -> None:
        self.ends = ends = Ends()
        self.failing = failing = set[int]()
        self.ran = ran = Counter[int]()
        self.hold = hold = asyncio.Event()

        @app.task(retry=Retry(attempts=1))
        async def work(n: int = 0) -> int:
            ran[n] += 1
            if n in failing:
                raise ValueError(n)
            return n

        @app.task
        async def wait(n: int = 0) -> int:
            await hold.wait()
            return n

        @app.task
        async def grow(depth: int) -> None:
            batch = await app.current_batch()
            assert batch is not None
            if depth:
                await batch.add(grow, depth - 1)
                await batch.add_many(work, [(depth,), (depth + 100,)])

        @app.task
        async def note(batch: EndedBatch) -> None:
            ends.calls.append(batch)
            ends.came.set()

        self.work, self.wait, self.grow, self.note = work, wait, grow, note
        self.app = app

    def callbacks(self) -> dict[str, Any]:
        return {"on_done": self.note, "on_failed": self.note}


@pytest.fixture
def tasks(app: App) -> Tasks:
    return Tasks(app)


async def test_callback_runs_once_when_all_jobs_are_done(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app) as running:
        async with tasks.app.batch(**tasks.callbacks(), tags=["x"]) as batch:
            await batch.add(tasks.work, 1)
            await batch.add_many(tasks.work, [(n,) for n in range(2, 30)])
            assert (await batch.status()).state == "open"
        ended = await tasks.ends.wait("done")
        assert (ended.batch, ended.total, ended.done, ended.dead) == (batch.id, 29, 29, 0)
        found = await batch.wait(5)
        assert (found.state, found.open, found.round) == ("done", 0, 1)
        assert sorted(await batch.results()) == list(range(1, 30))
        await done(running, f"call {batch.id} done 1 29 29 0 0 0 0")
        assert tasks.ends.outcomes() == ["done"]


async def done(running: System, step: str) -> None:
    """Wait until a chore has been done."""
    await running.recorder.wait(events.ChoresDone, lambda event: step in event.steps)


async def test_revived_job_reopens_a_failed_batch(config: Config, tasks: Tasks) -> None:
    tasks.failing |= {3, 7}
    async with system(config, tasks.app):
        async with tasks.app.batch(**tasks.callbacks()) as batch:
            await batch.add_many(tasks.work, [(n,) for n in range(10)])
        assert (await tasks.ends.wait("failed")).dead == 2
        failures = await batch.failures()
        assert [(member.ordinal, member.outcome) for member in failures] == [(3, "dead"), (7, "dead")]
        client = tasks.app.client
        tasks.failing.remove(3)
        await client.revive(batch.queue, [member.id for member in failures])
        assert (await tasks.ends.wait("failed", 2)).dead == 1
        tasks.failing.clear()
        await client.revive(batch.queue, [failures[1].id])
        assert (await tasks.ends.wait("done")).done == 10
        assert tasks.ends.outcomes() == ["done", "failed", "failed"]


async def test_jobs_may_be_in_several_queues(config: Config, tasks: Tasks, queue: str) -> None:
    queues = [queue, *(f"{queue}-{n}" for n in range(3))]
    config = replace(config, queues=tuple(queues))
    async with system(config, tasks.app):
        async with tasks.app.batch(queue=queues[1], **tasks.callbacks()) as batch:
            for name in queues:
                await batch.add_many(tasks.work.using(queue=name), [(n,) for n in range(20)])
        ended = await tasks.ends.wait("done")
        assert (ended.queue, ended.total) == (queues[1], 80)
        assert {member.queue for member in await batch.members()} == set(queues)
        assert tasks.ends.outcomes() == ["done"]


async def test_waiting_jobs_of_a_batch_get_another_priority(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        batch = await tasks.app.batch().open()
        done = await batch.add(tasks.work, 1)
        await done.result(PATIENCE)
        jobs = await batch.add_many(tasks.work.using(delay=3600), [(n,) for n in range(250)])
        async with batch.batch():
            pass
        assert await batch.set_priority(9) == 250
        assert await batch.set_priority(9) == 0
        assert {(await job.status()).priority for job in (jobs[0], jobs[123], jobs[249])} == {9}
        with pytest.raises(ConfigError, match="priority"):
            await batch.set_priority(10)


async def test_job_adds_jobs_to_its_own_batch(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        async with tasks.app.batch(**tasks.callbacks()) as batch:
            await batch.add(tasks.grow, 4)
        assert (await tasks.ends.wait("done")).total == 13
        with pytest.raises(JobLate, match="has ended: no more jobs can be added"):
            await batch.add(tasks.work, 1)


async def test_cancelled_batch_cancels_its_jobs_and_calls_nobody(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        async with tasks.app.batch(**tasks.callbacks()) as batch:
            await batch.add_many(tasks.wait, [(n,) for n in range(30)])
            await batch.add(tasks.work.using(delay=3600))
        await batch.cancel()
        found = await batch.wait(PATIENCE)
        assert (found.state, found.cancelled, found.open) == ("cancelled", 31, 0)
        assert tasks.ends.calls == []
        with pytest.raises(JobLate, match="was cancelled"):
            await batch.add(tasks.work, 1)


async def test_program_without_an_event_loop_opens_waits_for_and_cancels_batches(config: Config, tasks: Tasks) -> None:
    def program() -> None:
        with tasks.app.sync() as client:
            with client.batch(**tasks.callbacks()) as batch:
                job = batch.add(tasks.work, 7)
                batch.add_many(tasks.work, [(n,) for n in range(20)])
            assert batch.wait(PATIENCE).state == "done"
            assert job.result(PATIENCE) == 7
            assert sorted(client.known_batch(batch.id).results()) == sorted([7, *range(20)])
            assert (len(batch.members()), batch.failures()) == (21, [])

            def fail() -> None:
                with client.batch("b") as batch:
                    batch.add(tasks.work.using(delay=3600), 1)
                    raise ValueError("no")

            with pytest.raises(ValueError, match="no"):
                fail()
            assert client.known_batch("b").wait(PATIENCE).state == "cancelled"
            with pytest.raises(JobExists, match="there is a batch b already"):
                client.batch("b").open()

    async with system(config, tasks.app):
        await asyncio.to_thread(program)
        assert (await tasks.ends.wait("done")).total == 21


async def test_error_in_the_block_cancels_the_batch(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        batch = tasks.app.batch("b", **tasks.callbacks())

        async def fail() -> None:
            async with batch:
                await batch.add(tasks.work.using(delay=3600))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert (await batch.wait(PATIENCE)).state == "cancelled"
        with pytest.raises(JobExists, match="there is a batch b already"):
            await tasks.app.batch("b").open()


async def test_batch_that_takes_too_long_fails_and_is_forgotten(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app) as running:
        batch = await tasks.app.batch(**tasks.callbacks(), expires=0.1, retention=0.1).open()
        await batch.add(tasks.work.using(delay=3600))
        ended = await tasks.ends.wait("failed")
        assert (ended.cancelled, ended.total) == (1, 1)
        await done(running, f"forget {batch.id}")
        with pytest.raises(JobMissing, match="is not a batch"):
            await batch.status()
        assert await running.sender.send(Store(batch.queue).batch_names(0, -1)) == []


async def test_id_that_is_taken_is_no_member(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        await tasks.work.using(id="taken", delay=3600).enqueue(5)
        async with tasks.app.batch(**tasks.callbacks()) as batch:
            with pytest.raises(JobExists):
                await batch.add(tasks.work.using(id="taken"), 1)
            await batch.add(tasks.work.using(id="taken", on_conflict="keep"), 1)
            await batch.add(tasks.work.using(id="free"), 2)
        ended = await tasks.ends.wait("done")
        assert (ended.total, ended.done) == (1, 1)
        assert [(member.ordinal, member.id) for member in await batch.members()] == [(2, "free")]


async def test_batch_in_a_batch_counts_as_one_job(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        async with tasks.app.batch("outer", **tasks.callbacks()) as outer:
            await outer.add(tasks.work, 1)
            async with outer.batch("inner", **tasks.callbacks()) as inner:
                await inner.add_many(tasks.work, [(2,), (3,)])
        async with asyncio.timeout(PATIENCE):
            while len(tasks.ends.calls) < 2:
                tasks.ends.came.clear()
                await tasks.ends.came.wait()
        assert [(call.batch, call.total, call.done) for call in tasks.ends.calls] == [("inner", 2, 2), ("outer", 2, 2)]


async def test_batch_whose_id_is_taken_is_no_member(config: Config, tasks: Tasks, queue: str) -> None:
    async with system(config, tasks.app) as running:
        other = await tasks.app.batch("taken").open()
        async with tasks.app.batch("outer", **tasks.callbacks()) as outer:
            await outer.add(tasks.work, 1)
            with pytest.raises(JobExists):
                await outer.batch("taken").open()
        assert (await tasks.ends.wait("done")).total == 1
        # Programs have died between the two calls.
        outer = await tasks.app.batch("outer-2").open()
        await running.sender.send(Store(queue).batch_add("outer-2", "lost", 1, queue, ids=["/taken"]))
        await outer.cancel()
        await done(running, "cancel outer-2 0 0")
        assert (await other.status()).state == "open"
        await running.sender.send(Store(queue).add_chore("settle outer-2 0 0 lost", 0.0))
        assert (await outer.wait(PATIENCE)).total == 0


async def test_jobs_in_shards_find_their_batch(config: Config, sender: BatchingSender, queue: str) -> None:
    sharded = App(queue=queue, shards=2)
    sharded.move_to(config.url)

    @sharded.task
    async def work() -> None: ...

    async with sharded.batch("b") as batch:
        ids = [job.id for job in await batch.add_many(work, [()] * 9)]
    # One is not at its home: the number of shards was another one.
    other = f"{queue}:{1 - int(sharded.client.shards.home(queue, 'moved')[-1])}"
    await sender.send(Store(other).enqueue([New("moved", b'{"task":"work"}')], batch=f"{queue}/b/9/9999999999"))
    found = [await batch_of_job(sharded.client, queue, job_id) for job_id in [*ids, "moved"]]
    assert [one and one.id for one in found] == ["b"] * 10
    assert await batch_of_job(sharded.client, queue, "none") is None
    await sharded.close()


async def test_progress_is_called_at_tenths(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        async with tasks.app.batch(on_progress=tasks.note, on_done=tasks.note) as batch:
            await batch.add_many(tasks.wait, [(n,) for n in range(5)])
            await batch.add_many(tasks.work, [(n,) for n in range(5)])
        assert (await tasks.ends.wait("progress")).total == 10
        tasks.hold.set()
        assert (await tasks.ends.wait("done")).done == 10


async def test_wrong_options_are_refused(tasks: Tasks) -> None:
    app = tasks.app
    wrong: list[Any] = [
        {"on_done": "x"},
        {"complete_on": "x"},
        {"expires": "x"},
        {"on_done": tasks.note.using(delay=1)},
    ]
    for options in wrong:
        with pytest.raises(ConfigError):
            app.batch(**options)
    with pytest.raises(BadArguments):
        app.batch(on_done=tasks.work)
    with pytest.raises(TypeError, match="no option 'on_end'"):
        app.batch(on_end=tasks.note)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigError, match="at most 180"):
        app.batch("x" * 181)
    with pytest.raises(ConfigError, match="replaces no other"):
        await app.known_batch("b").add(tasks.work.using(id="a", on_conflict="replace"), 1)


async def test_calls_that_name_no_task_and_run_in_no_job_are_refused(tasks: Tasks) -> None:
    batch, wrong = tasks.app.known_batch("b"), cast("list[Any]", [print, tasks.work.s(1)])
    for task in wrong:
        with pytest.raises(ConfigError, match="is not a task"):
            await batch.add(task, 1)
        with pytest.raises(ConfigError, match="is not a task"):
            await batch.add_many(task, [(1,)])
    with tasks.app.sync() as client:
        for task in cast("list[Any]", [*wrong, "work", None]):
            with pytest.raises(ConfigError, match=r"is not a task: give a function .*@app\.task"):
                client.enqueue(task, 1)
            with pytest.raises(ConfigError, match="is not a task"):
                client.enqueue_many(task, [(1,)])
            with pytest.raises(ConfigError, match="is not a graph"):
                client.enqueue_graph(task)
    with pytest.raises(LookupError, match="no job runs here"):
        await tasks.app.current_batch()


async def test_producer_that_dies_before_it_enqueues_leaves_no_gap(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app) as running:
        send = running.sender.send
        batch = await tasks.app.batch(**tasks.callbacks()).open()
        await batch.add(tasks.work, 1)
        store = Store(batch.queue)
        reserved = await send(store.batch_add(batch.id, "lost", 250, batch.queue))
        # Some of the jobs are enqueued, and one of them has ended.
        address = reserved.address(batch.queue, batch.id)
        jobs = [New(f"{batch.id}.1", b'{"task":"work"}'), New(f"{batch.id}.2", b'{"task":"work"}', delay=3600)]
        await send(store.enqueue(jobs, batch=address))
        await running.recorder.wait(events.ChoresDone, lambda event: any(" 1d" in step for step in event.steps))
        await batch.close()
        await send(store.add_chore(f"settle {batch.id} 1 250 lost", 0.0))  # when its time has come
        await done(running, f"settle {batch.id} 193 250 lost")
        found = await batch.status()
        assert (found.total, found.done, found.adding, found.ordinals) == (3, 2, 0, 251)
        await tasks.app.job(f"{batch.id}.2").reschedule()
        assert (await tasks.ends.wait("done")).total == 3


async def test_job_of_an_earlier_batch_of_the_id_is_no_member(
    config: Config, tasks: Tasks, raw: Any, queue: str
) -> None:
    async with system(config, tasks.app) as running:
        for count in range(2):
            async with tasks.app.batch("b", retention=0.1, **tasks.callbacks()) as batch:
                await batch.add(tasks.work.using(id="kept", on_conflict="keep"), 1)
            assert (await tasks.ends.wait("done", count + 1)).done == 1
            await done(running, "forget b")
        assert tasks.ran[1] == 2


async def test_producer_that_dies_is_not_thought_to_have_enqueued_jobs_of_an_earlier_batch(
    config: Config, tasks: Tasks, raw: Any, queue: str
) -> None:
    async with system(config, tasks.app) as running:
        batch = await tasks.app.batch("b", **tasks.callbacks()).open()
        old = {"batch": f"{queue}/b/0", "payload": '{"task":"work"}', "created": "1"}
        old |= {"outcome": "done", "finished": "2"}
        raw.hset(f"evsched:{{{queue}}}:job:b.0", mapping=old)
        raw.expire(f"evsched:{{{queue}}}:job:b.0", 99)
        raw.hset(f"evsched:{{{queue}}}:job:kept", mapping=old | {"batch": f"{queue}/b/1", "life": "other"})
        raw.expire(f"evsched:{{{queue}}}:job:kept", 99)
        await running.sender.send(Store(queue).batch_add("b", "lost", 2, queue, ids=["b.0", "kept"]))
        await batch.close()
        await running.sender.send(Store(queue).add_chore("settle b 0 1 lost", 0.0))
        assert (await batch.wait(PATIENCE)).total == 0


async def test_lost_jobs_of_a_cancelled_batch_are_missing(config: Config, tasks: Tasks, raw: Any, queue: str) -> None:
    async with system(config, tasks.app) as running:
        async with tasks.app.batch(**tasks.callbacks()) as batch:
            await batch.add_many(tasks.work.using(delay=3600), [(1,), (2,)])
        raw.delete(f"evsched:{{{queue}}}:job:{batch.id}.1")
        raw.zrem(f"evsched:{{{queue}}}:schedule", f"{batch.id}.1")
        await batch.cancel()
        await done(running, f"cancel {batch.id} 0 1")
        await running.sender.send(Store(queue).add_chore(f"settle {batch.id} 0 1 -", 0.0))
        assert (await batch.wait(PATIENCE)).cancelled == 1
        assert (await batch.status()).total == 1


async def test_lost_job_that_was_revived_is_missing(config: Config, tasks: Tasks, raw: Any, queue: str) -> None:
    async with system(config, tasks.app) as running:
        batch = await tasks.app.batch("b", **tasks.callbacks()).open()
        await batch.add(tasks.work.using(delay=3600), 1)
        await running.sender.send(Store(queue).batch_count([("b", 0, bytes([8]))]))  # as `revive` reports it
        await batch.close()
        raw.delete(f"evsched:{{{queue}}}:job:b.0")
        raw.zrem(f"evsched:{{{queue}}}:schedule", "b.0")
        await running.sender.send(Store(queue).add_chore("settle b 0 0 -", 0.0))
        assert (await batch.wait(PATIENCE)).total == 0


async def test_chores_are_done_by_the_next_dispatcher(config: Config, tasks: Tasks) -> None:
    """A dispatcher is killed at the worst moments: the ends are reported, or counted, and nothing else is done."""
    async with system(config, tasks.app, dispatch=False) as running:
        batch = await tasks.app.batch(**tasks.callbacks()).open()
        await batch.add_many(tasks.work, [(n,) for n in range(5)])
        await batch.close()
        store = Store(batch.queue)
        await running.sender.send(store.dispatch(limit=10, cap=10_000))
        recorder = running.recorder
        await recorder.wait(events.Completed, lambda _: sum(len(one.ids) for one in recorder.of(events.Completed)) == 5)
        await running.sender.send(store.batch_count([(batch.id, 0, b"\x01" * 5)]))
        chores = await running.sender.send(store.chores(0))
        assert any(step.startswith("call ") for step, _ in chores)
        running.dispatch()
        assert (await tasks.ends.wait("done")).done == 5
        # All is done again, as by a dispatcher that was killed after each step and before it removed the chore.
        for step, at in chores:
            await running.sender.send(store.add_chore(step, min(at, 0.0)))
            await done(running, step)
        assert tasks.ends.outcomes() == ["done"]


async def test_malformed_chores_are_removed(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app) as running:
        store = Store(config.queues[0])
        wrong = [
            *("", "x", "end", "end x", "end a/b x 1d", "end a b/c 1.0 1d", "call b done", "settle b x y z", "forget"),
            *(
                "call b done 1 2 3 4 5 6 7",
                "settle b 0 1 t",
                "cancel b 0 1",
                "expire b",
                "forget b",
                "end a/b 1.0 zz 1d",
            ),
        ]
        for step in wrong:
            await running.sender.send(store.add_chore(step, 0.0))
            await done(running, step)
        left = {step for step, _ in await running.sender.send(store.chores(100))}
        assert not left.intersection(wrong)
