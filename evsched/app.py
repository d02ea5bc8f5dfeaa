"""The app: where tasks are registered and recurrences declared, and where their jobs go."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast, overload

from evsched import config
from evsched.client.client import Client, Options, Sending, SyncClient, new_job, seconds, unix
from evsched.client.task_handle import AsyncTask, PlainTask, Recur, Register, SyncSession, TaskHandle
from evsched.errors import ConfigError
from evsched.jobs.arguments import check
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import DEFAULT_RETENTION, DEFAULT_TIMEOUT, Task, Tasks, define
from evsched.keys import check_queue
from evsched.recurrence.recurrence import Declared, Misfire, Overlap, check_interval, read_recurrence
from evsched.worker.program import Lifespan, Middleware, Program, no_lifespan

P = ParamSpec("P")
R = TypeVar("R")

_SETTINGS: Final = ("EVSCHED_URL", "EVSCHED_PAYLOAD_CAP")


def _declared(
    task: Task,
    payload_cap: int,
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
    payload = new_job(task.name, args, kwargs or {}, options, payload_cap).payload
    check(task, args, kwargs or {}, payload)
    declared = Declared(
        name=name or task.name,
        rule=rule or f"every {seconds(cast('timedelta | float', every)):.12g}",
        payload=payload,
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
        # Those settings alone: a program that enqueues need not have the others in order.
        settings = config.load({name: os.environ[name] for name in _SETTINGS if name in os.environ})
        self.url = url or settings.url
        self.payload_cap = settings.payload_cap
        """Bytes of a payload, as EVSCHED_PAYLOAD_CAP says: set it for who enqueues too, where dispatchers have it."""
        self.queue = check_queue(queue)
        self.program = Program(Tasks(), [], lifespan or no_lifespan, check_queue(name or queue))
        """What a worker runs."""
        self.sending: Sending | None = None
        """What stands around each enqueue, as middleware does around each run (`evsched.tracing`)."""
        self.origin: str | None = None
        """MODULE:APP, when it was found by that name: so another process can find it."""
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
    ) -> Recur:
        """Declare that a task recurs: by a cron `rule` in a `zone`, or `every` so many seconds.

        Put it above `@app.task(...)`, or above a function, which becomes a task. Workers keep what is declared here and
        what is in Redis in step when they start. `name`: else the task's. `spread`: each occurrence is moved by a
        stable part of it. `misfire`: what becomes of those that nobody could schedule: "skip", "once", or "all" up to
        `most`. `overlap`: what becomes of one that falls due while the one before has not ended: "skip", "wait",
        "allow".

        Raises:
            ConfigError: the rule, zone or window is none; or the interval is shorter than the retries may take.
            BadArguments: the task cannot be called with `args` and `kwargs`.
        """

        def declare(function: Callable[..., Any]) -> Any:
            task = cast("TaskHandle[..., Any]", function if isinstance(function, TaskHandle) else self.task(function))
            declared = _declared(
                task.task,
                self.payload_cap,
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

        return cast("Recur", declare)

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

    @overload  # the overlap is meant: what is async is async first
    def task(self, handler: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def task(self, handler: Callable[P, R], /) -> PlainTask[P, R]: ...
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
    ) -> Register: ...
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
            kind = AsyncTask[..., Any] if task.on == "loop" else PlainTask[..., Any]
            return kind(self, task)

        return register if handler is None else register(handler)
