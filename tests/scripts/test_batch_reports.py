"""Members of batches: each end of one is reported once to the chores of its queue, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched import keys
from evsched.errors import JobExists, JobLate, StoreRefused
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Retried, Snoozed
from evsched.store.client_calls import New
from evsched.store.operator_calls import condition
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State, status_of

PAYLOAD = b'{"task":"t"}'
DONE = Done(b"1", 0.0, False, label=b'["t"]')


class Members:
    """Members of the batch `home/b`, by their ordinals."""

    def __init__(self, send: Send, store: Store, raw: Any) -> None:
        self.raw = raw
        self.send = send
        self.store = store
        self.count = 0

    def add(self, *ids: str, at: float = NOW, **more: Any) -> None:
        jobs = [New(job_id, PAYLOAD, due=at) for job_id in ids]
        self.send(self.store.at(at).enqueue(jobs, batch=f"home/b/{self.count}/{NOW + 30}", **more))
        self.count += len(ids)

    def start(self, at: float = NOW) -> list[FetchedJob]:
        self.send(self.store.at(at).dispatch(limit=10, cap=10_000))
        return self.send(self.store.at(at).start("w", (), hold=99, lease=15)).jobs

    def begin(self, job_id: str) -> FetchedJob:
        self.add(job_id)
        return next(job for job in self.start() if job.id == job_id)


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.extra)], ids=["history", "no history"])
def members(request: pytest.FixtureRequest, send: Send, store: Store, raw: Any) -> Members:
    if not request.param:
        send(store.limit({"history": 0}))
    return Members(send, store, raw)


def reports(state: State) -> list[str]:
    """Return the ends that are reported, without their times."""
    found = list[str]()
    for step, moment in state().get("chores", {}).items():
        _, batch, said, *ends = step.split(" ")
        assert (batch, float(said)) == ("home/b", moment)
        found += ends
    return sorted(found)


def done(members: Members) -> None:
    members.send(members.store.at(NOW).complete("w", [(members.begin("a"), DONE)]))


def cancelled_at_its_end(members: Members) -> None:
    job = members.begin("a")
    members.send(members.store.at(NOW).cancel("a"))
    members.send(members.store.at(NOW).complete("w", [(job, DONE)]))


def cancelled_at_its_retry(members: Members) -> None:
    job = members.begin("a")
    members.send(members.store.at(NOW).cancel("a"))
    members.send(members.store.at(NOW).retry("w", [(job, Retried(1.0, "x"))]))


def cancelled_as_it_starts(members: Members) -> None:
    members.add("a")
    members.send(members.store.at(NOW).dispatch(limit=10, cap=1000))
    members.send(members.store.fetch("w", 1.0))
    members.raw.zadd(keys.root(members.store.queue) + "leases", {"w": NOW})
    members.send(members.store.at(NOW).cancel("a"))
    members.send(members.store.at(NOW).start("w", ["a"], hold=1, lease=15))


def stopped(members: Members) -> None:
    members.send(members.store.at(NOW).abort("w", [(members.begin("a"), Aborted(9.0, False))]))


def cancelled(members: Members) -> None:
    members.add("a")
    members.send(members.store.at(NOW).cancel("a"))


def cancelled_by_a_filter(members: Members) -> None:
    members.add("a")
    members.send(members.store.at(NOW).cancel_matching(["a"], condition(task="t")))


def cancelled_with_its_worker(members: Members) -> None:
    members.begin("a")
    members.send(members.store.at(NOW).cancel("a"))
    members.send(members.store.at(NOW).requeue("w", "x"))


def buried(members: Members) -> None:
    members.send(members.store.at(NOW).bury("w", [(members.begin("a"), Buried("x", False))]))


def expired(members: Members) -> None:
    buried = Buried("x", False, outcome="expired", began=False)
    members.send(members.store.at(NOW).bury("w", [(members.begin("a"), buried)]))


def refused_when_due(members: Members) -> None:
    members.add("a")
    members.send(members.store.at(NOW).dispatch(limit=10, cap=1))


def refused_as_it_starts(members: Members) -> None:
    members.add("a")
    members.send(members.store.at(NOW).dispatch(limit=10, cap=1000))
    members.send(members.store.at(NOW).start("w", (), hold=9, lease=15, cap=1))


def kept_another(members: Members) -> None:
    members.send(members.store.at(NOW).enqueue([New("a", PAYLOAD)]))
    members.add("a", keep=True)


ENDS: dict[Callable[[Members], None], str] = {
    done: "0d",
    cancelled: "0c",
    cancelled_by_a_filter: "0c",
    cancelled_at_its_end: "0c",
    cancelled_at_its_retry: "0c",
    cancelled_as_it_starts: "0c",
    cancelled_with_its_worker: "0c",
    stopped: "0c",
    buried: "0x",
    refused_when_due: "0x",
    refused_as_it_starts: "0x",
    expired: "0e",
    kept_another: "0m",
}


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_each_end_is_reported_once(members: Members, state: State, end: Callable[[Members], None]) -> None:
    end(members)
    assert reports(state) == [ENDS[end]]


def test_ends_of_one_call_are_one_report(members: Members, state: State) -> None:
    members.add("a", "b", "c")
    jobs = members.start()
    members.send(members.store.at(NOW + 1).complete("w", [(job, DONE) for job in jobs]))
    assert state()["chores"] == {f"end home/b {NOW + 1:.6f} 0d 1d 2d": NOW + 1}


def test_run_that_goes_on_is_not_reported(members: Members, state: State) -> None:
    store, send = members.store.at(NOW), members.send
    send(store.retry("w", [(members.begin("a"), Retried(1.0, "x"))]))
    send(store.snooze("w", [(members.begin("b"), Snoozed("x", 1.0))]))
    send(store.defer("w", [(members.begin("c"), Deferred(NOW + 9, "x"))]))
    members.begin("d")
    send(store.requeue("w", "x"))
    assert reports(state) == []
    jobs = members.start(NOW + 10)
    send(store.complete("w", [(job, DONE) for job in jobs]))
    assert reports(state) == ["0d", "1d", "2d", "3d"]


def test_revived_member_is_open_again_and_its_next_end_has_a_higher_turn(members: Members, state: State) -> None:
    buried(members)
    for turn in (1, 2):
        members.send(members.store.at(NOW + turn).revive(["a"]))
        assert f"0o.{turn}" in reports(state)
        (job,) = members.start(NOW + turn)
        members.send(members.store.at(NOW + turn).bury("w", [(job, Buried("x", False))]))
    assert reports(state) == ["0o.1", "0o.2", "0x", "0x.1", "0x.2"]
    for turn in range(3, 33):  # the home has five bits for the turn
        members.send(members.store.at(NOW + turn).revive(["a"]))
        (job,) = members.start(NOW + turn)
        members.send(members.store.at(NOW + turn).bury("w", [(job, Buried("x", False))]))
    assert status_of(members.send, members.store, "a").reason == "x"
    assert reports(state).count("0x.31") == 2
    assert "0x.32" not in reports(state)


def test_job_that_replaces_a_waiting_member_is_the_member(members: Members, state: State) -> None:
    members.add("a")
    members.send(members.store.at(NOW).replace([New("a", PAYLOAD, due=NOW)]))
    (job,) = members.start()
    members.send(members.store.at(NOW).complete("w", [(job, DONE)]))
    assert reports(state) == ["0d"]


def test_job_that_follows_a_member_under_its_id_is_none(members: Members, state: State) -> None:
    job = members.begin("a")
    members.send(members.store.at(NOW).replace([New("a", PAYLOAD, due=NOW)]))
    members.send(members.store.at(NOW).complete("w", [(job, DONE)]))
    (job,) = members.start()
    members.send(members.store.at(NOW).complete("w", [(job, Done(b"1", 300.0, False, label=b'["t"]'))]))
    assert reports(state) == ["0d"]
    assert "batch" not in state()["job:a"]
    # Nor is one that uses the id of a member that has ended.
    members.send(members.store.at(NOW).complete("w", [(members.begin("b"), Done(b"1", 300.0, False, label=b'["t"]'))]))
    members.send(members.store.at(NOW).replace([New("b", PAYLOAD, due=NOW)]))
    (job,) = members.start()
    members.send(members.store.at(NOW).complete("w", [(job, DONE)]))
    assert reports(state) == ["0d", "1d"]


def test_member_that_comes_after_its_reservation_is_refused(members: Members, state: State) -> None:
    before = state()
    with pytest.raises(JobLate):
        members.add("a", at=NOW + 30.1)
    assert state() == before
    members.add("a", at=NOW + 30)
    assert state()["job:a"]["batch"] == "home/b/0"


def test_call_that_is_sent_again_keeps_its_members(members: Members, state: State) -> None:
    jobs = [New("a", PAYLOAD, due=NOW), New("b", PAYLOAD, due=NOW)]
    call = members.store.at(NOW).enqueue(jobs, batch=f"home/b/5/{NOW + 30}")
    members.send(call)
    before = state()
    assert call.again is not None
    assert members.send(call.again(NOW)) == [NOW, NOW]
    assert state() == before
    # The jobs are those of another call, with other ordinals.
    other = members.store.at(NOW).enqueue(jobs, batch=f"home/b/7/{NOW + 30}")
    assert other.again is not None
    with pytest.raises(JobExists):
        members.send(other.again(NOW))
    kept = members.store.at(NOW).enqueue(jobs, batch=f"home/b/7/{NOW + 30}", keep=True)
    assert kept.again is not None
    members.send(kept.again(NOW))
    assert reports(state) == ["7m", "8m"]


def test_member_that_was_enqueued_before_is_kept(members: Members, state: State, raw: Any, queue: str) -> None:
    """A keeper may start a node again."""
    call = members.store.at(NOW).enqueue([New("a", PAYLOAD)], batch=f"home/b/5/{NOW + 30}", keep=True)
    members.send(call)
    members.send(call)
    raw.hset(f"evsched:{{{queue}}}:job:a", "batch", "home/b/5/1")
    members.send(call)
    assert reports(state) == []
    raw.zrem(f"evsched:{{{queue}}}:schedule", "a")
    raw.hset(f"evsched:{{{queue}}}:job:a", mapping={"outcome": "done", "finished": NOW})
    members.send(call)
    assert (reports(state), "schedule" in state()) == ([], False)
    other = members.store.at(NOW).enqueue([New("a", PAYLOAD)], batch=f"home/b/6/{NOW + 30}", keep=True)
    members.send(other)
    assert state()["job:a"]["batch"] == "home/b/6"


def test_member_that_was_cancelled_is_not_enqueued_by_a_call_that_comes_late(members: Members, state: State) -> None:
    """Another keeper may be starting its node."""
    members.add("a")
    members.send(members.store.at(NOW).cancel("a"))
    members.send(members.store.at(NOW).enqueue([New("a", PAYLOAD)], batch=f"home/b/0/{NOW + 30}", keep=True))
    assert (reports(state), "schedule" in state()) == (["0c"], False)
    assert status_of(members.send, members.store, "a").outcome == "cancelled"
    members.send(members.store.at(NOW).enqueue([New("a", PAYLOAD)]))
    assert "schedule" in state()


def test_member_that_is_cancelled_before_it_comes_has_ended(
    members: Members, state: State, raw: Any, queue: str
) -> None:
    for _ in range(2):
        members.send(members.store.at(NOW).cancel_member("a", "home/b/0"))
    assert 30 < raw.ttl(f"evsched:{{{queue}}}:job:a") <= 60
    members.add("a", keep=True)
    assert (reports(state), "schedule" in state()) == (["0c"], False)


def test_member_of_a_later_turn_is_enqueued_and_cancelled_as_such(members: Members, state: State) -> None:
    store, job = members.store.at(NOW), New("a", b"{}")
    address = f"home/b/0/{NOW + 30}/life"
    assert members.send(store.enqueue_nodes([job], address)) == [False]
    assert members.send(store.enqueue_nodes([job], f"{address}/1")) == [True], "it is the job of an earlier turn"
    members.send(store.cancel("a"))
    assert reports(state) == ["0c"]
    for _ in range(2):
        assert members.send(store.enqueue_nodes([job], f"{address}/1")) == [False]
        assert state()["job:a"]["batch"] == "home/b/0/1"
    members.send(store.cancel_member("b", "home/b/1/life/2"))
    assert state()["job:b"]["batch"] == "home/b/1/2"
    members.send(store.cancel("a"))
    assert reports(state) == ["0c", "0c.1", "1c.2"]


def test_job_that_is_another_member_is_not_cancelled(members: Members, state: State) -> None:
    members.add("a")
    members.send(members.store.at(NOW).cancel_member("a", "home/b/7"))
    assert (reports(state), "schedule" in state()) == ([], True)
    members.send(members.store.at(NOW).cancel_member("a", "home/b/0"))
    assert (reports(state), "schedule" in state()) == (["0c"], False)


@pytest.mark.parametrize("member", ["home/b", "home/b/x", "a b/c/0", "home/b/0/life/x"])
def test_malformed_member_cancels_no_job(members: Members, state: State, member: str) -> None:
    members.send(members.store.at(NOW).enqueue([New("a", PAYLOAD)]))
    before = state()
    for job in ("a", "b"):
        members.send(members.store.at(NOW).cancel_member(job, member))
    assert state() == before


@pytest.mark.parametrize(
    "batch", ["home/b/0", "home/b/x/5", "home/b/0/1.2.3", f"home/b/1234567890/{NOW}", f"home/b/0/{NOW}/life/100"]
)
def test_member_of_a_malformed_batch_is_refused(members: Members, state: State, batch: str) -> None:
    before = state()
    with pytest.raises(StoreRefused, match="the argument batch is not a valid batch, so nothing was written"):
        members.send(members.store.at(NOW).enqueue([New("a", PAYLOAD)], batch=batch))
    assert state() == before


def test_id_that_stands_twice_in_a_call_is_one_member(members: Members, state: State) -> None:
    members.add("a", "a", keep=True)
    assert reports(state) == ["1m"]
    assert state()["job:a"]["batch"] == "home/b/0"


@pytest.mark.parametrize("field", ["", "x", "a/b/c", "a/b/1/x", "a b/c/1", "a/b/1\n", "/b/1", "a/b/1/2/3"])
def test_malformed_field_reports_nothing_and_the_job_ends(
    members: Members, state: State, raw: Any, queue: str, field: str
) -> None:
    job = members.begin("a")
    raw.hset(f"evsched:{{{queue}}}:job:a", "batch", field)
    assert members.send(members.store.at(NOW).complete("w", [(job, DONE)])) == []
    assert "chores" not in state()
    members.send(members.store.at(NOW).bury("w", [(members.begin("b"), Buried("x", False))]))
    raw.hset(f"evsched:{{{queue}}}:job:b", "batch", field)
    members.send(members.store.at(NOW).revive(["b"]))
    assert state()["job:b"]["batch"] == field


def test_chores_of_another_type_keep_no_job_from_its_end(members: Members, raw: Any, queue: str) -> None:
    raw.set(f"evsched:{{{queue}}}:chores", "x")
    members.send(members.store.at(NOW).complete("w", [(members.begin("a"), DONE)]))
    assert members.send(members.store.look("a")) is None


def test_status_of_a_member_names_its_batch(members: Members) -> None:
    members.add("a", "b")
    assert status_of(members.send, members.store, "b").batch == "home/b/1"
