"""A handle for a job: look it up, wait for it, move it, stop it; with an event loop and without one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from evsched.client.client import Client, SyncClient
from evsched.client.option_values import due_and_delay
from evsched.client.transaction import Change, without_loop
from evsched.errors import BadResult, JobMissing
from evsched.jobs.record import JobStatus, Place
from evsched.transport.links import finish

R = TypeVar("R")


class _Handle(Struct, frozen=True):
    """Which job: its id and queue, and the type of its result."""

    id: str
    queue: str
    _returns: Any
    """The result is converted to this type; None = any."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, queue={self.queue!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("id", self.id), ("queue", self.queue)]

    def _convert(self, value: Any) -> Any:
        if self._returns is None:
            return value
        try:
            return msgspec.convert(value, self._returns)
        except (msgspec.ValidationError, RecursionError) as error:
            raise BadResult(
                f"{self.id} is done, but its result does not fit the return type of its task: {error}: correct the "
                "annotation, or the return value"
            ) from None

    def _known(self, status: JobStatus | None) -> JobStatus:
        if status is None:
            raise JobMissing(
                f"{self.id}: there is no such job in queue {self.queue}: it never existed, was cancelled while it "
                "waited, or ended and its retention is over"
            )
        return status


class Job(_Handle, Generic[R], frozen=True):
    """A job, as `enqueue` returns it; `app.job(id)` makes a handle for an id that you know."""

    _client: Client
    _row: int | None = None
    """The number of its row, if it was inserted into the ledger."""

    async def status(self) -> JobStatus:
        """Return the place of the job, and the content of its record.

        Raises:
            JobMissing: there is no such job, it was cancelled while it waited, or its retention is over.
        """
        return self._known(await self._client.status(self.queue, self.id))

    async def result(self, timeout: timedelta | float | None = 60.0) -> R:
        """Wait until the job has ended, and return its result.

        `timeout`: the longest wait, a timedelta or seconds; None waits without a limit. For a job of `enqueue_in`, it
        includes the time until the transaction has committed and a relay has scheduled the job.

        Raises:
            JobDead: the job was given up, with the reason, or cancelled.
            JobMissing: there is no such job, its retention is over, or it was cancelled while it waited and nobody had
                asked for its outcome.
            BadResult: it is done, but its result is not of the type that its task returns.
            TimeoutError: it did not end in time.
        """
        return cast(R, self._convert(await self._client.result(self.queue, self.id, timeout, self._row)))

    async def cancel(self) -> Place:
        """Delete the job if it waits, or stop it if it runs; return the place where it was.

        "processing" means that its worker was asked to stop it; the outcome will be "cancelled". An async handler is
        cancelled at its next await, a process is ended; a function in a thread must check `current_job().cancelled`.
        If the id was scheduled again during the run, that next run is cancelled too.

        Raises:
            JobMissing: there is no such job, or it has ended.
        """
        return await self._client.cancel(self.queue, self.id)

    async def reschedule(self, due: datetime | float | None = None, *, delay: timedelta | float | None = None) -> float:
        """Give the job another `due`, or a `delay` from now, if it waits; without either it is due now.

        `due` is an aware datetime or Unix seconds, `delay` a timedelta or seconds from Redis's now. Return the due in
        Unix seconds.

        Raises:
            JobMissing: there is no such job, or it has ended.
            JobRunning: a worker runs it.
            ConfigError: both are given, or the time is not valid.
        """
        return await self._client.reschedule(self.queue, self.id, due, delay=delay)

    async def signal(self, signal: str, value: Any = None) -> bool:
        """Send a signal to the job, which a handler may wait for (docs/steps.md). As `App.signal`."""
        return await self._client.signal(self.queue, self.id, signal, value)

    async def cancel_in(self, connection: Any, /) -> None:
        """Cancel a job of `enqueue_in`, in the transaction of a connection: if it does not commit, the job stays.

        Soon after the commit a relay deletes the job if it waits, or has it stopped if it runs, as `cancel`; a job that
        has ended by then stays as it ended.

        Raises:
            JobMissing: the ledger has no such job that has not ended or been cancelled. The transaction can go on.
            ConfigError: as `enqueue_in`.
        """
        change = self._change()
        change.read(await change.cancellation().by_any(connection))

    def cancel_in_sync(self, connection: Any, /) -> None:
        finish(self.cancel_in(without_loop(connection)))

    async def reschedule_in(
        self, connection: Any, /, due: datetime | float | None = None, *, delay: timedelta | float | None = None
    ) -> float:
        """Give a job of `enqueue_in` another time, as `reschedule`, in the transaction of a connection; return the due.

        Soon after the commit a relay moves the job if it waits. If it runs by then, it goes on, and is not run again.

        Raises:
            JobMissing: as `cancel_in`.
            ConfigError: as `reschedule` and `enqueue_in`.
        """
        change = self._change()
        moment, length = due_and_delay(due, delay)
        return change.read(await change.reschedule(moment, length).by_any(connection))

    def reschedule_in_sync(
        self, connection: Any, /, due: datetime | float | None = None, *, delay: timedelta | float | None = None
    ) -> float:
        """Give a job another time as `reschedule_in`, in a program without an event loop."""
        return finish(self.reschedule_in(without_loop(connection), due, delay=delay))

    def _change(self) -> Change:
        return Change(self.queue, self.id, self._client.ledger_time())


class SyncJob(_Handle, Generic[R], frozen=True):
    """A job, as `Job`, for programs without an event loop: without await."""

    _client: SyncClient

    def status(self) -> JobStatus:
        """Return where the job is, as `Job.status`."""
        return self._known(self._client.status(self.queue, self.id))

    def result(self, timeout: timedelta | float | None = 60.0) -> R:
        """Wait until the job has ended, as `Job.result`."""
        return cast(R, self._convert(self._client.result(self.queue, self.id, timeout)))

    def cancel(self) -> Place:
        """Delete the job if it waits, or stop it, as `Job.cancel`."""
        return self._client.cancel(self.queue, self.id)

    def signal(self, signal: str, value: Any = None) -> bool:
        """Send a signal to the job, as `Job.signal`."""
        return self._client.signal(self.queue, self.id, signal, value)

    def reschedule(self, due: datetime | float | None = None, *, delay: timedelta | float | None = None) -> float:
        """Give the job another due, as `Job.reschedule`."""
        return self._client.reschedule(self.queue, self.id, due, delay=delay)
