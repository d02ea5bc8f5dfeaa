"""Interleavings of two releases: one worker, or the dispatcher, is of the previous one, with its scripts from git."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.interleavings.scenes import DISPATCHER, SCENES, run
from tests.interleavings.server import SavedRedis

_BIG = ("fails", "hook", "hook of a dead job")
_MIDDLE = ("reschedule", "replace", "unique", "again", "pause", "once")
"""Scenes that `make chaos` searches."""

_SCOPES = [
    *((name, 1, 0, ("U", "janitor"), ("V",)) for name in SCENES if name not in _BIG),
    *((name, 0, 1, ("V",), DISPATCHER) for name in SCENES if name not in (*_BIG, *_MIDDLE)),
    ("alone, inline", 0, 1, ("V",), DISPATCHER),
    ("alone, inline", 1, 1, ("U",), ("V",)),
]


@pytest.mark.parametrize(("name", "faults", "epochs", "without", "old"), _SCOPES)
def test_two_releases_break_no_rule(
    name: str, faults: int, epochs: int, without: Sequence[str], old: Sequence[str]
) -> None:
    with SavedRedis() as redis:
        found = run(name, redis, faults=faults, epochs=epochs, without=without, old=old)
    assert not found.failures, found
    assert found.complete


def test_search_finds_the_documented_harm_of_the_previous_release() -> None:
    """The previous release's `start` ends a cancelled job and sends no reply; this one's does."""
    with SavedRedis() as redis:
        found = run("cancel", redis, faults=0, epochs=0, without=("U", "janitor"), old=("V",), excuses=False)
    assert "without a reply" in found.failures[0].what
    assert found.failures[0].path[-1].startswith("V: start")
