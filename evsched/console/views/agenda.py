"""The page of what comes: the jobs that become due in the next hours, and when most are due at once."""

from __future__ import annotations

import time
from math import inf
from typing import Any, Final

from msgspec import Struct

from evsched.console.look_forward import SPANS, LookForward, Planned, Simulation, axis, moments, runs, single_jobs
from evsched.console.page import View, Visit
from evsched.console.rosters import RosterRow
from evsched.console.views.recurrences import rosters_of
from evsched.keys import check_queue

_ROWS: Final = 25
"""Recurrences of the page, the next to run first."""

_HELD: Final = 10
"""Paused ones that are listed after them."""

_MOMENTS: Final = 5

_TICKS: Final = 96
"""Runs up to which a strip shows each. More are a band."""

WIDTH: Final = 240.0
"""The width of a strip."""


class StripRow(Struct, frozen=True):
    """A recurrence with its runs along the span."""

    row: RosterRow
    runs: int
    next: float | None
    path: str
    band: bool
    held: bool
    """Whether it does not run, because it is paused."""


def strip(planned: Planned, simulation: Simulation) -> str:
    """Return the path of a tick for each run, or of a band where there are many."""
    scale, first = WIDTH / simulation.span.length, simulation.start
    if planned.total <= _TICKS:
        return "".join(f"M{min((at - first) * scale, WIDTH - 1):.4g},2h1v16h-1z" for at in planned.times)
    wide, path, begins = WIDTH / simulation.span.steps, list[str](), None
    for step, jobs in enumerate([*planned.counts, 0]):
        if jobs and begins is None:
            begins = step
        elif not jobs and begins is not None:
            path.append(f"M{begins * wide:.4g},7h{(step - begins) * wide:.4g}v6h{(begins - step) * wide:.4g}z")
            begins = None
    return "".join(path)


def _strips(simulation: Simulation, rows: list[RosterRow]) -> tuple[list[StripRow], int, int]:
    """Return the rows of the list, how many recurrences run in the span, and how many are paused that would."""
    found, held = list[tuple[float, RosterRow, Planned]](), list[tuple[float, RosterRow, Planned]]()
    for row in rows:
        planned = simulation.planned.get(row.key)
        if planned is not None and planned.times:
            (found if runs(row) else held).append((planned.times[0], row, planned))
    for part in (found, held):
        part.sort(key=lambda one: (one[0], one[1].name))
    shown = [
        StripRow(row, planned.total, at, strip(planned, simulation), planned.total > _TICKS, part is held)
        for part, most in ((found, _ROWS), (held, _HELD))
        for at, row, planned in part[:most]
    ]
    return shown, len(found), len(held)


async def _agenda(visit: Visit) -> dict[str, Any]:
    client, known = visit.client, await visit.console.queues(visit.client)
    only, span = visit.get("queue"), SPANS.get(visit.get("span"), SPANS["24h"])
    queues = [check_queue(only)] if only else known
    rosters, agenda = rosters_of(visit), visit.console.memory.setdefault("agenda", LookForward())
    rows = await rosters.look(client, queues)
    now = max((row.now for row in rows), default=time.time())
    simulation = await agenda.simulate(client, span, rows, now)
    forecasts = await agenda.forecast(client, span, rosters.glances.scheduled(client, queues))
    going = [row for row in rows if runs(row)]
    planned = [0] * span.steps
    for row in going:
        for step, jobs in enumerate(simulation.planned[row.key].counts if row.key in simulation.planned else ()):
            planned[step] += jobs
    single = single_jobs(forecasts, rows, simulation.start, span)
    strips, running, held = _strips(simulation, rows)
    busy = moments(simulation, going, forecasts, _MOMENTS)
    waiting = {one.row.queue for one in strips}
    return {
        "span": span,
        "spans": SPANS,
        "queue": only,
        "known": known,
        "planned": planned,
        "single": single,
        "total": [a + b for a, b in zip(planned, single, strict=True)],
        "strips": strips,
        "running": running,
        "held": held,
        "shown": _ROWS,
        "recurrences": len(rows),
        "busy": busy,
        "peaks": sum(one.peak is not None for one in forecasts),
        "axis": axis(simulation, visit.console.pages.clock.zone),
        "over": simulation.over and not rosters.unread(queues) and all(one.ended > -inf for one in forecasts),
        "now": now,
        "step": {60.0: "minute", 300.0: "5 minutes", 900.0: "quarter of an hour", 3600.0: "hour"}[span.step],
        "command": f"evsched recurrences next --by hour --queue {only or min(waiting, default='default')}",
    }


VIEWS = (View("/agenda", "agenda", _agenda, every=5.0),)
