"""What the fuzz once found stays mended, and a few fixed sequences of each user break nothing."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import find, given, settings

from evsched.transport.embedded import EmbeddedRedis
from tests.fuzz.arena import Arena
from tests.fuzz.sequences import QUIET, ROLES, SCRIPTED, Sequence, Step, calls_of, corpus, read, sequences, write


@pytest.fixture(scope="module")
def arena(server: EmbeddedRedis) -> Generator[Arena]:
    with Arena(server.server) as arena:
        yield arena


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in corpus()])
def test_sequence_that_once_broke_a_rule_breaks_none(arena: Arena, path: Path) -> None:
    arena.run(read(path.read_text()))


def _role(role: str) -> Any:
    """Return a user as a parameter: the fixed sequences of the users that may call all scripts are the same ones."""
    return pytest.param(role, marks=pytest.mark.extra if role in SCRIPTED[1:] else ())


@pytest.mark.parametrize("role", [_role(role) for role in ROLES])
def test_random_sequence_of_a_user_breaks_no_rule(arena: Arena, role: str) -> None:
    @settings(max_examples=10, suppress_health_check=QUIET)
    @given(sequences(role))
    def hold(sequence: Sequence) -> None:
        assert read(write(sequence, "")) == sequence
        arena.run(sequence)

    hold()


@pytest.mark.parametrize("verb", ["cancel", pytest.param("enqueue", marks=pytest.mark.extra)])
def test_grammar_has_members_of_a_life_of_their_batch(verb: str) -> None:
    def has_members(step: Step) -> bool:
        members = [word for word in step.words if word.startswith(b"fuzz/b/") and word.endswith(b"/t")]
        return len(members) > (verb == "cancel")  # one call cancels several

    find(calls_of(verb, 0), has_members)
