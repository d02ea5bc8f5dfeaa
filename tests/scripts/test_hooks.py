"""Hooks: the script that ends a job puts one job of another task on the schedule, for each end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from evsched.jobs.job import Aborted, Buried, Done, FetchedJob, decode_payload
from evsched.jobs.tasks import EndedJob, Hook
from evsched.keys import NAME
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.scripts.conftest import NOW, Send, State
from tests.support.plain import plain_client

HOOK = Hook("tell", "pay")
DONE = Done(b'{"n":1}', 300.0, False)
DEAD = Buried("attempt 1 of 1: ValueError: no luck", False)

Begin = Callable[..., FetchedJob]


@pytest.fixture
def begin(send: Send, store: Store) -> Begin:
    def one(job: str = "a", now: float = NOW) -> FetchedJob:
        send(store.at(now).dispatch(limit=10, cap=300_000))
        jobs = send(store.at(now).start("w", (), hold=9, lease=15)).jobs
        return next(run for run in jobs if run.id == job)

    return one


@pytest.fixture
def run(send: Send, store: Store, begin: Begin) -> FetchedJob:
    send(store.enqueue([New("a", b'{"task":"pay"}', due=NOW)]))
    return begin()


def ended(state: dict[str, Any], hook_job: str) -> EndedJob:
    """Return the argument of the hook's handler."""
    payload = decode_payload(state[f"job:{hook_job}"]["payload"].encode())
    assert payload.task == "tell"
    (arg,) = payload.args
    return msgspec.convert(arg, EndedJob)


def test_the_end_of_a_job_schedules_one_of_its_hook(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    assert send(store.at(NOW + 1).complete("w", [(run, DONE)], HOOK)) == []
    after = state()
    assert after["job:a"]["outcome"] == "done"
    (name,) = after["schedule"]
    assert (name, after["schedule"][name]) == (f"a.done.{after['job:a']['finished']}", NOW + 1)
    assert after[f"job:{name}"].keys() == {"payload", "created"}
    assert ended(after, name) == EndedJob("a", "pay", "done", 1, result={"n": 1})


@pytest.mark.parametrize("outcome", ["dead", "expired"])
def test_the_hook_of_a_dead_job_gets_the_reason(
    run: FetchedJob, send: Send, store: Store, state: State, outcome: Any
) -> None:
    reason = 'no "luck" \u20ac \\ \x01'
    send(store.at(NOW + 1).bury("w", [(run, Buried(reason, False, outcome))], HOOK))
    after = state()
    (name,) = after["schedule"]
    assert name == f"a.{outcome}.{after['job:a']['finished']}"
    assert ended(after, name) == EndedJob("a", "pay", outcome, 1, reason=reason)


@pytest.mark.parametrize("end", ["complete", "bury"])
def test_a_call_that_is_repeated_or_comes_too_late_schedules_nothing(
    run: FetchedJob, send: Send, store: Store, state: State, end: str
) -> None:
    def call(worker: str) -> Any:
        row: Any = [(run, DONE if end == "complete" else DEAD)]
        return getattr(store.at(NOW + 1), end)(worker, row, HOOK)

    before = state()
    assert send(call("v")) == ["a"]
    assert state() == before
    assert send(call("w")) == []
    after = state()
    assert send(call("w")) == ["a"]
    assert state() == after
    assert len(after["schedule"]) == 1


@pytest.mark.parametrize("end", ["complete", "bury"])
def test_a_cancelled_job_calls_no_hook(run: FetchedJob, send: Send, store: Store, state: State, end: str) -> None:
    send(store.at(NOW).cancel("a"))
    row: Any = [(run, DONE if end == "complete" else DEAD)]
    assert send(getattr(store.at(NOW + 1), end)("w", row, HOOK)) == []
    assert (state()["job:a"]["outcome"], "schedule" in state()) == ("cancelled", False)


def test_an_aborted_run_calls_no_hook(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    send(store.at(NOW + 1).abort("w", [(run, Aborted(60.0, False))]))
    assert "schedule" not in state()


def test_a_job_that_is_revived_and_dies_again_calls_its_hook_again(
    run: FetchedJob, send: Send, store: Store, state: State, begin: Begin
) -> None:
    send(store.at(NOW + 1).bury("w", [(run, DEAD)], HOOK))
    send(store.at(NOW + 2).revive(["a"]))
    send(store.at(NOW + 3).bury("w", [(begin(now=NOW + 2), DEAD)], HOOK))
    hooks = [name[4:] for name in state() if name.startswith("job:a.")]
    assert sorted(hooks) == ["a.dead.1900000001.000000", "a.dead.1900000003.000000"]


@pytest.mark.parametrize("end", ["complete", "bury"])
def test_end_of_an_id_scheduled_again_meanwhile_calls_the_hook(
    run: FetchedJob, send: Send, store: Store, state: State, raw: Any, end: str
) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW + 60})
    row: Any = [(run, DONE if end == "complete" else DEAD)]
    send(getattr(store.at(NOW + 1), end)("w", row, HOOK))
    outcome = "done" if end == "complete" else "dead"
    assert state()["schedule"] == {"a": NOW + 60, f"a.{outcome}.1900000001.000000": NOW + 1}


def test_job_without_retention_calls_its_hook_with_its_result(
    run: FetchedJob, send: Send, store: Store, state: State
) -> None:
    send(store.at(NOW + 1).complete("w", [(run, Done(b"[7]", 0.0, False))], HOOK))
    after = state()
    assert "job:a" not in after
    assert ended(after, "a.done.1900000001.000000").result == [7]


@pytest.mark.parametrize(("length", "passed"), [(65_536, True), (65_537, False)])
def test_a_long_result_is_not_passed(
    run: FetchedJob, send: Send, store: Store, state: State, length: int, passed: bool
) -> None:
    result = b'"' + b"x" * (length - 2) + b'"'
    send(store.at(NOW + 1).complete("w", [(run, Done(result, 60.0, False))], HOOK))
    assert ended(state(), "a.done.1900000001.000000").result == (json.loads(result) if passed else None)
    send(store.at(NOW + 1).dispatch(limit=9, cap=256 * 1024))
    assert "dead" not in state()


@pytest.mark.parametrize("length", [170, 176, 177, 200])
def test_the_hooks_job_of_a_long_id_has_a_valid_id(
    send: Send, store: Store, state: State, begin: Begin, length: int
) -> None:
    ids = ["x" * (length - 1) + end for end in "ab"]
    send(store.enqueue([New(job_id, b'{"task":"pay"}', due=NOW) for job_id in ids]))
    begin(ids[0])
    runs = send(store.at(NOW).start("w", ids, hold=2, lease=15)).jobs
    send(store.at(NOW + 1).complete("w", [(run, DONE) for run in runs], HOOK))
    after = state()
    assert len(after["schedule"]) == 2
    assert all(NAME.fullmatch(name) for name in after["schedule"])
    assert sorted(ended(after, name).id for name in after["schedule"]) == ids


def test_names_of_tasks_are_passed_as_they_are(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    hook = Hook('say "hi" \u20ac', "back\\slash/\u20ac")
    send(store.at(NOW + 1).complete("w", [(run, DONE)], hook))
    payload = decode_payload(state()["job:a.done.1900000001.000000"]["payload"].encode())
    assert (payload.task, payload.args[0]["task"]) == (hook.task, hook.of)


@pytest.mark.parametrize("end", ["complete", "bury"])
def test_foreign_key_with_the_id_of_the_hook_job_does_not_stop_the_end(
    run: FetchedJob, send: Send, store: Store, state: State, raw: Any, end: str
) -> None:
    outcome = "done" if end == "complete" else "dead"
    name = f"a.{outcome}.1900000001.000000"
    raw.set(f"evsched:{{{store.queue}}}:job:{name}", "a string")
    row: Any = [(run, DONE if end == "complete" else DEAD)]
    assert send(getattr(store.at(NOW + 1), end)("w", row, HOOK)) == []
    assert ended(state(), name).id == "a"


def test_when_memory_is_full_the_end_of_a_job_calls_its_hook_all_the_same() -> None:
    store = Store("full")
    with EmbeddedRedis() as own:
        raw = plain_client(own.url)
        sender = SyncSender(own.url)
        sender.send(store.enqueue([New(name, b'{"task":"pay"}', due=NOW) for name in "ab"]))
        sender.send(store.at(NOW).dispatch(limit=10, cap=100))
        a, b = sender.send(store.start("w", (), hold=4, lease=15)).jobs
        raw.config_set("maxmemory", 1)
        assert sender.send(store.complete("w", [(a, DONE)], HOOK)) == []
        assert sender.send(store.bury("w", [(b, DEAD)], HOOK)) == []
        assert raw.zcard("evsched:{full}:schedule") == 2
        sender.close()
        raw.close()
