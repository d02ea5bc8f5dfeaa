"""A program: what an app brings to a worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from msgspec import Struct

from evsched.jobs.current_job import CurrentJob
from evsched.jobs.tasks import Tasks
from evsched.recurrence.recurrence import Declared

Middleware = Callable[[CurrentJob, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Gets the job and what runs it (or the next middleware), and returns the result."""

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes what the tasks of a worker share; `current_job().state` is what it yields."""


@asynccontextmanager
async def no_lifespan() -> AsyncGenerator[None]:
    """Share nothing."""
    yield


class Program(Struct, frozen=True):
    """What an app brings to a worker: its tasks, and what stands around each run of them."""

    tasks: Tasks
    middleware: list[Middleware] = []
    lifespan: Lifespan = no_lifespan
    owner: str = ""
    """The app's name: the recurrences that it declares are its own."""
    recurrences: list[tuple[str, Declared]] = []
    """(queue, recurrence)."""
