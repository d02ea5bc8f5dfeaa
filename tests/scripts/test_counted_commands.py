"""The commands that Redis executes for jobs, for calls that find nothing and for lists of names, those inside scripts
included.

The numbers are upper bounds: a change that needs fewer lowers them, and one that needs more has to give a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.jobs.job import Done
from evsched.recurrence.recurrence import Declared
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.call import Call
from tests.scripts.conftest import Send

JOBS = 250
"""Due jobs, as many as a dispatcher moves in one call."""
SLOTS = 128
"""Jobs that a worker starts, or ends, in one call: half of its slots."""

EMPTY = {"dispatch": 13, "start": 23, "complete": 11}
"""The commands of a call that finds nothing to do."""
CROWD = {
    "a record": {"dispatch": 563, "start": 37, "complete": 282},
    "inline": {"dispatch": 48, "start": 37, "complete": 410},
    "inline, not kept": {"dispatch": 48, "start": 37, "complete": 27},
}
"""The commands of a call that moves as many jobs as it may."""

Count = Callable[[Call[Any]], tuple[int, Any]]


@pytest.fixture
def count(raw: Any, send: Send) -> Count:
    """Return a function that makes a call, and returns how many commands its script has executed, and the reply."""

    def executed() -> int:
        return sum(
            one["calls"]
            for name, one in raw.info("commandstats").items()
            if name not in ("cmdstat_info", "cmdstat_evalsha")
        )

    def made(call: Call[Any]) -> tuple[int, Any]:
        before = executed()
        reply = send(call)
        return executed() - before, reply

    return made


def schedule(raw: Any, send: Send, store: Store, how: str) -> None:
    if how == "a record":
        send(store.enqueue([New(f"j{n}", b'{"task":"t"}', due=1.0 + n) for n in range(2 * JOBS)]))
    else:
        raw.zadd(
            f"evsched:{{{store.queue}}}:schedule", {f'{{"task":"t","args":[{n}]}}': 1 + n for n in range(2 * JOBS)}
        )


def load_scripts(send: Send, store: Store) -> None:
    """Have Redis know the scripts, and the worker a lease."""
    send(store.heartbeat("w", 60, busy=60, fresh=True))
    for call in calls_that_find_nothing(store).values():
        send(call)


def calls_that_find_nothing(store: Store) -> dict[str, Call[Any]]:
    return {
        "dispatch": store.dispatch(limit=JOBS, cap=1000),
        "start": store.start("w", (), hold=SLOTS, lease=60),
        "complete": store.complete("w", []),
    }


def test_call_that_finds_nothing_executes_few_commands(send: Send, store: Store, count: Count) -> None:
    load_scripts(send, store)
    found = {name: count(call)[0] for name, call in calls_that_find_nothing(store).items()}
    assert all(found[name] <= most for name, most in EMPTY.items()), found


@pytest.mark.parametrize("how", CROWD)
def test_job_in_a_crowd_costs_few_commands(raw: Any, send: Send, store: Store, count: Count, how: str) -> None:
    load_scripts(send, store)
    schedule(raw, send, store, how)
    dispatched, _ = count(store.dispatch(limit=JOBS, cap=1000))
    send(store.dispatch(limit=JOBS, cap=1000))
    first = send(store.start("w", (), hold=SLOTS, lease=60)).jobs
    done = Done(b"null", 0.0 if how == "inline, not kept" else 300.0, False)
    completed, lost = count(store.complete("w", [(job, done) for job in first]))
    started, second = count(store.start("w", (), hold=SLOTS, lease=60))
    assert (len(first), len(lost), len(second.jobs)) == (SLOTS, 0, SLOTS)
    found = {"dispatch": dispatched, "start": started, "complete": completed}
    assert all(found[name] <= most for name, most in CROWD[how].items()), found


def test_names_of_recurrences_are_read_without_their_records(send: Send, store: Store, count: Count) -> None:
    for name in ("a", "b", "c"):
        send(store.declare(Declared(name=name, payload=b'{"task":"t"}', rule="@daily")))
    send(store.at(1.0).roster(0, 9, ["rule"]))
    commands, listed = count(store.at(1.0).roster(0, 9, ()))
    assert [(name, fields) for name, _, fields in listed.rows] == [("a", {}), ("b", {}), ("c", {})]
    assert commands == 2
