"""What `App.sync` yields: enqueue and look up jobs in a program without an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ParamSpec, TypeVar

from evsched.client.job_handle import SyncJob
from evsched.client.sync_client import SyncClient
from evsched.client.task_handle import Enqueuer
from evsched.jobs.arguments import Arguments
from evsched.keys import check_queue

P = ParamSpec("P")
R = TypeVar("R")


class SyncSession:
    """The client of a program without an event loop. Any number of threads, and forked processes, may share it."""

    def __init__(self, client: SyncClient, queue: str) -> None:
        self._client = client
        self._queue = queue

    def enqueue(self, task: Enqueuer[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Put a job of a task, or of `task.using(...)`, on the schedule. Raises as `Enqueuer.enqueue` does."""
        return task.enqueue_sync(self._client, *args, **kwargs)

    def enqueue_many(self, task: Enqueuer[P, R], calls: Iterable[tuple[Any, ...] | Arguments[P]]) -> list[SyncJob[R]]:
        """Put many jobs on the schedule, as `Enqueuer.enqueue_many`."""
        return task.enqueue_many_sync(self._client, calls)

    def job(self, id: str, *, queue: str | None = None) -> SyncJob[Any]:  # noqa: A002 - the contract's name
        """Return a handle for a job whose id you know, as `App.job`."""
        return SyncJob(id, check_queue(self._queue if queue is None else queue), None, self._client)
