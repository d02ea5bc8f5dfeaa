"""All interleavings of each scene in small scopes. `make chaos` searches larger ones."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet

from tests.interleavings.mutations import MUTATIONS
from tests.interleavings.scenes import BATCHES, GRAPHS, INLINES, SCENES, SIGNALS, run
from tests.interleavings.search import JUMP
from tests.interleavings.server import SavedRedis

_SCOPES = {"a lost call": (1, 0, ("V", "janitor")), "a late worker": (0, 1, ("V",)), "two workers": (0, 0, ())}
"""Faults, turns of time, and the processes that are left out."""

_BIG = ("fails", "hook", "hook of a dead job", "fails, inline", "hook of a dead job, inline")
"""Scenes of two attempts, or with a hook's job besides: only `make chaos` searches them with all processes."""


def _case(name: str, scope: str) -> ParameterSet:
    """Return a case; of the scenes about an inline job, `make test` searches one scope."""
    long = name.endswith(", inline") and (name in _BIG or scope != "a lost call")
    return pytest.param(name, scope, marks=[pytest.mark.long] if long else [])


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        _case(name, scope)
        for name in (*SCENES, *INLINES, *SIGNALS)
        for scope in _SCOPES
        if name not in _BIG or scope == "a lost call"
    ],
)
def test_no_interleaving_breaks_a_rule(name: str, scope: str) -> None:
    faults, epochs, without = _SCOPES[scope]
    with SavedRedis() as redis:
        found = run(name, redis, faults=faults, epochs=epochs, without=without)
    assert not found.failures, found
    assert found.complete


_BATCHES = {
    "two keepers": (0, 0, ()),
    "a lost call": (1, 0, ("Z",)),
    "a turn of time": (0, 1, ("Z",)),
}


_MOST = 2000
"""States that are visited with faults, or with a second keeper; `make chaos` visits more."""

_LONG = ("batch that two pause", "graph that has failed", "graph that ripples")
"""Scenes of batches and graphs that `make test` leaves out."""


@pytest.mark.parametrize("name", [name for name in (*BATCHES, *GRAPHS) if name not in _LONG])
def test_no_interleaving_breaks_a_batch(name: str) -> None:
    _search_batch(name, 0, 0, ("Z",))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", _LONG)
def test_no_interleaving_breaks_a_long_scene(name: str) -> None:
    _search_batch(name, 0, 0, ("Z",))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*BATCHES, *GRAPHS])
@pytest.mark.parametrize("scope", _BATCHES)
def test_no_fault_and_no_second_keeper_breaks_a_batch(name: str, scope: str) -> None:
    faults, epochs, without = _BATCHES[scope]
    with SavedRedis() as redis:
        found = run(name, redis, faults=faults, epochs=epochs, without=without, most=_MOST)
    assert not found.failures, found


def _search_batch(name: str, faults: int, epochs: int, without: tuple[str, ...]) -> None:
    with SavedRedis() as redis:
        found = run(name, redis, faults=faults, epochs=epochs, without=without)
    assert not found.failures, found
    assert found.complete


@pytest.mark.parametrize("name", ["one attempt of one job", "limit"])
def test_server_clock_that_jumps_breaks_no_rule(name: str) -> None:
    with SavedRedis() as redis:
        found = run(name, redis, faults=1, epochs=1, without=("V",), kinds=(JUMP,))
        steady = run(name, redis, faults=0, epochs=1, without=("V",))
    assert not found.failures, found
    assert found.complete
    assert found.states > 2 * steady.states, "each state may be reached before a jump ahead or back, or after it"


@pytest.mark.parametrize("name", MUTATIONS)
def test_search_finds_a_script_that_is_broken_on_purpose(name: str) -> None:
    changes, scene, faults, epochs, wrong = MUTATIONS[name]
    with SavedRedis(changes) as redis:
        found = run(scene, redis, faults=faults, epochs=epochs)
    assert wrong in found.failures[0].what
    assert len(found.failures[0].path) > 1
