"""Random walks of all verbs against the model in plain Python: after each step the whole state is the same."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any, cast

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from evsched.connection import SyncCommands
from evsched.embedded import EmbeddedRedis
from evsched.errors import JobExists, JobMissing, JobRunning
from evsched.job import Buried, Done, Retried, Taken
from evsched.store import New, Store
from tests.support.model import Model
from tests.support.snapshot import snapshot

START = 1_900_000_000.0
IDS = [f"j{n:02}" for n in range(40)]
WORKERS = ["u", "v"]
job_ids = st.sampled_from(IDS)
workers = st.sampled_from(WORKERS)


class Walk(RuleBasedStateMachine):
    server: EmbeddedRedis

    @initialize()
    def begin(self) -> None:
        self.raw: Any = redis.Redis.from_url(self.server.url, protocol=2, driver_info=None)
        self.commands = SyncCommands(self.server.url)
        self.send = self.commands.send
        self.store = Store(f"walk-{secrets.token_hex(6)}")
        self.model = Model()
        self.now = START
        self.runs: list[tuple[str, Taken]] = []
        # More than ready holds, so that there is a backlog from the start.
        self.enqueue(IDS[::2], ahead=0, priority=5, group="a")
        self.enqueue(IDS[1::4], ahead=0, priority=5, group="b")

    @rule(
        chosen=st.lists(job_ids, min_size=1, max_size=40, unique=True),
        ahead=st.sampled_from([0, 0, 1, 5]),
        priority=st.sampled_from([5, 5, 9]),
        group=st.sampled_from(["", "a", "b"]),
    )
    def enqueue_some(self, chosen: list[str], ahead: int, priority: int, group: str) -> None:
        self.enqueue(chosen, ahead, priority, group)

    def enqueue(self, chosen: list[str], ahead: int, priority: int, group: str) -> None:
        for job in chosen:
            new = New(job, b'{"task":"t"}', priority=priority, group=group, due=self.now + ahead)
            try:
                self.send(self.store.enqueue([new], now=self.now))
                written = True
            except JobExists:
                written = False
            assert self.model.enqueue(job, self.now + ahead, priority, group) is written

    @rule(data=st.data(), ahead=st.sampled_from([0, 2]))
    def schedule_raw(self, data: st.DataObject, ahead: int) -> None:
        # Most often an id that was taken lately: that is where two runs of one id meet.
        job = data.draw(st.sampled_from([job.id for _, job in self.runs[-6:]] or IDS))
        root = f"evsched:{{{self.store.queue}}}:"
        self.raw.hset(f"{root}job:{job}", "payload", '{"task":"t"}')
        self.raw.persist(f"{root}job:{job}")
        self.raw.zadd(f"{root}schedule", {job: self.now + ahead})
        self.model.schedule_raw(job, self.now + ahead)

    @rule(passes=st.sampled_from([0.0, 1.0, 3.0]), limit=st.sampled_from([3, 100]))
    def dispatch(self, passes: float, limit: int) -> None:
        self.now += passes
        self.send(self.store.dispatch(limit=limit, cap=1000, now=self.now))
        self.model.dispatch(self.now, limit)

    @rule(worker=workers, hold=st.integers(0, 30), blocking=st.booleans())
    def start(self, worker: str, hold: int, blocking: bool) -> None:
        taken: list[str] = []
        if blocking:
            root = f"evsched:{{{self.store.queue}}}:"
            one = self.raw.lmove(f"{root}ready", f"{root}processing:{worker}", "LEFT", "RIGHT")
            expected = self.model.take(worker)
            assert (one.decode() if one else None) == expected
            taken = [expected] if expected else []
        take = self.send(self.store.start(worker, taken, hold=hold, lease=15, now=self.now))
        assert [(job.id, job.attempt) for job in take.jobs] == self.model.start(worker, taken, hold)
        self.runs += [(worker, job) for job in take.jobs]

    @rule(worker=workers)
    def take_and_die(self, worker: str) -> None:
        root = f"evsched:{{{self.store.queue}}}:"
        self.raw.lmove(f"{root}ready", f"{root}processing:{worker}", "LEFT", "RIGHT")
        self.model.take(worker)

    @rule(data=st.data(), end=st.sampled_from(["complete", "retry", "bury"]), other=st.booleans())
    def end(self, data: st.DataObject, end: str, other: bool) -> None:
        if not self.runs:
            return
        # Any run that ever was, so stale ones too.
        worker, job = data.draw(st.sampled_from(self.runs[-9:]))
        if other:
            worker = data.draw(workers)
        if end == "complete":
            lost = self.send(self.store.complete(worker, [(job, Done(b"1", 1000, False))], now=self.now))
            own = self.model.complete(worker, job.id, job.attempt)
        elif end == "retry":
            lost = self.send(self.store.retry(worker, [(job, Retried(1.0, "x"))], now=self.now))
            own = self.model.retry(worker, job.id, job.attempt, self.now + 1)
        else:
            lost = self.send(self.store.bury(worker, [(job, Buried("x", False))], now=self.now))
            own = self.model.bury(worker, job.id, job.attempt)
        assert lost == ([] if own else [job.id])

    @rule(worker=workers, limit=st.sampled_from([2, 100]))
    def requeue(self, worker: str, limit: int) -> None:
        self.send(self.store.requeue(worker, "x", limit=limit))
        self.model.requeue(worker, limit)

    @rule(job=job_ids)
    def cancel(self, job: str) -> None:
        try:
            told = cast("str", self.send(self.store.cancel(job)))
        except JobRunning:
            told = "RUNNING"
        except JobMissing:
            told = "MISSING"
        assert told == self.model.cancel(job)

    @rule(job=job_ids, ahead=st.sampled_from([0, 3]))
    def reschedule(self, job: str, ahead: int) -> None:
        try:
            self.send(self.store.reschedule(job, self.now + ahead, now=self.now))
            moved = True
        except (JobMissing, JobRunning):
            moved = False
        assert moved is self.model.reschedule(job, self.now + ahead)

    @rule(job=job_ids, drop=st.booleans())
    def revive_or_drop(self, job: str, drop: bool) -> None:
        try:
            self.send(self.store.drop([job]) if drop else self.store.revive([job], now=self.now))
            moved = True
        except JobMissing:
            moved = False
        assert moved is (self.model.drop(job) if drop else self.model.revive(job, self.now))

    @invariant()
    def the_state_is_the_models(self) -> None:
        state, model = snapshot(self.raw, self.store.queue), self.model
        assert state.get("schedule", {}) == model.schedule
        assert state.get("backlog", {}) == model.backlog
        assert state.get("ready", []) == model.ready
        assert set(state.get("dead", {})) == model.dead
        for worker in WORKERS:
            assert state.get(f"processing:{worker}", []) == model.processing.get(worker, [])
        records = {name[4:]: fields for name, fields in state.items() if name.startswith("job:")}
        assert records.keys() == model.jobs.keys()
        for job, record in model.jobs.items():
            fields = records[job]
            assert int(fields.get("attempt", 0)) == record.attempt, job
            assert ("finished" in fields) is record.finished, job
            assert (None if record.finished else fields.get("worker")) == (None if record.finished else record.worker)
            assert (float(fields["again"]) if "again" in fields else None) == record.again, job

    @invariant()
    def the_gate_does_not_strand_the_backlog(self) -> None:
        held = any(self.model.processing.values())
        assert not self.model.backlog or self.model.ready or held

    @invariant()
    def no_job_waits_in_two_places(self) -> None:
        waiting = Counter([*self.model.backlog, *self.model.ready])
        assert max(waiting.values(), default=1) == 1
        assert not self.model.dead & waiting.keys()

    def teardown(self) -> None:
        if hasattr(self, "raw"):
            self.raw.close()
            self.commands.close()


@pytest.mark.timeout(120)
def test_random_walks(server: EmbeddedRedis) -> None:
    class Here(Walk):
        pass

    Here.server = server
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=50,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
