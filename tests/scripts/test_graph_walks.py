"""Random walks of graphs: reports in any order, repeated and revived, against a model in plain Python."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from evsched.errors import JobLate, JobMissing
from evsched.store.batch_calls import PlanRow
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send

SEED = int(os.environ.get("EVSCHED_TEST_SEED", "1"))
OPEN, DONE, DEAD, CANCELLED, EXPIRED, MISSING, STOPPED, WAITS = range(8)
TURN = 8
ENDS = [DONE, DONE, DONE, DEAD, DEAD, CANCELLED, EXPIRED]


class Model:
    """What the home must say, computed anew from the reports that it has got."""

    def __init__(self, after: Sequence[Sequence[int]], despite: set[int]) -> None:
        self.after = after
        self.despite = despite
        self.bytes = [WAITS] * len(after)
        self.released: list[int] = []
        self.stop = False

    def report(self, reports: Sequence[tuple[int, int]]) -> None:
        for node, said in reports:
            known = self.bytes[node]
            newer = said // TURN - known // TURN
            is_end = said % 8 > 0 and (known % 8 == OPEN or (known % 8 == MISSING and said % 8 != MISSING))
            if newer > 0 or (newer == 0 and is_end):
                self.bytes[node] = said
        self.settle()

    def settle(self) -> None:
        for node, before in enumerate(self.after):
            if self.bytes[node] not in (WAITS, STOPPED) or self.stop:
                continue
            codes = [self.bytes[one] % 8 for one in before]
            if node in self.despite:
                fails, ready = False, not any(code in (OPEN, WAITS) for code in codes)
            else:
                fails, ready = any(code not in (OPEN, WAITS, DONE) for code in codes), all(c == DONE for c in codes)
            self.bytes[node] = STOPPED if fails else OPEN if ready else WAITS
            if ready:
                self.released.append(node)

    def cancel(self) -> None:
        self.stop = True
        self.bytes = [CANCELLED if code == WAITS else code for code in self.bytes]


class Walk:
    """A graph whose jobs end, and are revived, at random."""

    def __init__(self, send: Send, store: Store, seed: int) -> None:
        self.random = random.Random(seed)
        self.send = send
        self.store = store.at(NOW)
        size = self.random.randint(1, 12)
        after = [self.random.sample(range(at), self.random.randint(0, min(at, 3))) for at in range(size)]
        despite = {at for at in range(size) if self.random.random() < 0.25}
        self.model = Model(after, despite)
        self.lives = [0] * size
        """The last byte of each job, as its own queue has it."""
        self.said: list[tuple[int, int]] = []
        """All reports so far; any of them may come again."""
        self.started: list[int] = []
        self.jobless = set[int]()
        """The nodes that have failed without a job."""
        self.with_job = set[int]()
        """The nodes that have had a job. Only its own queue can start such a node again."""
        send(self.store.batch_open("g", "t", retention=9.0))
        rows = [PlanRow(b"{}", "", "q", before, at in despite) for at, before in enumerate(after)]
        cut = self.random.randint(0, size)
        send(self.store.batch_plan("g", 0, rows[:cut]))
        send(self.store.batch_plan("g", cut, rows[cut:]))
        send(self.store.batch_plan("g", 0, rows))
        send(self.store.batch_close("g"))
        self.model.settle()
        self.check()

    def live(self) -> None:
        """Let a job that was released end, or one that is dead be revived. Some keep their report for later."""
        node = self.random.choice(self.started)
        code = self.lives[node] % 8
        if code == OPEN:
            self.lives[node] += self.random.choice(ENDS)
            if self.lives[node] % 8 == DEAD and node not in self.with_job and self.random.random() < 0.5:
                self.send(self.store.fail_node("g", node, "no job"))
                self.jobless.add(node)
            else:
                self.with_job.add(node)
        elif node in self.jobless:
            self.revive(node)
        elif code == DEAD:
            self.lives[node] += TURN - DEAD
        self.said.append((node, self.lives[node]))

    def revive(self, node: int) -> None:
        """Start a node again, if the home knows that it has failed, and the graph has not been cancelled."""
        before = self.send(self.store.batch_ends("g", 0, -1))
        try:
            self.send(self.store.batch_revive("g", node))
        except (JobMissing, JobLate):
            assert self.model.stop or self.model.bytes[node] != self.lives[node]
            assert self.send(self.store.batch_ends("g", 0, -1)) == before
            return
        assert self.model.bytes[node] == self.lives[node]
        assert not self.model.stop
        self.jobless.discard(node)
        self.lives[node] += TURN - DEAD
        self.model.released.append(node)
        self.model.report([(node, self.lives[node])])
        self.check()

    def carry(self) -> None:
        if self.said:
            self.tell(self.random.choices(self.said[-8:], k=self.random.randint(1, 4)))

    def tell(self, reports: list[tuple[int, int]]) -> None:
        """Carry reports: all in one call, unless nodes run despite failures.

        Such a node may be released between two reports of a call, of which the second has it wait again.
        """
        for some in [[report] for report in reports] if self.model.despite else [reports]:
            self.count(some)

    def count(self, reports: list[tuple[int, int]]) -> None:
        self.send(self.store.batch_count([("g", node, bytes([byte])) for node, byte in reports]))
        self.model.report(reports)
        self.check()

    def cancel(self) -> None:
        self.send(self.store.batch_close("g", how="cancelled"))
        self.model.cancel()
        self.check()

    def check(self) -> None:
        chores = [step for step, _ in self.send(self.store.chores(0))]
        assert not [step for step in chores if step.startswith("ripple")]
        for step in chores:
            if step.startswith("start"):
                self.started += [int(node) for node in step.split(" ")[2].split(",")]
                self.send(self.store.end_chores([step]))
        assert self.send(self.store.batch_ends("g", 0, -1)) == bytes(self.model.bytes)
        assert sorted(self.started) == sorted(self.model.released)
        record = self.send(self.store.batch("g"))
        assert record is not None
        codes = [byte % 8 for byte in self.model.bytes]
        counts = record.done, record.dead, record.cancelled, record.expired, record.stopped
        assert counts == tuple(codes.count(code) for code in (DONE, DEAD, CANCELLED, EXPIRED, STOPPED))
        over = not any(code in (OPEN, WAITS) for code in codes)
        if self.model.stop:  # a cancelled batch is over for good
            assert record.state != "running" or not over
        else:
            assert (record.state != "running") == over
        if over and not self.model.stop:
            assert record.state == ("done" if set(codes) <= {DONE, MISSING} else "failed")

    def finish(self) -> None:
        """Revive and end everything well, until nothing is left."""
        while True:
            left = [node for node in self.started if self.lives[node] % 8 in (OPEN, DEAD)]
            if not left and not self.said:
                return
            self.tell(self.said or [(0, 0)])
            self.said = []
            for node in left:
                if node in self.jobless and not self.model.stop:
                    self.revive(node)
                life = self.lives[node]
                self.lives[node] = life + DONE if life % 8 == OPEN else life + TURN - DEAD
                self.said.append((node, self.lives[node]))


@pytest.mark.seeded
@pytest.mark.parametrize("walk", range(60))
def test_each_node_is_released_once_and_the_counts_are_those_of_the_model(send: Send, store: Store, walk: int) -> None:
    one = Walk(send, store, SEED * 1000 + walk)
    for at in range(40):
        one.random.choice([one.live, one.carry, one.carry])()
        if at == 30 and walk % 5 == 0:
            one.cancel()
    one.finish()
    assert not one.said
