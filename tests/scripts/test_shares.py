"""`start` gives each of several workers an equal part of few jobs, or its full request of many."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send

SLOTS = 256


def begin(send: Send, store: Store, workers: str, jobs: int) -> None:
    """Begin the leases of workers, whose names are letters, and dispatch jobs."""
    for worker in workers:
        send(store.at(NOW).heartbeat(worker, 15, fresh=True))
    for first in range(0, jobs, 500):
        send(store.enqueue([New(f"j{n}", b'{"task":"t"}', due=NOW) for n in range(first, min(first + 500, jobs))]))
        send(store.at(NOW).dispatch(limit=500, cap=1000))


def start(send: Send, store: Store, worker: str, hold: int = SLOTS) -> int:
    """Return how many jobs a worker that may hold `hold` gets."""
    return len(send(store.at(NOW).start(worker, (), hold=hold, lease=15)).jobs)


@pytest.mark.parametrize(("workers", "parts"), [("u", [200]), ("uv", [100, 100]), ("uvwxyz", [34] * 5 + [30])])
def test_each_worker_gets_an_equal_part(send: Send, store: Store, workers: str, parts: list[int]) -> None:
    begin(send, store, workers, 200)
    assert [start(send, store, worker) for worker in workers] == parts


def test_a_worker_that_holds_jobs_gets_fewer(send: Send, store: Store) -> None:
    begin(send, store, "u", 220)
    assert start(send, store, "u", 60) == 60
    begin(send, store, "v", 0)
    assert (start(send, store, "v"), start(send, store, "u")) == (110, 50)


def test_a_worker_that_asks_again_gets_all_that_others_leave(send: Send, store: Store) -> None:
    begin(send, store, "uv", 200)
    taken = [start(send, store, "u") for _ in range(17)]
    assert taken == [100, 13, 11, 10, 9, 8, 7, 6, 5, 4, 4, 4, 4, 4, 4, 4, 3]
    assert sum(taken) == 200


def test_worker_gets_its_full_request_when_enough_jobs_wait(send: Send, store: Store) -> None:
    begin(send, store, "uv", 2 * SLOTS)
    assert start(send, store, "u") == SLOTS


def test_a_share_is_at_least_worth_a_call(send: Send, store: Store) -> None:
    begin(send, store, "uvwxyz", 6)
    assert [start(send, store, worker) for worker in "uv"] == [4, 2]


def test_a_list_of_a_wrong_type_counts_as_empty(send: Send, store: Store, raw: Any) -> None:
    begin(send, store, "uv", 20)
    raw.set(f"evsched:{{{store.queue}}}:processing:v", "no list")
    assert start(send, store, "u") == 10
