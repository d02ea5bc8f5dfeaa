"""The future planned times of a recurrence, computed from its score and record. Pure.

It also checks whether the retries of an occurrence fit between it and the next one.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from itertools import dropwhile, islice
from typing import Final

from msgspec import Struct

from evsched.errors import ConfigError
from evsched.jobs.record import number, whole
from evsched.jobs.retry import Retry, policy_of, task_of
from evsched.recurrence.calendars import just_before
from evsched.recurrence.cron import Rule
from evsched.recurrence.recurrence import Recurrence

_BEFORE: Final = 0.001
"""Seconds by which a moment lies before another, also for a clock that has microseconds."""


class Standing(Struct, frozen=True):
    """How far a recurrence has got."""

    next: float
    """The score: the planned time that is put on the schedule next, in Unix seconds; 0 = from now on, inf = none."""
    made: int = 0
    """How many occurrences were scheduled so far, including those in `ahead`."""
    ahead: tuple[float, ...] = ()
    """The planned times of the occurrences that were put on the schedule last and have not ended."""
    paused: bool = False
    until: float | None = None
    """When its pause ends, in Unix seconds; None = it is not paused, or for good."""
    under_way: bool = False
    """Is an occurrence on the schedule, waiting or running from whose end the next one is counted? Then the score is
    only the time at which a dispatcher looks whether it still is."""


def counted_from(fields: Mapping[str, bytes]) -> list[str]:
    """Return the ids of the occurrences, two at most, from whose end the next one is counted if they have not ended."""
    if fields.get("after") != b"end":
        return []
    ids = {*fields.get("ahead", b"").split()[-1:], fields.get("current", b"")} - {fields.get("last_id"), b""}
    return sorted(id_.decode(errors="backslashreplace") for id_ in ids)


def put_ahead(fields: Mapping[str, bytes]) -> list[str]:
    """Return the ids of the occurrences that were put on the schedule last and have not ended."""
    ids = (id_ for id_ in fields.get("ahead", b"").split() if id_ != fields.get("last_id"))
    return [id_.decode(errors="backslashreplace") for id_ in ids]


def read_standing(next_: float, fields: Mapping[str, bytes], under_way: bool, gone: Container[str] = ()) -> Standing:
    """Read a recurrence's score and record. Malformed values count as absent. `under_way`: see `Standing`.

    `gone`: which of `put_ahead` have no job any more.

    Read the score first: if a dispatcher moves the recurrence on in between, the record has what the score had.
    """
    planned = (number(id_.rpartition("@")[2].encode()) for id_ in put_ahead(fields) if id_ not in gone)
    ahead = tuple(sorted(moment for moment in planned if moment is not None))
    paused = "paused" in fields
    until = number(fields.get("paused_until")) if paused else None
    return Standing(next_, whole(fields.get("made")) or 0, ahead, paused, until, under_way)


def next_time(standing: Standing, now: float) -> float | None:
    """Return the next planned time: of the first occurrence that is on the schedule ahead of it, else the score.

    None: the recurrence is about to begin, is paused or is over, or counts from the end of the
    occurrence that is under way. A time in the past is overdue.
    """
    first = min((planned for planned in standing.ahead if planned > now), default=None)
    if first is None and not standing.under_way:
        first = standing.next
    return first if first is not None and 0 < first < math.inf else None


class Ahead(Struct, frozen=True):
    """A planned time to come, and its fate if every run starts when it is due, and takes no time."""

    planned: float
    due: float | None
    """None: its window does not open within two years."""
    runs: bool
    """False: it is skipped, because it waits for the same opening of its window as one that was planned before it."""


def runs_ahead(recurrence: Recurrence, standing: Standing, now: float, since: float) -> Iterator[Ahead]:
    """Yield the planned times to come that are due at `since` or later, in their order.

    Planned times outside the window are all due at the next opening. The first of them runs; with overlap `allow`, all
    do. Most of the times that do not run are left out.
    """
    declared, since = recurrence.declared, max(since, now)
    taken = set[float]()
    times = times_ahead(recurrence, standing, now, _reach(recurrence, since))
    while (planned := next(times, None)) is not None:
        one = recurrence.occurrence(planned)
        if one is None or one.due < since:
            yield Ahead(planned, None if one is None else one.due, False)
            continue
        yield Ahead(planned, one.due, declared.overlap == "allow" or one.due not in taken)
        taken.add(one.due)
        # All those planned until then are due at this opening too, and are skipped.
        if declared.overlap != "allow" and declared.after is None and (until := one.due - declared.spread) > planned:
            times = _pass_over(times, recurrence, standing, now, until)


def _pass_over(
    times: Iterator[float], recurrence: Recurrence, standing: Standing, now: float, until: float
) -> Iterator[float]:
    """Return the planned times that are not before a moment. Unless they count, one step passes over those before."""
    if recurrence.declared.count is None:
        return times_ahead(recurrence, standing, now, just_before(until))
    return dropwhile(lambda planned: planned < until, times)


def _reach(recurrence: Recurrence, since: float) -> float:
    """Return a moment before all planned times that can be due at `since` or later."""
    before = since - _BEFORE
    if recurrence.window is not None:
        before = recurrence.window.closed_since(before)
    return just_before(before - recurrence.declared.spread)


def times_ahead(recurrence: Recurrence, standing: Standing, now: float, after: float) -> Iterator[float]:
    """Yield the planned times after a moment for which there is an occurrence on the schedule or there will be one.

    There are as many as its `count` leaves. Times that passed before the recurrence was made, or while no
    dispatcher ran, are left out.
    """
    if standing.until is not None:
        resumes = just_before(standing.until)
        now, after = max(now, resumes), max(after, resumes)
    if recurrence.declared.after is not None:
        yield from (planned for planned in _counted_from_ends(recurrence, standing, now) if planned > after)
        return
    yield from (planned for planned in standing.ahead if planned > after)
    count = recurrence.declared.count
    begin = just_before(standing.next) if 0 < standing.next < math.inf else now
    if count is None:
        yield from recurrence.walk(max(begin, after))
        return
    if standing.next == math.inf and not standing.paused:
        return  # all its occurrences have been scheduled
    for planned in islice(recurrence.walk(begin), max(0, count - standing.made)):
        if planned > after:
            yield planned


def _counted_from_ends(recurrence: Recurrence, standing: Standing, now: float) -> Iterator[float]:
    """Yield the planned times for runs that take no time, because their real ends are not known."""
    yield from standing.ahead
    if standing.next == math.inf and not standing.paused:
        return
    last = next_time(standing, now)
    if standing.ahead and (one := recurrence.occurrence(standing.ahead[-1])) is not None and one.due > now:
        last = one.due
    elif last is None:
        last = now  # the run that is under way ends now, or it begins now
    else:
        last -= recurrence.rule.every
    count = recurrence.declared.count
    left = math.inf if count is None else count - standing.made
    while left > 0 and (planned := next(recurrence.walk(last), None)) is not None:
        yield planned
        one, left = recurrence.occurrence(planned), left - 1
        if one is None:
            return  # it never ends
        last = one.due


def check_by_policies(recurrence: Recurrence, policies: Mapping[str, str]) -> None:
    """Do as `check_interval`, by the policies of tasks as they are stored. A task that is not known is not checked.

    Raises:
        ConfigError: the message has both durations.
    """
    declared = recurrence.declared
    stored = policies.get(task_of(declared.payload) or "")
    policy = None if stored is None else policy_of(stored, declared.payload)
    if policy is not None:
        check_interval(recurrence, policy)


def check_interval(recurrence: Recurrence, retry: Retry) -> None:
    """Refuse a recurrence that can fall due again before the retries of one occurrence have ended.

    It may if its occurrences may overlap, or if the next one is counted from the end of the one before.

    Raises:
        ConfigError: the message has both durations.
    """
    declared, worst = recurrence.declared, retry.worst_case()
    # One attempt has no retries.
    if declared.overlap == "allow" or declared.after is not None or retry.attempts == 1:
        return
    if (shortest := _shortest(recurrence.rule)) < worst:
        raise ConfigError(
            f"recurrence {declared.name}: it recurs after {shortest:g} s, and the retries of one occurrence may take "
            f"{worst:g} s: give it fewer or quicker attempts, a longer interval, or overlap='allow'"
        )


_shortest = lru_cache(4096)(Rule.shortest)
"""A rule takes up to 50 ms, and many recurrences have the same."""
