"""Operations on the calendars and the named windows of a queue, to which recurrences and jobs refer by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import Any, Final

from evsched import keys
from evsched.client.gate import note_setting
from evsched.client.operations import Operation, send
from evsched.client.recurrence_operations import kept
from evsched.client.spread import change
from evsched.errors import ConfigError, InUse, JobMissing, StoreError
from evsched.recurrence.calendars import CALENDAR_NAME, names_of, parse_calendar
from evsched.recurrence.recurrence import window_names
from evsched.recurrence.windows import WINDOW_NAME, parse_window
from evsched.store.server import clock
from evsched.store.store import Store

_SHOWN: Final = 5
"""Recurrences that a message names."""


def calendar_text(name: str, days: str | Iterable[date]) -> str:
    """Return a calendar as it is stored.

    Raises:
        ConfigError: the name or the days are not valid, or there is no day.
    """
    if not CALENDAR_NAME.fullmatch(name):
        raise ConfigError(f"calendar name {name!r}: 1 to 100 of A-Z a-z 0-9 . _ -")
    if not isinstance(days, str):
        listed: list[Any] = list(days) if isinstance(days, Iterable) else [days]  # pyright: ignore[reportUnnecessaryIsInstance] - a program may pass anything
        if wrong := [day for day in listed if not isinstance(day, date)]:
            raise ConfigError(
                f"calendar {name}: {wrong[0]!r:.40} is not a date: write date(2030, 1, 1), or all days as one text: "
                '"2030-01-01 2030-12-24..2030-12-26"'
            )
        days = " ".join(f"{day:%Y-%m-%d}" for day in listed)
    if not parse_calendar(days):
        raise ConfigError(f"calendar {name} has no days: to delete it, remove it")
    return days


def set_calendar(store: Store, name: str, days: str | Iterable[date]) -> Operation[int]:
    """Create or change a calendar; return how many recurrences were planned again.

    `days`: dates, or a text of dates and ranges such as "2026-01-01 2026-04-03..2026-04-06".

    Raises:
        ConfigError: the name or the days are not valid, or there is no day.
    """
    yield from send(store.set_calendar(name, calendar_text(name, days)))
    yield from note_setting(store)
    planned = 0
    for recurrence in (yield from _users_of_calendar(store, name)):
        planned += yield from send(store.replan(recurrence))
    return planned


def remove_calendar(store: Store, name: str) -> Operation[None]:
    """Delete a calendar.

    Raises:
        InUse: a recurrence refers to it.
        JobMissing: there is no calendar of that name.
    """
    _check_unused("calendar", name, (yield from _users_of_calendar(store, name)))
    if not (yield from send(store.set_calendar(name, None))):
        raise JobMissing(f"queue {store.queue} has no calendar {name}")
    yield from note_setting(store)


def _users_of_calendar(store: Store, name: str) -> Operation[list[str]]:
    found = yield from kept(store)
    return [recurrence for recurrence, _, fields in found if name in names_of(fields.get("skip"))]


def set_window(stores: Sequence[Store], name: str, window: str) -> Operation[int]:
    """Create or change a named window; return how many jobs that waited for it are checked again.

    `stores`: those of the queue's shards and, last, of the queue itself, which has its windows.

    Raises:
        ConfigError: the name or the window is not valid, or it does not open within two years.
        ShardsDown: the primary of a shard does not answer: nothing was done, or only a part.
    """
    if not WINDOW_NAME.fullmatch(name):
        raise ConfigError(f"window name {name!r}: 1 to 100 of A-Z a-z 0-9 . _ -")
    parsed = parse_window(window)

    def ready(store: Store) -> Operation[None]:
        if parsed.next_open((yield from send(clock(keys.root(store.queue))))) is None:
            raise ConfigError(f"window {window!r} does not open within two years: its exceptions cover all its spans")

    return (yield from _change_window(stores, name, window, ready))


def remove_window(stores: Sequence[Store], name: str) -> Operation[int]:
    """Delete a named window; return how many jobs that waited for it go to dead. `stores`: as above.

    Raises:
        InUse: a recurrence refers to it.
        JobMissing: there is no window of that name.
        ShardsDown: as above.
    """

    def ready(store: Store) -> Operation[None]:
        _check_unused("window", name, [user for user, _ in (yield from _users_of_window(store, name))])

    return (yield from _change_window(stores, name, None, ready))


def _users_of_window(store: Store, name: str) -> Operation[list[tuple[str, dict[str, bytes]]]]:
    """Return the recurrences that name a window, with their records."""
    return [
        (recurrence, fields)
        for recurrence, _, fields in (yield from kept(store))
        if name in window_names(fields.get("window"), fields.get("payload", b""))
    ]


def _change_window(
    stores: Sequence[Store], name: str, window: str | None, check: Callable[[Store], Operation[None]]
) -> Operation[int]:
    """Write or delete a window, and schedule the jobs that wait for it again, so that this applies; return how many.

    `check`: a check of the queue itself, before anything is written.

    Raises:
        JobMissing: it does not exist.
        ShardsDown: as `change`.
    """
    keeper = stores[-1]

    def ready() -> Operation[None]:
        for store in stores:  # a refusal to read the notes of jobs that wait would also come after the first write
            yield from send(store.count_deferred(name))
        yield from check(keeper)

    def change_in(store: Store) -> Operation[int]:
        begun, total, left = False, 0, 1
        try:
            if store is keeper:
                if not (yield from send(store.set_window(name, window))) and window is None:
                    raise JobMissing(f"queue {store.queue} has no window {name}")
                begun = True
                yield from note_setting(store)
            while left:
                back, left = yield from send(store.reopen(name))
                begun, total = True, total + back
            for recurrence, fields in (yield from _users_of_window(store, name)) if store is keeper else ():
                if "reason" in fields:  # it was stopped, because there was no such window
                    yield from send(store.replan(recurrence))
        except StoreError as error:
            error.unsure = error.unsure or begun
            raise
        return total

    changed = yield from change([keeper, *stores[:-1]], change_in, f"given the change of window {name}", ready())
    return sum(changed)


def _check_unused(what: str, name: str, users: Sequence[str]) -> None:
    if users:
        raise InUse(f"{what} {name} is in use by {', '.join(users[:_SHOWN])}: change them first")
