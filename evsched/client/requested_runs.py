"""Operations that request runs of a recurrence: one now, or one for each planned time of a span that has passed."""

from __future__ import annotations

from itertools import islice
from typing import Final

from msgspec.structs import astuple

from evsched import keys
from evsched.client.operations import Operation, send
from evsched.client.recurrences import read_stored
from evsched.errors import ConfigError, JobMissing
from evsched.recurrence.calendars import just_before
from evsched.recurrence.recurrence import planned_text, read_payload
from evsched.store.queue import IdempotentRequest
from evsched.store.recurrence_calls import Backfilled
from evsched.store.server import clock
from evsched.store.store import Store

BACKFILL_MOST: Final = 10_000
"""Planned times of one backfill, at most: about 2 MB of Redis's memory."""

_SLICE: Final = 250
"""Planned times that one call requests: about 1 ms of Redis's time."""


_GIVEN_MOST: Final = 10_000
"""Moments that are remembered. So many runs are not requested within one microsecond."""


def trigger(store: Store, name: str) -> Operation[tuple[str, bool]]:
    """Run a recurrence once now; return the id of the run, and whether it is due now or waits for another to end.

    Raises:
        ConfigError: no worker could run its payload.
        JobMissing: there is no recurrence of that name, or it is stopped.
    """
    planned = yield from _planned_now(store, name)
    begun = yield from send(store.trigger(name, planned))
    return f"{name}@{planned}", begun


def trigger_once(store: Store, name: str, request: IdempotentRequest) -> Operation[tuple[str, str, bool]]:
    """As `trigger`, unless there was a request of the same key in the last 24 hours; see `Store.trigger_once`."""
    planned = yield from _planned_now(store, name)
    return (yield from send(store.trigger_once(request, name, planned)))


def _planned_now(store: Store, name: str) -> Operation[str]:
    """Return the planned time of a run that is requested now."""
    if fields := (yield from send(store.recurrence(name))):
        read_payload(name, fields)
    now = yield from send(clock(keys.root(store.queue)))
    return f"{_distinct(round(now * 1e6)) / 1e6:.6f}"  # not rounded to milliseconds: two may trigger it in the same one


_given = dict[int, object]()
"""The moments that this process has given to runs, in microseconds."""


def _distinct(moment: int) -> int:
    """Return a moment that no other run that this process requested has: calls of one batch read the same time."""
    mine = object()
    while _given.setdefault(moment, mine) is not mine:  # atomic: any number of threads may ask
        moment += 1
    if len(_given) > _GIVEN_MOST:
        _given.clear()
    return moment


def planned_between(store: Store, name: str, since: float, until: float) -> Operation[list[float]]:
    """Return the planned times of a recurrence from `since` on, before `until` and up to now.

    Raises:
        ConfigError: there are more than 10,000, or its record is not valid.
        JobMissing: there is no recurrence of that name.
    """
    fields = yield from send(store.recurrence(name))
    if not fields:
        raise JobMissing(f"{name} is not a recurrence of queue {store.queue}")
    recurrence = yield from read_stored(store, name, fields)
    if recurrence.declared.after is not None:
        raise ConfigError(f"{name} has no planned times that have passed: it is counted from the end of each run")
    now = yield from send(clock(keys.root(store.queue)))
    found = list[float]()
    for planned in islice(recurrence.walk(just_before(since)), BACKFILL_MOST + 1):
        if planned >= until or planned > now:
            return found
        found.append(planned)
    if len(found) > BACKFILL_MOST:
        raise ConfigError(f"more than {BACKFILL_MOST} planned times of {name}: backfill a shorter span")
    return found


def backfill(store: Store, name: str, since: float, until: float) -> Operation[Backfilled]:
    """Run the planned times of a span that has passed, each once, however often it is asked for; return the counts."""
    times = yield from planned_between(store, name, since, until)
    found = Backfilled()
    for at in range(0, len(times), _SLICE):
        some = yield from send(store.backfill(name, [planned_text(planned) for planned in times[at : at + _SLICE]]))
        counts = [a + b for a, b in zip(astuple(found)[:-1], astuple(some)[:-1], strict=True)]
        found = Backfilled(*counts, waiting=some.waiting)
    return found
