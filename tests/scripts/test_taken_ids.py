"""Inline jobs whose id another job has: no payload is lost, and none runs twice, wherever that job is."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from evsched.jobs.job import Buried, Done, FetchedJob, Retried
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

FIRST = '{"task":"t","args":[1]}'
DONE = Done(b"1", 300.0, False)
LONG = "x" * 9000
"""The scripts read no payload as a whole whose record is so long, unless they must."""


def inline(args: object) -> str:
    return f'{{"id":"X","task":"t","args":[{args}]}}'


def sha(member: str) -> str:
    return hashlib.sha1(member.encode()).hexdigest()


SECOND = inline(2)


class Scene:
    """A queue, its worker, and what has run there."""

    def __init__(self, raw: Any, send: Send, store: Store) -> None:
        self.raw, self.send, self.store, self.now = raw, send, store, NOW
        self.root = f"evsched:{{{store.queue}}}:"
        self.ran = list[tuple[str, str]]()
        send(store.at(NOW).heartbeat("w", 1e6, busy=1e6, fresh=True))

    def schedule(self, *members: str, at: float = NOW) -> None:
        self.raw.zadd(f"{self.root}schedule", dict.fromkeys(members, at))

    def dispatch(self) -> list[tuple[str, str]]:
        return self.send(self.store.at(self.now).dispatch(limit=100, cap=100_000)).buried

    def start(self) -> FetchedJob:
        (run,) = self.send(self.store.at(self.now).start("w", (), hold=1, lease=1e6)).jobs
        return run

    def complete(self, run: FetchedJob) -> None:
        assert self.send(self.store.at(self.now).complete("w", [(run, DONE)])) == []
        self.ran.append((run.id, run.payload.decode()))

    def run_all(self) -> None:
        """Run what is due in the next minutes, one after another."""
        for _ in range(4):
            self.now += 60.0
            assert self.dispatch() == []
            for run in self.send(self.store.at(self.now).start("w", (), hold=9, lease=1e6)).jobs:
                self.complete(run)


@pytest.fixture
def scene(raw: Any, send: Send, store: Store) -> Scene:
    return Scene(raw, send, store)


def bring(scene: Scene, place: str, payload: str = FIRST) -> None:
    """Bring the job X to a place."""
    due = NOW + 3 if place == "schedule" else NOW
    if place == "backlog":
        scene.send(scene.store.pause())
    scene.send(scene.store.at(NOW).enqueue([New("X", payload.encode(), due=due)]))
    scene.dispatch()
    if place in ("waits for a retry", "running", "replaced"):
        run = scene.start()
        if place == "waits for a retry":
            scene.send(scene.store.at(NOW).retry("w", [(run, Retried(50.0, "it failed"))]))
        elif place == "replaced":
            scene.send(scene.store.at(NOW).replace([New("X", inline(3).encode(), due=NOW + 3)]))


PLACES = ["schedule", "backlog", "ready", "waits for a retry", "running", "replaced"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("payload", [FIRST, inline(f'"{LONG}"')], ids=["short", "long"])
def test_inline_job_is_dead_while_another_payload_has_its_id(
    scene: Scene, state: State, place: str, payload: str
) -> None:
    bring(scene, place, payload)
    before = state()
    scene.schedule(SECOND)
    ((job, reason),) = scene.dispatch()
    assert job == sha(SECOND)
    assert reason.startswith("the id X is that of a job with another payload that has not ended")
    after = state()
    for name in ("job:X", "light", "schedule", "backlog", "ready", "processing:w"):
        assert after.get(name) == before.get(name)
    assert scene.send(scene.store.revive([job])) == [job]
    scene.send(scene.store.resume())
    for run in scene.send(scene.store.at(NOW).start("w", (), hold=9, lease=1e6)).jobs:
        scene.complete(run)
    if place in ("running", "replaced"):
        scene.complete(FetchedJob("X", 1, NOW, payload.encode(), run=f"1 {NOW:.6f}"))
    scene.run_all()
    assert sorted(scene.ran) == sorted(
        [("X", payload), (sha(SECOND), SECOND), *[("X", inline(3))] * (place == "replaced")]
    )


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready", "waits for a retry"])
@pytest.mark.parametrize("args", [2, f'"{LONG}"'], ids=["short", "long"])
def test_same_inline_job_is_one_run_while_the_first_waits(scene: Scene, place: str, args: object) -> None:
    bring(scene, place, inline(args))
    scene.schedule(inline(args))
    assert scene.dispatch() == []
    scene.send(scene.store.resume())
    scene.run_all()
    assert scene.ran == [("X", inline(args))]


def test_same_inline_job_runs_once_more_after_the_run(scene: Scene, state: State) -> None:
    bring(scene, "running", SECOND)
    scene.schedule(SECOND)
    assert scene.dispatch() == []
    scene.schedule("X", at=NOW + 3)
    scene.schedule(SECOND)
    assert scene.dispatch() == []
    assert "schedule" not in state()
    scene.complete(FetchedJob("X", 1, NOW, SECOND.encode(), run=f"1 {NOW:.6f}"))
    scene.run_all()
    assert scene.ran == [("X", SECOND)] * 2


def test_first_of_several_inline_jobs_of_an_id_runs_and_the_others_are_dead(scene: Scene) -> None:
    scene.schedule(*(inline(n) for n in range(3)))
    assert [job for job, _ in scene.dispatch()] == [sha(inline(1)), sha(inline(2))]
    scene.run_all()
    assert scene.ran == [("X", inline(0))]


def test_inline_job_that_takes_the_id_of_a_light_job_of_the_same_call_is_dead(scene: Scene) -> None:
    light = FIRST
    taker = f'{{"id":"{sha(light)}","task":"t"}}'
    scene.schedule(light, at=NOW - 1)
    scene.schedule(taker)
    assert [job for job, _ in scene.dispatch()] == [sha(taker)]
    scene.run_all()
    assert scene.ran == [(sha(light), light)]


@pytest.mark.parametrize("end", ["done", "dead", "no place"])
def test_inline_job_with_the_id_of_a_job_that_has_ended_is_a_new_one(scene: Scene, state: State, end: str) -> None:
    bring(scene, "schedule" if end == "no place" else "running")
    run = FetchedJob("X", 1, NOW, FIRST.encode(), run=f"1 {NOW:.6f}")
    if end == "done":
        scene.send(scene.store.at(NOW).complete("w", [(run, DONE)]))
    elif end == "dead":
        scene.send(scene.store.at(NOW).bury("w", [(run, Buried("it failed", False))]))
    else:
        scene.raw.zrem(f"{scene.root}schedule", "X")
    scene.schedule(SECOND)
    assert scene.dispatch() == []
    assert "dead" not in state()
    scene.run_all()
    assert scene.ran == [("X", SECOND)]


def test_refused_inline_job_that_was_revived_is_not_buried_again(scene: Scene, state: State) -> None:
    bring(scene, "running")
    scene.schedule(SECOND)
    ((job, _),) = scene.dispatch()
    scene.send(scene.store.revive([job]))
    scene.schedule(SECOND)
    assert scene.dispatch() == []
    assert "dead" not in state()
    scene.complete(FetchedJob("X", 1, NOW, FIRST.encode(), run=f"1 {NOW:.6f}"))
    scene.run_all()
    assert sorted(scene.ran) == sorted([("X", FIRST), (job, SECOND)])
