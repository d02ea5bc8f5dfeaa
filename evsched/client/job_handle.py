"""A job that was enqueued: ask for it, wait for it, move it, stop it; with an event loop and without one."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from evsched.client.client import Client, SyncClient
from evsched.errors import JobMissing
from evsched.jobs.job import JobStatus, Place
from evsched.jobs.tasks import Task

R = TypeVar("R")


def _convert(task: Task, value: Any) -> Any:
    return value if task.returns is None else msgspec.convert(value, task.returns)


class _Ref(Struct, frozen=True):
    """Which job: its id and queue."""

    id: str
    queue: str
    task: Task


class Job(_Ref, Generic[R], frozen=True):
    """A job that was enqueued."""

    _client: Client

    async def status(self) -> JobStatus:
        """Return where the job is, and what its record says.

        Raises:
            JobMissing: it has ended, and its retention too.
        """
        return _there(await self._client.status(self.queue, self.id), self.id)

    async def result(self, timeout: float = 60.0) -> R:
        """Wait for the job's end, at most `timeout` seconds, and return its result.

        Raises:
            JobDead: it was given up or cancelled; the message has the reason.
            JobMissing: it ended longer ago than its retention.
            TimeoutError: it did not end in time.
        """
        return cast(R, _convert(self.task, await self._client.result(self.queue, self.id, timeout)))

    async def cancel(self) -> Place:
        """Take the job away if it waits, or stop it if it runs; return the place where it was.

        "processing": its worker is told at once, and the outcome will be "cancelled". An async handler is cancelled
        where it waits, a process is ended, a thread has to look at `current_job().cancelled`.

        Raises:
            JobMissing: it has ended.
        """
        return await self._client.cancel(self.queue, self.id)

    async def reschedule(self, due: datetime | float | None = None) -> float:
        """Give the job another due if it waits, None = now; return it in Unix seconds.

        Raises:
            JobMissing, JobRunning
        """
        return await self._client.reschedule(self.queue, self.id, due)


class SyncJob(_Ref, Generic[R], frozen=True):
    """A job that was enqueued by a program without an event loop. As `Job`, without await."""

    _client: SyncClient

    def status(self) -> JobStatus:
        """Return where the job is, as `Job.status`."""
        return _there(self._client.status(self.queue, self.id), self.id)

    def result(self, timeout: float = 60.0) -> R:
        """Wait for the job's end, as `Job.result`."""
        return cast(R, _convert(self.task, self._client.result(self.queue, self.id, timeout)))

    def cancel(self) -> Place:
        """Take the job away if it waits, or stop it, as `Job.cancel`."""
        return self._client.cancel(self.queue, self.id)

    def reschedule(self, due: datetime | float | None = None) -> float:
        """Give the job another due if it waits, as `Job.reschedule`."""
        return self._client.reschedule(self.queue, self.id, due)


def _there(status: JobStatus | None, job_id: str) -> JobStatus:
    if status is None:
        raise JobMissing(f"{job_id}: there is no such job, or it has ended and its retention too")
    return status
