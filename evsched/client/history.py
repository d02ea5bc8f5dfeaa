"""The history of a queue and its shards: search among the jobs that ended, and counts of a span of hours."""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from heapq import merge
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from evsched import keys
from evsched.client.operations import Operation, send, send_many
from evsched.client.option_values import Past, past_moment
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

    @property
    def _tags(self) -> Sequence[str]:
        return (self.tag,) if isinstance(self.tag, str) else self.tag or ()

    def matches(self, job: PastJob) -> bool:
        """Return whether all conditions hold but those about the time."""
        wanted = ((self.id, job.id), (self.task, job.task), (self.group, job.group), (self.outcome, job.outcome))
        if any(value is not None and value != found for value, found in wanted):
            return False
        if not set(self._tags).issubset(job.tags):
            return False
        return self.error is None or self.error in (job.error, job.error.rpartition(".")[2])


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


class HistoryPage(Struct, frozen=True):
    """Ends of jobs, the newest first."""

    jobs: list[PastJob]
    cursor: str | None
    """The argument of the next search, for older jobs; None = these are all."""


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
) -> Operation[HistoryPage]:
    """Return the last ends of jobs that match, at most `limit`, the newest first.

    `stores`: those of the queue and its shards. `cursor`: of the page before. `most`: how many jobs of each store are
    examined; a page may have fewer jobs for that, or none, and a cursor all the same.

    Raises:
        ConfigError: a time, the cursor or the limit is not valid.
    """
    if not isinstance(matching, HistoryFilter):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise check.invalid("matching", matching, "a HistoryFilter, such as HistoryFilter(task='mail')")
    check.count("limit", limit)
    now = yield from send(clock(keys.root(stores[-1].queue)))
    since = -math.inf if matching.since is None else past_moment("since", matching.since, now)
    until = math.inf if matching.until is None else past_moment("until", matching.until, now)
    starts = None if cursor is None else _read_cursor(cursor)
    parts, left = list[list[_Found]](), dict[str, _Position]()
    for at, store in enumerate(stores):
        start = None if starts is None else starts.get(store.queue)
        if starts is not None and start is None:  # it has no more
            parts.append([])
            continue
        read = _Reading(store, at, start)
        yield from read.search(matching, limit, since, until, most)
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
    """The search in the history of one queue, from a position on; None = from its end."""

    def __init__(self, store: Store, at: int, start: _Position | None) -> None:
        self._store, self._at = store, at
        self._before = "+" if start is None else str(start.number)
        self._skip = 0 if start is None else start.jobs
        """Jobs of the first entry that an earlier page has passed."""
        self.position = start or _Position(-1, 0)
        self.found = list[_Found]()
        self.more = True

    def search(self, matching: HistoryFilter, limit: int, since: float, until: float, most: float) -> Operation[None]:
        examined = 0
        while self.more and len(self.found) < limit and examined < most:
            part = yield from send(self._store.ended(self._before))
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
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise ConfigError("cursor is not valid: send the one that the page before has, as it is") from None
    return {queue: _Position(*position) for queue, position in found.items()}


def counts(
    stores: Sequence[Store], since: Past = WEEK, until: Past | None = None, task: str | None = None
) -> Operation[list[TaskCounts]]:
    """Return how many jobs ended within a span of whole hours, by task. `stores`: as above.

    Raises:
        ConfigError: a time or the task is not valid.
    """
    if task is not None:
        check.text("task", task)
    now = yield from send(clock(keys.root(stores[-1].queue)))
    first, last = past_moment("since", since, now), now if until is None else past_moment("until", until, now)
    found = dict[str, list[EndCount]]()
    hours = range(max(int(first // HOUR), int(now // HOUR) - _HOURS), int(min(last, now) // HOUR) + 1)
    calls = [store.hour(hour) for store in stores for hour in hours]
    for at in range(0, len(calls), _AT_ONCE):
        for counted in (yield from send_many(calls[at : at + _AT_ONCE])):
            for count in counted:
                if task is None or count.task == task:
                    found.setdefault(count.task, []).append(count)
    return [counts_of(stores[-1].queue, name, counted) for name, counted in sorted(found.items())]


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
