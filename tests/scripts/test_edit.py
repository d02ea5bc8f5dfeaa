"""`reschedule` with an edit: another description for a job that waits or is dead, if it is still as it was read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from evsched.client.edit import digest_of
from evsched.errors import JobChanged, JobMissing, JobRunning, StoreDown
from evsched.jobs.job import Retried
from evsched.store.client_calls import Edit, New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State, status_of
from tests.scripts.test_control import put

NEW = b'{"task":"t","args":[2]}'


def edit_of(send: Send, store: Store, job_id: str = "a", key: str = "k") -> Edit:
    """Return an edit of a job as it is now."""
    original = send(store.original(job_id))
    return Edit(digest_of(original.fields if original else {}), NEW, 9, "h", key, ("args", "priority", "group"))


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready", "dead"])
def test_edit_changes_what_a_waiting_or_dead_job_is_and_nothing_else(
    send: Send, store: Store, state: State, place: str
) -> None:
    put(send, store, place)
    before = state()
    due = send(store.at(NOW).reschedule("a", None, delay=None, edit=edit_of(send, store)))
    assert due == NOW
    after = state()
    known, now = before.pop("job:a"), after.pop("job:a")
    assert now == {**known, "payload": NEW.decode(), "priority": "9", "group": "h", "edited": "k"}
    if place in ("schedule", "dead"):
        assert after == before
    else:
        assert after["schedule"]["a"] == NOW
        assert "a" not in after.get("backlog", {})
        assert "a" not in after.get("ready", [])


def test_edited_job_runs_with_its_new_arguments_and_its_attempts_so_far(send: Send, store: Store) -> None:
    put(send, store, "processing")
    run = send(store.at(NOW).start("w", ("a",), hold=1, lease=15)).jobs[0]
    send(store.at(NOW).retry("w", [(run, Retried(5.0, "no luck"))]))
    send(store.at(NOW).reschedule("a", NOW + 1, edit=edit_of(send, store)))
    assert status_of(send, store, "a").attempt == 1
    send(store.at(NOW + 1).dispatch(limit=9, cap=1000))
    (second,) = send(store.at(NOW + 1).start("w", (), hold=1, lease=15)).jobs
    assert (second.payload, second.attempt) == (NEW, 2)


@pytest.mark.parametrize("field", ["payload", "priority", "group", "created"])
def test_job_that_was_changed_since_it_was_read_is_not_edited(
    send: Send, store: Store, state: State, raw: Any, field: str
) -> None:
    put(send, store, "schedule")
    edit = edit_of(send, store)
    raw.hset(f"evsched:{{{store.queue}}}:job:a", field, {"payload": "{}", "created": "1"}.get(field, "7"))
    before = state()
    with pytest.raises(JobChanged, match="a was changed meanwhile"):
        send(store.reschedule("a", None, delay=None, edit=edit))
    assert state() == before


def test_second_of_two_edits_of_the_same_reading_is_refused(send: Send, store: Store, state: State) -> None:
    """Even if the first has changed nothing that is seen."""
    put(send, store, "schedule")
    edit = edit_of(send, store)
    same = replace(edit, payload=b'{"task":"t","reply":true}', priority=None, group=None)
    send(store.reschedule("a", None, delay=None, edit=same))
    before = state()
    with pytest.raises(JobChanged):
        send(store.reschedule("a", None, delay=None, edit=replace(edit, key="another")))
    assert state() == before


def test_edit_that_is_sent_again_changes_nothing_even_if_the_job_has_begun(
    send: Send, store: Store, state: State
) -> None:
    put(send, store, "ready")
    call = store.at(NOW).reschedule("a", NOW, edit=edit_of(send, store))
    assert send(call) == NOW
    before = state()
    assert send(call) == NOW
    assert state() == before
    send(store.at(NOW).dispatch(limit=9, cap=1000))
    send(store.at(NOW).start("w", (), hold=1, lease=15))
    before = state()
    assert send(call) == NOW
    assert state() == before


@pytest.mark.parametrize(("place", "error"), [("processing", JobRunning), ("finished", JobMissing)])
def test_job_that_has_begun_or_ended_is_not_edited(
    send: Send, store: Store, state: State, place: str, error: type[Exception]
) -> None:
    put(send, store, place)
    before = state()
    with pytest.raises(error):
        send(store.reschedule("a", None, delay=None, edit=edit_of(send, store)))
    assert state() == before


def test_job_that_runs_and_waits_again_is_not_edited(send: Send, store: Store, state: State) -> None:
    """The record is that of the run, whose retries it would change."""
    put(send, store, "processing")
    send(store.at(NOW).replace([New("a", b"{}", due=NOW + 60)]))
    before = state()
    with pytest.raises(JobRunning, match="held by worker w"):
        send(store.reschedule("a", None, delay=None, edit=edit_of(send, store)))
    assert state() == before


def test_job_that_was_fetched_and_not_started_is_not_edited(send: Send, store: Store, state: State, raw: Any) -> None:
    put(send, store, "ready")
    edit, root = edit_of(send, store), f"evsched:{{{store.queue}}}:"
    send(store.at(NOW).heartbeat("w", 15, fresh=True))
    raw.lmove(f"{root}ready", f"{root}processing:w", "LEFT", "RIGHT")
    before = state()
    with pytest.raises(JobRunning):
        send(store.reschedule("a", None, delay=None, edit=edit))
    assert state() == before


def test_edited_job_counts_for_its_new_group(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({"concurrency:g": 1.0, "concurrency:h": 1.0}))
    send(store.at(NOW).enqueue([New("a", b"{}", group="g", due=NOW), New("b", b"{}", group="g", due=NOW + 1)]))
    send(store.at(NOW + 1).dispatch(limit=9, cap=1000))
    assert state()["ready"] == ["a"], "b waits for the limit of g"
    send(store.at(NOW + 1).reschedule("a", None, delay=None, edit=edit_of(send, store)))
    assert state()["ready"] == ["b"]
    send(store.at(NOW + 1).dispatch(limit=9, cap=1000))
    assert state()["ready"] == ["b", "a"]


def test_payload_that_is_too_long_is_not_edited(send: Send, store: Store, state: State, raw: Any) -> None:
    put(send, store, "schedule")
    raw.hset(f"evsched:{{{store.queue}}}:job:a", "payload", b'{"task":"%b"}' % (b"x" * 1_100_000))
    before = state()
    with pytest.raises(JobChanged):
        send(store.reschedule("a", None, delay=None, edit=edit_of(send, store)))
    assert state() == before


def test_job_that_moves_to_another_shard_is_not_edited(send: Send, store: Store, state: State, raw: Any) -> None:
    put(send, store, "schedule")
    edit, root = edit_of(send, store), f"evsched:{{{store.queue}}}:"
    raw.zrem(f"{root}schedule", "a")
    raw.hset(f"{root}moving", "a", NOW)
    before = state()
    with pytest.raises(StoreDown, match="moved to another shard"):
        send(store.reschedule("a", None, delay=None, edit=edit))
    assert state() == before


def test_dead_job_stays_dead_and_is_revived_as_it_was_edited(send: Send, store: Store) -> None:
    put(send, store, "dead")
    with pytest.raises(JobChanged):  # it has no due
        send(store.reschedule("a", NOW + 60, edit=edit_of(send, store)))
    send(store.reschedule("a", None, delay=None, edit=edit_of(send, store)))
    assert status_of(send, store, "a").place == "dead"
    send(store.at(NOW).revive(["a"]))
    assert (status_of(send, store, "a").place, status_of(send, store, "a").group) == ("schedule", "h")


SECRET = b'{"task":"t","args":["%b"],"redact":["1"]}'


def test_version_changes_with_an_edit_a_redacted_value_or_a_due(send: Send, store: Store) -> None:
    put(send, store, "finished", "c")
    assert status_of(send, store, "c").version is None
    rows = (("a", b"one", 1), ("b", b"two", 1), ("d", b"one", 2))
    send(store.at(NOW).enqueue([New(job, SECRET % value, due=due) for job, value, due in rows]))
    versions = [status_of(send, store, job).version for job, _, _ in rows]
    assert len({*versions}) == 3
    send(store.reschedule("a", None, delay=None, edit=edit_of(send, store)))
    assert status_of(send, store, "a").version not in versions


@pytest.mark.extra
def test_version_stays_when_a_job_passes_the_gate_or_an_equal_one_replaces_it(send: Send, store: Store) -> None:
    job = New("a", SECRET % b"one", due=NOW - 1.2345678)
    send(store.at(NOW).enqueue([job]))
    version = status_of(send, store, "a").version
    send(store.at(NOW).cancel("a"))
    send(store.at(NOW).enqueue([job]))
    assert status_of(send, store, "a").version == version
    send(store.at(NOW).dispatch(limit=10, cap=262144))
    assert (status_of(send, store, "a").place, status_of(send, store, "a").version) == ("ready", version)


@pytest.mark.extra
def test_version_tells_hardly_anything_of_a_redacted_value(send: Send, store: Store) -> None:
    send(store.at(NOW).enqueue([New(f"j{n}", SECRET % b"%d" % n, due=NOW) for n in range(900)]))
    assert len({status_of(send, store, f"j{n}").version for n in range(900)}) <= 256
