"""Very many recurrences: sparse jobs beside those of one minute, and what they cost an idle fleet."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final, NamedTuple

from bench.figures import Failed, Figures, Table
from bench.processes import cpu
from bench.scale import Scale
from bench.server import Server, server
from bench.sparse import sparse_dues, started
from bench.stage import stage
from evsched.client.new_job import JobOptions, new_job
from evsched.dispatcher.recurring import AHEAD
from evsched.recurrence.recurrence import Declared, occurrence_id
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_NOOP: Final = new_job("noop", (), {}, JobOptions()).payload
_IDLE: Final = 30.0
"""Seconds."""

_DECLARED: Final = 10.0
"""Seconds within which all recurrences are declared, so that all occur from the next minute on."""


def _declare(where: Server, declared: list[Declared]) -> None:
    async def run() -> None:
        sender, store = BatchingSender(where.url), Store("default")
        for at in range(0, len(declared), 500):
            await sender.send_all([store.declare(one) for one in declared[at : at + 500]])
        await sender.close()

    asyncio.run(run())


class _Moment(NamedTuple):
    """When the sparse jobs are due that are measured beside the recurrences of one minute."""

    spread: float
    """Seconds over which the occurrences of a minute are spread; 0: all are due in its first instant."""
    begin: float
    """Seconds from the beginning of a minute to the first sparse job."""
    middle: bool = False
    """Count to the job in the middle instead."""


_MOMENTS: Final = {
    "spread over the minute": _Moment(60.0, 20.0),
    "spread over the minute, while the next are scheduled": _Moment(60.0, 60.0 - AHEAD, middle=True),
    "due at one instant": _Moment(0.0, 0.0, middle=True),
}


def _beside(count: int, moment: _Moment, sparse: int) -> Figures:
    """Measure sparse jobs in a minute in which so many recurrences occur."""
    with stage(sparse) as one, one.where.evsched("dispatcher"), one.workers():
        one.warm_up()
        minute = (time.time() + _DECLARED + AHEAD) // 60 * 60 + 60
        names = [f"r{n}" for n in range(count)]
        _declare(
            one.where, [Declared(name=name, rule="every 60", spread=moment.spread, payload=_NOOP) for name in names]
        )
        if time.time() > minute - AHEAD:
            raise Failed("the occurrences were to be scheduled before all recurrences were declared")
        offsets = sparse_dues(sparse, moment.begin)
        begin = minute - (offsets[sparse // 2] - moment.begin if moment.middle else 0.0)
        dues = [begin + offset for offset in offsets]
        figures = started(one.oracle, dues, one.schedule(dues))
        if moment.spread:
            return figures
        last = _last_start(one.where, [occurrence_id(name, minute) for name in names], minute)
        return {**figures, "last start of the occurrences, s": last}


def _last_start(where: Server, ids: list[str], due: float) -> float:
    """Return how long after their due time the last of these jobs started."""
    where.until(lambda: not where.redis.exists("evsched:{default}:backlog", "evsched:{default}:ready"))
    return max(start for (start,) in where.fields("default", ids, "started")) - due


def _alone(sparse: int) -> Figures:
    with stage(sparse) as one, one.where.evsched("dispatcher"), one.workers():
        one.warm_up()
        return one.sparse(sparse)


def _idle(count: int) -> Figures:
    with server() as where, where.fleet() as fleet:
        _declare(where, [Declared(name=f"r{n}", rule="0 0 1 1 *", payload=_NOOP) for n in range(count)])
        where.until(lambda: not where.redis.zcount("evsched:{default}:recurrences", 0, 0), 300)
        time.sleep(8)
        pids = [child.pid for child in fleet]
        before = cpu(*pids)
        sent = where.sent(_IDLE)
        used = cpu(*pids) - before
    return {"commands/s sent": sent / _IDLE, "CPU %": used / _IDLE * 100}


def tables(scale: Scale) -> dict[str, Table]:
    """Return the tables: sparse jobs beside the recurrences of one minute, and an idle fleet with many."""
    rows = {"none": partial(_alone, scale.sparse)}
    for name, moment in _MOMENTS.items():
        rows[f"{scale.recurrences:,}, {name}"] = partial(_beside, scale.recurrences, moment, scale.sparse)
    return {
        "recurrences": Table("Sparse jobs beside recurrences of one minute", rows, scale.rounds),
        "standing": Table("Idle with recurrences", {"100,000": partial(_idle, 100_000)}),
    }
