"""A few of the points. `make chaos` attacks a random choice of all."""

from __future__ import annotations

from pathlib import Path

from evsched.transport.embedded import EmbeddedRedis
from tests.crash_points.attack import attack_all
from tests.crash_points.injection import Point

POINTS = (
    ("jobs", "worker", "start 2 after kill"),  # handed out, and not begun
    ("jobs", "worker", "begin 1 after kill"),
    ("jobs", "worker", "complete 4 before stop"),
    ("jobs", "dispatcher", "dispatch 3 after kill"),
    ("jobs", "client", "enqueue 1 after kill"),
    ("shards", "mover", "depart 1 after kill"),
)


def test_processes_that_die_or_hang_lose_nothing_and_charge_no_attempt_without_a_start(
    own: EmbeddedRedis, tmp_path: Path
) -> None:
    wanted = [(scene, striker, Point.read(point)) for scene, striker, point in POINTS]
    reports = list(attack_all(own.url, "", tmp_path, wanted, beside=3))
    assert [str(report) for report in reports if report.wrong or not report.struck] == []
