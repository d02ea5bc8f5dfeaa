"""Manual writes to a recurrence's record harm only that recurrence, and no job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.jobs.job import Done, FetchedJob
from evsched.recurrence.recurrence import Declared, Occurrence
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State
from tests.support.hostile import INVALID_COUNTS, VALID

KEY = "recurrence:r"


@pytest.fixture
def write(raw: Any, store: Store) -> Callable[..., None]:
    """Write fields into the record of the recurrence."""

    def write(**fields: str | bytes) -> None:
        raw.hset(f"evsched:{{{store.queue}}}:{KEY}", mapping=fields)

    return write


def put(send: Send, store: Store, *planned: float, seen: bytes = b"0", missed: int = 0) -> list[str]:
    rows = [Occurrence(f"r@{at:.0f}", at, at, 5.0) for at in planned]
    made = send(store.at(NOW).recur("r", seen, rows, next_=NOW + 900, missed=missed))
    assert made is not None
    return made


@pytest.fixture
def declared(send: Send, store: Store) -> Declared:
    declared = Declared(name="r", rule="* * * * *", payload=VALID, overlap="wait")
    send(store.declare(declared))
    return declared


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("count", INVALID_COUNTS)
def test_a_malformed_count_does_not_hide_a_recurrence(
    send: Send, store: Store, state: State, write: Callable[..., None], count: bytes
) -> None:
    write(count=count)
    assert send(store.at(NOW).recur("r", b"0", [], next_=None, reason="no count")) == []
    after = state()
    assert (after["recurrences"], after[KEY]["reason"]) == ({"r": float("inf")}, "no count")


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("made", INVALID_COUNTS)
def test_a_malformed_count_of_made_occurrences_means_0(
    send: Send, store: Store, state: State, write: Callable[..., None], made: bytes
) -> None:
    write(made=made, count="2")
    assert put(send, store, NOW, NOW + 60, NOW + 120) == [f"r@{NOW:.0f}", f"r@{NOW + 60:.0f}"]
    assert state()[KEY]["made"] == "2"
    write(made=made)
    assert send(store.at(NOW - 3600).rewind(0, 0, 10)) == (1, ["r"])
    assert state()[KEY]["made"] == "0"


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("missed", INVALID_COUNTS)
def test_a_malformed_count_of_missed_occurrences_restarts_at_0(
    send: Send, store: Store, state: State, write: Callable[..., None], missed: bytes
) -> None:
    write(missed=missed)
    put(send, store, NOW, NOW + 1, NOW + 2, missed=3)
    assert state()[KEY]["missed"] == "3"
    write(missed=missed)
    assert send(store.at(NOW + 2).dispatch(limit=9, cap=1000)).missed == ["r"]  # one is ready, one waits
    assert state()[KEY]["missed"] == "1"


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("runs", INVALID_COUNTS)
def test_a_malformed_count_of_runs_does_not_stop_the_end_of_a_job(
    send: Send, store: Store, state: State, write: Callable[..., None], runs: bytes
) -> None:
    put(send, store, NOW)
    send(store.at(NOW).enqueue([New("other", VALID, due=NOW)]))
    send(store.at(NOW).dispatch(limit=9, cap=1000))
    jobs: list[FetchedJob] = send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs
    write(runs=runs)
    assert send(store.at(NOW).complete("w", [(job, Done(b"1", 60, False)) for job in jobs])) == []
    after = state()
    assert "processing:w" not in after
    assert (after[KEY]["runs"], after[KEY]["last_outcome"]) == ("1", "done")


@pytest.mark.usefixtures("declared")
def test_a_recurrence_counts_only_its_own_occurrences(
    send: Send, store: Store, state: State, write: Callable[..., None]
) -> None:
    """Other jobs that its record names are neither deleted, nor moved, nor waited for."""
    first, *_ = put(send, store, NOW)
    send(store.at(NOW).enqueue([New("other", VALID, due=NOW + 500)]))
    before = state()
    write(ahead=f"other {first}", waiting="other", current="other")
    send(store.at(NOW).dispatch(limit=9, cap=1000))
    assert state()["ready"] == [first]
    write(ahead=f"other {first}", waiting="other", current="other")
    jobs = send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs
    assert send(store.at(NOW).complete("w", [(job, Done(b"1", 60, False)) for job in jobs])) == []
    send(store.remove("r"))
    after = state()
    assert after["schedule"] == {"other": NOW + 500}
    assert after["job:other"] == before["job:other"]


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("field", ["ahead", "waiting", "current", "moved", "misfire", "overlap", "made", "last_id"])
@pytest.mark.parametrize("value", [b"", b"nan", b"r@nan", b"r@0x10", b"}:job:x", b"\xff\x00", b"%s" % (b"x " * 50_000)])
def test_occurrences_run_with_any_content_of_the_recurrence_record(
    send: Send, store: Store, state: State, write: Callable[..., None], field: str, value: bytes
) -> None:
    ids = put(send, store, NOW, NOW + 60)
    write(**{field: value})
    done = set[str]()
    for n in range(3):
        send(store.at(NOW + 60 * n).dispatch(limit=9, cap=1000))
        jobs = send(store.at(NOW + 60 * n).start("w", (), hold=9, lease=15)).jobs
        assert send(store.at(NOW + 60 * n).complete("w", [(job, Done(b"1", 60, False)) for job in jobs])) == []
        done |= {job.id for job in jobs}
    assert done == {*ids}
    write(**{field: value})
    send(store.at(NOW - 3600).rewind(0, 0, 10))
    send(store.at(NOW).hold("r", True))
    send(store.remove("r"))
    assert "recurrences" not in state()
