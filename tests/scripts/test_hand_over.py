"""The hand-over: a script that makes a job ready starts it for an idle worker, and sends it there."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

import pytest

from evsched import keys
from evsched.jobs.job import Done, FetchedJob, Retried
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.store.worker_calls import Handed, read_handed
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.scripts.conftest import NOW, Send, State
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client

PAYLOAD = b'{"task":"t",\n"args":["\n"]}'
LEASE = 14.0
IDLE_LEASE = 135.0


class Seats:
    """Workers that wait, and receive their messages."""

    def __init__(self, url: str, queue: str, send: Send) -> None:
        self.store = Store(queue)
        self.send = send
        self._client = plain_client(url)
        self._pubsub = self._client.pubsub()

    def listen(self, worker: str) -> None:
        self._pubsub.ssubscribe(keys.idle(self.store.queue, worker))
        assert self._pubsub.get_sharded_message(timeout=PATIENCE)["type"] == "ssubscribe"

    def wait(self, worker: str, ticket: int, now: float = NOW, *, hears: bool = True, lease: bool = True) -> None:
        """Have a worker ask, and wait for a job."""
        if hears:
            self.listen(worker)
        if lease:
            self.send(self.store.at(now).heartbeat(worker, IDLE_LEASE, busy=LEASE, fresh=True))
        assert self.ask(worker, ticket, now).waits

    def ask(self, worker: str, ticket: int | None, now: float = NOW) -> Any:
        return self.send(self.store.at(now).start(worker, (), hold=2, lease=LEASE, cap=1000, ticket=ticket))

    def dispatch(self, *jobs: str, now: float = NOW, payload: bytes = PAYLOAD) -> None:
        self.send(self.store.at(now).enqueue([New(job, payload, due=NOW - 1) for job in jobs]))
        self.send(self.store.at(now).dispatch(limit=100, cap=10_000))

    def heard(self) -> list[tuple[str, Handed | None]]:
        """Return the messages in order, None for an empty one. A PING is answered after all earlier messages."""
        self._pubsub.ping()
        told = list[tuple[str, Handed | None]]()
        while (message := self._pubsub.get_sharded_message(timeout=PATIENCE))["type"] != "pong":
            worker = message["channel"].decode().rpartition(":")[2]
            told.append((worker, read_handed(message["data"]) if message["data"] else None))
        return told

    def close(self) -> None:
        self._pubsub.close()
        self._client.close()


@pytest.fixture
def seats(server: EmbeddedRedis, queue: str, send: Send) -> Generator[Seats]:
    with closing(Seats(server.url, queue, send)) as seats:
        yield seats


def job_of(job: str, now: float = NOW, attempt: int = 1) -> FetchedJob:
    return FetchedJob(job, attempt, NOW - 1, PAYLOAD, NOW - 1, run=f"{attempt} {now:.6f}")


def test_job_is_started_for_the_idle_worker_and_sent_to_it(seats: Seats, state: State) -> None:
    seats.wait("w", 7)
    assert state()["seats"] == {"w": "7 14.0 1000"}
    seats.dispatch("a", "b", now=NOW + 1)
    assert seats.heard() == [("w", Handed(7, NOW + 1, True, job_of("a", NOW + 1)))]
    found = state()
    assert (found["processing:w"], found["ready"], found["leases"]) == (["a"], ["b"], {"w": NOW + 1 + LEASE})
    assert "idle" not in found
    assert found["seats"] == {"w": "7 a"}
    record = found["job:a"]
    assert (record["attempt"], record["worker"], record["started"]) == ("1", "w", f"{NOW + 1:.6f}")


def test_run_that_was_handed_over_is_the_one_that_start_returns_and_that_ends(seats: Seats, send: Send) -> None:
    seats.wait("w", 1)
    seats.dispatch("a", now=NOW + 1)
    ((_, handed),) = seats.heard()
    assert handed is not None
    again = send(seats.store.at(NOW + 2).start("w", ["a"], hold=2, lease=LEASE))
    assert again.jobs == [handed.job]
    assert send(seats.store.at(NOW + 2).complete("w", [(handed.job, Done(b"1", 9, False))])) == []


def test_later_attempt_is_handed_over_too(seats: Seats, send: Send) -> None:
    seats.wait("w", 1)
    seats.dispatch("a")
    ((_, handed),) = seats.heard()
    assert handed is not None
    send(seats.store.at(NOW).retry("w", [(handed.job, Retried(0.0, "it failed"))]))
    assert seats.ask("w", 2).waits
    send(seats.store.at(NOW + 3).dispatch(limit=10, cap=1000))
    ((_, again),) = seats.heard()
    assert again is not None
    assert (again.job.attempt, again.job.planned, again.ticket) == (2, NOW - 1, 2)


def test_each_seat_gets_one_job_and_the_longest_waiting_worker_the_first(seats: Seats, state: State) -> None:
    for n, worker in enumerate("vuw"):
        seats.wait(worker, n + 1, NOW + n)
    seats.dispatch("a", "b", now=NOW + 5)
    assert [(worker, handed and handed.job.id) for worker, handed in seats.heard()] == [("v", "a"), ("u", "b")]
    assert state()["seats"] == {"v": "1 a", "u": "2 b", "w": "3 14.0 1000"}


def test_worker_without_jobs_gets_the_next_one_before_a_worker_that_holds_some(seats: Seats) -> None:
    seats.wait("busy", 1, NOW)
    seats.dispatch("a", now=NOW + 1)
    assert [worker for worker, _ in seats.heard()] == ["busy"]
    assert seats.ask("busy", 2, NOW + 2).waits
    seats.wait("w", 1, NOW + 3)
    seats.dispatch("b", "c", now=NOW + 4)
    assert [worker for worker, _ in seats.heard()] == ["w", "busy"]


def end_wait(seats: Seats, send: Send, worker: str, ticket: int) -> list[str]:
    return send(seats.store.at(NOW + 9).requeue(worker, "it is blocked", ticket=ticket)).ids


def test_end_of_a_wait_returns_the_job_that_was_handed_over_to_the_next_worker(
    seats: Seats, send: Send, state: State
) -> None:
    seats.wait("u", 1, NOW)
    seats.wait("v", 1, NOW + 1)
    seats.dispatch("a", now=NOW + 2)
    assert end_wait(seats, send, "u", 1) == ["a"]
    assert [(worker, handed and handed.job.id) for worker, handed in seats.heard()] == [("u", "a"), ("v", "a")]
    found = state()
    assert ("processing:u" in found, found["processing:v"], found["seats"]) == (False, ["a"], {"v": "1 a"})
    assert found["job:a"]["attempt"] == "1"


def test_end_of_a_wait_without_a_job_ends_the_seat(seats: Seats, send: Send, state: State) -> None:
    seats.wait("w", 1)
    assert end_wait(seats, send, "w", 1) == []
    seats.dispatch("a", now=NOW + 10)
    found = state()
    assert (found["ready"], "idle" in found, "seats" in found, seats.heard()) == (["a"], False, False, [])


@pytest.mark.parametrize("ticket", [0, 1])
def test_end_of_a_wait_passes_an_empty_message_on(seats: Seats, send: Send, ticket: int) -> None:
    seats.wait("u", ticket, NOW)
    seats.wait("v", 1, NOW + 1)
    if ticket:
        send(seats.store.enqueue([New("large", b'{"task":"t","args":["' + b"x" * 999 + b'"]}', due=NOW)]))
        send(seats.store.at(NOW + 2).dispatch(limit=10, cap=2000))
    else:
        seats.dispatch("a", now=NOW + 2)
    assert seats.heard() == [("u", None)]
    assert end_wait(seats, send, "u", ticket) == []
    assert [worker for worker, _ in seats.heard()] == ["v"]


@pytest.mark.parametrize("asked", ["again", "for the job", "and got another"])
def test_late_end_of_a_wait_does_nothing(seats: Seats, send: Send, state: State, asked: str) -> None:
    seats.wait("w", 1)
    if asked == "again":
        assert seats.ask("w", 2).waits
    else:
        seats.dispatch("a")
        if asked == "for the job":
            assert send(seats.store.at(NOW).start("w", ["a"], hold=1, lease=LEASE)).jobs
        else:
            assert seats.ask("w", 2).waits
            seats.dispatch("b")
    before = state()
    assert end_wait(seats, send, "w", 1) == []
    assert state() == before


def test_question_without_a_job_keeps_the_place_and_one_with_a_job_loses_it(seats: Seats, state: State) -> None:
    seats.wait("u", 1, NOW)
    seats.wait("v", 1, NOW + 1)
    assert seats.ask("u", 2, NOW + 2).waits
    assert state()["idle"] == {"u": NOW, "v": NOW + 1}
    seats.dispatch("a", now=NOW + 3)
    assert seats.ask("u", 3, NOW + 4).waits
    seats.dispatch("b", now=NOW + 5)
    assert [(worker, handed and handed.ticket) for worker, handed in seats.heard()] == [("u", 2), ("v", 1)]


@pytest.mark.parametrize("ticket", [None, 0, 2])
def test_each_question_ends_the_earlier_seat(seats: Seats, state: State, ticket: int | None) -> None:
    seats.wait("w", 1)
    seats.ask("w", ticket)
    seats.dispatch("a")
    told = {None: [], 0: [None], 2: [2]}[ticket]
    assert [handed and handed.ticket for _, handed in seats.heard()] == told
    assert ("processing:w" in state()) is (ticket == 2)


@pytest.mark.parametrize("gone", ["its connection", "its lease", "it has ended"])
def test_job_goes_to_the_next_worker_if_the_first_is_gone(seats: Seats, send: Send, state: State, gone: str) -> None:
    seats.wait("u", 1, NOW, hears=gone != "its connection", lease=gone != "its lease")
    if gone == "it has ended":
        send(seats.store.at(NOW).heartbeat("u", 1))
    seats.wait("v", 1, NOW + 1)
    seats.dispatch("a", now=NOW + 5)
    assert [worker for worker, _ in seats.heard()] == ["v"]
    found = state()
    assert found["processing:v"] == ["a"]
    assert "processing:u" not in found
    assert ("u" in found["leases"]) is (gone != "its lease")


@pytest.mark.parametrize(
    "job",
    [
        "too long for the worker",
        "a suspect",
        "without a due",
        "its batch is paused",
        "a task is sought",
        "it did not pass the gate",
    ],
)
def test_job_on_which_start_has_to_decide_stays_in_ready(
    seats: Seats, raw: Any, send: Send, state: State, job: str
) -> None:
    seats.wait("w", 1)
    root = keys.root(seats.store.queue)
    raw.hset(
        f"{root}job:a", "payload", b'{"task":"%s"}' % (b"t" * 1000) if job == "too long for the worker" else PAYLOAD
    )
    raw.hset(f"{root}job:a", "batch", "home/b/0")
    if job == "a suspect":
        raw.hset(f"{root}suspects", "a", "1 1")
    elif job == "its batch is paused":
        raw.hset(f"{root}limits", "batches", "1")
    elif job == "a task is sought":
        send(seats.store.at(NOW).seek("another"))
    if job == "without a due":
        raw.rpush(f"{root}processing:dead", "a")
        send(seats.store.at(NOW).requeue("dead", "it died", lease=b"none"))
    elif job == "it did not pass the gate":
        raw.hset(f"{root}job:a", "due", NOW - 1)
        raw.hset(f"{root}in_flight", mapping={"*": 1, "another": ""})
        raw.rpush(f"{root}ready", "a")
        send(seats.store.at(NOW).decline("another"))
    else:
        raw.zadd(f"{root}schedule", {"a": NOW - 1})
        send(seats.store.at(NOW).dispatch(limit=100, cap=10_000))
    assert seats.heard() == [("w", None)]
    found = state()
    assert found["ready"] == ["a"]
    assert "processing:w" not in found
    assert "seats" not in found


def test_job_that_ends_lets_the_next_one_be_handed_over(seats: Seats, send: Send) -> None:
    send(seats.store.at(NOW).limit({"concurrency": 1}))
    seats.wait("u", 1)
    seats.wait("v", 1, NOW + 1)
    seats.dispatch("a", "b", now=NOW + 2)
    ((_, handed),) = seats.heard()
    assert handed is not None
    send(seats.store.at(NOW + 3).complete("u", [(handed.job, Done(b"1", 1, False))]))
    assert [(worker, handed and handed.job.id) for worker, handed in seats.heard()] == [("v", "b")]


@pytest.mark.parametrize("died", [False, True])
def test_stopping_or_dead_worker_is_handed_none_of_the_jobs_that_are_put_back(
    seats: Seats, send: Send, state: State, died: bool
) -> None:
    seats.wait("u", 1)
    seats.dispatch("a")
    assert seats.ask("u", 2).waits
    seats.heard()
    (lease,) = send(seats.store.at(NOW).survey()).leases
    send(seats.store.at(NOW).requeue("u", "x", lease=lease.end if died else b""))
    assert seats.heard() == []
    found = state()
    assert found["ready"] == ["a"]
    assert not {"idle", "seats", "leases"} & found.keys()


def test_run_that_finds_no_slot_goes_to_the_next_worker(seats: Seats, send: Send, state: State) -> None:
    seats.wait("u", 1)
    seats.wait("v", 1, NOW + 1)
    seats.dispatch("a", now=NOW + 2)
    ((_, handed),) = seats.heard()
    assert handed is not None
    rows = [(handed.job.id, handed.job.run)]
    send(seats.store.at(NOW + 3).requeue("u", "no slot was free", runs=rows))
    ((worker, again),) = seats.heard()
    assert (worker, again and again.job) == ("v", job_of("a", NOW + 3))
    send(seats.store.at(NOW + 3).requeue("u", "no slot was free", runs=rows))  # the same call, late
    assert state()["processing:v"] == ["a"]


def test_decline_tells_whether_a_message_was_sent(seats: Seats, send: Send, state: State) -> None:
    seats.wait("w", 1)
    assert send(seats.store.at(NOW).decline("w"))
    assert not {"idle", "seats"} & state().keys()
    assert seats.ask("w", 2).waits
    seats.dispatch("a")
    assert not send(seats.store.at(NOW).decline("w"))
    assert state()["processing:w"] == ["a"]


def test_heartbeat_does_not_make_the_lease_long_before_the_worker_knows_of_its_job(seats: Seats, send: Send) -> None:
    seats.wait("w", 1)
    seats.dispatch("a", now=NOW + 1)
    renewed = send(seats.store.at(NOW + 2).heartbeat("w", IDLE_LEASE, busy=LEASE))
    assert (renewed.held, renewed.waits, renewed.now) == (1, False, NOW + 2)
    (lease,) = send(seats.store.at(NOW + 2).survey()).leases
    assert lease.left == LEASE


def test_start_tells_how_many_jobs_the_list_holds(seats: Seats) -> None:
    seats.wait("w", 1)
    seats.dispatch("a")
    assert seats.ask("w", 2).held == 1


def test_without_the_right_to_count_receivers_the_message_is_empty(
    seats: Seats, server: EmbeddedRedis, raw: Any, state: State
) -> None:
    seats.wait("w", 1)
    with closing(SyncSender(server.url)) as sender:
        sender.send(seats.store.at(NOW).enqueue([New("a", PAYLOAD, due=NOW - 1)]))
        raw.execute_command("ACL", "SETUSER", "default", "-pubsub|shardnumsub")
        try:
            sender.send(seats.store.at(NOW).dispatch(limit=10, cap=1000))
        finally:
            raw.execute_command("ACL", "SETUSER", "default", "+@all")
    assert seats.heard() == [("w", None)]
    assert state()["ready"] == ["a"]


@pytest.mark.parametrize("key", ["seats", "processing:w"])
def test_key_of_the_wrong_type_stops_no_dispatch(seats: Seats, raw: Any, state: State, key: str) -> None:
    seats.wait("w", 1)
    raw.delete(f"{keys.root(seats.store.queue)}{key}")
    raw.set(f"{keys.root(seats.store.queue)}{key}", "wrong")
    seats.dispatch("a")
    assert seats.heard() == [("w", None)]
    assert state()["ready"] == ["a"]
