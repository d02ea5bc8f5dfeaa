"""Operations that make or read a recurrence, with what the queue has: calendars, windows, and its task's retries."""

from __future__ import annotations

from typing import Literal, cast

from msgspec.structs import replace

from evsched import keys
from evsched.client.gate import check_pause
from evsched.client.operations import Operation, send
from evsched.errors import ConfigError
from evsched.jobs.retry import task_of
from evsched.recurrence.calendars import names_of
from evsched.recurrence.check_declared import check_declared
from evsched.recurrence.intervals import check_by_policies
from evsched.recurrence.recurrence import Declared, Recurrence, read_declared, read_recurrence, window_names
from evsched.recurrence.windows import read_window
from evsched.store.server import clock
from evsched.store.store import Store


def with_stored(store: Store, declared: Declared) -> Operation[Recurrence]:
    """Parse a recurrence, with the calendars and windows that are stored in its queue.

    Dispatchers leave a window that has a name to the workers, so that a change of it applies to jobs that wait. For
    a look ahead, it is the recurrence's window as it is now.

    Raises:
        ConfigError: a part of it is not valid, or it names a calendar or a window that does not exist.
    """
    names, windows = names_of(declared.skip), window_names(declared.window, declared.payload)
    stored = (yield from send(store.some_windows(windows))) if windows else {}
    calendars = (yield from send(store.calendars(names))) if names else {}
    found = read_recurrence(declared, calendars, stored)
    if declared.window in stored:
        found = replace(found, window=read_window(stored[declared.window]))
    return found


def declare(store: Store, declared: Declared) -> Operation[Literal["made", "changed", "same"]]:
    """Create a recurrence, or change the one of that name.

    Its calendars and windows must exist. What the retries of its task may take is known if a worker of the queue has
    written it.

    Raises:
        ConfigError: a field is not valid, or it is too frequent for the retries of its task.
    """
    check_declared(declared)
    recurrence, task = (yield from with_stored(store, declared)), task_of(declared.payload)
    if task is not None:
        check_by_policies(recurrence, (yield from send(store.policies([task]))))
    done = yield from send(store.declare(declared))
    return cast(Literal["made", "changed", "same"], done)  # "older" concerns what an app declares


def add(store: Store, declared: Declared) -> Operation[tuple[Literal["made", "changed", "same"], bool]]:
    """Create or change a recurrence that a person asks for; return which, and whether it is paused.

    Raises:
        ConfigError: as `declare`; or no time of its rule is ahead.
    """
    recurrence = yield from with_stored(store, declared)
    paused = "paused" in (yield from send(store.recurrence(declared.name)))
    if next(recurrence.walk((yield from send(clock(keys.root(store.queue))))), None) is None:
        raise ConfigError(f"recurrence {declared.name} would never recur: no time of its rule is ahead, until its end")
    return (yield from declare(store, declared)), paused


def pause(store: Store, name: str, until: float | None, why: str) -> Operation[None]:
    """Pause a recurrence, until a moment or until it is resumed.

    Raises:
        ConfigError: the moment has passed, or the reason is too long.
        JobMissing: there is no recurrence of that name.
    """
    yield from check_pause(store, until, why)
    yield from send(store.hold(name, True, until=until, why=why))


def read_stored(store: Store, name: str, fields: dict[str, bytes]) -> Operation[Recurrence]:
    """Parse a record, as `with_stored`."""
    return (yield from with_stored(store, read_declared(name, fields)))
