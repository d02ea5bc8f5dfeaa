"""The history of a queue and its shards: search among the jobs that ended, and counts of a span of hours.

The last ends are in Redis. If `evsched ledger history` runs, the table `evsched_run` of the ledger has all of them but
the latest, and `evsched_run_position` has the last entry of each queue that is written. So with a connection to the
ledger, a search reads the rows, and from Redis the entries behind that one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import merge
from typing import Any, Final

import msgspec
from msgspec import Struct

from evsched import keys
from evsched.client.operations import Operation, Query, send
from evsched.client.sweep import past_moment
from evsched.client.transaction import Statement
from evsched.jobs import option_checks as check
from evsched.store.history_calls import EndCount, PastJob
from evsched.store.server import clock
from evsched.store.store import Store

Past = datetime | timedelta | float
"""An aware datetime, Unix seconds, or a timedelta before now."""

OUTCOMES: Final = ("done", "dead", "expired", "cancelled")

HOUR: Final = 3600.0

WEEK: Final = timedelta(days=7)

_HOURS: Final = 8 * 24
"""Hours for which counts are kept."""


class HistoryFilter(Struct, frozen=True, kw_only=True):
    """Which ends of jobs. All conditions that are given must hold; `since` and `until` are about the end of a job."""

    id: str | None = None
    task: str | None = None
    group: str | None = None
    outcome: str | None = None
    tag: str | None = None
    error: str | None = None
    """The class of the exception, such as requests.exceptions.Timeout, or Timeout for each class of that name."""
    since: Past | None = None
    until: Past | None = None

    def __post_init__(self) -> None:
        for name in ("id", "task", "group", "outcome", "tag", "error"):
            if (value := getattr(self, name)) is not None:
                check.text(name, value)
        if self.outcome is not None and self.outcome not in OUTCOMES:
            raise check.invalid("outcome", self.outcome, f"one of {', '.join(OUTCOMES)}")

    def wanted(self, now: float) -> dict[str, str | float]:
        """Return the conditions that are given, by their names; `since` and `until` in Unix seconds."""
        values = {name: getattr(self, name) for name in CONDITIONS}
        given = {name: value for name, value in values.items() if value is not None}
        return given | {name: past_moment(name, given[name], now) for name in ("since", "until") if name in given}


class Condition(Struct, frozen=True):
    """A condition of a filter: whether an end meets it, and the same for a row of `evsched_run`."""

    meets: Callable[[PastJob, Any], bool]
    sql: str


def _equal(field: str, column: str) -> Condition:
    return Condition(lambda job, value: getattr(job, field) == value, f"{column} = CAST({{{field}}} AS text)")


CONDITIONS: Final = {
    "id": _equal("id", "id"),
    "task": _equal("task", "task"),
    "group": _equal("group", "grp"),
    "outcome": _equal("outcome", "outcome"),
    "tag": Condition(lambda job, tag: tag in job.tags, "tags @> ARRAY[CAST({tag} AS text)]"),
    "error": Condition(
        lambda job, error: error in (job.error, job.error.rpartition(".")[2]),
        "CAST({error} AS text) IN (error, split_part(error, '.', -1))",
    ),
    "since": Condition(lambda job, since: job.ended >= since, "ended >= to_timestamp(CAST({since} AS float8))"),
    "until": Condition(lambda job, until: job.ended <= until, "ended <= to_timestamp(CAST({until} AS float8))"),
}
"""By the names of the fields of `HistoryFilter`."""


def matches(job: PastJob, wanted: Mapping[str, str | float]) -> bool:
    """Return whether an end meets all conditions that `HistoryFilter.wanted` returned."""
    return all(CONDITIONS[name].meets(job, value) for name, value in wanted.items())


EVERY_END: Final = HistoryFilter()


class TaskCounts(Struct, frozen=True):
    """How many jobs of a task ended in a span of hours, and how late they started and how long they ran, in seconds.

    p50, p99: at most that, for half of the jobs that started, and for 99 % of them. They are kept by powers of two, so
    each is up to twice the true value. None: no job started.
    """

    queue: str
    task: str
    ended: int
    done: int
    dead: int
    expired: int
    cancelled: int
    late_p50: float | None
    late_p99: float | None
    run_p50: float | None
    run_p99: float | None


def search(
    stores: Sequence[Store], matching: HistoryFilter, limit: int, ledger: Any = None
) -> Operation[list[PastJob]]:
    """Return the last ends of jobs that match, at most `limit`, the newest first.

    `stores`: those of the queue and its shards. `ledger`: a connection to the ledger's database; None = without it.
    """
    now = yield from send(clock(keys.root(stores[-1].queue)))
    wanted = matching.wanted(now)
    parts = list[list[PastJob]]()
    for store in stores:
        rows, position = [], None
        if ledger is not None:
            rows, position = yield from _search_rows(store.queue, wanted, limit, ledger)
        parts += [(yield from _search_stream(store, wanted, limit, position)), rows]
    return list(merge(*parts, key=lambda job: -job.ended))[:limit]


def _search_stream(
    store: Store, wanted: Mapping[str, str | float], limit: int, after: str | None
) -> Operation[list[PastJob]]:
    """Search the entries behind `after`; None = all."""
    found, entry = list[PastJob](), "+"
    since = wanted.get("since")
    while len(found) < limit:
        part = yield from send(store.ended(entry, after))
        found += [job for job in part.jobs if matches(job, wanted)]
        # Redis's clock may have been set back in between, so an entry may be older than the one behind it.
        over = isinstance(since, float) and part.jobs and max(job.ended for job in part.jobs) < since
        if part.entry is None or over:
            break
        entry = part.entry
    found.sort(key=lambda job: -job.ended)
    return found[:limit]


_ROWS: Final = """
SELECT CAST(json_build_array(0, entry) AS text) AS written FROM evsched_run_position
WHERE queue = CAST({{queue}} AS text)
UNION ALL (
    SELECT CAST(json_build_array(
        1, entry, place, json_build_object(
            'queue', queue, 'id', id, 'task', task, 'outcome', outcome,
            'due', CAST(extract(epoch FROM due) AS float8), 'started', CAST(extract(epoch FROM started) AS float8),
            'ended', CAST(extract(epoch FROM ended) AS float8), 'attempt', attempt, 'worker', worker, 'group', grp,
            'by', enqueued_by, 'tags', tags, 'error', error, 'location', location
        )
    ) AS text)
    FROM evsched_run WHERE {where}
    ORDER BY ended DESC, entry DESC, place DESC LIMIT CAST({{limit}} AS integer)
)
"""
"""The position and the rows of one moment, by one statement. One text a row, which each library returns alike."""


def _search_rows(
    queue: str, wanted: Mapping[str, str | float], limit: int, ledger: Any
) -> Operation[tuple[list[PastJob], str | None]]:
    """Search the rows of one queue; also return the last entry that is written, None if none is."""
    where = " AND ".join(["queue = CAST({queue} AS text)", *(CONDITIONS[name].sql for name in wanted)])
    words = {"queue": queue, "limit": limit, **{name: _storable(value) for name, value in wanted.items()}}
    position, rows = None, list[tuple[int, int, PastJob]]()
    for text in (yield Query(Statement(_ROWS.format(where=where), words), ledger)):
        kind, *row = msgspec.json.decode(text)
        if kind == 0:
            (position,) = row
        else:
            rows.append((row[0], row[1], msgspec.convert(row[2], PastJob)))
    rows.sort(key=lambda row: (-row[2].ended, -row[0], -row[1]))
    return [job for _, _, job in rows], position


def _storable(value: str | float) -> str | float:
    return value.replace("\x00", "\\x00") if isinstance(value, str) else value


def counts(
    stores: Sequence[Store], since: Past = WEEK, until: Past | None = None, task: str | None = None, ledger: Any = None
) -> Operation[list[TaskCounts]]:
    """Return how many jobs ended within a span of whole hours, by task. `stores`, `ledger`: as above.

    Redis counts each end, for eight days; the ledger keeps the rows that were written, for longer. Each hour is counted
    from the one that has more ends of it.
    """
    now = yield from send(clock(keys.root(stores[-1].queue)))
    first, last = past_moment("since", since, now), now if until is None else past_moment("until", until, now)
    begin, end = int(first // HOUR), int(min(last, now) // HOUR) + 1
    found = dict[str, list[EndCount]]()
    for store in stores:
        by_hour = dict[int, list[EndCount]]() if ledger is None else (yield from _count_rows(store, begin, end, ledger))
        for hour in range(max(begin, int(now // HOUR) - _HOURS), end):
            counted, written = (yield from send(store.hour(hour))), by_hour.get(hour, [])
            if sum(one.jobs for one in counted) >= sum(one.jobs for one in written):
                by_hour[hour] = counted
        for count in (one for counted in by_hour.values() for one in counted):
            if task is None or count.task == task:
                found.setdefault(count.task, []).append(count)
    return [_counts_of(stores[-1].queue, name, counted) for name, counted in sorted(found.items())]


_COUNTS: Final = """
SELECT CAST(json_build_array(hour, task, outcome, late, run, count(*)) AS text) AS written
FROM (
    SELECT CAST(floor(extract(epoch FROM ended) / 3600) AS bigint) AS hour, task, outcome,
        width_bucket(1000 * (CAST(extract(epoch FROM started) AS float8) - CAST(extract(epoch FROM due) AS float8)),
            CAST({bounds} AS float8[])) AS late,
        CASE WHEN due IS NOT NULL THEN
            width_bucket(
                1000 * (CAST(extract(epoch FROM ended) AS float8) - CAST(extract(epoch FROM started) AS float8)),
                CAST({bounds} AS float8[])
            )
        END AS run
    FROM evsched_run
    WHERE queue = CAST({queue} AS text) AND ended >= to_timestamp(CAST({begin} AS float8))
        AND ended < to_timestamp(CAST({end} AS float8))
) AS one
GROUP BY hour, task, outcome, late, run
"""

_BOUNDS: Final = f"{{{','.join(str(2**power) for power in range(40))}}}"
"""The same powers of two of 1 ms as lua/_history.lua counts by."""


def _count_rows(store: Store, begin: int, end: int, ledger: Any) -> Operation[dict[int, list[EndCount]]]:
    """Count the rows of one queue by the hour. `begin`, `end`: hours since 1970; the last one is left out."""
    words = {"queue": store.queue, "begin": begin * HOUR, "end": end * HOUR, "bounds": _BOUNDS}
    found = dict[int, list[EndCount]]()
    for text in (yield Query(Statement(_COUNTS, words), ledger)):
        hour, *count = msgspec.json.decode(text)
        found.setdefault(hour, []).append(EndCount(*count))
    return found


def _counts_of(queue: str, task: str, counted: Sequence[EndCount]) -> TaskCounts:
    outcomes, late, run = Counter[str](), Counter[int](), Counter[int]()
    for one in counted:
        outcomes[one.outcome] += one.jobs
        for sizes, power in ((late, one.late), (run, one.run)):
            if power is not None:
                sizes[power] += one.jobs
    return TaskCounts(
        queue=queue,
        task=task,
        ended=outcomes.total(),
        late_p50=quantile(late, 0.5),
        late_p99=quantile(late, 0.99),
        run_p50=quantile(run, 0.5),
        run_p99=quantile(run, 0.99),
        **{outcome: outcomes[outcome] for outcome in OUTCOMES},
    )


def quantile(sizes: Mapping[int, int], part: float) -> float | None:
    """Return a bound in seconds below which this part of the lengths of time is, counted by powers of two of 1 ms."""
    left = part * sum(sizes.values())
    for power in sorted(sizes):
        left -= sizes[power]
        if left <= 0:
            return 2.0**power / 1000
    return None
