"""All interleavings of each scene in small scopes. `make chaos` searches larger ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.interleavings.mutations import MUTATIONS
from tests.interleavings.scenes import SCENES, run
from tests.interleavings.server import SavedRedis

_BIG = ("fails", "hook", "hook of a dead job")
"""Scenes with two attempts, or with a hook's job besides: their scopes are smaller."""


@pytest.mark.parametrize(
    ("faults", "epochs", "without"),
    [(1, 0, ("V", "janitor")), (0, 1, ("V",)), (0, 0, ())],
    ids=["a lost call", "a late worker", "two workers"],
)
@pytest.mark.parametrize("name", SCENES)
def test_no_interleaving_breaks_a_rule(name: str, faults: int, epochs: int, without: Sequence[str]) -> None:
    if name in _BIG and not faults:
        pytest.skip("`make chaos` searches it")
    with SavedRedis() as redis:
        found = run(name, redis, faults=faults, epochs=epochs, without=without)
    assert not found.failures, found
    assert found.complete


@pytest.mark.parametrize("name", MUTATIONS)
def test_search_finds_a_script_that_is_broken_on_purpose(name: str) -> None:
    changes, scene, faults, epochs, wrong = MUTATIONS[name]
    with SavedRedis(changes) as redis:
        found = run(scene, redis, faults=faults, epochs=epochs)
    assert wrong in found.failures[0].what
    assert len(found.failures[0].path) > 1
