"""Batches for programs without an event loop: what `app.sync()` yields."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from evsched.batches.batch import Batch, NewBatch, batch_of_job
from evsched.batches.batch_options import BatchOptions
from evsched.batches.member import Member
from evsched.batches.node import GraphNode
from evsched.client.client import SyncClient
from evsched.client.job_handle import SyncJob
from evsched.client.task_handle import Enqueuer, SyncSession
from evsched.jobs.arguments import Arguments
from evsched.jobs.current_job import current_job
from evsched.store.batch_calls import BatchRecord
from evsched.transport.links import finish

P = ParamSpec("P")
R = TypeVar("R")


class SyncBatch:
    """A batch, as `Batch`, for programs without an event loop: without await."""

    def __init__(self, batch: Batch, client: SyncClient) -> None:
        self._batch = batch
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, queue={self.queue!r})"

    @property
    def id(self) -> str:
        return self._batch.id

    @property
    def queue(self) -> str:
        """Its home."""
        return self._batch.queue

    def add(self, task: Enqueuer[P, R], /, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Enqueue a job as a member of the batch, as `Batch.add`."""
        return task.known(finish(self._batch.add(task, *args, **kwargs)).id, self._client)

    def add_many(self, task: Enqueuer[P, R], calls: Iterable[tuple[Any, ...] | Arguments[P]], /) -> list[SyncJob[R]]:
        """Enqueue many jobs as members, as `Batch.add_many`."""
        return [task.known(job.id, self._client) for job in finish(self._batch.add_many(task, calls))]

    def close(self) -> None:
        """Close the batch, as `Batch.close`."""
        finish(self._batch.close())

    def cancel(self) -> None:
        """Cancel the batch and the jobs of it that have not ended, as `Batch.cancel`."""
        finish(self._batch.cancel())

    def pause(self, *, until: datetime | float | None = None, why: str = "") -> float:
        """Pause the batch, as `Batch.pause`."""
        return finish(self._batch.pause(until=until, why=why))

    def resume(self) -> float | None:
        """Resume the batch, as `Batch.resume`."""
        return finish(self._batch.resume())

    def set_priority(self, priority: int | None) -> int:
        """Give another priority to those jobs of the batch that wait, as `Batch.set_priority`."""
        return finish(self._batch.set_priority(priority))

    def status(self) -> BatchRecord:
        """Return its state and counts, as `Batch.status`."""
        return finish(self._batch.status())

    def failures(self, limit: int = 10) -> list[Member]:
        """Return the first of its jobs that are dead or expired."""
        return finish(self._batch.failures(limit))

    def members(self, limit: int = 1000) -> list[Member]:
        """Return the first of its jobs, and how they have ended."""
        return finish(self._batch.members(limit))

    def nodes(self, first: int = 0, limit: int = 1000) -> list[GraphNode]:
        """Return nodes of a graph, as `Batch.nodes`."""
        return finish(self._batch.nodes(first, limit))

    def node(self, name: str) -> GraphNode:
        """Return the node of that name, as `Batch.node`."""
        return finish(self._batch.node(name))

    def result(self, node: str, *, timeout: timedelta | float | None = None) -> Any:
        """Wait for a node of a graph, and return its result, as `Batch.result`."""
        return finish(self._batch.result(node, timeout=timeout))

    def results(self, limit: int = 1000) -> list[Any]:
        """Return the results of the first of its jobs that are done, as `Batch.results`."""
        return finish(self._batch.results(limit))

    def wait(self, timeout: timedelta | float | None = None) -> BatchRecord:
        """Wait until the batch has ended, as `Batch.wait`."""
        return finish(self._batch.wait(timeout))

    def batch(
        self,
        id: str | None = None,  # noqa: A002 - as of a job
        *,
        queue: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> NewSyncBatch:
        """Return a batch in this one, as `Batch.batch`."""
        return NewSyncBatch(self._batch.batch(id, queue=queue, **options), self._client)


class NewSyncBatch(SyncBatch):
    """A batch that is to be opened, as `NewBatch`: by `with`, which closes it at the end, or by `open`."""

    def __init__(self, batch: NewBatch, client: SyncClient) -> None:
        super().__init__(batch, client)
        self._new = batch

    def open(self) -> SyncBatch:
        """Open the batch, and return it; `close` it after its last job. Raises as `NewBatch.open`."""
        finish(self._new.open())
        return self

    def __enter__(self) -> Self:
        finish(self._new.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._new.__aexit__(kind, error, trace))


class BatchSession(SyncSession):
    """The client of a program without an event loop, with batches."""

    def batch(
        self,
        id: str | None = None,  # noqa: A002 - as of a job
        *,
        queue: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> NewSyncBatch:
        """Return a batch, to be opened by `with`, or by `.open()`. Arguments and errors as of `App.batch`."""
        home = self._queue if queue is None else queue
        return NewSyncBatch(NewBatch(id, home, self._client.client, options), self._client)

    def known_batch(self, id: str, *, queue: str | None = None) -> SyncBatch:  # noqa: A002
        """Return a handle for a batch whose id you know, as `App.known_batch`."""
        return SyncBatch(Batch(id, self._queue if queue is None else queue, self._client.client), self._client)

    def current_batch(self) -> SyncBatch | None:
        """Return the batch that the running job is a member of, as `App.current_batch`."""
        job = current_job()
        found = finish(batch_of_job(self._client.client, job.queue, job.id))
        return None if found is None else SyncBatch(found, self._client)
