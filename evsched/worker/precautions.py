"""Precautions: how a job is run that may kill its process, so that it takes no other job with it.

A dead worker cannot say which of its jobs killed it. So all that it held are suspects (`FetchedJob.deaths`). A job that
was held at one death runs as any other: one death says little, and there may be many suspects. A job that was held
again when a worker died runs in a process of its own, so if that process dies, this job killed it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from evsched.jobs.job import FetchedJob

_ISOLATED: Final = 2
"""Deaths from which on a suspect runs in a process of its own: the second one narrows the suspects enough."""

_ALONE: Final = 4
"""Deaths from which on nothing else runs beside it: processes of their own did not keep its worker alive. A container
whose memory is full ends with all its processes."""

_PATIENCE: Final = 0.25
"""Seconds that a run waits at first for the others in its worker to end, so that it is alone. Nothing else begins there
meanwhile: this is what a suspect costs the others. It doubles with each further death, so in the end the run is alone.
"""

_WAIT_MOST: Final = 60.0
"""Seconds that it waits at the most."""


class Precautions(Struct, frozen=True):
    """What is to be done for a run before it begins."""

    marked: bool = False
    """The run is marked in Redis first, and such runs begin one by one: whether one has begun is known exactly."""
    isolated: bool = False
    """It runs in a process of its own."""
    alone: bool = False
    """Nothing else runs in its worker meanwhile."""


def precautions_for(job: FetchedJob, attempts: int, *, can_isolate: bool) -> Precautions:
    """Return the precautions that a run needs. `can_isolate`: a process of its own is possible.

    A job's only attempt must not be begun twice, nor be lost by a run that did not begin: so it is marked. A suspect
    whose next run may be its last is isolated after one death: so its attempts are exact.
    """
    last = job.attempt + job.doubts >= attempts
    isolated = job.deaths >= _ISOLATED or (job.deaths > 0 and last)
    alone = job.deaths >= _ALONE or (isolated and not can_isolate)
    return Precautions(marked=attempts == 1 or alone, isolated=isolated and can_isolate, alone=alone)


def patience(job: FetchedJob) -> float:
    """Return how long a run waits to be alone, in seconds; and it stays so for a second longer than that."""
    return min(_PATIENCE * 2.0 ** max(0, job.deaths - _ALONE), _WAIT_MOST)
