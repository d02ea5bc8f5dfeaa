"""Which runs are begun with precautions, and how long a run waits to be alone."""

from __future__ import annotations

import pytest

from evsched.execution.precautions import Precautions, patience, precautions_for
from evsched.jobs.job import FetchedJob


def job(attempt: int = 1, deaths: int = 0, doubts: int = 0) -> FetchedJob:
    return FetchedJob("a", attempt, 1.0, b"", 1.0, deaths, doubts)


@pytest.mark.parametrize(
    ("run", "attempts", "can_isolate", "precautions"),
    [
        (job(), 5, True, Precautions()),
        (job(5), 5, True, Precautions()),
        (job(), 1, True, Precautions()),
        (job(1, 1, 1), 5, True, Precautions()),
        (job(1, 1, 1), 2, True, Precautions(isolated=True, alone=True)),
        (job(1, 1, 1), 1, True, Precautions(isolated=True)),
        (job(1, 2, 2), 5, True, Precautions(isolated=True)),
        (job(1, 2, 2), 5, False, Precautions(alone=True)),
        (job(1, 3, 3), 4, True, Precautions(isolated=True, alone=True)),
        (job(1, 4, 3), 9, True, Precautions(isolated=True, alone=True)),
    ],
)
def test_precautions_grow_with_the_deaths(
    run: FetchedJob, attempts: int, can_isolate: bool, precautions: Precautions
) -> None:
    assert precautions_for(run, attempts, can_isolate=can_isolate) == precautions


def test_patience_doubles_and_is_bounded() -> None:
    assert [patience(job(deaths=deaths)) for deaths in (2, 4, 5, 6, 100)] == [0.25, 0.25, 0.5, 1.0, 60.0]
