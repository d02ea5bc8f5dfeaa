"""Redis's clock, the hosts' clock, or both are set by a second, an hour or a day, at each step of a scene."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from tests.support.clock_scene import JUMPS, STEPS, WHOSE, Cell, ClockScene, Recovery

CELLS = int(os.environ.get("CLOCK_CELLS", "54"))
"""How many of the 162 cells of each whose clock, jump and step are run, chosen at random."""

BESIDE = 4
"""Scenes that run beside each other: most of the time, a scene waits."""


@pytest.mark.timeout(3600)
def test_clocks_that_jump_lose_nothing_and_start_nothing_early_or_twice(tmp_path: Path) -> None:
    cells = [Cell(*cell) for cell in product(WHOSE, JUMPS, STEPS)]
    seed = int(os.environ.get("EVSCHED_TEST_SEED", random.randrange(2**32)))
    print(f"EVSCHED_TEST_SEED={seed}")
    chosen = random.Random(seed).sample(cells, min(CELLS, len(cells)))

    def run(cell: Cell) -> Recovery | str:
        folder = tmp_path / f"{cell.whose}{cell.seconds}{cell.step}"
        folder.mkdir()
        try:
            return ClockScene(folder, cell).run()
        except AssertionError as error:
            return str(error)

    with ThreadPoolExecutor(BESIDE) as pool:
        found = list(pool.map(run, chosen))
    wrong = [one for one in found if isinstance(one, str)]
    done = [one for one in found if isinstance(one, Recovery)]
    assert not wrong, "\n".join(wrong)
    print(f"{len(done)} of {len(cells)} cells, each {min(one.whole for one in done):.1f} s to ", end="")
    print(f"{max(one.whole for one in done):.1f} s")
    print(f"with a lease of 2 s, a killed worker's job started again after {max(one.killed for one in done):.1f} s")
