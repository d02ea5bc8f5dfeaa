"""Shapes of small charts, as paths of SVG. Words and axes are HTML beside them; a label says what it shows."""

from __future__ import annotations

from collections.abc import Sequence


def bars(values: Sequence[float], width: float, height: float, most: float | None = None) -> str:
    """Return the path of a bar for each value, from the left; none for 0. `most`: the value of the full height."""
    top, step, path = most or max(values, default=0.0), width / max(len(values), 1), list[str]()
    for at, value in enumerate(values):
        if value > 0 and top > 0:
            tall = max(1.0, height * min(value / top, 1.0))
            path.append(f"M{at * step:.4g},{height:.4g}h{step * 0.8:.4g}v{-tall:.4g}h{-step * 0.8:.4g}z")
    return "".join(path)


def ticks(outcomes: Sequence[str], width: float, wanted: str) -> str:
    """Return the path of the ticks of those runs that had an outcome: done above the line, failed below, none hollow.

    `outcomes`: of all runs, the last at the right: done, failed or missed.
    """
    top, tall = {"done": (2, 12), "failed": (10, 12), "missed": (3, 10)}[wanted]
    step, first = 6.0, width - 6.0 * len(outcomes)
    return "".join(
        f"M{first + at * step:.4g},{top}h3v{tall}h-3z" for at, outcome in enumerate(outcomes) if outcome == wanted
    )
