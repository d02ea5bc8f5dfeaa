"""Very many recurrences: those due in one minute beside sparse jobs, and what they cost an idle fleet."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final

from bench.figures import Figures, Table, percentile
from bench.processes import cpu
from bench.server import Server, server
from evsched import Retry
from evsched.client.new_job import JobOptions, new_job
from evsched.recurrence.recurrence import Declared
from evsched.store.clients import New
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_NOOP: Final = new_job("noop", (), {}, JobOptions(retry=Retry(attempts=1))).payload
_SPARSE: Final = 300
_IDLE: Final = 30.0
"""Seconds."""


def _declare(where: Server, declared: list[Declared]) -> None:
    async def run() -> None:
        sender, store = BatchingSender(where.url), Store("default")
        for at in range(0, len(declared), 500):
            await sender.send_all([store.declare(one) for one in declared[at : at + 500]])
        await sender.close()

    asyncio.run(run())


def _one_minute(count: int) -> Figures:
    with server() as where, where.fleet():
        now = time.time()
        minute = (now + 50) // 60 * 60 + (60 if now % 60 > 20 else 0)
        rule = f"{int(minute // 60 % 60)} * * * *"
        late_payload = new_job("lateness", (), {}, JobOptions()).payload
        _declare(where, [Declared(name=f"r{n}", rule=rule, payload=_NOOP) for n in range(count)])
        dues = [minute - 20 + n * 0.1 for n in range(_SPARSE)]
        where.fill("default", [New(f"s-{n}", late_payload, due=due) for n, due in enumerate(dues)])
        where.ended("default", f"s-{_SPARSE - 1}")
        ids = [f"r{n}@{int(minute)}" for n in range(count)]
        started = [start for (start,) in where.fields("default", ids, "started")]
        late = [values[0] for values in where.fields("default", [f"s-{n}" for n in range(_SPARSE)], "result")]
    ahead = [value for value, due in zip(late, dues, strict=True) if due < minute]
    return {
        "last start, s": max(started) - minute,
        "sparse p99, ms": percentile(late, 0.99) * 1e3,
        "sparse p99 before the minute, ms": percentile(ahead, 0.99) * 1e3,
    }


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


def tables() -> dict[str, Table]:
    return {
        "recurrences": Table("Recurrences due in one minute", {"10,000": partial(_one_minute, 10_000)}),
        "standing": Table("Idle with recurrences", {"100,000": partial(_idle, 100_000)}),
    }
