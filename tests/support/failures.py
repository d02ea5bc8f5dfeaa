"""Tasks that fail in many ways while they hold an object; `alive` has the objects still referenced."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio.to_thread

from evsched import App, GiveUp, Retry, RetryLater, Snooze

app = App()


class Blob:
    """An object that a handler holds."""


alive = weakref.WeakSet[Blob]()
"""What the handlers of this process have left."""


def hold() -> Blob:
    blob = Blob()
    alive.add(blob)
    return blob


def raises() -> None:
    blob = hold()
    raise ValueError(id(blob))


def gives_up() -> None:
    blob = hold()
    raise GiveUp(str(id(blob)))


def asks_for_a_retry() -> None:
    blob = hold()
    raise RetryLater(1.0, str(id(blob)))


def snoozes() -> None:
    blob = hold()
    raise Snooze(1.0, str(id(blob)))


def exits() -> None:
    blob = hold()
    raise SystemExit(id(blob))


def ends_a_generator() -> None:
    blob = hold()
    raise GeneratorExit(id(blob))


def ends_an_iteration() -> None:
    blob = hold()
    raise StopIteration(id(blob))


def keeps_its_error() -> None:
    blob = hold()
    kept = list[Exception]()
    try:
        raise ValueError(id(blob))
    except ValueError as error:
        kept.append(error)
    raise RuntimeError(len(kept)) from kept[0]


def keeps_a_group() -> None:
    blob = hold()
    kept = list[Exception]()
    try:
        raises()
    except ValueError as error:
        kept.append(error)
    group = ExceptionGroup(f"{id(blob)}", kept)
    raise group


PLAIN: list[Callable[[], None]] = [
    raises,
    gives_up,
    asks_for_a_retry,
    snoozes,
    exits,
    ends_a_generator,
    ends_an_iteration,
    keeps_its_error,
    keeps_a_group,
]


async def waits_for_a_thread() -> None:
    blob = hold()
    await anyio.to_thread.run_sync(raises)
    raise AssertionError(id(blob))


async def waits_for_tasks() -> None:
    blob = hold()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(waits_for_a_thread())
    raise AssertionError(id(blob))


async def times_out() -> None:
    blob = hold()
    await asyncio.Event().wait()
    raise AssertionError(id(blob))


async def is_cancelled_from_inside() -> None:
    blob = hold()
    raise asyncio.CancelledError(id(blob))


ASYNC: list[Callable[[], Coroutine[Any, Any, None]]] = [
    waits_for_a_thread,
    waits_for_tasks,
    times_out,
    is_cancelled_from_inside,
]


def in_the_loop(handler: Callable[[], None]) -> Callable[[], Coroutine[Any, Any, None]]:
    @functools.wraps(handler)
    async def in_loop() -> None:
        handler()

    return in_loop


def collector_off() -> None:
    """Disable the garbage collector of this process."""
    gc.disable()


def left() -> int:
    """Return how many blobs are alive in this process."""
    return len(alive)


TWICE = Retry(attempts=2)

for plain in PLAIN:
    app.task(name=f"{plain.__name__} loop", retry=TWICE)(in_the_loop(plain))
    app.task(name=f"{plain.__name__} thread", retry=TWICE)(plain)
    app.task(name=f"{plain.__name__} process", retry=TWICE, on="process")(plain)
for one in ASYNC:
    app.task(name=f"{one.__name__} loop", retry=TWICE, timeout=0.01 if one is times_out else 60)(one)
app.task(on="process")(collector_off)
app.task(on="process")(left)


@app.task(name="reports what is left", retry=Retry(attempts=9))
def reports(path: str) -> None:
    """Fail, and write how many blobs the earlier failures of this process have left."""
    collector_off()
    with Path(path).open("a") as file:
        file.write(f"{left()}\n")
    raises()
