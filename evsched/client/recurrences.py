"""Operations that make or read a recurrence, with what the queue knows of it: its calendars, and its task's retries."""

from __future__ import annotations

from typing import Literal, cast

from evsched.client.operations import Operation, send
from evsched.jobs.policies import task_of
from evsched.recurrence.calendars import names_of
from evsched.recurrence.intervals import check_by_policies
from evsched.recurrence.recurrence import Declared, Recurrence, read_declared, read_recurrence
from evsched.store.store import Store


def with_calendars(store: Store, declared: Declared) -> Operation[Recurrence]:
    """Parse a recurrence, with the calendars that are stored in its queue.

    Raises:
        ConfigError: a part of it is not valid, or it names a calendar that does not exist.
    """
    names = names_of(declared.skip)
    calendars = (yield from send(store.calendars(names))) if names else {}
    return read_recurrence(declared, calendars)


def declare(store: Store, declared: Declared) -> Operation[Literal["made", "changed", "same"]]:
    """Create a recurrence, or change the one of that name.

    Its calendars must exist. What the retries of its task may take is known if a worker of the queue has written it.

    Raises:
        ConfigError: it is not valid, or too frequent for the retries of its task.
    """
    recurrence, task = (yield from with_calendars(store, declared)), task_of(declared.payload)
    if task is not None:
        check_by_policies(recurrence, (yield from send(store.policies([task]))))
    done = yield from send(store.declare(declared))
    return cast(Literal["made", "changed", "same"], done)  # "older" concerns what an app declares


def read_stored(store: Store, name: str, fields: dict[str, bytes]) -> Operation[Recurrence]:
    """Parse a record, as `with_calendars`."""
    return (yield from with_calendars(store, read_declared(name, fields)))
