"""The number of shards of a queue grows while jobs run: its limits hold in all parts together at every moment."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from evsched.client import new_shards
from evsched.client.client import SyncClient
from evsched.shards import Shards
from evsched.store import server as redis_server
from evsched.store.client_calls import New
from evsched.store.gate_limits import Limits
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis

WAITING = 40


class Growing:
    """A queue with more due jobs than its limits allow, in each part."""

    def __init__(self, client: SyncClient, queue: str) -> None:
        self.client = client
        self.queue = queue
        self.parts = [queue]
        self._ids = count()

    def limit(self, **limits: float) -> None:
        self.client.send(Store(self.queue).limit({name.replace("__", ":"): value for name, value in limits.items()}))

    def fill(self, group: str | None = None) -> None:
        """Give each part more due jobs than any limit allows."""
        for part in self.parts:
            jobs = [New(f"j{next(self._ids)}", b'{"task":"t"}', group=group) for _ in range(WAITING)]
            self.client.send(Store(part).enqueue(jobs))
        self.dispatch()

    def dispatch(self) -> None:
        for part in self.parts:
            self.client.send(Store(part).dispatch(limit=500, cap=10_000))
            self.client.send(Store(part).limit())

    def in_flight(self, name: str = "*") -> list[int]:
        return [self.client.send(Store(part).in_flight()).get(name, 0) for part in self.parts]

    def end(self, part: str) -> None:
        """End a job that is in flight in a part."""
        job = self.client.send(Store(part).line(1))[0]
        self.client.cancel(part, job)

    def begin(self, shards: int, was: int = 0) -> new_shards.Gates:
        """Take the steps of a program that changes the number, until the number is written."""
        run = self.client.run
        gates = run(new_shards.plan(self.queue, was, shards))
        run(new_shards.open_new(gates))
        self.client.send(redis_server.set_shards(self.queue, shards))
        self.parts = Shards({self.queue: shards}).all_of(self.queue)
        return gates

    def settle(self) -> bool:
        return self.client.run(new_shards.settle(self.queue, len(self.parts) - 1))

    def concurrency(self, field: str = "concurrency") -> list[float | None]:
        return [self.client.send(Store(part).limits()).fields().get(field) for part in self.parts]


@pytest.fixture
def growing(server: EmbeddedRedis, queue: str) -> Generator[Growing]:
    with closing(SyncClient(server.url)) as client:
        yield Growing(client, queue)
        client.send(redis_server.set_shards(queue, 0))


def test_new_shards_start_as_many_jobs_as_end_in_the_older_part(growing: Growing) -> None:
    growing.limit(concurrency=15)
    growing.fill()
    gates = growing.begin(2)
    growing.fill()
    assert growing.in_flight() == [0, 0, 15]
    growing.client.run(new_shards.divide_again(gates))
    assert not growing.settle()
    for ended in range(1, 11):
        assert growing.in_flight() == [min(ended - 1, 5), max(0, ended - 6), 16 - ended]
        growing.end(growing.queue)
        assert growing.settle() is (ended == 10)
        growing.dispatch()
    assert growing.in_flight() == growing.concurrency() == [5, 5, 5]
    assert all(not growing.client.send(Store(part).limits()).reserved for part in growing.parts)


@pytest.mark.parametrize("field", ["concurrency:*", "concurrency:alice", "concurrency:task:t"])
def test_limits_of_groups_and_tasks_hold_while_shards_open(growing: Growing, field: str) -> None:
    growing.limit(**{field: 15})
    growing.fill("alice")
    counted = "#task:t" if field.endswith("t") else "#alice"
    gates = growing.begin(2)
    growing.fill("alice")
    growing.client.run(new_shards.divide_again(gates))
    for _ in range(12):
        growing.settle()
        growing.dispatch()
        assert sum(growing.in_flight(counted)) == 15
        if growing.in_flight(counted)[-1] > 5:
            growing.end(growing.queue)
            growing.settle()
            growing.dispatch()
    assert growing.in_flight(counted) == growing.concurrency(field) == [5, 5, 5]


def test_new_group_waits_for_the_group_with_most_jobs_in_the_older_part(growing: Growing) -> None:
    growing.limit(**{"concurrency:*": 15})
    growing.fill("alice")
    gates = growing.begin(2)
    growing.client.run(new_shards.divide_again(gates))
    growing.settle()
    growing.fill("bob")
    assert growing.in_flight("#bob")[:2] == [0, 0]
    for _ in range(10):
        growing.end(growing.queue)
    assert growing.settle()
    growing.dispatch()
    assert growing.in_flight("#bob")[:2] == [5, 5]


def test_interrupted_change_is_finished_with_the_previous_limits(growing: Growing) -> None:
    """It ended when the number was written, and the limits of the older part were not: rates have parts too."""
    growing.limit(concurrency=15, rate=300, weight__alice=2)
    growing.fill()
    growing.begin(2)
    assert growing.concurrency() == [5, 5, 15]
    assert not growing.settle()
    assert growing.concurrency() == [5, 5, 5]
    assert growing.concurrency("rate") == [100, 100, 100]
    assert growing.concurrency("weight:alice") == [2, 2, 2]
    assert growing.in_flight() == [0, 0, 15]
    repeated = growing.client.run(new_shards.plan(growing.queue, 2, 4))
    assert repeated.wholes == {"concurrency": 15, "rate": 300, "weight:alice": 2}


@pytest.mark.parametrize("field", ["concurrency", "concurrency:*", "concurrency:task:t"])
def test_jobs_ready_in_a_shard_before_its_limits_are_held_by_them(growing: Growing, field: str) -> None:
    growing.limit(**{field: 15})
    growing.fill("alice")
    early = Store(f"{growing.queue}:0")
    growing.client.send(early.enqueue([New(f"early{number}", b'{"task":"t"}', group="alice") for number in range(20)]))
    growing.client.send(early.dispatch(limit=500, cap=10_000))
    ready = growing.client.send(early.line(100))
    assert len(ready) == 16
    gates = growing.begin(2)
    assert growing.client.send(early.line(100)) == []
    growing.client.run(new_shards.divide_again(gates))
    growing.settle()
    for _ in range(10):
        growing.end(growing.queue)
    assert growing.settle()
    assert growing.client.send(early.line(100)) == ready[:5]


def test_limits_set_by_hand_in_the_meantime_are_kept(growing: Growing) -> None:
    growing.limit(concurrency=15)
    growing.fill()
    growing.begin(2)
    for part in growing.parts:
        growing.client.send(Store(part).limit({"concurrency": 7}))
    growing.settle()
    assert growing.concurrency() == [7, 7, 7]
    for _ in range(8):
        growing.end(growing.queue)
    assert growing.settle()
    assert growing.concurrency() == [7, 7, 7]


def test_limit_holds_when_shards_grow_again_before_the_first_are_open(growing: Growing) -> None:
    growing.limit(concurrency=15)
    growing.fill()
    growing.client.run(new_shards.divide_again(growing.begin(2)))
    growing.settle()
    growing.client.run(new_shards.divide_again(growing.begin(4, was=2)))
    growing.settle()
    growing.fill()
    while not growing.settle():
        assert sum(growing.in_flight()) == 15
        growing.end(growing.queue)
        growing.settle()
        growing.dispatch()
    growing.dispatch()
    assert growing.in_flight() == growing.concurrency() == [3, 3, 3, 3, 3]


@pytest.mark.parametrize("value", ["x", "[]", "{}", '{"concurrency":1}', '{"concurrency":["y",15]}', "null"])
def test_malformed_reservation_reserves_nothing(growing: Growing, raw: Any, value: str) -> None:
    growing.limit(concurrency=15)
    raw.hset(f"evsched:{{{growing.queue}}}:limits", "reserved", value)
    growing.fill()
    assert growing.in_flight() == [15]


def test_removed_shard_has_nothing_reserved(growing: Growing) -> None:
    growing.limit(concurrency=15)
    growing.fill()
    growing.begin(2)
    growing.client.run(new_shards.hold(Store(growing.parts[0]), Limits()))
    assert growing.client.send(Store(growing.parts[0]).limits()).reserved == {}
