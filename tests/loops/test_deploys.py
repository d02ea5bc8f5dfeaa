"""Deploys: workers of several versions start side by side, are killed and restart; the newest version is in force."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import structs

from evsched import App, Retry, events, process_events
from evsched.config import Config
from evsched.errors import JobMissing
from evsched.runtime.loops import Runtime
from evsched.store import server
from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.transport.call import Call, T
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from evsched.worker.setup import Declarations
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.system import system

INF = float("inf")

VERSIONS: list[dict[str, str]] = [
    {"same": "@daily", "changed": "@daily", "removed": "@daily", "back": "@daily"},
    {"same": "@daily", "changed": "@hourly", "added": "@daily"},
    {"same": "@daily", "changed": "@weekly", "added": "@hourly", "back": "@hourly"},
]
"""By version of the app, its recurrences with their rules."""

NAMES = sorted({name for version in VERSIONS for name in version})


def app_of(queue: str, rules: dict[str, str], revision: int | None = None) -> App:
    app = App(queue=queue, name="app", revision=revision)

    @app.task(retry=Retry(attempts=1))
    async def work() -> None: ...

    for name, rule in rules.items():
        app.recurring(rule, name=name)(work)
        app.limit(group=f"{name}-{rule.strip('@')}", concurrency=len(rules))
    return app


def limits_of(queue: str, rules: dict[str, str]) -> dict[bytes, bytes]:
    limits = app_of(queue, rules).program.limits_in(queue)
    return {field.encode(): b"%d" % value for field, value in limits.items()}


def in_force(raw: Any, queue: str) -> dict[str, str]:
    """Return the rules of the recurrences that recur or are paused, and not retired."""
    root = f"evsched:{{{queue}}}:"
    names = [name.decode() for name in raw.zrange(f"{root}recurrences", 0, -1)]
    records = {name: raw.hgetall(f"{root}recurrence:{name}") for name in names}
    return {name: record[b"rule"].decode() for name, record in records.items() if b"retired" not in record}


class InTurns(BatchingSender):
    """Sends each call only when the test says so."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.turns: dict[asyncio.Task[Any], asyncio.Future[None]] = {}
        """By task, what its next call waits for."""
        self.asked = asyncio.Event()

    async def send(self, call: Call[T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        turn = self.turns[task] = asyncio.get_running_loop().create_future()
        self.asked.set()
        await turn
        return await super().send(call)


class Fleet:
    """Workers of several versions that start side by side. Which of them sends the next call comes from a seed."""

    def __init__(self, config: Config, queue: str, seed: int, *, given: bool) -> None:
        self.pick = random.Random(seed)
        self.given = given
        self.store = Store(queue)
        self.sender = InTurns(config.url)
        self.recorder = Recorder()
        self._runtime = Runtime(config, self.sender, self.recorder)
        self._starting: dict[asyncio.Task[None], int] = {}

    @property
    def starting(self) -> int:
        """How many workers have not ended their start."""
        return len(self._starting)

    async def start(self, version: int) -> asyncio.Task[None]:
        """Start a worker; its first call waits for its turn."""
        app = app_of(self.store.queue, VERSIONS[version], version + 1 if self.given else None)
        task = asyncio.create_task(Declarations(self._runtime, app.program).write(self.store))
        self._starting[task] = version
        await self._settle()
        return task

    async def step(self, task: asyncio.Task[None] | None = None) -> None:
        """Let this worker send its next call, or any of them."""
        if self._starting:
            turn = self.sender.turns.pop(task or self.pick.choice(list(self._starting)))
            turn.set_result(None)
            await self._settle()

    async def kill(self, version: int) -> int:
        """Kill the workers of a version that are starting; return how many."""
        victims = [task for task, its in self._starting.items() if its == version]
        for task in victims:
            task.cancel()
            del self._starting[task], self.sender.turns[task]
        await asyncio.gather(*victims, return_exceptions=True)
        return len(victims)

    async def finish(self) -> None:
        """Let all starting workers finish."""
        while self._starting:
            await self.step()

    async def _settle(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while busy := [task for task in self._starting if task not in self.sender.turns and not task.done()]:
                self.sender.asked.clear()
                asked = asyncio.ensure_future(self.sender.asked.wait())
                await asyncio.wait([asked, *busy], return_when=asyncio.FIRST_COMPLETED)
                asked.cancel()
        for task in [task for task in self._starting if task.done()]:
            del self._starting[task]
            task.result()


async def upheaval(fleet: Fleet, released: int, pause: Callable[[str], Awaitable[None]]) -> None:
    """Start and kill workers of the versions that are released, pause recurrences, for a while."""
    for _ in range(fleet.pick.randint(1, 40)):
        await fleet.step()
        version = fleet.pick.randint(0, released)
        if fleet.pick.random() < 0.2:
            for _ in range(await fleet.kill(version)):
                await fleet.start(version)  # as a supervisor does
        if fleet.pick.random() < 0.2 and fleet.starting < 6:
            await fleet.start(version)
        if fleet.pick.random() < 0.1:
            await pause(fleet.pick.choice(NAMES))


@pytest.mark.extra
@pytest.mark.seeded
@pytest.mark.parametrize("given", [False, True], ids=["counted", "given"])
@pytest.mark.parametrize("offset", range(15))
async def test_newest_version_is_in_force_after_any_order_of_starts_and_kills(
    config: Config, queue: str, raw: Any, sender: BatchingSender, offset: int, given: bool
) -> None:
    """Two or three versions are released one after the other; workers of all of them are killed and restart."""
    seed = int(os.environ.get("EVSCHED_TEST_SEED", "1")) * 1000 + offset
    fleet, paused = Fleet(config, queue, seed, given=given), set[str]()

    async def pause(name: str) -> None:
        with contextlib.suppress(JobMissing):
            await sender.send(fleet.store.hold(name, True))
            paused.add(name)

    newest = fleet.pick.choice([1, 2])
    try:
        for version in range(newest + 1):
            await fleet.step(await fleet.start(version))  # it registers; from here on it may be killed
            await upheaval(fleet, version, pause)
        for version in fleet.pick.sample(range(newest + 1), newest + 1):
            await fleet.start(version)
        await fleet.finish()
        for version in range(newest):  # a worker of an old version restarts when all is over
            await fleet.start(version)
            await fleet.finish()
    finally:
        for version in range(newest + 1):
            await fleet.kill(version)
        await fleet.sender.close()
    assert in_force(raw, queue) == VERSIONS[newest], f"seed {seed}"
    assert raw.hgetall(f"evsched:{{{queue}}}:limits") == limits_of(queue, VERSIONS[newest]), f"seed {seed}"
    root = f"evsched:{{{queue}}}:"
    scores = {name.decode(): score for name, score in raw.zrange(f"{root}recurrences", 0, -1, withscores=True)}
    stopped = paused | (scores.keys() - VERSIONS[newest].keys())
    # 0 or -1: from now on.
    assert {name: max(score, 0) for name, score in scores.items()} == {
        name: INF if name in stopped else 0 for name in scores
    }, f"seed {seed}"
    assert {name for name in scores if raw.hexists(f"{root}recurrence:{name}", "paused")} == paused, f"seed {seed}"


def outdated(recorder: Recorder) -> list[tuple[str, str]]:
    return [(event.revision, event.newest) for event in recorder.of(events.RevisionOutdated)]


async def test_an_old_worker_that_restarts_says_that_a_newer_deploy_is_in_force(
    config: Config, queue: str, raw: Any
) -> None:
    async with system(config, app_of(queue, VERSIONS[1], 5), dispatch=False):
        pass
    async with system(config, app_of(queue, VERSIONS[0], 4), dispatch=False) as running:
        assert outdated(running.recorder) == [("4", "5")]
        assert not running.recorder.of(events.RecurrenceDeclared)
    assert in_force(raw, queue) == VERSIONS[1]


@pytest.mark.parametrize("given", [False, True], ids=["counted", "given"])
async def test_running_workers_declare_at_a_heartbeat_after_rollback(
    config: Config, queue: str, raw: Any, given: bool
) -> None:
    quick = structs.replace(config, idle_heartbeat=0.1, heartbeat=0.1)
    old, new = (app_of(queue, VERSIONS[n], 4 + n if given else None) for n in (0, 1))
    async with system(quick, old, dispatch=False):
        pass
    async with system(quick, new, dispatch=False):
        pass
    async with system(quick, old, dispatch=False) as running:
        assert len(outdated(running.recorder)) == 1
        assert in_force(raw, queue) == VERSIONS[1]
        await running.sender.send(Store(queue).forget_revisions("app"))
        await running.recorder.wait(events.RecurrenceDeclared, lambda event: event.name == "added")
        assert in_force(raw, queue) == VERSIONS[0]
    # The version that was rolled back is deployed again, repaired or not: it is the newest.
    async with system(quick, new, dispatch=False) as running:
        assert not outdated(running.recorder)
    assert in_force(raw, queue) == VERSIONS[1]


@pytest.mark.parametrize("after", ["tasks", "revisions:app"])
async def test_worker_starting_while_its_queue_is_forgotten_rewrites_its_keys(
    config: Config, queue: str, raw: Any, after: str
) -> None:
    app, root, store = App(queue=queue, name="app"), f"evsched:{{{queue}}}:", Store(queue)
    app.task(name="t")(lambda: None)
    quick, deleted = structs.replace(config, idle_heartbeat=0.1, heartbeat=0.1), list[list[str]]()
    async with system(quick, app, workers=0, dispatch=False) as running:
        send = running.sender.send

        async def send_and_forget(call: Call[Any]) -> Any:
            reply = await send(call)
            if not deleted and raw.exists(root + after):
                deleted.append(await send(store.forget([queue])))
                assert not raw.exists(root + after)
            return reply

        running.sender.send = send_and_forget
        running.work()
        await running.recorder.wait(events.WorkerStarted)
        async with asyncio.timeout(PATIENCE):
            while raw.exists(*(root + key for key in ("apps", "programs", "revisions:app", "tasks"))) < 4:
                await send(server.clock())
    assert deleted == [[queue]]


@pytest.mark.extra
@pytest.mark.parametrize(("of_old", "of_new"), [(0.1, 1.0), (1.0, 0.1)], ids=["the old first", "the new first"])
async def test_running_workers_declare_again_after_redis_has_lost_its_data(
    own: EmbeddedRedis, client: Any, queue: str, of_old: float, of_new: float
) -> None:
    """With workers of two versions, the newer is in force again after heartbeats in either order."""

    def config(heartbeat: float) -> Config:
        return Config(url=own.url, queues=(queue,), idle_heartbeat=heartbeat, heartbeat=0.1)

    old, new = app_of(queue, VERSIONS[0]), app_of(queue, VERSIONS[1])
    async with (
        system(config(of_old), old, dispatch=False) as first,
        system(config(of_new), new, dispatch=False) as second,
    ):
        client.flushall()
        revisions = f"evsched:{{{queue}}}:revisions:app"
        async with asyncio.timeout(PATIENCE):
            while client.zcard(revisions) < 2:
                await asyncio.to_thread(client.ping)
            assert client.zrange(revisions, -1, -1) == [new.program.content_in(queue).encode()]
            while in_force(client, queue) != VERSIONS[1]:
                await asyncio.to_thread(client.ping)
        assert client.hgetall(f"evsched:{{{queue}}}:limits") == limits_of(queue, VERSIONS[1])
        for running in (first, second):
            await running.recorder.wait(events.LeaseLost)
        assert client.sismember("evsched:{}:queues", queue)


async def test_process_started_after_a_data_loss_keeps_the_previous_revision(
    config: Config, sender: BatchingSender, queue: str, raw: Any, recorder: Recorder
) -> None:
    runtime, store = Runtime(config, sender, recorder), Store(queue)

    async def start(version: int, before: dict[str, Announced] | None = None) -> dict[str, Announced]:
        """Declare as a worker process does, and return its report to the parent."""
        declarations = Declarations(runtime, app_of(queue, VERSIONS[version]).program, before)
        await declarations.write(store)
        return {queue: Announced(*declarations.declared(queue), revision=declarations.known(queue))}

    old, new = await start(0), await start(1)
    raw.flushall()
    await start(1, new)
    await start(0, old)
    assert in_force(raw, queue) == VERSIONS[1]
    await start(2, old)  # the code was changed meanwhile
    assert in_force(raw, queue) == VERSIONS[2]


@pytest.mark.parametrize("refusal", ["a key of a wrong type", "a right that is missing for the records alone"])
async def test_declaration_refused_after_a_data_loss_is_repeated_until_accepted(
    own: EmbeddedRedis, client: Any, queue: str, refusal: str
) -> None:
    config, key = Config(url=own.url, idle_heartbeat=0.1, heartbeat=0.1), f"evsched:{{{queue}}}:recurrences"
    async with system(config, app_of(queue, {"r": "@daily"}), dispatch=False) as running:
        if refusal == "a key of a wrong type":
            client.pipeline().flushall().set(key, "x").execute()
        else:
            client.execute_command("ACL", "SETUSER", "default", "-hset")
            client.flushall()
        await running.recorder.wait(process_events.CallRefused)
        assert len(running.recorder.of(events.RecurrenceDeclared)) == 1
        if refusal == "a key of a wrong type":
            client.delete(key)
        else:
            client.execute_command("ACL", "SETUSER", "default", "+hset")
        await running.recorder.wait(events.RecurrenceDeclared, count=2)
        await running.recorder.wait(process_events.CallAccepted)
    assert in_force(client, queue) == {"r": "@daily"}


async def test_a_record_of_a_wrong_type_is_reported_and_the_queue_is_served(
    config: Config, queue: str, raw: Any
) -> None:
    raw.set(f"evsched:{{{queue}}}:recurrence:changed", "x")
    async with system(config, app_of(queue, VERSIONS[0]), dispatch=False) as running:
        (broken,) = running.recorder.of(events.RecurrenceBroken)
        assert (broken.name, "is a string" in broken.reason) == ("changed", True)
        declared = [event.name for event in running.recorder.of(events.RecurrenceDeclared)]
    assert declared == ["same", "removed", "back"]
    raw.delete(f"evsched:{{{queue}}}:recurrence:changed")  # the audit would find it
