"""Unique jobs: which ids are taken, for how long, and which are free although they have a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.errors import JobExists, StoreRefused
from evsched.jobs.job import Aborted, Buried, Done, FetchedJob, Outcome, Retried
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State, status_of
from tests.support.patience import PATIENCE

WITHIN = 300.0
FIRST, SECOND = b'{"task":"t","args":[1]}', b'{"task":"t","args":[2]}'


def new(payload: bytes = FIRST, *, due: float = NOW, job_id: str = "a") -> list[New]:
    return [New(job_id, payload, due=due)]


@pytest.fixture
def fetch(send: Send, store: Store) -> Callable[[], FetchedJob]:
    """Return a function that dispatches and starts the one job that is due."""

    def fetch() -> FetchedJob:
        send(store.at(NOW).dispatch(limit=9, cap=1000))
        (job,) = send(store.at(NOW).start("w", (), hold=1, lease=99)).jobs
        return job

    return fetch


@pytest.fixture
def end(send: Send, store: Store, fetch: Callable[[], FetchedJob]) -> Callable[[Outcome], None]:
    """Return a function that runs the job that is due, and ends its run with an outcome."""

    def end(outcome: Outcome) -> None:
        run = fetch()
        if isinstance(outcome, Done):
            assert send(store.at(NOW).complete("w", [(run, outcome)])) == []
        elif isinstance(outcome, Aborted):
            assert send(store.at(NOW).abort("w", [(run, outcome)])) == []
        elif isinstance(outcome, Retried):
            assert send(store.at(NOW).retry("w", [(run, outcome)])) == []
        elif isinstance(outcome, Buried):
            assert send(store.at(NOW).bury("w", [(run, outcome)])) == []

    return end


ENDS = [Done(b"1", 300.0, False), Done(b"1", 0.0, False), Buried("x", False), Aborted(300.0, False)]


@pytest.mark.parametrize("outcome", ENDS, ids=["done", "done without retention", "dead", "cancelled"])
@pytest.mark.parametrize("conflict", ["refuse", "keep", "replace"])
def test_id_is_taken_within_the_time_after_any_outcome(
    send: Send, store: Store, state: State, end: Callable[[Outcome], None], outcome: Outcome, conflict: str
) -> None:
    send(store.at(NOW).enqueue(new(), within=WITHIN))
    end(outcome)
    before = state()
    later = NOW + WITHIN - 0.001
    if conflict == "refuse":
        with pytest.raises(JobExists, match="a is dead" if isinstance(outcome, Buried) else "free again in 1 s"):
            send(store.at(later).enqueue(new(SECOND), within=WITHIN))
    elif conflict == "keep":
        assert send(store.at(later).enqueue(new(SECOND), keep=True, within=WITHIN)) in ([NOW], [later])
    else:
        assert send(store.at(later).replace(new(SECOND), within=WITHIN)) in ([NOW], [later])
    assert state() == before


@pytest.mark.parametrize("within", [0.0, WITHIN])
@pytest.mark.parametrize("outcome", ENDS, ids=["done", "done without retention", "dead", "cancelled"])
@pytest.mark.parametrize("conflict", ["refuse", "keep", "replace"])
def test_an_id_is_free_after_the_time_when_its_job_has_ended(
    send: Send,
    store: Store,
    state: State,
    end: Callable[[Outcome], None],
    outcome: Outcome,
    conflict: str,
    within: float,
) -> None:
    """A dead job too: the new one takes its place, as if an operator had revived it."""
    send(store.at(NOW).enqueue(new(), within=within))
    end(outcome)
    later = NOW + within
    if conflict == "replace":
        send(store.at(later).replace(new(SECOND), within=within))
    else:
        send(store.at(later).enqueue(new(SECOND), keep=conflict == "keep", within=within))
    after = state()
    assert after["schedule"] == {"a": NOW}
    assert "dead" not in after
    assert after["job:a"] == {"payload": SECOND.decode(), "created": f"{later:.0f}"}
    if within:
        with pytest.raises(JobExists):
            send(store.at(later + within - 1).enqueue(new(), within=within))


@pytest.mark.parametrize("place", ["schedule", "ready", "processing", "retry"])
def test_an_id_is_taken_after_the_time_while_its_job_waits_or_runs(
    send: Send,
    store: Store,
    state: State,
    fetch: Callable[[], FetchedJob],
    end: Callable[[Outcome], None],
    place: str,
) -> None:
    send(store.at(NOW).enqueue(new(due=NOW + 9 if place == "schedule" else NOW), within=WITHIN))
    if place == "ready":
        send(store.at(NOW).dispatch(limit=9, cap=1000))
    elif place == "processing":
        fetch()
    elif place == "retry":
        end(Retried(60.0, "x"))
    before = state()
    for within in (0.0, WITHIN):
        with pytest.raises(JobExists, match="a has not ended yet"):
            send(store.at(NOW + 2 * WITHIN).enqueue(new(SECOND), within=within))
    send(store.at(NOW + 2 * WITHIN).enqueue(new(SECOND), keep=True, within=WITHIN))
    assert state() == before


def test_in_the_time_a_job_is_replaced_until_it_begins(
    send: Send, store: Store, state: State, fetch: Callable[[], FetchedJob]
) -> None:
    send(store.at(NOW).enqueue(new(due=NOW + 9), within=WITHIN))
    assert send(store.at(NOW + 1).replace(new(SECOND, due=NOW), within=WITHIN)) == [NOW]
    assert fetch().payload == SECOND
    before = state()
    assert send(store.at(NOW + 2).replace(new(FIRST), within=WITHIN)) == [NOW]
    assert state() == before


def test_a_job_that_runs_is_replaced_after_the_time_and_runs_again(
    send: Send, store: Store, state: State, fetch: Callable[[], FetchedJob]
) -> None:
    send(store.at(NOW).enqueue(new(), within=WITHIN))
    fetch()
    send(store.at(NOW + WITHIN).replace(new(SECOND, due=NOW + 400), within=WITHIN))
    assert state()["schedule"] == {"a": NOW + 400}
    assert send(store.at(NOW + WITHIN + 1).replace(new(FIRST), within=WITHIN)), "a new time has begun"
    assert state()["job:a"]["payload"] == FIRST.decode()
    assert state()["job:a"]["next_payload"] == SECOND.decode()


def test_the_time_begins_with_the_first_enqueue(send: Send, store: Store, end: Callable[[Outcome], None]) -> None:
    send(store.at(NOW).enqueue(new(), within=WITHIN))
    send(store.at(NOW + 200).enqueue(new(), keep=True, within=WITHIN))
    send(store.at(NOW + 250).replace(new(), within=WITHIN))
    end(ENDS[0])
    assert send(store.at(NOW + WITHIN).enqueue(new(due=NOW + 9), within=WITHIN)) == [NOW + 9]


def test_a_job_that_is_cancelled_while_it_waits_frees_its_id(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).enqueue(new(), within=WITHIN))
    send(store.at(NOW).cancel("a"))
    assert state() == {}
    assert send(store.at(NOW + 1).enqueue(new(), within=WITHIN)) == [NOW]


def test_a_dead_job_that_is_dropped_frees_its_id(
    send: Send, store: Store, raw: Any, end: Callable[[Outcome], None]
) -> None:
    send(store.at(NOW).enqueue(new(), within=WITHIN))
    end(Buried("x", False))
    send(store.drop(["a"]))
    assert send(store.at(NOW + 1).enqueue(new(), within=WITHIN)) == [NOW]


def test_keep_uses_the_first_and_replace_the_last_of_two_rows_with_one_id(
    send: Send, store: Store, state: State
) -> None:
    rows = [*new(FIRST), *new(SECOND, due=NOW + 5), *new(job_id="b")]
    with pytest.raises(JobExists, match="a stands twice in this call"):
        send(store.enqueue(rows, within=WITHIN))
    assert state() == {}
    assert send(store.enqueue(rows, keep=True, within=WITHIN)) == [NOW, NOW, NOW]
    assert (state()["schedule"], state()["job:a"]["payload"]) == ({"a": NOW, "b": NOW}, FIRST.decode())
    assert send(store.replace(rows, within=WITHIN)) == [NOW, NOW + 5, NOW]
    assert (state()["schedule"], state()["job:a"]["payload"]) == ({"a": NOW + 5, "b": NOW}, SECOND.decode())


def test_unique_key_of_an_ended_job_expires(send: Send, store: Store, raw: Any, end: Callable[[Outcome], None]) -> None:
    send(store.enqueue(new(), within=WITHIN))
    send(store.enqueue(new(job_id="b"), within=0.0))
    end(Done(b"1", 0.0, False))
    key = f"evsched:{{{store.queue}}}:unique:a"
    assert list(raw.keys("*unique*")) == [key.encode()]
    assert WITHIN - PATIENCE < raw.pttl(key) / 1000 <= WITHIN


@pytest.mark.parametrize("within", [0.0001, 1e300])
def test_a_time_of_any_length_is_accepted(send: Send, store: Store, within: float) -> None:
    assert send(store.enqueue(new(), within=within)) == [NOW]


@pytest.mark.parametrize("wrong", [b"", b"soon", b"1e9", b"-1"])
def test_a_key_without_a_time_takes_the_id_as_long_as_it_exists(
    send: Send, store: Store, state: State, raw: Any, wrong: bytes
) -> None:
    key = f"evsched:{{{store.queue}}}:unique:a"
    raw.set(key, wrong, ex=99)
    with pytest.raises(JobExists, match=r"free again when .*:unique:a expires"):
        send(store.enqueue(new(), within=WITHIN))
    send(store.replace(new(), within=WITHIN))
    assert state() == {}
    raw.delete(key)
    send(store.enqueue(new(), within=WITHIN))


@pytest.mark.parametrize("value", [b"", b"4000000000.000000"])
@pytest.mark.parametrize("within", [0.0, WITHIN])
@pytest.mark.parametrize("conflict", ["refuse", "keep", "replace"])
def test_a_key_without_an_expiry_takes_no_id_and_is_set_right(
    send: Send, store: Store, state: State, raw: Any, value: bytes, within: float, conflict: str
) -> None:
    key = f"evsched:{{{store.queue}}}:unique:a"
    raw.set(key, value)
    if conflict == "replace":
        send(store.at(NOW).replace(new(), within=within))
    else:
        send(store.at(NOW).enqueue(new(), keep=conflict == "keep", within=within))
    created = {"payload": FIRST.decode(), "created": f"{NOW:.0f}"}
    assert (state()["schedule"], state()["job:a"]) == ({"a": NOW}, created)
    assert raw.pttl(key) > 0 if within else not raw.exists(key)


def test_a_key_without_an_expiry_does_not_free_the_id_of_a_job_that_waits(send: Send, store: Store, raw: Any) -> None:
    send(store.at(NOW).enqueue(new(), within=WITHIN))
    raw.persist(f"evsched:{{{store.queue}}}:unique:a")
    with pytest.raises(JobExists, match="a has not ended yet"):
        send(store.at(NOW).enqueue(new(), within=WITHIN))


@pytest.mark.parametrize("how", ["cancel", "drop", "revive"])
def test_dead_unique_job_scheduled_by_another_client_frees_its_id(
    send: Send, store: Store, state: State, raw: Any, end: Callable[[Outcome], None], how: str
) -> None:
    send(store.at(NOW).enqueue(new(), within=WITHIN))
    end(Buried("x", False))
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW + 60})
    if how == "cancel":
        assert send(store.at(NOW).cancel("a")).place == "schedule"
    elif how == "drop":
        assert send(store.drop(["a"])) == ["a"]
        assert send(store.at(NOW).cancel("a")).place == "schedule"
    else:
        assert send(store.at(NOW).revive(["a"])) == ["a"]
        with pytest.raises(JobExists, match="a has not ended yet"):
            send(store.at(NOW).enqueue(new(SECOND), within=WITHIN))
        assert send(store.at(NOW).cancel("a")).place == "schedule"
    assert not raw.exists(f"evsched:{{{store.queue}}}:unique:a")
    assert send(store.at(NOW + 1).enqueue(new(SECOND), within=WITHIN)) == [NOW]
    created = {"payload": SECOND.decode(), "created": f"{NOW + 1:.0f}"}
    assert (state()["schedule"], state()["job:a"]) == ({"a": NOW}, created)
    assert "dead" not in state()


def test_dropped_job_scheduled_again_frees_its_id_when_it_ends(
    send: Send, store: Store, raw: Any, end: Callable[[Outcome], None]
) -> None:
    send(store.at(NOW).enqueue(new(), within=WITHIN))
    end(Buried("x", False))
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW})
    send(store.drop(["a"]))
    with pytest.raises(JobExists, match="a has not ended yet"):
        send(store.at(NOW).enqueue(new(SECOND), within=WITHIN))
    end(Done(b"1", 300.0, False))
    assert send(store.at(NOW + 1).enqueue(new(SECOND), within=WITHIN)) == [NOW]


def test_a_key_of_another_type_takes_no_id(send: Send, store: Store, raw: Any) -> None:
    key = f"evsched:{{{store.queue}}}:unique:a"
    raw.rpush(key, "x")
    assert send(store.enqueue(new(), within=WITHIN)) == [NOW]
    assert raw.type(key) == b"string"


def test_a_dead_set_of_another_type_stops_the_call_before_it_writes(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    raw.set(f"evsched:{{{store.queue}}}:dead", "x")
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(store.enqueue(new(), within=WITHIN))
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(store.replace(new(), within=WITHIN))
    assert state() == {}


def test_a_dead_job_keeps_an_id_that_a_program_has_chosen(
    send: Send, store: Store, state: State, end: Callable[[Outcome], None]
) -> None:
    send(store.enqueue(new()))
    end(Buried("x", False))
    before = state()
    with pytest.raises(JobExists, match="a is dead: revive or drop it"):
        send(store.enqueue(new(SECOND)))
    send(store.enqueue(new(SECOND), keep=True))
    assert state() == before


@pytest.mark.parametrize("within", [None, 0.0, WITHIN])
@pytest.mark.parametrize("keep", [True, False])
def test_a_record_without_a_place_takes_no_id(
    send: Send, store: Store, state: State, raw: Any, within: float | None, keep: bool
) -> None:
    """As after HSET, ZADD and ZREM of another client: no worker will ever find that job."""
    raw.hset(f"evsched:{{{store.queue}}}:job:a", mapping={"payload": SECOND, "priority": "9", "worker": "gone"})
    send(store.at(NOW).enqueue(new(), keep=keep, within=within))
    written = state()
    assert written.pop("job:a") == {"payload": FIRST.decode(), "created": f"{NOW:.0f}"}
    assert written == {"schedule": {"a": NOW}}
    assert status_of(send, store, "a").place == "schedule"


def test_a_job_that_was_fetched_and_not_started_has_not_ended(send: Send, store: Store, state: State, raw: Any) -> None:
    """Its record names no worker yet: only the list of one does."""
    send(store.at(NOW).heartbeat("w", 99, fresh=True))
    send(store.enqueue(new()))
    send(store.at(NOW).dispatch(limit=9, cap=1000))
    root = f"evsched:{{{store.queue}}}:"
    assert raw.lmove(root + "ready", root + "processing:w") == b"a"
    before = state()
    with pytest.raises(JobExists, match="a has not ended yet"):
        send(store.enqueue(new()))
    assert state() == before
