"""The tasks of the site, and things beside them that are no tasks."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
from asgiref.sync import sync_to_async
from django.core.mail import send_mail
from django.db import connections

from evsched import GiveUp, Retry, Unique

if TYPE_CHECKING or django.VERSION < (6, 0):
    from django_tasks import TaskContext, task
else:
    from django.tasks import TaskContext, task

AT_ONCE = Retry(attempts=3, interval=0.0, jitter=0.0)
ONCE = Retry(attempts=1)


class PollClosed(Exception):
    pass


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def add_slowly(a: int, b: int) -> int:
    return a + b


@task
def echo(value: Any, *more: Any, **named: Any) -> list[Any]:
    return [value, list(more), named]


@task
def typed(at: datetime) -> str:
    """Return the type of what the annotation calls a datetime."""
    return type(at).__name__


@task(retry=ONCE)
def fail() -> None:
    raise PollClosed("the poll is closed")


@task(retry=ONCE)
async def fail_slowly() -> None:
    raise ValueError("the poll is closed")


@task
def unserialisable() -> object:
    return object()


@task(takes_context=True, retry=AT_ONCE)
def flaky(context: Any, good: int) -> list[Any]:
    """Fail until an attempt; return what the context of that one says."""
    if context.attempt < good:
        raise PollClosed(f"attempt {context.attempt}")
    result = context.task_result
    return [context.attempt, result.status, len(result.errors), len(result.worker_ids), result.id]


@task(takes_context=True)
async def context_of(context: TaskContext) -> list[Any]:
    return [context.attempt, context.task_result.id, context.task_result.args]


@task(retry=Retry(give_up_on=(PollClosed,)))
def closed() -> None:
    raise PollClosed("no use to try again")


@task
def surrender() -> None:
    raise GiveUp("no use")


@task(redact=("card",), group="payments", timeout=20, retention=60, unique=Unique())
def pay(amount: int, card: str) -> int:
    return amount


@task(queue_name="mails")
def mail(to: str) -> None:
    send_mail("Poll", "Please vote.", "polls@example.com", [to])


@task
def die_once_and_mail(to: str, mark: str) -> None:
    """Kill the worker in the first run, before the mail."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    send_mail("Poll", "Please vote.", "polls@example.com", [to])


used: list[Any] = []
"""The connections that the next two have used."""


@task
def break_connection() -> None:
    _connect()
    connections["default"].errors_occurred = True  # it will be found to be unusable


@task
async def use_connection() -> None:
    await sync_to_async(_connect)()


def _connect() -> None:
    connections["default"].ensure_connection()
    used.append(connections["default"])


def not_a_task() -> None:
    raise AssertionError("it was called")
