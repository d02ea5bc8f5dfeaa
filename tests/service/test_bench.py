"""Schedulers of other languages in the benchmark: each enqueues, schedules and runs jobs, as its tables ask it to.

Those that are not installed are skipped; bench/environments.py says how they are.
"""

from __future__ import annotations

import time

import pytest

from bench.contender import contender
from bench.environments import SCHEDULERS, language, programs
from bench.figures import Failed
from tests.support.patience import PATIENCE

OTHERS = [name for name in SCHEDULERS if language(name) != "Python"]


@pytest.fixture(params=OTHERS)
def name(request: pytest.FixtureRequest) -> str:
    try:
        programs(request.param)
    except Failed as error:
        pytest.skip(f"{request.param}: {error}")
    return request.param


@pytest.mark.extra
def test_a_scheduler_of_another_language_runs_the_jobs_of_each_request(name: str) -> None:
    with contender(name, 60) as one, one.serving():
        assert one.ask("fill", 1, 20) > 0
        assert one.ask("single", 21, 10) > 0
        due = time.time() + 1
        assert one.ask("schedule", due, 31, 20, "padding")
        assert one.ask("spread", [due + n / 100 for n in range(10)], 51)
        assert len(one.oracle.wait(1, 60, PATIENCE)) == 60
        assert min(one.oracle.times(31, 30)) >= due
