"""All interleavings of the scripts in small scenes: states that were searched, and mutations that were found.

The search is that of tests/interleavings. A state in which a rule does not hold is a failure.
"""

from __future__ import annotations

import time
from functools import partial

from bench.figures import Figures, Table
from tests.interleavings.mutations import MUTATIONS
from tests.interleavings.scenes import BATCHES, SCENES, SIGNALS, run
from tests.interleavings.search import Result
from tests.interleavings.server import SavedRedis

_NAMES = (*SCENES, *SIGNALS, *BATCHES)


class _Searches:
    """The rows of the table, and their sum."""

    def __init__(self, states: int) -> None:
        self._states = states
        self._results = list[Result]()

    def one(self, name: str) -> Figures:
        """Search a scene with a fault at any step and one turn of time, the states nearest to its start first."""
        with SavedRedis() as redis:
            found = run(name, redis, faults=1, epochs=1, most=self._states)
        self._results.append(found)
        return _figures([found])

    def all(self) -> Figures:
        """Return the sum of the scenes that were searched."""
        return _figures(self._results)


def _figures(results: list[Result]) -> Figures:
    return {
        "states": sum(one.states for one in results),
        "steps": sum(one.steps for one in results),
        "recoveries": sum(one.recoveries for one in results),
        "failures": sum(len(one.failures) for one in results),
        "minutes": sum(one.seconds for one in results) / 60,
    }


def _mutated(names: list[str]) -> Figures:
    """Break scripts on purpose, and search the smallest scene that shows it."""
    begin, found = time.monotonic(), 0
    for name in names:
        changes, scene, faults, epochs, wrong = MUTATIONS[name]
        with SavedRedis(changes) as redis:
            failures = run(scene, redis, faults=faults, epochs=epochs).failures
        found += any(wrong in failure.what for failure in failures)
    return {"mutations": len(names), "found": found, "minutes": (time.monotonic() - begin) / 60}


def tables(states: int) -> dict[str, Table]:
    """Return the tables by their names."""
    searches = _Searches(states)
    rows = {**{name: partial(searches.one, name) for name in _NAMES}, "all scenes": searches.all}
    return {
        "searches": Table(f"{len(_NAMES)} scenes of at most {states:,} states each", rows),
        "mutations": Table("Scripts that are broken on purpose", {"all": partial(_mutated, list(MUTATIONS))}),
    }
