"""When a job, a run or an attempt begins or ends, a script deletes the fields of that lifetime."""

from __future__ import annotations

import re
from typing import Any

import pytest

from evsched import keys
from evsched.jobs.job import Buried, Done, FetchedJob, Retried
from evsched.jobs.record import FIELDS, LUA_CONSTANTS, Lifetime
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.call import folder
from tests.scripts.conftest import NOW, Send, State

VALUES = {"text": "x", "JSON": '{"task":"t"}', "time": "1", "number": "1", "count": "1", "digit": "7", "group": "g"}
WHOLE = {field.name: VALUES[field.kind] for field in FIELDS} | {"recurrence": "r"}
"""A record with all fields: as no script leaves it, but as a client may write it."""


def names(*lifetimes: Lifetime) -> set[str]:
    return {field.name for field in FIELDS if field.lifetime in lifetimes}


OWN = {field.name for field in FIELDS if field.lifetime == "description" and field.writer == "evsched"}
NEXT = {f"next_{name}" for name in names("description")}


@pytest.fixture
def record(raw: Any, queue: str) -> str:
    """Return the key of a record that has all fields, including those of a next job."""
    key = keys.job(queue, "a")
    raw.hset(key, mapping=WHOLE | dict.fromkeys(NEXT, "y"))
    return key


def run_of(send: Send, store: Store, raw: Any, record: str) -> FetchedJob:
    """Have a worker run the job, then write all fields that its start has not written; none says that it has ended."""
    raw.delete(record)
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    raw.hset(record, "by", "x")  # so it is no light job
    send(store.at(NOW).dispatch(limit=9, cap=99))
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    kept = {"worker", "attempt", "started", "payload", "again", "stop", "outcome", "finished", "result", "ledger"}
    raw.hset(record, mapping={name: value for name, value in WHOLE.items() if name not in kept | {"recurrence"}})
    return run


def fields_of(state: State) -> set[str]:
    return set(state()["job:a"])


def test_job_with_a_reused_id_keeps_no_field_of_the_ended_job(
    send: Send, store: Store, raw: Any, record: str, state: State
) -> None:
    raw.hdel(record, "worker", "parked")
    raw.zadd(keys.schedule(store.queue), {"a": NOW})
    send(store.at(NOW).dispatch(limit=9, cap=99))
    assert fields_of(state) == (names("id", "description") - OWN) - {"parked"} | {"due"}


def test_a_revived_job_keeps_its_description(send: Send, store: Store, raw: Any, record: str, state: State) -> None:
    raw.zadd(f"{keys.root(store.queue)}dead", {"a": NOW})
    assert send(store.at(NOW).revive(["a"])) == ["a"]
    assert fields_of(state) == names("id", "description", "work") | {"reply"}


def test_job_scheduled_during_its_run_starts_with_new_attempts(
    send: Send, store: Store, raw: Any, record: str, state: State
) -> None:
    run = run_of(send, store, raw, record)
    before = fields_of(state)
    raw.hset(record, "again", NOW + 9)
    assert send(store.at(NOW).complete("w", [(run, Done(b"1", 60, reply=False))])) == []
    assert fields_of(state) == before - names("work", "job", "run", "attempt")


def test_failed_attempt_replaces_the_fields_of_the_previous_attempt(
    send: Send, store: Store, raw: Any, record: str, state: State
) -> None:
    run = run_of(send, store, raw, record)
    before = fields_of(state)
    assert send(store.at(NOW).retry("w", [(run, Retried(5, "it failed"))])) == []
    assert fields_of(state) == before - names("run", "attempt") - {"due"}


@pytest.mark.parametrize("died", [False, True], ids=["handed back", "its worker died"])
@pytest.mark.parametrize("begun", [False, True])
def test_interrupted_run_is_the_last_failure_only_if_it_had_begun(
    send: Send, store: Store, raw: Any, record: str, state: State, died: bool, begun: bool
) -> None:
    run_of(send, store, raw, record)
    raw.hset(record, "begun", "1" if begun else "soon")
    before = fields_of(state)
    (lease,) = send(store.at(NOW).survey()).leases
    assert send(store.at(NOW).requeue("w", "why", lease=lease.end if died else b"")).ids == ["a"]
    gone = names("run", "attempt") if begun else names("run")
    assert fields_of(state) == before - gone - {"started"}


def test_successful_job_keeps_no_failure(send: Send, store: Store, raw: Any, record: str, state: State) -> None:
    run = run_of(send, store, raw, record)
    before = fields_of(state)
    assert send(store.at(NOW).complete("w", [(run, Done(b"1", 60, reply=False))])) == []
    assert fields_of(state) == (before - names("attempt") - {"reason"}) | {"outcome", "result", "finished"}


def test_a_dead_job_keeps_only_the_failure_that_killed_it(
    send: Send, store: Store, raw: Any, record: str, state: State
) -> None:
    run = run_of(send, store, raw, record)
    before = fields_of(state)
    assert send(store.at(NOW).bury("w", [(run, Buried("why", reply=False))])) == []
    assert fields_of(state) == (before - names("attempt")) | {"outcome", "finished"}


def test_the_scripts_use_each_constant_as_a_word() -> None:
    code = "\n".join(re.sub("--.*", "", path.read_text()) for path in folder().glob("*.lua"))
    for name in LUA_CONSTANTS:
        assert re.search(rf"\b{name}\b", code), name
        assert not re.search(rf"\w{name}|{name}\w", code), name


def test_no_script_lists_fields_that_have_a_lifetime() -> None:
    """It may delete one alone, or one besides a list."""
    mortal = names("end", "job", "run", "attempt")
    for path in folder().glob("*.lua"):
        for words in re.findall(r"'HDEL', (?:key|record\(\w+\)), ([^)]*)\)", path.read_text()):
            assert len(mortal.intersection(re.findall(r"'(\w+)'", words))) < 2, (path.name, words)
