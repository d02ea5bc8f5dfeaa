"""What follows from the tables of a run: ratios, a check of the model, the needs of 1,000 jobs/s and of many more.

The model: a job costs Redis a fixed time, and a part of the script calls that it shares with other jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from operator import mul
from typing import Final

from bench.figures import Measured, grid, number
from bench.readings import Tables, cell
from bench.result import Result
from bench.scaling import placement
from bench.scaling.tables import ALONE, CLUSTER, ONE, PLANNED_SHARDS, REPLICATED, RESERVED, SHARDS, SHARED, rates
from evsched.config import Config
from evsched.jobs.record import DEFAULT_RETENTION

_DAY: Final = 86_400
_BILLIONS: Final = 10_000_000_000

_WORKER: Final = 0.7
"""The part of a core that a worker process uses at most: it needs some for what comes unevenly."""

_DISPATCHER: Final = 0.5
"""The same of a dispatcher, which is late when it has to wait."""

_SLOTS: Final = Config().concurrency

_KEPT: Final = DEFAULT_RETENTION
"""Seconds for which the record of a job is kept that has ended."""

_FULL: Final = 0.5
"""The part of what a core can do that a primary is planned for: it has to bear a burst, and clients that reconnect."""

_ADDED: Final = {
    "12 workers instead of one": (1.5, SHARED, ALONE),
    "two dispatchers instead of one": (1.1, RESERVED, SHARED),
    "a replica": (1.24, REPLICATED, ALONE),
}
"""What a system in production adds to Redis's time for a job: a factor, and the rows of `production` that measure it.

The factors are assumed, from earlier short runs: on a busy machine, rounds differ by more than some of them.
"""

_BUSIEST: Final = 1.75
"""Shards of the busiest primary against the mean, if slots lie by chance: 7 of 60 on 15 primaries, see placement.py."""

_CONNECTIONS: Final = 4
"""Connections of a worker to each primary that has some of its shards, however many."""

_COMPARED: Final = "Redis µs/job", "script calls/job", "commands/job", "bytes/job", "worker µs/job"
_MEASURED: Final = "Redis µs/job", "script calls/job"

Row = tuple[str, str]
"""A table and a row of it."""


class _Missing(Exception):
    """The run has not measured a figure; the message says which."""


def _read(tables: Tables, row: Row, column: str) -> float:
    found = cell(row[0], row[1], column)(tables)
    if found is None:
        raise _Missing(f"{row[0]}: {row[1]}: {column}")
    return found


def tables(result: Result) -> dict[str, str]:
    """Return the calculated tables in Markdown, by their names; without those for which a figure is missing."""
    found = dict[str, str]()
    for name, (title, make) in _TABLES.items():
        try:
            found[name] = f"**{title}**\n\n{grid(make(result))}"
        except _Missing:
            pass
    return found


def ratios(burst: Measured) -> Measured:
    """Compare each case of `burst` with one queue, in each round."""

    def compared(row: Mapping[str, Sequence[float]], column: str) -> list[float]:
        pairs = zip(row.get(column, ()), one.get(column, ()), strict=False)
        return [here / there for here, there in pairs]

    one = burst.values[ONE]
    rows = {name: {column: compared(row, column) for column in _COMPARED} for name, row in burst.values.items()}
    del rows[ONE]
    return Measured("A job against that of one queue, in the same round", rows)


def _at(name: str, rate: float) -> Row:
    return "rates", f"{name}, {rate:,.0f}/s"


def _checked(result: Result) -> list[list[str]]:
    """Fit the model to one queue on one server, and compare it with shards on one server and on three."""
    of_one = [*(_at(ONE, rate) for rate in rates(result.scale)), ("burst", ONE)]
    calls, costs = ([_read(result.tables, row, name) for row in of_one] for name in reversed(_MEASURED))
    fixed, slope = _fitted(calls, costs)
    lines = [["", "script calls/job", "calculated", "measured", "measured / calculated"]]
    others = [*(_at(name, rate) for name in (SHARDS, CLUSTER) for rate in rates(result.scale)[1:])]
    for table, name in (*of_one, *others, ("burst", SHARDS), ("burst", CLUSTER)):
        cost, called = (_read(result.tables, (table, name), column) for column in _MEASURED)
        wanted = fixed + slope * called
        where = name if table == "rates" else f"{name}, at once"
        lines.append([where, number(called), number(wanted), number(cost), number(cost / wanted)])
    lines.append([f"calculated: {number(fixed)} µs, and {number(slope)} µs for each script call", *[""] * 4])
    return lines


def _fitted(calls: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Return the fixed cost and the cost of a call with the least squares of the relative errors.

    With absolute errors, the rows of low rates would decide alone, since a job costs ten times as much there.
    """
    weights = [1 / cost for cost in costs]
    shares = [called / cost for called, cost in zip(calls, costs, strict=True)]
    squares, products = sum(one * one for one in weights), sum(map(mul, weights, shares))
    others = sum(one * one for one in shares)
    scale = squares * others - products * products
    fixed = (sum(weights) * others - sum(shares) * products) / scale
    slope = (sum(shares) * squares - sum(weights) * products) / scale
    return fixed, slope


def _needs(result: Result) -> list[list[str]]:
    """Return what a thousand jobs a second need, at the rates of one queue."""
    read, (_, usual, high) = result.tables, rates(result.scale)
    columns: Mapping[str, Row] = {
        f"at {usual:,.0f}/s on one Redis": _at(ONE, usual),
        f"at {high:,.0f}/s": _at(ONE, high),
        "as fast as it can": ("burst", ONE),
    }

    def line(what: str, column: str, scale: float) -> list[str]:
        return [what, *(number(_read(read, row, column) * scale) for row in columns.values())]

    single, many = ("stored", "one by one"), ("stored", "1,000 at a time")
    same = len(columns)
    kept = 1_000 * _KEPT * _read(read, single, "memory, bytes/job") / 1e6
    return [
        ["for 1,000 jobs/s", *columns],
        line("Redis, to dispatch, run and end: % of a core", "Redis µs/job", 0.1),
        *(
            [f"Redis, to schedule them {row[1]}: % of a core", *[number(_read(read, row, "Redis µs/job") / 10)] * same]
            for row in (single, many)
        ),
        line("script calls/s", "script calls/job", 1000),
        line("commands/s, those inside scripts included", "commands/job", 1000),
        line("network of Redis, MB/s", "bytes/job", 1e-3),
        ["the same, to schedule them one by one", *[number(_read(read, single, "bytes sent/job") / 1e3)] * same],
        line("a dispatcher: % of a core", "dispatcher µs/job", 0.1),
        line("workers, besides the handlers: % of a core", "worker µs/job", 0.1),
        *(
            [f"worker processes, if handlers compute for {ms:g} ms", *_processes(read, columns.values(), ms)]
            for ms in (0.1, 1, 10)
        ),
        *(
            [f"worker processes, if handlers wait for {ms:,} ms", *[number(ceil(ms / _SLOTS))] * same]
            for ms in (100, 1_000, 10_000)
        ),
        [f"memory of records of {_KEPT:g} s, MB, at least", *[number(kept)] * same],
        [
            f"jobs/s that keep Redis under {_FULL:.0%} of a core, scheduled one by one",
            *(
                number(round(_FULL * 1e6 / (_read(read, row, "Redis µs/job") + _read(read, single, "Redis µs/job"))))
                for row in columns.values()
            ),
        ],
    ]


def _processes(read: Tables, rows: Iterable[Row], ms: float) -> list[str]:
    return [number(ceil(1000 * (ms / 1e3 + _read(read, row, "worker µs/job") / 1e6) / _WORKER)) for row in rows]


def _plan(result: Result) -> list[list[str]]:
    """Return what larger rates need, by what a core can do at full speed and what a system in production adds."""
    high = rates(result.scale)[2]
    needs = [_need(result, rate) for rate in (high, 3 * high, 50_000, ceil(_BILLIONS / _DAY))]
    return [[name, *(need[name] for need in needs)] for name in needs[0]]


def _factors(result: Result) -> list[list[str]]:
    """Return what the plan assumes beside what was measured."""
    lines = [["what it adds", "Redis's time for a job, assumed", "measured"]]
    for what, (factor, row, to) in _ADDED.items():
        now, before = (_read(result.tables, ("production", name), "Redis µs/job") for name in (row, to))
        lines.append([what, f"times {factor:g}", f"times {number(now / before)}"])
    return lines


def _need(result: Result, rate: float) -> dict[str, str]:
    """Return what so many jobs a second need, by the names of the rows."""
    row, single = ("burst", SHARDS), ("stored", "12 shards, one by one")

    def run(column: str) -> float:
        return _read(result.tables, row, column)

    def scheduled(column: str) -> float:
        return _read(result.tables, single, column)

    alone = run("Redis µs/job") + scheduled("Redis µs/job")
    shared, reserved, replicated = (factor for factor, _, _ in _ADDED.values())
    cost = (run("Redis µs/job") * shared * reserved + scheduled("Redis µs/job")) * replicated
    primaries = ceil(rate * cost / 1e6 / _FULL)
    # Of the dispatcher and the worker, as at the highest rate: at full speed they take less for each job.
    steady = _at(SHARDS, rates(result.scale)[2])
    dispatching, working = (_read(result.tables, steady, f"{who} µs/job") for who in ("dispatcher", "worker"))
    parts = ceil(rate * dispatching / 1e6 / _DISPATCHER)
    workers = ceil(rate * (working + 1000) / 1e6 / _WORKER)
    stored = rate * scheduled("memory, bytes/job") / 1e9
    sent = _read(result.tables, steady, "bytes/job") + scheduled("bytes sent/job")
    return {
        "jobs/s": f"{rate:,.0f}",
        "jobs a day": f"{rate * _DAY / 1e9:.2f} billion",
        "Redis µs/job at full speed, scheduling included: measured, one worker": number(alone),
        "the same with 12 workers and 2 dispatchers for each shard, and a replica": number(cost),
        f"primaries that use {_FULL:.0%} of a core, if shards lie evenly": number(primaries),
        f"the same, if the busiest has {_BUSIEST:g} times the mean": number(ceil(primaries * _BUSIEST)),
        "replicas, one for each primary, if shards lie evenly": number(primaries),
        f"shards, {PLANNED_SHARDS} for each primary": number(PLANNED_SHARDS * primaries),
        "dispatchers, two for each part of the shards": number(2 * parts),
        "worker processes, if handlers compute for 1 ms": number(workers),
        "connections of workers to each primary, if each serves all shards": number(workers * _CONNECTIONS),
        "the same, if each serves the shards of one primary": number(ceil(workers / primaries) * _CONNECTIONS),
        "network of each primary, MB/s, without that to its replica": number(sent * rate / primaries / 1e6),
        "memory of jobs that wait for 10 minutes, GB in all": number(stored * 600),
        "memory of records of jobs that have ended, GB in all, at least": number(stored * _KEPT),
    }


_TABLES: Final[Mapping[str, tuple[str, Callable[[Result], list[list[str]]]]]] = {
    "model": ("Redis µs/job, calculated from the script calls", _checked),
    "needs": ("What 1,000 jobs/s need, calculated", _needs),
    "placement": ("Shards of the busiest primary, if each has as many slots, calculated", lambda _: placement.lines()),
    "factors": ("What a system in production adds, calculated", _factors),
    "plan": ("What larger rates need, calculated", _plan),
}
