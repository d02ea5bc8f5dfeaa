"""All interleavings of each scene: two workers, a fault anywhere, and a turn of time.

Also of two releases, and with a server whose clock jumps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tests.interleavings.scenes import BATCHES, DISPATCHER, GRAPHS, INLINES, SCENES, SIGNALS, run
from tests.interleavings.search import JUMP
from tests.interleavings.server import SavedRedis

MOST = int(os.environ.get("INTERLEAVINGS_MOST", "100000"))
"""States of a scene that are visited, those nearest to its start; some thousands a second."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [*SCENES, *INLINES, *SIGNALS, *BATCHES, *GRAPHS])
def test_no_interleaving_breaks_a_rule(name: str) -> None:
    with SavedRedis() as redis:
        found = run(name, redis, faults=1, epochs=1, most=MOST)
    print(f"{name}: {found}")
    assert not found.failures, found


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [*SCENES, *INLINES])
@pytest.mark.parametrize(
    ("old", "without"),
    [(("V",), ()), (("V",), ("U",)), (DISPATCHER, ("V",))],
    ids=["an old worker beside a new one", "an old worker", "an old dispatcher"],
)
def test_two_releases_break_no_rule(name: str, old: Sequence[str], without: Sequence[str]) -> None:
    with SavedRedis() as redis:
        found = run(name, redis, faults=1, epochs=1, most=MOST // 5, old=old, without=without)
    print(f"{name}: {found}")
    assert not found.failures, found


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [*SCENES, *INLINES])
def test_server_clock_that_jumps_breaks_no_rule(name: str) -> None:
    with SavedRedis() as redis:
        found = run(name, redis, faults=1, epochs=1, most=MOST // 5, kinds=(JUMP,))
    print(f"{name}: {found}")
    assert not found.failures, found
