"""Work that several jobs wait for, such as the opening of a connection: a task that is not part of any one job."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def share(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task for all jobs: the log must not name the one that is the first to need it."""
    task = asyncio.get_running_loop().create_task(work, context=Context())
    task.add_done_callback(has_failed)
    return task


def has_failed(task: asyncio.Task[Any]) -> bool:
    """Return whether a task has ended without a result. Its error counts as seen, so that asyncio does not log it."""
    return task.done() and (task.cancelled() or task.exception() is not None)
