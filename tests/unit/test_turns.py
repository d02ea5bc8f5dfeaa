"""Parts of the data that a page shows are read in turns, and a long one is not held up by many short ones."""

from __future__ import annotations

import time
from math import inf
from typing import cast

from evsched.console.page import MeteredClient
from evsched.console.turns import Turns, step_each


class Budget:
    """How many slices are read until all parts are done."""

    def __init__(self, left: int) -> None:
        self.left = left


class Slices:
    """A part of some slices, which is due again at once."""

    def __init__(self, budget: Budget, slices: int) -> None:
        self.ended, self.steps = -inf, 0
        self._budget, self._slices, self._left = budget, slices, 0

    def is_due(self) -> bool:
        return self._budget.left > 0

    def is_begun(self) -> bool:
        return self._left > 0

    async def step(self, client: MeteredClient) -> None:
        self.steps += 1
        self._budget.left -= 1
        self._left = (self._left or self._slices) - 1
        if not self._left:
            self.ended = time.monotonic()


CLIENT = cast(MeteredClient, None)


async def test_a_long_part_gets_half_of_the_calls() -> None:
    budget = Budget(1000)
    long, short = Slices(budget, 100_000), [Slices(budget, 1) for _ in range(50)]
    await Turns(step_each).look(CLIENT, [*short, long], inf)
    others = [one.steps for one in short]
    assert abs(long.steps - sum(others)) <= 60
    assert max(others) - min(others) <= 1


async def test_only_the_first_look_takes_as_many_calls_as_fit() -> None:
    turns, budget = Turns(step_each), Budget(500)
    parts = [Slices(budget, 1) for _ in range(20)]
    await turns.look(CLIENT, parts, inf)
    assert sum(one.steps for one in parts) >= 500
    budget.left = 500
    await turns.look(CLIENT, parts, inf)
    assert budget.left > 400
