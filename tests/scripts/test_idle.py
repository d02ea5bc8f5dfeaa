"""Idle workers: which one is notified of a ready job, and that no job is forgotten."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

import pytest

from evsched import keys
from evsched.jobs.job import Done
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.scripts.conftest import NOW, Send, State
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client


class Ear:
    """Records the notifications of workers."""

    def __init__(self, url: str, queue: str) -> None:
        self._queue = queue
        self._client = plain_client(url)
        self._pubsub = self._client.pubsub()

    def listen(self, *workers: str) -> None:
        for worker in workers:
            self._pubsub.ssubscribe(keys.idle(self._queue, worker))
            assert self._pubsub.get_sharded_message(timeout=PATIENCE)["type"] == "ssubscribe"

    def deafen(self, worker: str) -> None:
        self._pubsub.sunsubscribe(keys.idle(self._queue, worker))
        assert self._pubsub.get_sharded_message(timeout=PATIENCE)["type"] == "sunsubscribe"

    def heard(self, message: bytes = b"") -> list[str]:
        """Return the workers that got this message and no other, in order. A PING is answered after all of them."""
        self._pubsub.ping()
        told = list[str]()
        while (found := self._pubsub.get_sharded_message(timeout=PATIENCE))["type"] != "pong":
            assert found["data"] == message
            told.append(found["channel"].decode().rpartition(":")[2])
        return told

    def close(self) -> None:
        self._pubsub.close()
        self._client.close()


@pytest.fixture
def store(queue: str) -> Store:
    return Store(queue)


@pytest.fixture
def ear(server: EmbeddedRedis, queue: str) -> Generator[Ear]:
    with closing(Ear(server.url, queue)) as ear:
        yield ear


def wait(send: Send, store: Store, *workers: str) -> None:
    """Have workers wait, one second after the other."""
    for n, worker in enumerate(workers):
        found = send(store.at(NOW + n).start(worker, (), hold=5, lease=99, ticket=0))
        assert (found.waits, found.more, found.jobs) == (True, False, [])


def dispatch(send: Send, store: Store, *jobs: str, **of: Any) -> None:
    send(store.at(NOW).enqueue([New(job, b"{}", due=NOW, **of) for job in jobs]))
    send(store.at(NOW + 9).dispatch(limit=100, cap=100))


def test_each_job_calls_one_worker_and_the_longest_waiting_first(
    send: Send, store: Store, state: State, ear: Ear
) -> None:
    ear.listen("u", "v", "w")
    wait(send, store, "v", "u", "w")
    dispatch(send, store, "a")
    assert ear.heard() == ["v"]
    dispatch(send, store, "b", "c", "d")
    assert ear.heard() == ["u", "w"]
    assert "idle" not in state()
    found = send(store.at(NOW).start("u", (), hold=5, lease=99, ticket=0))
    assert ([job.id for job in found.jobs], found.waits) == (["a", "b", "c", "d"], True)


def test_idle_workers_hear_the_canary_and_go_on_waiting(send: Send, store: Store, state: State, ear: Ear) -> None:
    ear.listen("u", "v", "w")
    wait(send, store, "v", "u")
    before = state()
    send(store.at(NOW).dispatch(limit=100, cap=100, canary="d"))
    assert (ear.heard(keys.CANARY), state()) == (["v", "u"], before)
    send(store.at(NOW).dispatch(limit=100, cap=100))
    assert ear.heard() == []


def test_a_worker_that_asks_again_keeps_its_place(send: Send, store: Store, ear: Ear) -> None:
    ear.listen("u", "v")
    wait(send, store, "u", "v")
    send(store.at(NOW + 8).start("u", (), hold=5, lease=99, ticket=0))
    dispatch(send, store, "a")
    assert ear.heard() == ["u"]


def test_vanished_worker_does_not_use_up_a_call(send: Send, store: Store, ear: Ear) -> None:
    ear.listen("u", "v", "w")
    wait(send, store, "u", "v", "w")
    ear.deafen("u")
    dispatch(send, store, "a")
    assert ear.heard() == ["v"]
    ear.deafen("w")
    dispatch(send, store, "b")
    assert ear.heard() == []


@pytest.mark.parametrize(("hold", "waits"), [(1, False), (2, True)])
def test_a_worker_waits_only_if_it_may_hold_more(
    send: Send, store: Store, state: State, hold: int, waits: bool
) -> None:
    dispatch(send, store, "a")
    assert send(store.at(NOW).start("w", (), hold=hold, lease=99, ticket=0)).waits is waits
    assert ("idle" in state()) is waits


def test_worker_waits_only_on_request_and_with_an_empty_ready(send: Send, store: Store, state: State) -> None:
    assert not send(store.at(NOW).start("u", (), hold=9, lease=99)).waits
    dispatch(send, store, *(f"j{n}" for n in range(30)))
    found = send(store.at(NOW).start("w", (), hold=9, lease=99, ticket=0))
    assert (found.more, found.waits) == (True, False)
    assert "idle" not in state()


def test_a_job_that_a_limit_held_back_calls_a_worker_when_it_passes(
    send: Send, store: Store, ear: Ear, state: State
) -> None:
    ear.listen("v")
    send(store.at(NOW).limit({"concurrency": 1}))
    dispatch(send, store, "a", "b")
    (run,) = send(store.at(NOW).start("u", (), hold=5, lease=99)).jobs
    wait(send, store, "v")
    assert ear.heard() == []
    send(store.at(NOW).complete("u", [(run, Done(b"1", 1, False))]))
    assert ear.heard() == ["v"]
    assert state()["ready"] == ["b"]


@pytest.mark.parametrize("died", [False, True])
def test_requeued_jobs_call_workers(send: Send, store: Store, ear: Ear, died: bool) -> None:
    ear.listen("v", "w")
    dispatch(send, store, "a", "b", "c")
    assert len(send(store.at(NOW).start("u", (), hold=5, lease=1)).jobs) == 3
    wait(send, store, "v", "w")
    (lease,) = send(store.at(NOW).survey()).leases
    send(store.at(NOW).requeue("u", "x", lease=lease.end if died else b""))
    assert ear.heard() == ["v", "w"]


def test_call_to_a_worker_that_dies_passes_to_the_next(send: Send, store: Store, ear: Ear) -> None:
    ear.listen("v", "w")
    send(store.at(NOW).heartbeat("v", 1, fresh=True))
    wait(send, store, "v", "w")
    dispatch(send, store, "a")
    assert ear.heard() == ["v"]
    (lease,) = send(store.at(NOW).survey()).leases
    send(store.at(NOW).requeue("v", "x", lease=lease.end))
    assert ear.heard() == ["w"]


def test_declined_call_passes_to_the_next_worker_and_no_more_are_made(
    send: Send, store: Store, ear: Ear, state: State
) -> None:
    ear.listen("u", "v", "w")
    wait(send, store, "u", "v", "w")
    send(store.decline("u"))
    assert (ear.heard(), [*state()["idle"]]) == ([], ["v", "w"])
    dispatch(send, store, "a")
    assert ear.heard() == ["v"]
    send(store.decline("v"))
    assert ear.heard() == ["w"]
    send(store.decline("w"))  # nobody else waits: it stays in ready
    assert (ear.heard(), state()["ready"]) == ([], ["a"])


def test_a_heartbeat_says_whether_the_worker_waits(send: Send, store: Store, raw: Any, queue: str) -> None:
    assert not send(store.at(NOW).heartbeat("w", 9, fresh=True)).waits
    wait(send, store, "w")
    assert send(store.at(NOW).heartbeat("w", 9)).waits
    raw.delete(f"evsched:{{{queue}}}:idle")
    assert not send(store.at(NOW).heartbeat("w", 9)).waits


def test_a_key_of_the_wrong_type_stops_no_dispatch(send: Send, store: Store, raw: Any, queue: str) -> None:
    raw.set(f"evsched:{{{queue}}}:idle", "wrong")
    send(store.at(NOW).dispatch(limit=100, cap=100, canary="d"))
    dispatch(send, store, "a")
    assert [job.id for job in send(store.at(NOW).start("w", (), hold=5, lease=99)).jobs] == ["a"]


def test_survey_names_a_job_beside_idle_workers_and_all_are_called(
    send: Send, store: Store, ear: Ear, state: State
) -> None:
    ear.listen("u", "v", "w")
    wait(send, store, "u", "v", "w")
    assert send(store.at(NOW).survey()).beside is None
    dispatch(send, store, "a")
    assert send(store.at(NOW).survey()).beside == "a"
    send(store.decline())
    assert ear.heard() == ["u", "v", "w"]
    assert send(store.at(NOW).survey()).beside is None
    assert state()["ready"] == ["a"]
