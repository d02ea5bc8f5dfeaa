"""The hunt for sequences that break a rule: each user in turn, for some time. What is found is shrunk and saved."""

from __future__ import annotations

import hashlib
import re
import sys
import time
from typing import Final

from hypothesis import given, seed, settings

from tests.fuzz.arena import Arena, Broken
from tests.fuzz.sequences import CORPUS, QUIET, ROLES, Sequence, sequences, write

BATCH: Final = 200
"""Sequences of one user before the next user's turn."""
FOUND_MOST: Final = 20
"""Different broken rules after which the hunt ends."""


def hunt(arena: Arena, start: int, minutes: float) -> list[str]:
    """Run random sequences, the same for the same `start`; return which rules were broken, and how."""
    until, found, turn = time.monotonic() + 60 * minutes, dict[str, str](), 0
    while time.monotonic() < until and len(found) < FOUND_MOST:
        role = ROLES[turn % len(ROLES)]
        broken = _search(arena, role, start + turn)
        if broken is not None:
            sequence, why = broken
            rule = re.sub(r"\d+", "N", f"{role}: {why.splitlines()[0]}")
            if rule not in found:
                found[rule] = why
                _save(sequence, why)
        turn += 1
    return list(found.values())


def _search(arena: Arena, role: str, start: int) -> tuple[Sequence, str] | None:
    """Run a batch; return the shortest sequence that breaks a rule, and which."""
    last: list[tuple[Sequence, str]] = []

    @seed(start)
    @settings(max_examples=BATCH, database=None, deadline=None, suppress_health_check=QUIET)
    @given(sequences(role))
    def hold(sequence: Sequence) -> None:
        try:
            arena.run(sequence)
        except Broken as broken:
            last[:] = [(sequence, str(broken))]
            raise

    try:
        hold()
    except BaseException:  # Hypothesis raises its own kinds too, such as for a rule that breaks only sometimes
        if not last:
            raise
        return last[0]
    return None


def _save(sequence: Sequence, why: str) -> None:
    text = write(sequence, why)
    path = CORPUS / f"found-{sequence.role}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    sys.stdout.write(f"saved {path}\n{why}\n")
