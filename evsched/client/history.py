"""The history of a queue and its shards: search among the jobs that ended, and counts of a span of hours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from heapq import merge
from typing import Final

from msgspec import Struct

from evsched import keys
from evsched.client.operations import Operation, send
from evsched.client.sweep import past_moment
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

    def matches(self, job: PastJob) -> bool:
        """Return whether all conditions hold but those about the time."""
        wanted = ((self.id, job.id), (self.task, job.task), (self.group, job.group), (self.outcome, job.outcome))
        if any(value is not None and value != found for value, found in wanted):
            return False
        if self.tag is not None and self.tag not in job.tags:
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


def search(stores: Sequence[Store], matching: HistoryFilter, limit: int) -> Operation[list[PastJob]]:
    """Return the last ends of jobs that match, at most `limit`, the newest first.

    `stores`: those of the queue and its shards.
    """
    now = yield from send(clock(keys.root(stores[-1].queue)))
    since = None if matching.since is None else past_moment("since", matching.since, now)
    until = None if matching.until is None else past_moment("until", matching.until, now)
    parts = list[list[PastJob]]()
    for store in stores:
        parts.append((yield from _search_one(store, matching, limit, since, until)))
    return list(merge(*parts, key=lambda job: -job.ended))[:limit]


def _search_one(
    store: Store, matching: HistoryFilter, limit: int, since: float | None, until: float | None
) -> Operation[list[PastJob]]:
    found, entry = list[PastJob](), "+"
    while len(found) < limit:
        part = yield from send(store.ended(entry))
        for job in part.jobs:
            in_time = (since is None or job.ended >= since) and (until is None or job.ended <= until)
            if in_time and matching.matches(job):
                found.append(job)
        # Redis's clock may have been set back in between, so an entry may be older than the one behind it.
        over = since is not None and part.jobs and max(job.ended for job in part.jobs) < since
        if part.entry is None or over:
            break
        entry = part.entry
    found.sort(key=lambda job: -job.ended)
    return found[:limit]


def counts(
    stores: Sequence[Store], since: Past = WEEK, until: Past | None = None, task: str | None = None
) -> Operation[list[TaskCounts]]:
    """Return how many jobs ended within a span of whole hours, by task. `stores`: as above."""
    now = yield from send(clock(keys.root(stores[-1].queue)))
    first, last = past_moment("since", since, now), now if until is None else past_moment("until", until, now)
    found = dict[str, list[EndCount]]()
    for store in stores:
        for hour in range(max(int(first // HOUR), int(now // HOUR) - _HOURS), int(min(last, now) // HOUR) + 1):
            for count in (yield from send(store.hour(hour))):
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
