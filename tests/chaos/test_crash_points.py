"""Processes die or hang before or after the calls that they make: clients, services, parents, relays and movers.

`CRASH_POINTS=all` attacks all points of each process instead of a random choice, `EVSCHED_SEED=N` repeats a choice.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections import Counter
from pathlib import Path

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.crash_points.attack import attack_all, points_of
from tests.crash_points.scenes import SCENES

MOST = os.environ.get("CRASH_POINTS", "60")
"""Of each process. On two cores a point takes about a second."""
MET = 0.5
"""The part of the points that a process must meet. On a busy machine, more jobs share a call than in the recording."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("scene", "striker"), [(name, striker) for name, scene in SCENES.items() for striker in scene.strikers]
)
def test_process_that_dies_or_hangs_at_any_call_loses_nothing(
    own: EmbeddedRedis, tmp_path: Path, request: pytest.FixtureRequest, scene: str, striker: str
) -> None:
    ledger = request.getfixturevalue("ledger_url") if SCENES[scene].ledger else ""
    seed, began = int(os.environ.get("EVSCHED_SEED") or secrets.randbelow(2**32)), time.monotonic()
    print(f"EVSCHED_SEED={seed}")  # shown when it fails
    (recorded,) = attack_all(own.url, ledger, tmp_path, [(scene, striker, None)])
    assert not recorded.wrong, recorded
    points = points_of(recorded)
    chosen = points if MOST == "all" else random.Random(seed).sample(points, min(int(MOST), len(points)))
    reports = list(attack_all(own.url, ledger, tmp_path, [(scene, striker, point) for point in chosen]))
    struck = Counter(report.point.verb for report in reports if report.point and report.struck)
    again = sum(report.again for report in reports)
    print(
        f"{scene}, {striker}: {len(points)} points, attacked at {struck.total()} of {len(chosen)} in "
        f"{time.monotonic() - began:.0f} s, {again} runs were made again; by verb {dict(struck.most_common())}"
    )
    assert [str(report) for report in reports if report.wrong] == []
    assert struck.total() >= MET * len(chosen)
