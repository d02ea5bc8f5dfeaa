"""A program: the tasks of an app, and its middleware, lifespan and declarations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from hashlib import sha256
from typing import Any

from msgspec import Struct, structs

from evsched.execution.run import Run
from evsched.jobs import groups
from evsched.jobs.current_job import CurrentJob
from evsched.jobs.sealed import PayloadCodec
from evsched.jobs.tasks import Tasks
from evsched.recurrence.recurrence import Declared, content_of
from evsched.shards import NONE, Shards, Share
from evsched.store.gate_limits import field

Middleware = Callable[[CurrentJob, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Gets the job and a function that runs it (or the next middleware), and returns the result."""

Around = Callable[[Run], AbstractContextManager[None]]
"""Makes the context in which a run is called, outside all middleware; of an instrument of an app."""

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes the resources that the tasks of a worker share; `current_job().state` is the value that it yields."""


@asynccontextmanager
async def no_lifespan() -> AsyncGenerator[None]:
    """Share nothing."""
    yield


class Program(Struct, frozen=True):
    """An app as a worker runs it: its tasks, the code around each run, and its declarations."""

    tasks: Tasks
    middleware: list[Middleware] = []
    lifespan: Lifespan = no_lifespan
    owner: str = ""
    """The app's name: the recurrences and limits that it declares are its own."""
    revision: int | None = None
    """The revision of its declarations; None = counted by Redis."""
    recurrences: list[tuple[str, Declared]] = []
    """(queue, recurrence)."""
    limits: list[tuple[str, str, float]] = []
    """(queue, field of the limit, value); "" = every queue, by a setting of the worker, and in no revision."""
    shards: Shards = NONE
    """How many shards the queues have."""
    around: list[Around] = []
    """The instruments of the app, the outermost first."""
    codec: PayloadCodec | None = None
    """Opens the arguments of jobs, and seals their results."""

    @property
    def digest(self) -> str:
        """A digest of the names of its tasks; empty if it has none."""
        names = "\n".join(sorted(self.tasks))
        return sha256(names.encode(), usedforsecurity=False).hexdigest()[:32] if names else ""

    def recurrences_in(self, queue: str) -> list[Declared]:
        return [one for name, one in self.recurrences if name == queue]

    def limits_in(self, queue: str) -> dict[str, float | Share]:
        """Return the limits that it declares in a queue, by their fields: those of its tasks hold in every queue.

        Those of a queue with shards are divided among it and its shards.

        Raises:
            ConfigError: one is too small to be divided.
        """
        wholes = self.wholes_in(queue)
        parts = self.shards.divide(wholes, queue)
        return {limit: part if part == wholes[limit] else Share(part, wholes[limit]) for limit, part in parts.items()}

    def wholes_in(self, queue: str) -> dict[str, float]:
        """Return the limits that it declares in a queue before they are divided."""
        whole = self.shards.whole(queue)
        found = {
            field("concurrency", groups.of_task(task.name), task.concurrency): float(task.concurrency)
            for task in self.tasks.values()
            if task.concurrency is not None and (not self.shards.counts.get(whole) or task.queue in (None, whole))
        }
        return found | {limit: value for name, limit, value in self.limits if name in ("", whole)}

    def content_in(self, queue: str) -> str:
        """Return the digest of all that its code declares in a queue: with another number of shards, it is the same."""
        of_code = structs.replace(self, limits=[one for one in self.limits if one[0]])
        return content_of(self.recurrences_in(queue), of_code.wholes_in(queue))
