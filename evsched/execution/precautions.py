"""Precautions: how to run a job that may kill its process, so that no other job suffers and its attempts are exact.

When a worker dies, nobody knows which of its jobs killed it. So all jobs that it held are suspects
(`FetchedJob.deaths`). After one death a suspect runs like any other job: one death says little, and there may be many
suspects. After two, it runs in a process of its own: if that process dies, this job killed it. Its last attempt, and
every run after four deaths, has the worker to itself: if the whole worker dies then, this job killed it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from evsched.jobs.job import FetchedJob

_ISOLATED: Final = 2
"""Deaths after which a suspect runs in a process of its own: few jobs are held by two workers that die."""

_ALONE: Final = 4
"""Deaths after which nothing else runs in its worker: isolation did not keep the worker alive. A container whose memory
is full, for example, ends with all its processes."""

_PATIENCE: Final = 0.25
"""Seconds for which a run waits for the other runs of its worker to end, so that it is alone. Meanwhile no other run
begins there. The wait doubles with each death after the fourth, so that in the end the run is alone."""

_WAIT_MOST: Final = 60.0
"""The longest wait, in seconds."""


class Precautions(Struct, frozen=True):
    """How a run is to begin."""

    isolated: bool = False
    """It runs in a process of its own."""
    alone: bool = False
    """Nothing else runs in its worker meanwhile."""


def precautions_for(job: FetchedJob, attempts: int, *, can_isolate: bool) -> Precautions:
    """Return the precautions that a run needs. `can_isolate`: a process of its own is possible.

    A suspect runs its last attempt alone, and its doubtful runs count as attempts here: if its worker dies then, the
    job is given up. A job with a single attempt need not run alone, because its mark is enough to give it up.
    """
    last = job.deaths > 0 and job.attempt + job.doubts >= attempts
    isolated = job.deaths >= _ISOLATED or last
    alone = job.deaths >= _ALONE or (last and attempts > 1) or (isolated and not can_isolate)
    return Precautions(isolated=isolated and can_isolate, alone=alone)


def patience(job: FetchedJob) -> float:
    """Return how many seconds a run waits to be alone. Once it is, it stays alone for a second more than it waits."""
    return min(_PATIENCE * 2.0 ** max(0, job.deaths - _ALONE), _WAIT_MOST)
