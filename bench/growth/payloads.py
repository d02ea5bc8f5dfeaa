"""Large payloads: what a job that does nothing costs when its payload has so many bytes."""

from __future__ import annotations

from typing import Final

from bench.comparison import drained
from bench.contender import contender
from bench.figures import Figures
from bench.scale import Scale

_FRAME: Final = len('{"task":"job","args":[1000000,""]}')
_PAST: Final = 1.0


def sized(size: int, scale: Scale) -> Figures:
    """Measure no-op jobs that are all due before the processes start, with payloads of so many bytes."""
    with contender("evsched", scale.jobs) as one:
        one.ask("schedule", _PAST, 1, scale.jobs, "x" * (size - _FRAME))
        with one.started() as children:
            return drained(one, children, scale)
