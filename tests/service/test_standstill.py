"""The doctor reports jobs that do not move: how many, for how long, and what to type. It ignores queues that move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsched import App, events
from evsched.config import Config
from evsched.diagnostics.finding import Finding
from evsched.diagnostics.standstill import find_standstill
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.cli import Cli
from tests.support.system import system

PAYLOAD = '{"task":"work"}'


class Seed:
    """Puts a queue into a state, as processes that no longer run left it."""

    def __init__(self, raw: Any, queue: str) -> None:
        self.raw = raw
        self.root = f"evsched:{{{queue}}}:"
        self.now = float(raw.time()[0])

    def due(self, count: int = 3, ago: float = 76) -> None:
        for n in range(count):
            self.raw.hset(f"{self.root}job:due-{n}", "payload", PAYLOAD)
            self.raw.zadd(f"{self.root}schedule", {f"due-{n}": self.now - ago + n / 1000})

    def ahead(self) -> None:
        self.due(1, -3600)

    def recurrence(self) -> None:
        self.raw.hset(f"{self.root}recurrence:r", mapping={"rule": "every 60", "payload": PAYLOAD})
        self.raw.zadd(f"{self.root}recurrences", {"r": self.now - 120})
        self.worker()

    def ready(self, ago: float = 120) -> None:
        for n in range(2):
            self.raw.hset(f"{self.root}job:ready-{n}", mapping={"payload": PAYLOAD, "due": self.now - ago})
            self.raw.rpush(f"{self.root}ready", f"ready-{n}")

    def backlog(self) -> None:
        self.raw.hset(f"{self.root}job:late", mapping={"payload": PAYLOAD, "due": self.now - 9})
        self.raw.zadd(f"{self.root}backlog", {"late": -5e12})

    def worker(self, left: float = 100, holds: bool = False) -> None:
        self.raw.zadd(f"{self.root}leases", {"w": self.now + left})
        if holds:
            self.raw.hset(
                f"{self.root}job:held", mapping={"payload": PAYLOAD, "due": self.now - 99, "worker": "w", "attempt": 1}
            )
            self.raw.rpush(f"{self.root}processing:w", "held")

    def parent(self) -> None:
        self.raw.zadd(f"{self.root}parents", {"p": self.now + 100, "dead": self.now - 5})

    def rule(self, **limits: float) -> None:
        self.raw.hset(f"{self.root}limits", mapping=limits)


def unserved(seed: Seed) -> None:
    seed.ready()


def left_by_its_app(seed: Seed) -> None:
    seed.ready()
    seed.raw.hset(f"{seed.root}recurrence:r", mapping={"rule": "every 60", "payload": PAYLOAD, "owner": "app"})
    seed.raw.zadd(f"{seed.root}recurrences", {"r": seed.now + 3600})


def given_up(seed: Seed) -> None:
    left_by_its_app(seed)
    seed.raw.delete(f"{seed.root}ready", f"{seed.root}job:ready-0", f"{seed.root}job:ready-1")


def given_up_and_stopped(seed: Seed) -> None:
    given_up(seed)
    seed.raw.zadd(f"{seed.root}recurrences", {"r": "+inf"})


def dead_worker(seed: Seed) -> None:
    seed.ready()
    seed.worker(left=-5)


def parent_that_starts_nothing(seed: Seed) -> None:
    seed.ready()
    seed.parent()


def parent_that_starts_a_process(seed: Seed) -> None:
    seed.ready(ago=5)
    seed.parent()


def idle_worker(seed: Seed) -> None:
    seed.ready()
    seed.worker()


def busy_worker(seed: Seed) -> None:
    seed.ready()
    seed.worker(holds=True)


def busy_for_a_moment(seed: Seed) -> None:
    seed.ready(ago=20)
    seed.worker(holds=True)


def unrecovered(seed: Seed) -> None:
    seed.worker(left=-60, holds=True)


def paused(seed: Seed) -> None:
    seed.backlog()
    seed.rule(paused=seed.now - 300)


def limit_of_nothing(seed: Seed) -> None:
    seed.backlog()
    seed.worker()
    seed.rule(concurrency=0)


def limit_of_nothing_for_a_group(seed: Seed) -> None:
    seed.backlog()
    seed.worker()
    seed.rule(**{"concurrency:alice": 0})


def stuck_gate(seed: Seed) -> None:
    seed.backlog()
    seed.worker()


def limited(seed: Seed) -> None:
    """As many jobs run as the limit allows."""
    seed.backlog()
    seed.worker(holds=True)
    seed.rule(concurrency=1)


STATES: list[tuple[Callable[[Seed], None], list[tuple[str, str, str, str]]]] = [
    # the state; then the check, its level, a part of its message and a part of its remedy
    (
        Seed.due,
        [
            (
                "not-dispatched",
                "fault",
                "3 due jobs on the schedule, the first was due ",
                "start one: evsched dispatcher",
            )
        ],
    ),
    (Seed.ahead, [("no-dispatcher", "warning", "scheduled jobs will not start", "evsched dispatcher")]),
    (
        Seed.recurrence,
        [("not-recurring", "fault", "recurrence r makes no jobs, the first was due 2m 0", "evsched disp")],
    ),
    (
        unserved,
        [("no-worker", "fault", "2 due jobs waiting, the first was due 2m 0", "evsched worker MODULE:APP --queue {q}")],
    ),
    (
        left_by_its_app,
        [
            ("no-dispatcher", "warning", "no dispatcher is connected", "evsched dispatcher"),
            ("no-worker", "fault", "its recurrences, such as r, make jobs", "prune --queue {q} --all --app NAME"),
        ],
    ),
    (
        given_up,
        [
            ("no-dispatcher", "warning", "no dispatcher is connected", "evsched dispatcher"),
            ("no-worker", "warning", "no worker has a lease on this queue; its recurrences, such as r,", "prune"),
        ],
    ),
    (given_up_and_stopped, []),
    (dead_worker, [("no-worker", "fault", "no worker has a lease", "start one")]),
    (parent_that_starts_nothing, [("not-fetched", "fault", "1 parent standing by", "read the log of the parent")]),
    (parent_that_starts_a_process, []),
    (idle_worker, [("not-fetched", "fault", "1 worker with a lease, but running no job", "evsched top")]),
    (busy_worker, [("not-fetched", "warning", "1 worker running 1 job and fetching no more", "--process-pool")]),
    (busy_for_a_moment, []),
    (unrecovered, [("not-recovered", "fault", "1 job of 1 dead worker not put back; the first lease ended ", "disp")]),
    (paused, [("paused", "info", "the queue has been paused for 5m 0", "evsched resume {q}")]),
    (limit_of_nothing, [("limit-zero", "fault", "concurrency limit is 0", "evsched limit {q} --concurrency N")]),
    (limit_of_nothing_for_a_group, [("limit-zero", "fault", "of group alice is 0", "--group alice")]),
    (stuck_gate, [("gate", "fault", "1 job waiting at the gate", "evsched resume {q}")]),
    (limited, []),
]


async def watch(sender: BatchingSender, queue: str, seconds: float = 0.3) -> list[Finding]:
    return await find_standstill(sender, [queue], watch=seconds)


@pytest.mark.one_server
@pytest.mark.parametrize(("plant", "expected"), STATES, ids=lambda value: getattr(value, "__name__", None))
async def test_each_kind_of_standstill_is_reported_with_its_remedy(
    sender: BatchingSender, queue: str, raw: Any, plant: Any, expected: list[tuple[str, str, str, str]]
) -> None:
    plant(Seed(raw, queue))
    found = await watch(sender, queue)
    assert [(finding.check, finding.level) for finding in found] == [(check, level) for check, level, _, _ in expected]
    for finding, (_, _, what, mend) in zip(found, expected, strict=True):
        assert what in finding.what
        assert mend.format(q=queue) in finding.mend


async def test_recurrence_without_a_record_does_not_hide_a_standstill(
    sender: BatchingSender, queue: str, raw: Any
) -> None:
    seed = Seed(raw, queue)
    raw.zadd(f"{seed.root}recurrences", {"ghost": 0, "other": 0})
    raw.set(f"{seed.root}recurrence:other", "not a hash")
    assert await watch(sender, queue) == []
    seed.recurrence()
    (finding,) = await watch(sender, queue)
    assert "recurrence r makes no jobs" in finding.what


@pytest.mark.one_server
async def test_dispatcher_of_other_queues_is_mentioned_in_the_finding(
    server: EmbeddedRedis, sender: BatchingSender, queue: str, raw: Any
) -> None:
    Seed(raw, queue).due()
    async with system(Config(url=server.url, queues=("others",)), App(queue="others"), workers=0):
        (finding,) = await watch(sender, queue)
    assert (finding.check, finding.level) == ("not-dispatched", "fault")
    assert "1 dispatcher on this Redis, but none serves this queue" in finding.what
    assert "--queue includes this queue" in finding.mend


@pytest.mark.one_server
async def test_finding_about_full_memory_does_not_blame_the_dispatcher(
    server: EmbeddedRedis, sender: BatchingSender, queue: str, raw: Any
) -> None:
    Seed(raw, queue).recurrence()
    raw.config_set("maxmemory", 1)
    try:
        async with system(Config(url=server.url, queues=(queue,)), App(queue=queue), workers=0):
            (finding,) = await watch(sender, queue)
    finally:
        raw.config_set("maxmemory", 0)
    assert (finding.check, finding.level) == ("not-recurring", "fault")
    assert "Redis's memory is full, so it refuses new occurrences" in finding.what
    assert "maxmemory" in finding.mend


async def test_a_job_that_moves_after_the_first_look_is_not_reported(
    server: EmbeddedRedis, sender: BatchingSender, queue: str, raw: Any
) -> None:
    """Everything that can stand still does so at the first look. A dispatcher and a worker start before the last."""
    app = App(queue=queue)

    @app.task
    async def work() -> None: ...

    seed = Seed(raw, queue)
    for plant in (Seed.due, Seed.recurrence, unserved, unrecovered):
        plant(seed)
    assert len(await watch(sender, queue)) == 4
    config = Config(url=server.url, queues=(queue,), lease=0.5, heartbeat=0.2)
    async with system(config, app, workers=0) as running:
        running.work()
        assert await watch(sender, queue, 5.0) == []
        assert running.recorder.of(events.JobsRequeued)
        assert running.recorder.of(events.Completed)


async def test_quiet_workers_are_counted_and_are_to_be_restarted(
    server: EmbeddedRedis, sender: BatchingSender, queue: str, raw: Any
) -> None:
    app = App(queue=queue)
    async with system(Config(url=server.url, queues=(queue,)), app) as running:
        await running.recorder.wait(events.ControlOpened)
        await app.client.quiet_worker(running.workers[0].id, [queue])
        await running.recorder.wait(events.WorkerQuiet)
        Seed(raw, queue).ready()
        (finding,) = await watch(sender, queue)
    assert finding.what.endswith("but running no job of this queue and fetching none; 1 is quiet")
    remedy = (
        "restart the quiet workers (see evsched workers), or start more workers: evsched worker MODULE:APP --queue "
    )
    assert finding.mend == remedy + queue


async def test_an_id_that_is_scheduled_again_and_again_is_not_reported(
    server: EmbeddedRedis, queue: str, raw: Any
) -> None:
    app = App(queue=queue)

    @app.task
    async def work() -> None:
        raw.zadd(f"evsched:{{{queue}}}:schedule", {"again": 0})

    async with system(Config(url=server.url, queues=(queue,)), app) as running:
        await work.using(id="again").enqueue()
        for _ in range(3):
            assert await watch(running.sender, queue, 0.2) == []


async def test_a_key_of_the_wrong_type_is_left_to_the_audit(sender: BatchingSender, queue: str, raw: Any) -> None:
    raw.set(f"evsched:{{{queue}}}:backlog", "x")
    assert await watch(sender, queue) == []


@pytest.mark.extra
def test_command_reports_a_standstill_only_until_the_system_works(
    server: EmbeddedRedis, queue: str, raw: Any, tmp_path: Path
) -> None:
    cli = Cli(server.url, tmp_path)
    (tmp_path / "tasks.py").write_text(
        f"from evsched import App\napp = App(queue={queue!r})\n@app.task\nasync def work() -> None: ...\n"
    )
    Seed(raw, queue).due(2677)
    done = cli.run("doctor", "--queue", queue)
    assert done.returncode == 1
    assert "fault   not-dispatched: 2677 due jobs on the schedule, the first was due " in done.stdout
    assert "no dispatcher is connected" in done.stdout
    with cli.running("dispatcher", "--queue", queue, until="NotificationsProven"):
        done = cli.run("doctor", "--queue", queue)
        assert done.returncode == 1
        assert "not-dispatched" not in done.stdout
        assert "fault   no-worker: 2677 due jobs waiting, the first was due " in done.stdout
        with cli.running("worker", "tasks:app", until="WorkerStarted"):
            while raw.llen(f"evsched:{{{queue}}}:ready") + sum(
                raw.zcard(key) for key in raw.scan_iter(f"*{{{queue}}}:backlog*")
            ):
                pass
            done = cli.run("doctor", "--queue", queue)
            assert done.returncode == 0, done.stdout


async def test_nothing_is_reported_about_an_empty_queue(sender: BatchingSender, queue: str) -> None:
    assert await watch(sender, queue) == []
    assert await sender.send(Store(queue).limits()) is not None
