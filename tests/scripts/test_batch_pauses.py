"""Pauses of batches, script by script: what the home says, and how the jobs wait in their queues."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.errors import JobLate, JobMissing, StoreRefused
from evsched.jobs.job import Done, Retried
from evsched.store.batch_pauses import BatchPause, Hold, InnerBatch
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

STAMP = int(NOW * 1000)
DONE = Done(b"null", 60, False)
HELD = "home/b"
LATEST = NOW + 30


def put(send: Send, store: Store, *ids: str, batch: str = HELD, due: float = NOW, **options: Any) -> None:
    """Enqueue jobs, as members of a batch unless it is empty, and dispatch those that are due."""
    address = f"{batch}/0/{NOW + 30:.6f}" if batch else ""
    send(store.at(NOW).enqueue([New(one, b'{"task":"t"}', due=due, **options) for one in ids], batch=address))
    send(store.at(NOW).dispatch(limit=999, cap=1000))


def hold(
    send: Send, store: Store, held: Any = "1", stamp: int = 5, address: str = HELD, latest: float = LATEST
) -> bool:
    return send(store.at(NOW).batch_hold(latest, [Hold(address, stamp, held)]))


def start(send: Send, store: Store, *given: str, now: float = NOW) -> dict[str, Any]:
    return {job.id: job for job in send(store.at(now).start("w", given, hold=999, lease=15)).jobs}


def test_jobs_of_a_held_batch_wait_and_the_others_run(send: Send, store: Store, state: State) -> None:
    put(send, store, "again", "run", "waits")
    runs = {job.id: job for job in send(store.at(NOW).start("w", (), hold=2, lease=15)).jobs}
    put(send, store, "other", batch="")
    assert (list(runs), state()["ready"]) == (["again", "run"], ["waits", "other"])
    assert hold(send, store)
    assert state()["ready"] == ["other"]
    send(store.at(NOW).retry("w", [(runs["again"], Retried(0.0, "it failed"))]))
    put(send, store, "due")
    assert list(start(send, store)) == ["other"]
    assert state()["backlog:batch:home/b"].keys() == {"waits", "again", "due"}
    assert send(store.recount()) == []
    assert send(store.at(NOW).complete("w", [(runs["run"], DONE)])) == []  # what runs goes on
    assert hold(send, store, "", 6)
    assert list(start(send, store)) == ["waits", "again", "due"]
    assert {"limits", "throttled", "in_flight", "backlog:batch:home/b"} & state().keys() == set()
    assert state()["batch_holds"] == {HELD: "6 "}
    assert hold(send, store, "-", 6)
    assert "batch_holds" not in state()


def test_job_that_was_fetched_before_the_pause_does_not_start(send: Send, store: Store, state: State, raw: Any) -> None:
    put(send, store, "a", "b")
    root = f"evsched:{{{store.queue}}}:"
    raw.lmove(f"{root}ready", f"{root}processing:w", "LEFT", "LEFT")  # as BLMOVE
    hold(send, store)
    assert start(send, store, "a") == {}
    assert (state().get("processing:w"), state()["backlog:batch:home/b"].keys()) == (None, {"a", "b"})
    hold(send, store, "", 6)
    assert list(start(send, store)) == ["a", "b"]


@pytest.mark.extra
def test_run_that_began_before_the_pause_is_handed_out_again_if_its_reply_was_lost(send: Send, store: Store) -> None:
    put(send, store, "a")
    first = start(send, store)["a"]
    hold(send, store)
    assert start(send, store, "a")["a"].run == first.run


@pytest.mark.extra
def test_job_of_a_worker_that_died_waits(send: Send, store: Store, state: State) -> None:
    put(send, store, "a")
    start(send, store)
    hold(send, store)
    lease = f"{state()['leases']['w']:.0f}".encode()
    assert send(store.at(NOW + 60).requeue("w", "died", lease=lease, limit=100)).ids == ["a"]
    assert "ready" not in state()
    assert list(state()["backlog:batch:home/b"]) == ["a"]


def test_call_that_comes_late_changes_nothing(send: Send, store: Store, state: State) -> None:
    hold(send, store, "", 6)
    before = state()
    assert hold(send, store, "1", 5)
    assert not hold(send, store, "1", 7, latest=NOW - 1)
    assert state() == before


@pytest.mark.extra
def test_second_call_changes_nothing(send: Send, store: Store, state: State) -> None:
    put(send, store, "a")
    for held in ("1", "", "-"):
        hold(send, store, held)
        before = state()
        assert hold(send, store, held)
        assert state() == before


def test_two_batches_are_held_one_beside_the_other(send: Send, store: Store, state: State) -> None:
    put(send, store, "a")
    put(send, store, "c", batch="home/other", group="g")
    put(send, store, "d", batch="home/third")
    assert send(store.at(NOW).batch_hold(LATEST, [Hold(HELD, 1, "1"), Hold("home/other", 1, "1")]))
    assert list(start(send, store)) == ["d"]
    assert state()["limits"]["batches"] == "2"
    hold(send, store, "")
    assert list(start(send, store)) == ["a"]
    hold(send, store, "", address="home/other")
    assert list(start(send, store)) == ["c"]
    assert "limits" not in state()


@pytest.mark.extra
def test_batch_with_a_long_address_is_held_too(send: Send, store: Store, state: State) -> None:
    address = f"{'h' * 180}/{'b' * 180}"
    put(send, store, "a", batch=address)
    hold(send, store, address=address)
    assert start(send, store) == {}
    assert send(store.jobs_held(address)) == 1
    assert send(store.at(NOW).cancel("a")).place == "backlog"
    assert not {"backlog", "throttled"} & state().keys()


@pytest.mark.extra
@pytest.mark.parametrize(
    "row",
    [
        Hold("b", 1, "1"),
        Hold("h/b", -1, "1"),
        Hold("h/b", 10**15, "1"),
        Hold("h/b", 1, "x"),  # type: ignore[list-item]
    ],
)
def test_malformed_rows_are_refused(send: Send, store: Store, state: State, row: Hold) -> None:
    with pytest.raises(StoreRefused, match="nothing was written"):
        send(store.at(NOW).batch_hold(LATEST, [row]))
    assert state() == {}


# The home of a batch.


@pytest.fixture
def home(send: Send, store: Store) -> Store:
    send(store.at(NOW).batch_open("b", "t", retention=100.0))
    return store


def paused(send: Send, home: Store, at: float = NOW, *, held: bool = True, **more: Any) -> BatchPause:
    return send(home.at(at).batch_pause("b", held=held, after=5.0, **more))


def chores(state: State) -> dict[str, float]:
    return state().get("chores", {})


def test_pause_has_an_end_a_reason_and_a_stamp_until_the_batch_is_resumed(
    send: Send, home: Store, state: State
) -> None:
    assert paused(send, home, until=NOW + 60, why="full") == BatchPause(NOW, STAMP, True, NOW)
    assert chores(state) == {f"hold b {STAMP} 0": NOW + 5, f"resume b {STAMP}": NOW + 60}
    before = state()
    assert paused(send, home, until=NOW + 60, why="full") == BatchPause(NOW, STAMP, True, NOW)
    assert state() == before  # twice
    assert paused(send, home, NOW + 1, why="still full") == BatchPause(NOW + 1, STAMP + 1000, True, NOW)
    found = send(home.batch("b"))
    assert found is not None
    assert (found.paused, found.paused_until, found.paused_why) == (NOW, None, "still full")
    assert chores(state) == {f"hold b {STAMP + 1000} 0": NOW + 6}
    assert send(home.at(NOW).batch_add("b", "r", 1, "q")).paused == STAMP + 1000
    resumed = paused(send, home, NOW + 1, held=False)
    assert resumed == BatchPause(NOW + 1, STAMP + 1001, False, NOW)  # higher, also within a millisecond
    assert paused(send, home, NOW + 9, held=False) == BatchPause(NOW + 9, STAMP + 1001, False)
    assert send(home.batch_pause_of("b")) == BatchPause(0.0, STAMP + 1001, False)
    assert send(home.at(NOW).batch_add("b", "s", 1, "q")).paused == 0
    assert [step for step in chores(state) if step.startswith("hold")] == [f"hold b {STAMP + 1001} 0"]


def test_end_of_a_pause_that_was_replaced_resumes_nothing(send: Send, home: Store, state: State) -> None:
    paused(send, home, until=NOW + 60)
    paused(send, home, NOW + 1, until=NOW + 90)
    before = state()
    assert paused(send, home, NOW + 60, held=False, seen=STAMP) == BatchPause(NOW + 60, STAMP + 1000, True, NOW)
    assert state() == before
    assert not paused(send, home, NOW + 90, held=False, seen=STAMP + 1000).is_paused


def test_end_of_a_batch_ends_its_pause(send: Send, home: Store, state: State) -> None:
    paused(send, home, until=NOW + 60, why="full")
    assert send(home.at(NOW + 2).batch_close("b")) == "done"
    assert chores(state) == {f"hold b {STAMP + 2000} 0": NOW + 2, "forget b": NOW + 102}
    assert not {"paused", "paused_until", "paused_why"} & state()["batch:b"].keys()
    with pytest.raises(JobLate, match="batch b has ended"):
        paused(send, home, NOW + 3)
    before = state()
    assert paused(send, home, NOW + 3, held=False) == BatchPause(NOW + 3, STAMP + 2000, False)
    assert state() == before
    with pytest.raises(JobMissing, match="c is not a batch"):
        send(home.batch_pause("c", held=True, after=5.0))


def test_batch_in_a_batch_follows_the_newest_pause_of_the_outer_one(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).batch_open("b", "t", retention=100.0, parent="q/o/3"))
    assert paused(send, store, outer=("q/o/3", 8)).is_paused
    assert not paused(send, store, outer=("q/o/3", 9), held=False).is_paused
    before = state()
    assert not paused(send, store, outer=("q/o/3", 8)).is_paused  # it comes late
    assert state() == before
    assert paused(send, store).is_paused
    assert paused(send, store, outer=("q/o/3", 9), held=False).is_paused  # it was done before
    with pytest.raises(JobMissing):
        paused(send, store, outer=("q/o/4", 10), held=False)
    send(store.at(NOW).batch_close("b"))
    assert not paused(send, store, outer=("q/o/3", 11)).is_paused  # it is done


def test_batch_that_has_failed_stays_paused_with_the_outer_one_since_its_jobs_may_be_revived(
    send: Send, store: Store
) -> None:
    send(store.at(NOW).batch_open("b", "t", retention=100.0, parent="q/o/3"))
    send(store.at(NOW).batch_add("b", "r", 1, "q"))
    send(store.at(NOW).batch_add("b", "r", 0, confirms="r"))
    send(store.at(NOW).batch_close("b"))

    def outer(stamp: int, *, held: bool) -> bool:
        return paused(send, store, outer=("q/o/3", stamp), held=held).is_paused

    assert outer(8, held=True)
    send(store.at(NOW).batch_count([("b", 0, b"\x02")]))
    found = send(store.batch("b"))
    assert found is not None
    assert (found.state, found.paused) == ("failed", NOW)
    assert not outer(9, held=False)
    assert outer(10, held=True)


def test_batch_that_is_paused_itself_stays_paused_when_the_outer_one_is_resumed(
    send: Send, store: Store, state: State
) -> None:
    send(store.at(NOW).batch_open("b", "t", retention=100.0, parent="q/o/3"))

    def outer(stamp: int, *, held: bool) -> bool:
        return paused(send, store, outer=("q/o/3", stamp), held=held, why="outer").is_paused

    first = paused(send, store, until=NOW + 60, why="own")
    assert outer(8, held=True)
    assert outer(9, held=False)
    assert state()["batch:b"]["paused_why"] == "own"
    assert chores(state)[f"resume b {first.stamp}"] == NOW + 60
    assert outer(10, held=True)
    assert paused(send, store, NOW + 60, held=False, seen=first.stamp).is_paused, "the outer one still is"
    assert not {"paused_until", "paused_why"} & state()["batch:b"].keys()
    assert not outer(11, held=False)
    assert outer(12, held=True)
    assert paused(send, store, NOW + 70, why="own").is_paused
    assert not paused(send, store, NOW + 80, held=False).is_paused, "by hand, both end"
    assert not outer(13, held=False)


def test_batches_in_a_batch_are_listed(send: Send, home: Store) -> None:
    send(home.at(NOW).batch_add("b", "r", 3, "q", ids=["x", "/inner", "/other"]))
    queue = home.queue
    assert send(home.inner_batches("b", 0, 9)) == [
        InnerBatch("q", "inner", f"{queue}/b/1"),
        InnerBatch("q", "other", f"{queue}/b/2"),
    ]
