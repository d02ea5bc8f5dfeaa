"""Random walks of a batch: reports that are lost on the way, repeated and overtaken, producers that die, revivals."""

from __future__ import annotations

import os
import random

import pytest

from evsched.batches.keeper import Reports
from evsched.jobs.job import Buried, Done, FetchedJob
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send

SEED = int(os.environ.get("EVSCHED_TEST_SEED", "1"))
DONE = Done(b"1", 0.0, False, label=b'["t"]')


class Walk:
    """A batch whose jobs, producer and keepers do one thing after the other, at random."""

    def __init__(self, send: Send, store: Store, seed: int) -> None:
        self.random = random.Random(seed)
        self.send = send
        self.store = store.at(NOW)
        self.tokens: list[tuple[str, int, int]] = []
        """The reservations that are not confirmed: token, first ordinal, how many jobs are enqueued."""
        self.members = 0
        self.running: list[FetchedJob] = []
        self.dead: list[str] = []
        self.calls = set[str]()
        send(self.store.batch_open("b", "t", retention=9.0, fields={"on_done": "{}", "on_failed": "{}"}))

    def add(self) -> None:
        count, token = self.random.randint(1, 4), f"r{len(self.tokens)}x{self.members}x{self.random.random()}"
        token = token.replace(".", "")
        reserved = self.send(self.store.batch_add("b", token, count, "q"))
        if reserved.first is None:
            return
        written = self.random.choice([count, count, self.random.randint(0, count)])  # or the producer dies
        jobs = [New(f"b.{reserved.first + at}", b'{"task":"t"}', due=NOW) for at in range(written)]
        if jobs:
            self.send(self.store.enqueue(jobs, batch=reserved.address(self.store.queue, "b")))
        self.members += written
        if written == count and self.random.random() < 0.8:
            self.send(self.store.batch_add("b", "x", 0, confirms=token))
        else:
            self.tokens.append((token, reserved.first, written))

    def settle(self) -> None:
        """Do as a keeper does once the time of a reservation is over: its jobs that were not written are missing."""
        if self.tokens:
            token, _, _ = self.tokens.pop()
            chore = next(step for step, _ in self.send(self.store.chores(0)) if step.endswith(f" {token}"))
            _, _, first, last, _ = chore.split(" ")
            missing = [
                at for at in range(int(first), int(last) + 1) if self.send(self.store.member_of(f"b.{at}")) is None
            ]
            self.carry(lose=False)  # an end that is reported, and not carried yet, is no missing job
            for at in missing:
                self.send(self.store.batch_count([("b", at, b"\x05")]))
            self.send(self.store.batch_add("b", "x", 0, confirms=token))

    def run(self) -> None:
        self.send(self.store.dispatch(limit=100, cap=1000))
        self.running += self.send(self.store.start("w", (), hold=99, lease=15)).jobs
        self.random.shuffle(self.running)
        for job in [self.running.pop() for _ in range(self.random.randint(0, len(self.running)))]:
            if self.random.random() < 0.3:
                self.send(self.store.bury("w", [(job, Buried("x", False))]))
                self.dead.append(job.id)
            else:
                self.send(self.store.complete("w", [(job, DONE)]))

    def revive(self) -> None:
        if self.dead:
            self.send(self.store.revive([self.dead.pop(self.random.randrange(len(self.dead)))]))

    def carry(self, *, lose: bool = True) -> None:
        """Carry some reports, or all, in any order; some keepers die before they remove them."""
        steps = [step for step, _ in self.send(self.store.chores(0)) if step.startswith("end ")]
        self.random.shuffle(steps)
        for step in steps[: self.random.randint(0, len(steps))] if lose else steps:
            reports = Reports()
            reports.add("b", step.split(" ", 3)[3])
            self.send(self.store.batch_count(reports.rows()))
            if not lose or self.random.random() < 0.6:
                self.send(self.store.end_chores([step]))
        self.note_calls()

    def note_calls(self) -> None:
        self.calls |= {" ".join(step.split(" ")[2:4]) for step, _ in self.send(self.store.chores(0)) if "call" in step}

    def check_sums(self) -> None:
        """Compare the sums for metrics with the batch."""
        sums, record = self.send(self.store.queue_stats()).batches, self.send(self.store.batch("b"))
        assert sums is not None
        assert record is not None
        lasts = record.finished is None
        assert (sums.open, sums.jobs) == ((1, record.open) if lasts else (0, 0))
        assert sums.done + sums.failed == record.round

    def close(self) -> None:
        self.send(self.store.batch_close("b"))

    def finish(self) -> None:
        """Let everything that has begun come to its end, and all jobs be done."""
        self.close()
        while self.tokens:
            self.settle()
        for _ in range(50):
            self.carry(lose=False)
            while self.dead:
                self.revive()
            self.run()
        while self.dead or self.running or self.send(self.store.start("w", (), hold=99, lease=15)).jobs:
            while self.dead:
                self.revive()
            self.run()
        self.carry(lose=False)


@pytest.mark.seeded
@pytest.mark.parametrize("walk", range(40))
def test_batch_is_done_once_with_exact_counts_whatever_happens(send: Send, store: Store, walk: int) -> None:
    one = Walk(send, store, SEED * 1000 + walk)
    steps = [one.add, one.add, one.run, one.run, one.carry, one.carry, one.revive, one.settle]
    for at in range(60):
        one.random.choice(steps)()
        if at == 40:
            one.close()
        one.check_sums()
    one.finish()
    record = send(store.batch("b"))
    assert record is not None
    ended_before = any(call.startswith("done") for call in one.calls)
    assert ended_before
    one.check_sums()
    assert (record.state, record.total, record.done, record.open, record.adding) == (
        *("done", one.members, one.members, 0, 0),
    )
    assert sum(call.startswith("done") for call in one.calls) == 1
    assert {int(call.split(" ")[1]) for call in one.calls} == set(range(1, record.round + 1))
