"""Runs of tasks in a worker: the function, between Django's signals.

Connections to databases are checked before and after it, as around a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any, Literal

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from evsched.django.backend import Backend, result_id_of
from evsched.django.compat import (
    AnyTask,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from evsched.django.django_task import moment_of, run_options
from evsched.django.task_results import as_enqueued, new_result, read_note
from evsched.jobs.current_job import CurrentJob, current_job
from evsched.jobs.retry import Retry, kinds_of
from evsched.jobs.steering import GiveUp, RetryLater, Snooze


class ResultNotJson(GiveUp, TypeError):
    """The value that a task returned is not JSON. It has done its work, so it is not run again."""


def handler_of(task: AnyTask, backend: Backend) -> tuple[Callable[..., Any], Literal["loop", "thread"]]:
    """Return what runs a task, and where. `backend`: the one of its jobs that name none."""
    return (_async(task, backend), "loop") if iscoroutinefunction(task.func) else (_plain(task, backend), "thread")


def _plain(task: AnyTask, backend: Backend) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            job = current_job()
            result = _first_run(task, backend, job, args, kwargs) or backend.get_result(_id_of(job))
            sender = type(task_backends[result.backend])
            task_started.send_robust(sender=sender, task_result=result)
            try:
                value = _as_json(task.call(*_with_context(task, result, args), **kwargs))
            except BaseException as error:
                if _is_last(error, job, task, backend):
                    _failed(result, error)
                    task_finished.send_robust(sender=sender, task_result=result)
                raise
            if not job.cancelled:
                _succeeded(result, value)
                task_finished.send_robust(sender=sender, task_result=result)
            return value
        finally:
            close_old_connections()

    run.__module__ = task.func.__module__  # tracebacks are shown from there
    return run


def _async(task: AnyTask, backend: Backend) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> Any:
        # A thread of its own for the database, as a request under ASGI has: all runs would wait for one thread else.
        async with ThreadSensitiveContext():
            try:
                return await call(*args, **kwargs)
            finally:
                await asyncio.shield(sync_to_async(connections.close_all)())  # nothing uses that thread again

    async def call(*args: Any, **kwargs: Any) -> Any:
        job = current_job()
        result = _first_run(task, backend, job, args, kwargs) or await backend.aget_result(_id_of(job))
        sender = type(task_backends[result.backend])
        await task_started.asend_robust(sender=sender, task_result=result)
        try:
            value = _as_json(await task.acall(*_with_context(task, result, args), **kwargs))
        except BaseException as error:
            if _is_last(error, job, task, backend):
                _failed(result, error)
                await task_finished.asend_robust(sender=sender, task_result=result)
            raise
        if not job.cancelled:
            _succeeded(result, value)
            await task_finished.asend_robust(sender=sender, task_result=result)
        return value

    run.__module__ = task.func.__module__
    return run


def _as_json(value: Any) -> Any:
    try:
        return normalize_json(value)
    except (TypeError, ValueError) as error:
        raise ResultNotJson(f"the result is not JSON: {error}") from None


def _with_context(task: AnyTask, result: TaskResult[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (TaskContext(task_result=result), *args) if task.takes_context else args


def _id_of(job: CurrentJob) -> str:
    return result_id_of(job.id, job.queue)


def _first_run(
    task: AnyTask, backend: Backend, job: CurrentJob, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TaskResult[Any] | None:
    """Return the result of a job that runs for the first time; None if Redis has errors and workers of earlier runs.

    So most runs ask Redis nothing.
    """
    if job.attempt > 1 or not job.worker:
        return None
    note = read_note(job.meta)
    result = new_result(
        as_enqueued(task, job.queue, note, backend.alias),
        _id_of(job),
        args,
        kwargs,
        enqueued=note.get("at"),
        state=TaskResultStatus.RUNNING,
        worker_ids=[job.worker],
    )
    now = moment_of(time.time())
    for name in ("started_at", "last_attempted_at"):
        object.__setattr__(result, name, now)
    return result


def _is_last(error: BaseException, job: CurrentJob, task: AnyTask, backend: Backend) -> bool:
    """Return whether the job has failed for good with this error, as the worker will decide."""
    if isinstance(error, Snooze) or job.stopped == "lost":
        return False
    policy: Retry = run_options(task, backend.options)["retry"]
    attempts = read_note(job.meta).get("attempts", policy.attempts)
    if isinstance(error, GiveUp) or job.stopped == "cancelled" or job.attempt >= attempts:
        return True
    return not isinstance(error, RetryLater) and bool(policy.refusal(kinds_of(error)))


def _failed(result: TaskResult[Any], error: BaseException) -> None:
    kind = type(error)
    trace = "".join(format_exception(error))
    result.errors.append(TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=trace))
    _ended(result, TaskResultStatus.FAILED)


def _succeeded(result: TaskResult[Any], value: Any) -> None:
    object.__setattr__(result, "_return_value", value)
    _ended(result, TaskResultStatus.SUCCESSFUL)


def _ended(result: TaskResult[Any], state: TaskResultStatus) -> None:
    object.__setattr__(result, "finished_at", moment_of(time.time()))
    object.__setattr__(result, "status", state)
