"""The history of a queue and its shards: search among the jobs that ended, and counts of a span of hours.

The last ends are in Redis. If `evsched ledger history` runs, the table `evsched_run` of the ledger has all of them but
the latest, and `evsched_run_position` has the last entry of each queue that is written. So with a connection to the
ledger, a search reads the rows, and from Redis the entries behind that one.
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from heapq import merge
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from evsched import keys
from evsched.client.operations import Operation, Query, send, send_many
from evsched.client.option_values import Past, past_moment
from evsched.client.transaction import EARLIEST, LATEST, Statement
from evsched.errors import ConfigError
from evsched.jobs import option_checks as check
from evsched.store.history_calls import EndCount, HistoryEntry, PastJob
from evsched.store.server import clock
from evsched.store.store import Store

OUTCOMES: Final = ("done", "dead", "expired", "cancelled")

HOUR: Final = 3600.0

WEEK: Final = timedelta(days=7)

_HOURS: Final = 8 * 24
"""Hours for which counts are kept."""

_AT_ONCE: Final = 50
"""Hours that one round trip reads: 0.3 ms of Redis's time if there are 100 counts in each, 35 ms if all are full."""

_Count = Annotated[int, Meta(ge=0, lt=10**18)]
"""A number that Redis takes as a position in a stream."""


class HistoryFilter(Struct, frozen=True, kw_only=True):
    """Which ends of jobs. All conditions that are given must hold; `since` and `until` are about the end of a job."""

    id: str | None = None
    task: str | None = None
    group: str | None = None
    outcome: str | None = None
    tag: str | Sequence[str] | None = None
    """The tag, or all tags, that the job has."""
    error: str | None = None
    """The class of the exception, such as requests.exceptions.Timeout, or Timeout for each class of that name."""
    since: Past | None = None
    until: Past | None = None

    def __post_init__(self) -> None:
        for name in ("id", "task", "group", "outcome", "error"):
            if (value := getattr(self, name)) is not None:
                check.text(name, value)
        if self.tag is not None:
            check.tags("tag", self._tags)
        if self.outcome is not None and self.outcome not in OUTCOMES:
            raise check.invalid("outcome", self.outcome, f"one of {', '.join(OUTCOMES)}")

    def given(self) -> dict[str, str | tuple[str, ...]]:
        """Return the conditions that are given but those about the time, by their names; tags as several."""
        found = {name: value for name in CONDITIONS if (value := getattr(self, name)) is not None}
        if self.tag is not None:
            found["tag"] = self._tags
        return found

    @property
    def _tags(self) -> tuple[str, ...]:
        return (self.tag,) if isinstance(self.tag, str) else tuple(self.tag or ())

    def matches(self, job: PastJob) -> bool:
        """Return whether all conditions hold but those about the time."""
        return all(CONDITIONS[name].meets(job, value) for name, value in self.given().items())

    def span(self, now: float) -> tuple[float, float]:
        """Return between which moments a job must have ended, in Unix seconds.

        Raises:
            ConfigError: a time is not valid.
        """
        since = -math.inf if self.since is None else past_moment("since", self.since, now)
        return since, math.inf if self.until is None else past_moment("until", self.until, now)


EVERY_END: Final = HistoryFilter()


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
    "tag": Condition(lambda job, tags: set(tags) <= set(job.tags), "tags @> CAST({tag} AS text[])"),
    "error": Condition(
        lambda job, error: error in (job.error, job.error.rpartition(".")[2]),
        "CAST({error} AS text) IN (error, split_part(error, '.', -1))",
    ),
}
"""By the names of the fields of `HistoryFilter`; those about the time are left out."""


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


class HistoryPage(Struct, frozen=True):
    """Ends of jobs, the newest first."""

    jobs: list[PastJob]
    cursor: str | None
    """The argument of the next search, for older jobs; None = these are all, or the ledger was searched too."""


class _Position(NamedTuple):
    """A place in the history of one queue: after this number of jobs of an entry."""

    number: int
    jobs: int


class _Found(NamedTuple):
    """A job that matches, and the position after it."""

    job: PastJob
    store: int
    after: _Position


def search(
    stores: Sequence[Store],
    matching: HistoryFilter,
    limit: int,
    cursor: str | None = None,
    most: float = math.inf,
    ledger: Any = None,
) -> Operation[HistoryPage]:
    """Return the last ends of jobs that match, at most `limit`, the newest first.

    `stores`: those of the queue and its shards. `cursor`: of the page before. `most`: how many jobs of each store are
    examined in Redis; a page may have fewer jobs for that, or none, and a cursor all the same. `ledger`: a connection
    to the ledger's database; None = without it. The page has no cursor then: rows are written meanwhile, so a position
    in Redis does not hold.

    Raises:
        ConfigError: a time, the cursor or the limit is not valid, or there are both a cursor and a ledger.
    """
    if not isinstance(matching, HistoryFilter):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise check.invalid("matching", matching, "a HistoryFilter, such as HistoryFilter(task='mail')")
    check.count("limit", limit)
    if cursor is not None and ledger is not None:
        raise ConfigError("cursor: a search in the ledger has no pages: give `until` to find older jobs")
    starts = None if cursor is None else _read_cursor(cursor)
    span = matching.span((yield from send(clock(keys.root(stores[-1].queue)))))
    if ledger is None:
        return (yield from _search_streams(stores, matching, span, limit, starts, most, {}))
    rows, written = yield from search_rows([store.queue for store in stores], matching, span, limit, ledger)
    page = yield from _search_streams(stores, matching, span, limit, starts, most, written)
    return HistoryPage(list(merge(page.jobs, rows, key=lambda job: -job.ended))[:limit], None)


def _search_streams(
    stores: Sequence[Store],
    matching: HistoryFilter,
    span: tuple[float, float],
    limit: int,
    starts: Mapping[str, _Position] | None,
    most: float,
    written: Mapping[str, str],
) -> Operation[HistoryPage]:
    """Search in Redis. `starts`: where to begin, by queue; None = everywhere at the end. `written`: see `_Reading`."""
    parts, left = list[list[_Found]](), dict[str, _Position]()
    for at, store in enumerate(stores):
        start = None if starts is None else starts.get(store.queue)
        if starts is not None and start is None:  # it has no more
            parts.append([])
            continue
        read = _Reading(store, at, start, written.get(store.queue))
        yield from read.search(matching, span, limit, most)
        parts.append(read.found)
        if read.more:
            left[store.queue] = read.position
    page = list(merge(*parts, key=lambda one: -one.job.ended))[:limit]
    taken = Counter(one.store for one in page)
    for at, found in enumerate(parts):
        if taken[at] < len(found):
            after = found[taken[at]].after
            left[stores[at].queue] = _Position(after.number, after.jobs - 1)
    jobs = sorted((one.job for one in page), key=lambda job: -job.ended)
    return HistoryPage(jobs, _as_cursor(left) if left else None)


class _Reading:
    """The search in the history of one queue, from a position on; None = from its end.

    `written`: the last entry that the ledger has, which is not read, nor those before it; None = all are read.
    """

    def __init__(self, store: Store, at: int, start: _Position | None, written: str | None) -> None:
        self._store, self._at, self._written = store, at, written
        self._before = "+" if start is None else str(start.number)
        self._skip = 0 if start is None else start.jobs
        """Jobs of the first entry that an earlier page has passed."""
        self.position = start or _Position(-1, 0)
        self.found = list[_Found]()
        self.more = True

    def search(self, matching: HistoryFilter, span: tuple[float, float], limit: int, most: float) -> Operation[None]:
        (since, until), examined = span, 0
        while self.more and len(self.found) < limit and examined < most:
            part = yield from send(self._store.ended(self._before, self._written))
            jobs = [job for entry in part.entries for job in self._unread(entry)]
            self.found += [one for one in jobs if since <= one.job.ended <= until and matching.matches(one.job)]
            examined += len(jobs)
            # Redis's clock may have been set back in between, so an entry may be older than the one behind it.
            over = all(one.job.ended < since for one in jobs) if jobs else False
            self.more = part.before is not None and not over
            self._before = part.before or ""

    def _unread(self, entry: HistoryEntry) -> Iterator[_Found]:
        if entry.number != self.position.number:
            self.position, self._skip = _Position(entry.number, 0), 0
        for job in entry.jobs:
            if self._skip > 0:
                self._skip -= 1
                continue
            self.position = _Position(entry.number, self.position.jobs + 1)
            yield _Found(job, self._at, self.position)


def _as_cursor(left: Mapping[str, _Position]) -> str:
    return urlsafe_b64encode(msgspec.json.encode(left)).decode().rstrip("=")


def _read_cursor(cursor: str) -> dict[str, _Position]:
    try:
        text = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        found = msgspec.json.decode(text, type=dict[str, tuple[_Count, _Count]])
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        raise ConfigError("cursor is not valid: send the one that the page before has, as it is") from None
    return {queue: _Position(*position) for queue, position in found.items()}


_ROWS: Final = """
SELECT CAST(json_build_array(0, queue, entry) AS text) AS written FROM evsched_run_position
WHERE queue = ANY (CAST({{queues}} AS text[]))
UNION ALL (
    SELECT CAST(json_build_array(
        1, entry, place, json_build_object(
            'queue', queue, 'id', id, 'task', task, 'outcome', outcome,
            'due', CAST(extract(epoch FROM due) AS float8), 'started', CAST(extract(epoch FROM started) AS float8),
            'ended', CAST(extract(epoch FROM ended) AS float8), 'attempt', attempt, 'worker', worker, 'group', grp,
            'by', enqueued_by, 'tags', tags, 'error', error, 'location', location
        )
    ) AS text)
    FROM {rows}
    ORDER BY ended DESC, entry DESC, place DESC LIMIT CAST({{limit}} AS integer)
)
"""
"""The positions and the rows of one moment, by one statement. One text a row, which each library returns alike."""

_MATCHING: Final = """
SELECT * FROM evsched_run
WHERE queue = {queue} AND ended >= to_timestamp(CAST({{since}} AS float8))
    AND ended <= to_timestamp(CAST({{until}} AS float8)) {conditions}
ORDER BY ended DESC, entry DESC, place DESC LIMIT CAST({{limit}} AS integer)
"""

_BY_QUEUE: Final = "unnest(CAST({{queues}} AS text[])) AS wanted (wanted_queue) CROSS JOIN LATERAL ({rows}) AS run"
"""Each queue by itself: so PostgreSQL reads no more of its rows than are listed."""

_RARE: Final = ("id", "tag", "group", "error")
"""Conditions that few rows meet: to look for them in each of many queues takes longer than in all at once."""

_FEW: Final = 4
"""Queues that are always read by themselves."""


def search_rows(
    queues: Sequence[str], matching: HistoryFilter, span: tuple[float, float], limit: int, ledger: Any
) -> Operation[tuple[list[PastJob], dict[str, str]]]:
    """Search the rows of queues; also return the last entry of each that is written, by its queue.

    `queues`: each of their shards is named too. `span`: between which moments the jobs ended, instead of the filter's.
    """
    given = {name: _as_text(value) for name, value in matching.given().items()}
    since, until = map(_storable, span)
    words = {"queues": _as_text(tuple(queues)), "since": since, "until": until, "limit": limit, **given}
    conditions = " ".join(f"AND {CONDITIONS[name].sql}" for name in given)
    written, rows = dict[str, str](), list[tuple[int, int, PastJob]]()
    if len(queues) > _FEW and any(name in given for name in _RARE):
        rows_of = f"({_MATCHING.format(queue='ANY (CAST({queues} AS text[]))', conditions=conditions)}) AS run"
    else:
        each = _MATCHING.format(queue="wanted_queue", conditions=conditions)
        rows_of = _BY_QUEUE.format(rows=each)
    for text in (yield Query(Statement(_ROWS.format(rows=rows_of), words), ledger)):
        kind, *row = msgspec.json.decode(text)
        if kind == 0:
            written[row[0]] = row[1]
        else:
            rows.append((row[0], row[1], msgspec.convert(row[2], PastJob)))
    rows.sort(key=lambda row: (-row[2].ended, -row[0], -row[1]))
    return [job for _, _, job in rows], written


def written_queues(ledger: Any) -> Operation[list[str]]:
    """Return the queues and shards whose ends are in the ledger."""
    return (yield Query(Statement("SELECT queue AS written FROM evsched_run_position", {}), ledger))


def counts(
    stores: Sequence[Store], since: Past = WEEK, until: Past | None = None, task: str | None = None, ledger: Any = None
) -> Operation[list[TaskCounts]]:
    """Return how many jobs ended within a span of whole hours, by task. `stores`, `ledger`: as above.

    Redis counts each end, for eight days; the ledger keeps the rows that were written, for longer. Each hour is counted
    from the one that has more ends of it.

    Raises:
        ConfigError: a time or the task is not valid.
    """
    if task is not None:
        check.text("task", task)
    now = yield from send(clock(keys.root(stores[-1].queue)))
    first, last = past_moment("since", since, now), now if until is None else past_moment("until", until, now)
    begin, end = int(_storable(first) // HOUR), int(_storable(min(last, now)) // HOUR) + 1
    found = dict[tuple[str, int], list[EndCount]]()
    for store in stores if ledger is not None else ():
        found |= yield from _count_rows(store.queue, begin, end, ledger)
    hours = range(max(begin, int(now // HOUR) - _HOURS), end)
    places = [(store, hour) for store in stores for hour in hours]
    for at in range(0, len(places), _AT_ONCE):
        some = places[at : at + _AT_ONCE]
        read = yield from send_many([store.hour(hour) for store, hour in some])
        for (store, hour), counted in zip(some, read, strict=True):
            if _total(counted) >= _total(found.get((store.queue, hour), ())):
                found[store.queue, hour] = counted
    by_task = dict[str, list[EndCount]]()
    for count in (one for counted in found.values() for one in counted):
        if task is None or count.task == task:
            by_task.setdefault(count.task, []).append(count)
    return [counts_of(stores[-1].queue, name, counted) for name, counted in sorted(by_task.items())]


def _total(counted: Sequence[EndCount]) -> int:
    return sum(one.jobs for one in counted)


def _as_text(value: str | tuple[str, ...]) -> str:
    """Return a value as rows have it; several as the text of an array."""
    if isinstance(value, tuple):
        return "{" + ",".join(f"{msgspec.json.encode(_as_text(one)).decode()}" for one in value) + "}"
    return value.replace("\x00", "\\x00")


def _storable(moment: float) -> float:
    """Return the nearest moment that PostgreSQL stores."""
    return max(EARLIEST, min(moment, LATEST))


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


def _count_rows(queue: str, begin: int, end: int, ledger: Any) -> Operation[dict[tuple[str, int], list[EndCount]]]:
    """Count the rows of one queue by the hour. `begin`, `end`: hours since 1970; the last one is left out."""
    words = {"queue": queue, "begin": begin * HOUR, "end": end * HOUR, "bounds": _BOUNDS}
    found = dict[tuple[str, int], list[EndCount]]()
    for text in (yield Query(Statement(_COUNTS, words), ledger)):
        hour, *count = msgspec.json.decode(text)
        found.setdefault((queue, hour), []).append(EndCount(*count))
    return found


def counts_of(queue: str, task: str, counted: Sequence[EndCount]) -> TaskCounts:
    """Add up the counts of a task, or of several under one name."""
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
