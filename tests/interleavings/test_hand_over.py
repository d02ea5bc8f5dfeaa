"""All interleavings of the scenes of the hand-over, and the rules without which the search finds a failure."""

from __future__ import annotations

import pytest

from tests.interleavings.hand_over import RULES
from tests.interleavings.scenes import HAND_OVERS, run
from tests.interleavings.search import FAULTS
from tests.interleavings.server import SavedRedis

_PROMPT = ("lost", "unsent", "dead")
"""The faults but late calls: a late `start` fills the list of a worker that waits, which only a heartbeat finds."""

_SCOPES = {
    "a late call": (1, 0, ("V",), FAULTS),
    "a lost call": (1, 0, ("V",), _PROMPT),
    "a turn of time": (0, 1, ("V",), _PROMPT),
    "two workers": (0, 0, (), _PROMPT),
}
"""Faults, turns of time, the processes that are left out, and the kinds of faults."""

_BIG = (
    *("hand-over, a cut connection", "hand-over, a half-open connection"),
    *("hand-over, shared slots", "hand-over, a blocked event loop"),
)


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        pytest.param(name, scope, marks=[pytest.mark.extra] if name in _BIG and scope == "two workers" else [])
        for name in HAND_OVERS
        for scope in _SCOPES
    ],
)
def test_no_interleaving_breaks_a_hand_over(name: str, scope: str) -> None:
    faults, epochs, without, kinds = _SCOPES[scope]
    most = 15_000 if scope == "two workers" else 25_000
    with SavedRedis() as redis:
        found = run(name, redis, faults=faults, epochs=epochs, without=without, kinds=kinds, most=most)
    assert not found.failures, found
    assert found.complete or scope == "two workers"


_ONE = "hand-over, one job"
_LOST = {
    "ticket": (_ONE, 1, 0, "which is not its run"),
    "age": (_ONE, 0, 2, "which is not its run"),
    "look": ("hand-over, a cut connection", 0, 0, "which waits for a message"),
    "slot": ("hand-over, shared slots", 0, 0, "more runs than slots"),
    "endless": (_ONE, 1, 0, "which is not its run"),
    "back": ("hand-over, shared slots", 1, 0, "was handed back while it runs"),
    "watch": ("hand-over, a blocked event loop", 0, 0, "which is not its run"),
}
"""For each rule: the scene, the faults and turns of time in which the search finds a failure without it, and what."""


@pytest.mark.parametrize("rule", RULES)
def test_search_finds_a_worker_that_does_not_follow_a_rule(rule: str) -> None:
    scene, faults, epochs, wrong = _LOST[rule]
    kinds = ("late",) if rule == "back" else _PROMPT
    with SavedRedis() as redis:
        found = run(scene, redis, faults=faults, epochs=epochs, without=("V",), kinds=kinds, lacks=rule)
    assert wrong in found.failures[0].what


_BROKEN = {
    "a question that does not end the seat before": (
        (
            ("start", "if type(since) == 'string' then", "if false then"),
            ("start", "if type(since) == 'string' or rows(7, 1)() then", "if false then"),
            ("start", "redis.pcall('HSET', seats", "redis.pcall('HSETNX', seats"),
        ),
        *(1, 0, "which waits for a message"),
    ),
    "a heartbeat that makes the lease long": (
        (("heartbeat", "#held > 0 and busy ~= '' and busy or lease", "lease"),),
        *(0, 1, "its lease is long"),
    ),
    "a hand-over without the short lease": (
        (("*", "redis.call('ZADD', leases, seconds(now + tonumber(lease)), worker)", ""),),
        *(0, 0, "its lease is long"),
    ),
    "a seat that outlives its worker": (
        (("requeue", "redis.pcall('HDEL', seats, worker)", ""),),
        *(0, 1, "seats of workers that do not wait"),
    ),
    "a message before its job has moved": (
        (
            (
                "*",
                "if type(redis.pcall('LMOVE', ready, processing(worker), 'LEFT', 'RIGHT')) ~= 'string' then",
                "if false then",
            ),
        ),
        *(0, 0, "is charged 1 attempts, 0 began"),
    ),
}
"""Changes of scripts, the faults and turns of time, and what the search finds."""


def test_search_finds_a_late_end_of_a_wait_that_returns_a_run() -> None:
    change = ("start", "if type(since) == 'string' or rows(7, 1)() then", "if type(since) == 'string' then")
    with SavedRedis((change,)) as redis:
        scene = "hand-over, a blocked event loop"
        found = run(scene, redis, faults=1, epochs=0, without=("V",), kinds=("late",))
    assert "was handed back while it runs" in found.failures[0].what


@pytest.mark.parametrize("name", _BROKEN)
def test_search_finds_a_hand_over_that_is_broken_on_purpose(name: str) -> None:
    changes, faults, epochs, wrong = _BROKEN[name]
    with SavedRedis(changes) as redis:
        found = run(_ONE, redis, faults=faults, epochs=epochs, without=("V",), kinds=_PROMPT)
    assert wrong in found.failures[0].what
