"""Faults that tests inject, in numbers: crash points, clocks that jump, and random input as each ACL user.

The scenes are those of tests/crash_points, tests/support/clock_scene.py and tests/fuzz. A scene in which a job is lost,
early, or not as it must be is a failure.
"""

from __future__ import annotations

import random
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Figures, Table
from evsched.transport.embedded import EmbeddedRedis, Kind, find_server
from tests.crash_points.attack import attack_all, points_of
from tests.crash_points.scenes import SCENES
from tests.fuzz.arena import Arena
from tests.fuzz.hunt import hunt
from tests.support.clock_scene import JUMPS, STEPS, WHOSE, Cell, ClockScene
from tests.support.postgres import Postgres, find_postgres

_BESIDE = 4
"""Scenes of clocks that run beside each other: most of the time, a scene waits."""


def _crash_points(scene: str, striker: str, most: int) -> Figures:
    """Kill and stop a process at some of the points that a recording of its calls has, chosen at random."""
    began, programs = time.monotonic(), find_postgres() if SCENES[scene].ledger else None
    with EmbeddedRedis(port=0) as server, TemporaryDirectory() as folder, ExitStack() as stack:
        ledger = stack.enter_context(stack.enter_context(Postgres(programs)).ledger()) if programs else ""
        (recorded,) = attack_all(server.url, ledger, Path(folder), [(scene, striker, None)])
        points = points_of(recorded)
        chosen = random.sample(points, min(most, len(points)))
        wanted = [(scene, striker, point) for point in chosen]
        reports = list(attack_all(server.url, ledger, Path(folder), wanted))
    return {
        "points": len(points),
        "attacked": sum(report.struck for report in reports),
        "failures": sum(bool(report.wrong) for report in [recorded, *reports]),
        "minutes": (time.monotonic() - began) / 60,
    }


def _clocks(whose: str, most: int) -> Figures:
    """Set a clock at steps of a scene, chosen at random."""
    began = time.monotonic()
    cells = [cell for cell in map(Cell._make, product(WHOSE, JUMPS, STEPS)) if cell.whose == whose]
    with TemporaryDirectory() as folder, ThreadPoolExecutor(_BESIDE) as pool:
        found = list(pool.map(partial(_jump, Path(folder)), random.sample(cells, min(most, len(cells)))))
    return {
        "scenes": len(found),
        "failures": found.count(None),
        "longest recovery, s": max((one for one in found if one is not None), default=0.0),
        "minutes": (time.monotonic() - began) / 60,
    }


def _jump(folder: Path, cell: Cell) -> float | None:
    """Return after how many seconds the job of a killed worker started again; None = the scene failed."""
    own = folder / f"{cell.whose}{cell.seconds}{cell.step}"
    own.mkdir()
    try:
        return ClockScene(own, cell).run().killed
    except AssertionError:
        return None


def _fuzz(kind: Kind, minutes: float) -> Figures:
    """Send random sequences of calls and commands as each ACL user."""
    began = time.monotonic()
    with Arena(find_server(kind)) as arena:
        found = hunt(arena, secrets.randbelow(2**32), minutes)
        done = dict(arena.done)
    return {**done, "failures": len(found), "minutes": (time.monotonic() - began) / 60}


def tables(points: int, minutes: float) -> dict[str, Table]:
    """Return the tables by their names. `points`: crash points of each process, and scenes of each clock."""
    strikers = [(name, striker) for name, scene in SCENES.items() for striker in scene.strikers]
    crash_points = {f"{name}: {striker}": partial(_crash_points, name, striker, points) for name, striker in strikers}
    return {
        "crash-points": Table(f"A process dies or hangs at a call, at {points} points of each at most", crash_points),
        "clocks": Table(
            f"A clock jumps by a second, an hour or a day, {points} scenes of each at most",
            {f"the clock of {whose}": partial(_clocks, whose, points) for whose in WHOSE},
        ),
        "fuzz": Table(
            f"Random sequences as each ACL user, for {minutes:g} minutes",
            {"Redis": partial(_fuzz, "redis", minutes), "Valkey": partial(_fuzz, "valkey", minutes)},
        ),
    }
