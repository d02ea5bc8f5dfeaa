"""A task as a program sees it: a function to call, and a way to put jobs on the schedule with the function's types."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from evsched.client.client import Client, Options, Sending, SyncClient, new_job
from evsched.client.job_handle import Job, SyncJob
from evsched.errors import BadArguments
from evsched.jobs.arguments import Arguments, check
from evsched.jobs.job import OnConflict
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import Task
from evsched.store.replies import New

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
S = TypeVar("S")


class Outlet(Protocol):
    """Where jobs go: an app."""

    queue: str
    payload_cap: int
    sending: Sending | None

    @property
    def client(self) -> Client: ...


class Enqueuer(Generic[P, R]):
    """A task with options: what `using` returns."""

    def __init__(self, app: Outlet, task: Task, options: Options) -> None:
        self._app = app
        self._task = task
        self._options = options
        self._queue = options.queue or app.queue

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job on the schedule.

        Raises:
            BadArguments: the task cannot be called with these.
            ConfigError: an option cannot be, or the payload is larger than workers take.
            JobExists: a job of that id has not ended.
            StoreDown: Redis stayed away for 5 s; the job may have been written.
        """
        with self._sending() as options:
            job = self._new(args, kwargs, options)
            await self._app.client.enqueue(self._queue, [job], options.on_conflict)
        return Job(job.id, self._queue, self._task, self._app.client)

    async def enqueue_many(self, calls: Sequence[tuple[Any, ...] | Arguments[P]]) -> list[Job[R]]:
        """Put many jobs on the schedule, one for each tuple of arguments, 1,000 in one round trip. As `enqueue`.

        Nothing is sent when one of the calls cannot be; the message has its number, from 0. A tuple is checked when
        this runs; `task.arguments(...)` instead of it takes arguments by name too, and is seen by type checkers.
        """
        with self._sending(len(calls)) as options:
            jobs = self._new_many(calls, options)
            await self._app.client.enqueue(self._queue, jobs, options.on_conflict)
        return [Job(job.id, self._queue, self._task, self._app.client) for job in jobs]

    def enqueue_sync(self, client: SyncClient, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Put a job on the schedule through a client without an event loop."""
        with self._sending() as options:
            job = self._new(args, kwargs, options)
            client.enqueue(self._queue, [job], options.on_conflict)
        return SyncJob(job.id, self._queue, self._task, client)

    def enqueue_many_sync(
        self, client: SyncClient, calls: Sequence[tuple[Any, ...] | Arguments[P]]
    ) -> list[SyncJob[R]]:
        """Put many jobs on the schedule through a client without an event loop."""
        with self._sending(len(calls)) as options:
            jobs = self._new_many(calls, options)
            client.enqueue(self._queue, jobs, options.on_conflict)
        return [SyncJob(job.id, self._queue, self._task, client) for job in jobs]

    def _new(self, args: Sequence[Any], kwargs: dict[str, Any], options: Options) -> New:
        job = new_job(self._task.name, args, kwargs, options, self._app.payload_cap)
        check(self._task, args, kwargs, job.payload)
        return job

    def _new_many(self, calls: Sequence[tuple[Any, ...] | Arguments[P]], options: Options) -> list[New]:
        jobs = list[New]()
        for call in calls:
            args, kwargs = (call.args, call.kwargs) if isinstance(call, Arguments) else (call, {})
            try:
                if isinstance(args, str):  # a forgotten comma: its letters would be taken for arguments
                    raise BadArguments(f"task {self._task.name}: {args!r} is no tuple of arguments")
                jobs.append(self._new(args, kwargs, options))
            except BadArguments as error:
                raise BadArguments(f"call {len(jobs)}: {error}") from None
        return jobs

    def _sending(self, many: int | None = None) -> AbstractContextManager[Options]:
        around = self._app.sending
        if around is None:
            return nullcontext(self._options)
        return around(self._task.name, self._queue, self._options, many)


class TaskHandle(Enqueuer[P, R]):
    """A registered task, async or plain: enqueue it, or call it as the function that it is (see the subclasses)."""

    def __init__(self, app: Outlet, task: Task) -> None:
        super().__init__(app, task, Options())
        self.name = task.name
        self.task = task

    @property
    def handler(self) -> Callable[P, Any]:
        """The function itself."""
        return self.task.handler

    def arguments(self, *args: P.args, **kwargs: P.kwargs) -> Arguments[P]:
        """Return arguments as a value, for `enqueue_many`."""
        return Arguments(args, kwargs)

    def using(
        self,
        *,
        delay: timedelta | float | None = None,
        due: datetime | float | None = None,
        priority: int | None = None,
        group: str | None = None,
        id: str | None = None,  # noqa: A002 - the contract's name
        queue: str | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
        retention: float | None = None,
        expires: datetime | float | None = None,
        reply: bool = False,
        meta: dict[str, Any] | None = None,
        window: str | None = None,
        on_conflict: OnConflict | None = None,
    ) -> Enqueuer[P, R]:
        """Return this task with options for its jobs.

        `due` is an aware datetime or Unix seconds, `delay` a timedelta or seconds from Redis's now; lengths are in
        seconds. An `id` makes a second job of that id fail with JobExists until the first has ended; with `on_conflict`
        the first one's payload and time are replaced, or it is kept and the second is not made. To replace with a later
        due is to debounce. A job does not start outside its `window`, such as "mon-fri 22:00-06:00 Europe/Berlin", or
        the name of one that `evsched windows` keeps.
        """
        return Enqueuer(
            self._app,
            self._task,
            Options(
                delay=delay,
                due=due,
                priority=priority,
                group=group,
                id=id,
                queue=queue,
                timeout=timeout,
                retry=retry,
                retention=retention,
                expires=expires,
                reply=reply,
                meta=meta,
                window=window,
                on_conflict=on_conflict,
            ),
        )


class AsyncTask(TaskHandle[P, R]):
    """A task of an async function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function itself, here and now; await what it returns."""
        return self.task.handler(*args, **kwargs)


class PlainTask(TaskHandle[P, R]):
    """A task of a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now."""
        return self.task.handler(*args, **kwargs)


class Register:
    """The type of `app.task(...)`: makes a task of a function."""

    @overload  # the overlap is meant: what is async is async first
    def __call__(self, handler: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, handler: Callable[P, R], /) -> PlainTask[P, R]: ...
    def __call__(self, handler: Any, /) -> Any: ...


H = TypeVar("H", bound=TaskHandle[..., Any])


class Recur:
    """The type of `app.recurring(...)`: stands above a task, which it leaves as it is, or above a function."""

    @overload
    def __call__(self, handler: H, /) -> H: ...
    @overload  # the overlap is meant: what is async is async first
    def __call__(self, handler: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, handler: Callable[P, R], /) -> PlainTask[P, R]: ...
    def __call__(self, handler: Any, /) -> Any: ...


class SyncSession:
    """What `App.sync` yields: enqueue from a program without an event loop."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client

    def enqueue(self, task: Enqueuer[Q, S], *args: Q.args, **kwargs: Q.kwargs) -> SyncJob[S]:
        """Put a job of a task, or of `task.using(...)`, on the schedule. Raises as `Enqueuer.enqueue`."""
        return task.enqueue_sync(self._client, *args, **kwargs)

    def enqueue_many(self, task: Enqueuer[Q, S], calls: Sequence[tuple[Any, ...] | Arguments[Q]]) -> list[SyncJob[S]]:
        """Put many jobs on the schedule, as `Enqueuer.enqueue_many`."""
        return task.enqueue_many_sync(self._client, calls)
