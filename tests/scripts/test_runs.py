"""start, complete, retry, bury, requeue, heartbeat, survey: a run, from its fetch to its end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from evsched.errors import StoreDown, StoreRefused
from evsched.jobs.job import Buried, Done, FetchedJob, Retried
from evsched.store.client_calls import New
from evsched.store.run_ends import NO_LEASE, PutBack
from evsched.store.store import Store
from evsched.store.worker_calls import Renewed
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.scripts.conftest import NOW, Send, State
from tests.support.plain import plain_client
from tests.support.snapshot import snapshot

DONE = Done(b'{"n":1}', 300.0, False)


@pytest.fixture
def run(send: Send, store: Store) -> FetchedJob:
    """A run of job "a" held by worker "w"."""
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    (started,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    return started


def test_start_counts_the_attempt_and_begins_the_lease(run: FetchedJob, state: State) -> None:
    assert run == FetchedJob("a", 1, NOW, b'{"task":"t"}', NOW, run="1 1900000000.000000")
    assert state() == {
        "processing:w": ["a"],
        "leases": {"w": NOW + 15},
        "busy_leases": {"w": "15"},
        "job:a": {
            "payload": '{"task":"t"}',
            "created": "1900000000",
            "due": "1900000000",
            "attempt": "1",
            "worker": "w",
            "started": "1900000000.000000",
        },
    }


def test_start_twice_is_the_same_run_and_an_ended_one_is_not_started(
    run: FetchedJob, send: Send, store: Store, state: State
) -> None:
    before = state()
    again = send(store.at(NOW).start("w", ["a"], hold=1, lease=15))
    assert (again.jobs, again.leased) == ([run], True)
    assert state() == before
    send(store.at(NOW).complete("w", [(run, DONE)]))
    assert send(store.at(NOW).start("w", ["a"], hold=1, lease=15)).jobs == []


@pytest.mark.parametrize(
    ("ended", "lost"),
    [
        ("abcd", ""),  # all, in the order of the list
        ("ab", ""),
        ("abd", ""),
        ("dcba", ""),
        ("bca", ""),
        ("axbc", "x"),
        ("Abcd", "a"),  # "A" is an earlier run of "a"
        ("aBc", "b"),
    ],
)
def test_runs_end_in_any_order_and_lost_ones_change_nothing(
    ended: str, lost: str, send: Send, store: Store, state: State
) -> None:
    send(store.enqueue([New(job_id, b'{"task":"t"}', due=NOW + n / 1e3) for n, job_id in enumerate("abcd")]))
    send(store.at(NOW + 1).dispatch(limit=10, cap=1000))
    held = {job.id: job for job in send(store.at(NOW + 1).start("w", (), hold=4, lease=15)).jobs}
    assert list(held) == ["a", "b", "c", "d"]
    held["x"] = replace(held["a"], id="x")
    held |= {job_id.upper(): replace(held[job_id], run=f"1 {NOW:.6f}") for job_id in "ab"}
    assert send(store.at(NOW + 2).complete("w", [(held[name], DONE) for name in ended])) == list(lost)
    done = [job_id for job_id in "abcd" if job_id in ended]
    assert state().get("processing:w", []) == [job_id for job_id in "abcd" if job_id not in done]
    assert [job_id for job_id in "abcd" if "finished" in state()[f"job:{job_id}"]] == done


def test_start_fetches_up_to_hold(send: Send, store: Store, state: State) -> None:
    send(store.enqueue([New(f"j{n:02}", b'{"task":"t"}', due=NOW) for n in range(50)]))
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    reply = send(store.start("w", (), hold=20, lease=15))
    assert ([job.id for job in reply.jobs], reply.more, reply.leased) == ([f"j{n:02}" for n in range(20)], True, False)
    assert len(state()["ready"]) == 16
    assert send(store.start("w", (), hold=20, lease=15)).jobs == []


def test_start_buries_a_job_without_a_record_and_says_why(send: Send, store: Store, state: State, raw: Any) -> None:
    raw.rpush(f"evsched:{{{store.queue}}}:processing:w", "gone")
    reply = send(store.at(NOW).start("w", ["gone"], hold=1, lease=15))
    assert reply.jobs == []
    assert "its record was gone" in reply.buried[0][1]
    assert state()["dead"] == {"gone": NOW}
    assert "processing:w" not in state()


def test_start_does_not_run_a_future_job_with_the_id_of_a_cancelled_one(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    raw.rpush(f"evsched:{{{store.queue}}}:processing:w", "a")
    send(store.enqueue([New("a", b'{"task":"t"}', due=NOW + 60)]))
    assert send(store.at(NOW).start("w", ["a"], hold=1, lease=15)).jobs == []
    after = state()
    assert (after["schedule"], "processing:w" in after) == ({"a": NOW + 60}, False)


def test_complete_keeps_the_record_for_its_retention(
    run: FetchedJob, send: Send, store: Store, state: State, raw: Any
) -> None:
    assert send(store.at(NOW + 1).complete("w", [(run, DONE)])) == []
    after = state()
    assert after["job:a"]["outcome"] == "done"
    assert after["job:a"]["result"] == '{"n":1}'
    assert after["job:a"]["finished"] == "1900000001.000000"
    assert "processing:w" not in after
    assert 299_000 < raw.pttl(f"evsched:{{{store.queue}}}:job:a") <= 300_000


def test_complete_without_retention_keeps_only_the_reply(
    run: FetchedJob, send: Send, store: Store, state: State, raw: Any
) -> None:
    send(store.at(NOW).complete("w", [(run, Done(b"7", 0.0, True))]))
    after = state()
    assert [json.loads(item) for item in after.pop("reply:a")] == [{"id": "a", "outcome": "done", "result": 7}]
    assert after == {"leases": {"w": NOW + 15}, "busy_leases": {"w": "15"}}
    assert raw.pttl(f"evsched:{{{store.queue}}}:reply:a") > 0


def test_end_of_a_run_its_worker_no_longer_holds_writes_nothing(
    run: FetchedJob, send: Send, store: Store, state: State
) -> None:
    (lease,) = send(store.at(NOW).survey()).leases
    send(store.begin("w", [(run, "1")]))
    send(store.requeue("w", "it died", lease=lease.end))
    (newer,) = send(store.at(NOW).start("v", (), hold=1, lease=15)).jobs
    assert newer.attempt == 2
    before = state()
    assert send(store.complete("w", [(run, DONE)])) == ["a"]
    assert send(store.retry("w", [(run, Retried(1.0, "x"))])) == ["a"]
    assert send(store.bury("w", [(run, Buried("x", True))])) == ["a"]
    assert send(store.complete("v", [(run, DONE)])) == ["a"]
    assert state() == before
    assert send(store.complete("v", [(newer, DONE)])) == []


def test_a_retry_sent_twice_is_lost_the_second_time(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    assert send(store.at(NOW).retry("w", [(run, Retried(5.0, "no luck"))])) == []
    before = state()
    assert before["schedule"] == {"a": NOW + 5}
    assert before["job:a"]["reason"] == "no luck"
    assert send(store.at(NOW).retry("w", [(run, Retried(5.0, "no luck"))])) == ["a"]
    assert state() == before


def test_bury_replies_to_a_waiting_client(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    assert send(store.at(NOW).bury("w", [(run, Buried('"quoted" \u20ac', True))])) == []
    after = state()
    assert after["dead"] == {"a": NOW}
    assert json.loads(after["reply:a"][0])["reason"] == '"quoted" \u20ac'
    assert send(store.at(NOW + 1).revive(["a"])) == ["a"]
    assert state()["schedule"] == {"a": NOW + 1}
    assert "attempt" not in state()["job:a"]


def test_revived_job_has_no_reply_of_its_earlier_life(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    send(store.ask("a"))
    send(store.at(NOW).bury("w", [(run, Buried("x", True))]))
    assert send(store.replied("a")) is not None
    send(store.at(NOW).revive(["a"]))
    assert send(store.replied("a")) is None
    assert state()["job:a"]["reply"] == "1"  # a client that had asked waits for the new end
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    send(store.at(NOW).complete("w", [(run, Done(b"7", 0.0, False))]))
    assert json.loads(send(store.replied("a")) or b"")["result"] == 7


@pytest.mark.extra
def test_reply_of_a_run_does_not_hide_that_of_the_next_job(run: FetchedJob, send: Send, store: Store, raw: Any) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW})
    send(store.at(NOW).complete("w", [(run, Done(b"1", 300.0, True))]))
    assert raw.pttl(f"evsched:{{{store.queue}}}:reply:a") <= 10_000
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    send(store.at(NOW).complete("w", [(run, Done(b"2", 300.0, True))]))
    assert json.loads(send(store.replied("a")) or b"")["result"] == 2


def test_an_end_of_an_id_that_is_scheduled_again_does_not_remove_it(
    run: FetchedJob, send: Send, store: Store, state: State, raw: Any
) -> None:
    schedule = f"evsched:{{{store.queue}}}:schedule"
    raw.zadd(schedule, {"a": NOW + 60})
    send(store.at(NOW).complete("w", [(run, Done(b"1", 1.0, False))]))
    after = state()
    assert (after["schedule"], after["job:a"]["payload"]) == ({"a": NOW + 60}, '{"task":"t"}')
    assert raw.pttl(f"evsched:{{{store.queue}}}:job:a") == -1


def test_a_retry_of_an_id_that_is_scheduled_again_keeps_both_times(
    run: FetchedJob, send: Send, store: Store, state: State, raw: Any
) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW + 60})
    send(store.at(NOW).retry("w", [(run, Retried(1.0, "x"))]))
    after = state()
    assert (after["schedule"], float(after["job:a"]["again"])) == ({"a": NOW + 1}, NOW + 60)


def test_requeue_puts_back_to_the_front_in_order(send: Send, store: Store, state: State) -> None:
    send(store.enqueue([New(f"j{n}", b'{"task":"t"}', due=NOW) for n in range(5)]))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    send(store.at(NOW).start("w", (), hold=3, lease=15))
    (lease,) = send(store.at(NOW).survey()).leases
    assert (lease.worker, lease.left, lease.held) == ("w", 15.0, 3)
    assert send(store.requeue("w", "it died", lease=b"1", limit=10)) == PutBack("moved", [], [])
    assert send(store.requeue("w", "it died", lease=lease.end, limit=1)) == PutBack("more", ["j2"], [])
    assert send(store.requeue("w", "it died", lease=lease.end, limit=1)) == PutBack("more", ["j1"], [])
    assert send(store.requeue("w", "it died", lease=lease.end, limit=1)) == PutBack("all", ["j0"], [])
    after = state()
    assert after["ready"] == [f"j{n}" for n in range(5)]
    assert "leases" not in after
    assert ("worker" in after["job:j0"], after["job:j0"]["reason"], after["job:j0"]["attempt"]) == (
        False,
        "it died",
        "0",  # nobody knows whether it had begun
    )
    assert send(store.requeue("w", "it died", limit=2)) == PutBack("all", [], [])


def test_requeue_ends_a_stopped_job_as_cancelled_and_reports_it(
    send: Send, store: Store, run: FetchedJob, state: State
) -> None:
    assert send(store.at(NOW).cancel("a")).place == "processing"
    assert send(store.at(NOW).requeue("w", "worker w was stopped")) == PutBack("all", [], ["a"])
    after = state()
    assert "ready" not in after
    assert (after["job:a"]["outcome"], after["job:a"]["reason"]) == ("cancelled", "cancelled; worker w was stopped")


def test_run_that_did_not_begin_keeps_the_reason_of_an_earlier_failure(
    send: Send, store: Store, run: FetchedJob, state: State
) -> None:
    send(store.at(NOW).requeue("w", "no process was free"))
    assert state()["job:a"]["reason"] == "no process was free"
    assert "started" not in state()["job:a"]
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    send(store.at(NOW).retry("w", [(run, Retried(0.0, "no luck"))]))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    send(store.at(NOW).requeue("w", "no process was free"))
    assert state()["job:a"]["reason"] == "no luck"
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    send(store.at(NOW).complete("w", [(run, DONE)]))
    assert "reason" not in state()["job:a"]


def test_a_job_in_two_lists_runs_in_one(run: FetchedJob, send: Send, store: Store, state: State, raw: Any) -> None:
    raw.rpush(f"evsched:{{{store.queue}}}:processing:v", "a")
    assert send(store.at(NOW).start("v", ["a"], hold=1, lease=15)).jobs == []
    after = state()
    assert "processing:v" not in after
    assert "again" not in after["job:a"]
    send(store.at(NOW).complete("w", [(run, DONE)]))
    assert not {"schedule", "ready", "backlog"} & state().keys()


def test_heartbeat_renews_a_lease_and_reports_a_missing_one(send: Send, store: Store, state: State) -> None:
    assert send(store.at(NOW).heartbeat("w", 15)) == Renewed(False, 0, [], True, False, NOW)
    assert state() == {}
    assert send(store.at(NOW).heartbeat("w", 15, fresh=True)) == Renewed(True, 0, [], True, False, NOW)
    assert send(store.at(NOW + 5).heartbeat("w", 15)) == Renewed(True, 0, [], True, False, NOW + 5)
    assert state() == {"leases": {"w": NOW + 20}}


@pytest.mark.parametrize("verb", ["bury", "start"])
def test_a_dead_set_of_a_wrong_type_moves_nothing(
    run: FetchedJob, send: Send, store: Store, state: State, raw: Any, verb: str
) -> None:
    raw.set(f"evsched:{{{store.queue}}}:dead", "wrong")
    before = state()
    calls: dict[str, Call[Any]] = {
        "bury": store.bury("w", [(run, Buried("x", False))]),
        "start": store.start("w", ["a"], hold=5, lease=1),
    }
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(calls[verb])
    assert state() == before


def test_full_memory_refuses_new_jobs_and_lets_existing_ones_end() -> None:

    store = Store("full")
    with EmbeddedRedis() as own:
        raw = plain_client(own.url)
        sender = SyncSender(own.url)
        sender.send(store.enqueue([New(name, b'{"task":"t"}', due=NOW) for name in "abcd"]))
        raw.config_set("maxmemory", 1)
        with pytest.raises(StoreDown, match=r"OOM|memory"):
            sender.send(store.enqueue([New("e", b"{}")]))
        sender.send(store.at(NOW).dispatch(limit=10, cap=100))
        a, b, c, _ = sender.send(store.start("w", (), hold=4, lease=15)).jobs
        assert sender.send(store.complete("w", [(a, DONE)])) == []
        assert sender.send(store.retry("w", [(b, Retried(1.0, "x"))])) == []
        assert sender.send(store.bury("w", [(c, Buried("x", False))])) == []
        assert sender.send(store.at(NOW).heartbeat("w", 15)) == Renewed(True, 1, [], True, False, NOW)
        assert sender.send(store.requeue("w", "x")) == PutBack("all", ["d"], [])
        assert snapshot(raw, "full")["ready"] == ["d"]
        sender.close()
        raw.close()


def test_job_in_the_list_of_a_worker_that_died_is_found(send: Send, store: Store, run: FetchedJob, raw: Any) -> None:
    """A BLMOVE that waited in Redis moved it there after the other jobs were put back."""
    lease = send(store.at(NOW).survey()).leases[0].end
    assert send(store.at(NOW).requeue("w", "it died", lease=lease, watch=60)).rest == "all"
    assert send(store.fetch("w", 1)) == "a"
    status = send(store.at(NOW).look("a"))
    assert status is not None
    assert status.place == "processing"


def test_watch_of_the_list_of_a_worker_that_died_ends(send: Send, store: Store, run: FetchedJob, state: State) -> None:
    lease = send(store.at(NOW).survey()).leases[0].end
    send(store.at(NOW).requeue("w", "it died", lease=lease, watch=60))
    assert state()["dead_workers"] == {"w": NOW + 60}
    send(store.at(NOW + 59).requeue("w", "it died", lease=NO_LEASE))
    assert state()["dead_workers"] == {"w": NOW + 60}
    send(store.at(NOW + 60).requeue("w", "it died", lease=NO_LEASE))
    assert "dead_workers" not in state()


def test_job_that_another_worker_runs_is_not_put_back(
    send: Send, store: Store, run: FetchedJob, state: State, raw: Any
) -> None:
    """Its id was scheduled again, and a second worker fetched it that stops before it starts it."""
    raw.rpush(f"evsched:{{{store.queue}}}:processing:v", "a")
    before = state()
    assert send(store.at(NOW).requeue("v", "it stops")) == PutBack("all", [], [])
    del before["processing:v"]
    assert state() == before
    assert send(store.at(NOW).complete("w", [(run, DONE)])) == []


@pytest.mark.parametrize("begun", [False, True])
def test_cancelled_job_that_is_put_back_ends_and_counts_only_if_it_began(
    send: Send, store: Store, run: FetchedJob, state: State, begun: bool
) -> None:
    if begun:
        send(store.begin("w", [(run, "1")]))
    send(store.at(NOW).cancel("a"))
    assert send(store.at(NOW).heartbeat("w", 15)).stops == ["a"]
    assert send(store.at(NOW).requeue("w", "it stops")) == PutBack("all", [], ["a"])
    record = state()["job:a"]
    assert (record["outcome"], record["reason"]) == ("cancelled", "cancelled; it stops")
    assert record["attempt"] == ("1" if begun else "0")


def test_fetched_job_that_is_ready_too_is_put_back_once(send: Send, store: Store, state: State, raw: Any) -> None:
    """Its id was scheduled again between the fetch and the start."""
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    assert send(store.fetch("w", 1)) == "a"
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW})
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    assert (state()["processing:w"], state()["ready"]) == (["a"], ["a"])
    assert send(store.at(NOW).requeue("w", "it stops")) == PutBack("all", ["a"], [])
    assert state()["ready"] == ["a"]
    assert "processing:w" not in state()


def test_heartbeat_of_a_worker_says_how_long_its_lease_is_while_it_holds_jobs(
    send: Send, store: Store, state: State
) -> None:
    send(store.at(NOW).heartbeat("w", 60, busy=15, fresh=True))
    assert (state()["leases"], state()["busy_leases"]) == ({"w": NOW + 60}, {"w": "15"})
    send(store.at(NOW).heartbeat("w", 60, busy=15))
    assert state()["busy_leases"] == {"w": "15"}
