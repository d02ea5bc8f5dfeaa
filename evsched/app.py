"""The app: tasks, and the way to enqueue them with their types."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast, overload

from evsched import config
from evsched.backoff import Retry
from evsched.client import Client, Options, Sending, SyncClient, new_job, seconds, unix
from evsched.errors import ConfigError
from evsched.executor import Lifespan, Middleware, Program, no_lifespan
from evsched.handle import Job, SyncJob
from evsched.job import OnConflict
from evsched.keys import check_queue
from evsched.recurrence import Declared, Misfire, Overlap, check_interval, read_recurrence
from evsched.tasks import DEFAULT_RETENTION, DEFAULT_TIMEOUT, Task, Tasks, define

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
S = TypeVar("S")


def _declared(
    task: Task,
    rule: str | None,
    *,
    every: timedelta | float | None,
    name: str | None,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None,
    start: datetime | float | None,
    end: datetime | float | None,
    spread: timedelta | float,
    overlap: Overlap,
    priority: int | None,
    group: str | None,
    window: str | None,
    **more: Any,
) -> Declared:
    """Build a recurrence of a task, and see that it can be."""
    if (rule is None) is (every is None):
        raise ConfigError(f"recurrence of task {task.name}: give a rule or every=, and one of them")
    options = Options(priority=priority, group=group, window=window)
    declared = Declared(
        name=name or task.name,
        rule=rule or f"every {seconds(cast('timedelta | float', every)):.12g}",
        payload=new_job(task.name, args, kwargs or {}, options).payload,
        priority=priority,
        group=group,
        start=None if start is None else unix(start),
        end=None if end is None else unix(end),
        spread=seconds(spread),
        overlap=overlap,
        window=window,
        **more,
    )
    recurrence = read_recurrence(declared)
    if overlap != "allow":
        check_interval(declared.name, recurrence.rule, task.retry)
    return declared


class Enqueuer(Generic[P, R]):
    """A task with options: what `using` returns."""

    def __init__(self, app: App, task: Task, options: Options) -> None:
        self._app = app
        self._task = task
        self._options = options
        self._queue = options.queue or app.queue

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job on the schedule.

        Raises:
            ConfigError: an option or an argument cannot be.
            JobExists: a job of that id has not ended.
            StoreDown: Redis stayed away for 5 s; the job may have been written.
        """
        with self._sending() as options:
            job = new_job(self._task.name, args, kwargs, options)
            await self._app.client.enqueue(self._queue, [job], options.on_conflict)
        return Job(job.id, self._queue, self._task, self._app.client)

    async def enqueue_many(self, calls: Sequence[tuple[Any, ...]]) -> list[Job[R]]:
        """Put many jobs on the schedule, one for each tuple of arguments, 1,000 in one round trip. As `enqueue`."""
        with self._sending(len(calls)) as options:
            jobs = [new_job(self._task.name, args, {}, options) for args in calls]
            await self._app.client.enqueue(self._queue, jobs, options.on_conflict)
        return [Job(job.id, self._queue, self._task, self._app.client) for job in jobs]

    def enqueue_sync(self, client: SyncClient, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Put a job on the schedule through a client without an event loop."""
        with self._sending() as options:
            job = new_job(self._task.name, args, kwargs, options)
            client.enqueue(self._queue, [job], options.on_conflict)
        return SyncJob(job.id, self._queue, self._task, client)

    def _sending(self, many: int | None = None) -> AbstractContextManager[Options]:
        around = self._app.sending
        if around is None:
            return nullcontext(self._options)
        return around(self._task.name, self._queue, self._options, many)


class TaskHandle(Enqueuer[P, R]):
    """A registered task: call it as the function that it is, or enqueue it."""

    def __init__(self, app: App, task: Task) -> None:
        super().__init__(app, task, Options())
        self.name = task.name
        self.task = task
        self.handler = task.handler
        """The function itself."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself, here and now; an async one returns its coroutine."""
        return self.handler(*args, **kwargs)

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


class SyncSession:
    """What `App.sync` yields: enqueue from a program without an event loop."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client

    def enqueue(self, task: Enqueuer[Q, S], *args: Q.args, **kwargs: Q.kwargs) -> SyncJob[S]:
        """Put a job of a task, or of `task.using(...)`, on the schedule. Raises as `Enqueuer.enqueue`."""
        return task.enqueue_sync(self._client, *args, **kwargs)


class App:
    """A set of tasks and where their jobs go. Lazy: it connects on first use.

    `url`: without it, EVSCHED_URL, else redis://localhost:6379/0. A worker that is started with another URL takes
    its app there. `lifespan`: called by each worker, returns an async context manager around all that it runs; what
    that yields is `current_job().state`. `name`: the recurrences that it declares are known by it; else the queue's.
    Two apps that share a queue need different ones.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = config.DEFAULT_QUEUE,
        lifespan: Lifespan | None = None,
        name: str | None = None,
    ) -> None:
        self.url = (
            url or config.load({"EVSCHED_URL": os.environ["EVSCHED_URL"]} if "EVSCHED_URL" in os.environ else {}).url
        )
        self.queue = check_queue(queue)
        self.program = Program(Tasks(), [], lifespan or no_lifespan, check_queue(name or queue))
        """What a worker runs."""
        self.sending: Sending | None = None
        """What stands around each enqueue, as middleware does around each run (`evsched.tracing`)."""
        self._client: Client | None = None

    @property
    def tasks(self) -> Tasks:
        """The registered tasks, by name."""
        return self.program.tasks

    def middleware(self, function: Middleware) -> Middleware:
        """Put an async function around each run of a task: it gets the job, and what runs it or the next middleware.

        The first that is registered is the outermost. What it returns is the job's result, what it raises counts as
        raised by the handler.
        """
        self.program.middleware.append(function)
        return function

    def recurring(
        self,
        rule: str | None = None,
        *,
        every: timedelta | float | None = None,
        zone: str = "UTC",
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        start: datetime | float | None = None,
        end: datetime | float | None = None,
        count: int | None = None,
        spread: timedelta | float = 0.0,
        misfire: Misfire = "once",
        most: int = 100,
        overlap: Overlap = "skip",
        window: str | None = None,
        priority: int | None = None,
        group: str | None = None,
        queue: str | None = None,
    ) -> Callable[[Callable[..., Any]], Any]:
        """Declare that a task recurs: by a cron `rule` in a `zone`, or `every` so many seconds.

        Put it above `@app.task(...)`, or above a function, which becomes a task. Workers keep what is declared here and
        what is in Redis in step when they start. `name`: else the task's. `spread`: each occurrence is moved by a
        stable part of it. `misfire`: what becomes of those that nobody could schedule: "skip", "once", or "all" up to
        `most`. `overlap`: what becomes of one that falls due while the one before has not ended: "skip", "wait",
        "allow".

        Raises:
            ConfigError: the rule, zone or window is none; or the interval is shorter than the retries may take.
        """

        def declare(function: Callable[..., Any]) -> Any:
            task = cast("TaskHandle[..., Any]", function if isinstance(function, TaskHandle) else self.task(function))
            declared = _declared(
                task.task,
                rule,
                every=every,
                zone=zone,
                name=name,
                args=args,
                kwargs=kwargs,
                start=start,
                end=end,
                count=count,
                spread=spread,
                misfire=misfire,
                most=most,
                overlap=overlap,
                window=window,
                priority=priority,
                group=group,
            )
            of = check_queue(queue or self.queue)
            if any(there == of and one.name == declared.name for there, one in self.program.recurrences):
                raise ConfigError(f"recurrence {declared.name!r} is declared twice: give one of them another name=")
            self.program.recurrences.append((of, declared))
            return task

        return declare

    @property
    def client(self) -> Client:
        """The client of this app's Redis."""
        if self._client is None:
            self._client = Client(self.url)
        return self._client

    def move_to(self, url: str, client: Client | None = None) -> None:
        """Let the app enqueue to another Redis from now on: that of the worker that runs it, or through a client."""
        self.url, self._client = url, client

    async def close(self) -> None:
        """Close the client's connection."""
        if self._client is not None:
            await self._client.close()

    @contextmanager
    def sync(self) -> Generator[SyncSession]:
        """Yield a session for a program without an event loop, or for a thread; one for each thread."""
        client = SyncClient(self.url)
        try:
            yield SyncSession(client)
        finally:
            client.close()

    @overload
    def task(self, handler: Callable[P, Awaitable[R]], /) -> TaskHandle[P, R]: ...
    @overload
    def task(self, handler: Callable[P, R], /) -> TaskHandle[P, R]: ...
    @overload
    def task(
        self,
        handler: None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        retention: float = DEFAULT_RETENTION,
        on: Literal["thread", "process"] | None = None,
    ) -> _Decorator: ...
    def task(
        self,
        handler: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        retention: float = DEFAULT_RETENTION,
        on: Literal["thread", "process"] | None = None,
    ) -> Any:
        """Register a function as a task, async or plain (a plain one runs in a thread, or with `on` in a process).

        `name`: else the function's. `timeout`: seconds that a run may take, None = no limit. `retention`: seconds for
        which the result is kept, 0 = not at all.

        Raises:
            ConfigError: the name is taken, or a limit makes no sense.
        """

        def register(function: Callable[..., Any]) -> Any:
            task = define(function, name=name, retry=retry, timeout=timeout, retention=retention, on=on)
            self.tasks.add(task)
            return TaskHandle[Any, Any](self, task)

        return register if handler is None else register(handler)


class _Decorator:
    """The type of `app.task(...)`."""

    @overload
    def __call__(self, handler: Callable[P, Awaitable[R]], /) -> TaskHandle[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> TaskHandle[P, R]: ...
    def __call__(self, handler: Callable[..., Any], /) -> Any: ...
