"""A job's record as Django's `TaskResult`, with the errors and the workers of its attempts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, cast

from django.apps import apps
from django.core.exceptions import SuspiciousOperation
from django.utils.module_loading import import_string

from evsched.django.compat import DEFAULT_TASK_PRIORITY, AnyTask, Task, TaskError, TaskResult, TaskResultStatus
from evsched.django.django_task import NOTE, moment_of
from evsched.jobs.record import JobRun, JobStatus

_STATES: Final = {"processing": TaskResultStatus.RUNNING, "dead": TaskResultStatus.FAILED}

_FAILURES: Final = ("failed", "lost", "dead", "cancelled", "expired")
"""The outcomes of runs that count as errors. One that was snoozed, or handed back, goes on."""

_CLASSES: Final = {"lost": "evsched.django.WorkerDied", "cancelled": "asyncio.exceptions.CancelledError"}
"""The exceptions that stand for the ends of runs whose handlers raised none."""

_OTHERS: Final = "evsched.errors.JobDead"


def find_task(path: str) -> AnyTask:
    """Return the task at a path, which the producer of the job has chosen.

    Nothing is imported but modules of the installed apps.

    Raises:
        ImportError: there is nothing; or its module was not imported before, and is in no installed app.
        SuspiciousOperation: that is no task.
    """
    module = path.rpartition(".")[0]
    if module not in sys.modules and not any(f"{module}.".startswith(f"{app.name}.") for app in apps.get_app_configs()):
        raise ImportError(f"{path!r} is in no installed app: import its module in the module `tasks` of one")
    found = import_string(path)
    if not isinstance(found, Task):
        raise SuspiciousOperation(f"{path!r} is not a task: jobs run functions under @task only")
    return cast("AnyTask", found)


def read_result(status: JobStatus, result_id: str, alias: str) -> TaskResult[Any]:
    """Return the result of a job. `alias`: of the backend, if the job was not enqueued by one.

    Raises:
        ImportError, SuspiciousOperation: as `find_task`.
    """
    payload = cast("dict[str, Any]", status.payload) if isinstance(status.payload, dict) else {}
    sealed = [payload["sealed"]] if "sealed" in payload else []  # without the codec: the text that says so
    note = read_note(payload.get("meta"))
    task = as_enqueued(find_task(status.task or ""), status.queue, note, alias)
    state = _state(status)
    result = new_result(
        task,
        result_id,
        sealed + (payload.get("args") or []),
        payload.get("kwargs") or {},
        enqueued=note.get("at", status.created),
        state=state,
        errors=_errors(status, failed=state == TaskResultStatus.FAILED),
        worker_ids=_workers(status),
    )
    started = [run.started for run in status.runs if run.started is not None]
    started += [status.started] if status.started is not None else []
    if started:
        _set(result, "started_at", moment_of(min(started)))
        _set(result, "last_attempted_at", moment_of(max(started)))
    if result.is_finished and status.finished is not None:
        _set(result, "finished_at", moment_of(status.finished))
    if state == TaskResultStatus.SUCCESSFUL:
        _set(result, "_return_value", status.result)
    return result


def new_result(
    task: AnyTask,
    result_id: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    enqueued: float | None,
    state: TaskResultStatus = TaskResultStatus.READY,
    errors: list[TaskError] | None = None,
    worker_ids: list[str] | None = None,
) -> TaskResult[Any]:
    """Return a result, most often of a job that has just been enqueued."""
    return TaskResult(
        task=task,
        id=result_id,
        status=state,
        enqueued_at=None if enqueued is None else moment_of(enqueued),
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=list(args),
        kwargs=kwargs,
        backend=task.backend,
        errors=errors or [],
        worker_ids=worker_ids or [],
    )


def read_note(meta: Any) -> dict[str, Any]:
    """Return what the backend has noted in a job's `meta`; nothing if another client enqueued it."""
    note: Any = cast("dict[str, Any]", meta).get(NOTE) if isinstance(meta, dict) else None
    return cast("dict[str, Any]", note) if isinstance(note, dict) else {}


def as_enqueued(task: AnyTask, queue: str, note: dict[str, Any], alias: str) -> AnyTask:
    """Return a task with the options with which its job was enqueued."""
    wanted: dict[str, Any] = {
        "queue_name": queue,
        "backend": note.get("backend", alias),
        "priority": note.get("priority", DEFAULT_TASK_PRIORITY),
        "run_after": None if "run_after" not in note else moment_of(note["run_after"]),
    }
    changes = {name: value for name, value in wanted.items() if value != getattr(task, name)}
    return task.using(**changes) if changes else task


def _set(result: TaskResult[Any], name: str, value: Any) -> None:
    object.__setattr__(result, name, value)  # frozen; Django's own backends do the same


def _state(status: JobStatus) -> TaskResultStatus:
    if status.place == "finished":
        return TaskResultStatus.SUCCESSFUL if status.outcome == "done" else TaskResultStatus.FAILED
    return _STATES.get(status.place, TaskResultStatus.READY)


def _workers(status: JobStatus) -> list[str]:
    """Return the worker of each attempt; "" for one that the record does not have: it keeps the first and last ten.

    A run that was handed back, or snoozed, has the number of the next one, which takes its place.
    """
    workers = {run.attempt: run.worker for run in status.runs}
    if status.place == "processing" and status.worker:
        workers[status.attempt] = status.worker
    return [workers.get(attempt, "") for attempt in range(1, max(workers, default=0) + 1)]


def _errors(status: JobStatus, *, failed: bool) -> list[TaskError]:
    """Return an error for each attempt that failed, and for a job that failed without any."""
    attempts = {run.attempt: run for run in status.runs}
    if status.place == "processing":
        attempts.pop(status.attempt, None)
    runs = [run for run in attempts.values() if run.outcome in _FAILURES]
    found = [_error(run, status if run is runs[-1] else None) for run in runs]
    if failed and not found:
        found = [TaskError(exception_class_path=_OTHERS, traceback=status.reason or status.outcome or "")]
    return found


def _error(run: JobRun, last: JobStatus | None) -> TaskError:
    """Return the error of a run. A record has one traceback, that of the `last` run: of others, line and reason."""
    name = run.error or _CLASSES.get(run.outcome) or ("builtins.TimeoutError" if "timeout" in run.reason else _OTHERS)
    path = name if "." in name else f"builtins.{name}"
    where = f"{run.location}: " if run.location else ""
    trace = last.traceback if last is not None and last.traceback else f"{where}{run.reason}"
    return TaskError(exception_class_path=path, traceback=trace)
