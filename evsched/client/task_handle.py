"""A task as a program sees it: a function to call, and a way to put jobs on the schedule with the function's types.

`SyncSession` does the same in programs without an event loop.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from msgspec import Struct
from msgspec.structs import replace

from evsched.client.client import Client, SyncClient
from evsched.client.job_handle import Job, SyncJob
from evsched.client.new_job import (
    Instrument,
    JobOptions,
    Sending,
    carried,
    check_job_options,
    job_maker,
    without_later,
)
from evsched.client.option_values import digest_of, unique_id
from evsched.client.target_tasks import TargetJob, definition
from evsched.client.transaction import Insertion, without_loop
from evsched.errors import BadArguments, ConfigError
from evsched.jobs.arguments import Arguments, check
from evsched.jobs.job import decode
from evsched.jobs.record import DEFAULT_RETENTION
from evsched.jobs.redaction import REDACTED
from evsched.jobs.sealed import PayloadCodec
from evsched.jobs.tasks import Task
from evsched.keys import check_queue
from evsched.store.client_calls import New
from evsched.transport.links import finish

P = ParamSpec("P")
R = TypeVar("R")


_SEQUENCES: Final = (tuple, list)
"""The types that hold the arguments of a call. A string is refused: its letters would become the arguments."""


PutJobs = Callable[[str, list[New], JobOptions], Awaitable[list[str]]]
"""Writes the jobs of a queue, with the options that they share; returns their ids."""


class Outlet(Protocol):
    """The part of an app that an enqueuer needs: where its jobs go."""

    queue: str
    payload_cap: int
    codec: PayloadCodec | None
    instruments: list[Instrument]

    @property
    def client(self) -> Client: ...


class TaskCall(Struct, Generic[R], frozen=True):
    """A call of a task as a part of a chain or a graph, where more arguments are added. `task.s(...)` makes it."""

    task: Enqueuer[..., R]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.task.name}.s(...)"  # some arguments may be redacted


class Enqueuer(Generic[P, R]):
    """A task with options: what `using` returns."""

    def __init__(self, app: Outlet, task: Task, options: JobOptions) -> None:
        self._app = app
        self._task = task
        self._options = options
        self._queue = options.get("queue") or task.queue or app.queue
        self.name = task.name

    @property
    def queue(self) -> str:
        """Where its jobs go."""
        return self._queue

    @property
    def retention(self) -> float:
        """The seconds for which its results are kept, if its jobs do not say."""
        return DEFAULT_RETENTION if self._task.retention is None else self._task.retention

    def s(self, *args: Any, **kwargs: Any) -> TaskCall[R]:
        """Return a call for a chain or a graph, which may add results of other jobs to its arguments."""
        return TaskCall(self, args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job on the schedule.

        Raises:
            BadArguments: the task cannot be called with these arguments.
            ConfigError: the payload is too large, or not JSON.
            JobExists: a job of that id, or the same unique job, has not ended or was enqueued less than `within` ago.
            StoreDown: Redis could not be reached for 5 s; the job may have been written.
        """
        client = self._app.client
        return Job(await self.put(client, args, kwargs), self._queue, self._task.signature.returns, client)

    async def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Arguments[P]]) -> list[Job[R]]:
        """Put many jobs on the schedule, one for each tuple of arguments, 400 in one round trip.

        Raises as `enqueue` does. If one of the calls is wrong, nothing is sent; the message has its number, from 0.
        Instead of a tuple you can pass `task.arguments(...)`: it takes arguments by name too, and type checkers see it.
        """
        queue, returns, client = self._queue, self._task.signature.returns, self._app.client
        return [Job(job_id, queue, returns, client) for job_id in await self.put_many(client, calls)]

    async def put(self, client: Client, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """Put a job on the schedule through a client, as `enqueue`; return its id."""
        with self._sending() as sending:
            job, options = self._new(args, kwargs, sending), sending.options
            await client.enqueue(self._queue, [job], options.get("on_conflict"), options.get("unique"))
        return job.id

    async def put_many(self, client: Client, calls: Iterable[tuple[Any, ...] | Arguments[P]]) -> list[str]:
        """Put many jobs on the schedule through a client, as `enqueue_many`; return their ids."""
        every = self._all(calls)
        with self._sending(len(every)) as sending:
            jobs, options = self._new_many(every, sending), sending.options
            await client.enqueue(self._queue, jobs, options.get("on_conflict"), options.get("unique"))
        return [job.id for job in jobs]

    async def hand_over(self, calls: Iterable[Any], put: PutJobs, batch: str = "") -> list[Job[R]]:
        """Build jobs as `enqueue_many` does, and have `put` write them. `batch`: the batch that they belong to."""
        every = self._all(calls)
        with self._sending(len(every), batch) as sending:
            ids = await put(self._queue, self._new_many(every, sending), sending.options)
        return [Job(job_id, self._queue, self._task.signature.returns, self._app.client) for job_id in ids]

    def template(self, argument: Any) -> dict[str, Any]:
        """Return a job without its argument: its queue, payload, priority and group, for a job that a script makes.

        `argument`: an example of it.

        Raises:
            BadArguments: the task cannot be called with such an argument.
            ConfigError: the options name an id or a time.
        """
        self._refuse(("id", "unique", "on_conflict", "due", "delay"), "a callback has its own id and time")
        job = self._maker(carried(self._app.instruments, self._options))((argument,), {})
        payload = decode(job.payload)
        del payload["args"]
        found = {"queue": self._queue, "payload": payload, "priority": job.priority, "group": job.group}
        return {name: value for name, value in found.items() if value is not None}

    def outline(
        self, args: Sequence[Any], kwargs: dict[str, Any], batch: str, *, later: bool, named: Sequence[str]
    ) -> tuple[New, dict[str, Any]]:
        """Return a job to which arguments are added: one more by position if `later`, and `named`; and its payload.

        `batch`: the graph, if its id is known.

        Raises:
            BadArguments: the task cannot be called with all of these.
            ConfigError: the options name an id.
        """
        self._refuse(("id", "unique", "on_conflict"), "the job of a node has its own id")
        places = (len(args), *named) if later else named
        options = carried(self._app.instruments, self._options, batch)
        job = self._maker(options, places)([*args, None] if later else args, kwargs | dict.fromkeys(named))
        return job, without_later(job, len(args), named)

    def takes_more(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Return whether the function takes one more argument by position."""
        signature, at = self._task.signature, len(args)
        if at < len(signature.order):
            return signature.order[at] not in kwargs
        return bool(signature.var_positional)

    def _refuse(self, names: Sequence[str], why: str) -> None:
        for name in names:
            if self._options.get(name) is not None:
                raise ConfigError(f"{name}: {why}: leave it out")

    def known(self, job_id: str, client: SyncClient) -> SyncJob[R]:
        """Return a handle for a job of this task whose id is known."""
        return SyncJob(job_id, self._queue, self._task.signature.returns, client)

    async def enqueue_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Insert a job into the ledger, in the transaction of a connection: it runs if and only if that commits.

        `connection`: of psycopg 3, SQLAlchemy or Django, with or without an event loop. The job is on the schedule
        soon after the commit, if a relay runs (`evsched ledger run`). Until then, `result` of the returned job waits,
        and its other methods raise JobMissing.

        Raises:
            BadArguments, ConfigError: as `enqueue`; or the connection is not one of these.
            JobExists: as `enqueue`, according to the ledger. The transaction can go on.
        """
        with self._sending() as sending:
            (job,) = await self._insert(connection, [self._new(args, kwargs, sending)], sending.options)
        return job

    def enqueue_in_sync(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Insert a job as `enqueue_in`, in a program without an event loop; return the job's id.

        Until a relay has scheduled the job, clients to whom you pass the id raise JobMissing.
        """
        return finish(self.enqueue_in(without_loop(connection), *args, **kwargs)).id

    async def enqueue_many_in(
        self, connection: Any, /, calls: Iterable[tuple[Any, ...] | Arguments[P]]
    ) -> list[Job[R]]:
        """Insert many jobs into the ledger, as `enqueue_in`, in one statement; `calls` as for `enqueue_many`.

        If one of the calls is wrong, nothing is sent. If one of the ids is taken, JobExists is raised and none of the
        jobs is inserted; but if another transaction inserts such an id at the same moment, the others are: roll back.
        """
        every = self._all(calls)
        with self._sending(len(every)) as sending:
            return await self._insert(connection, self._new_many(every, sending), sending.options)

    def enqueue_many_in_sync(self, connection: Any, /, calls: Iterable[tuple[Any, ...] | Arguments[P]]) -> list[str]:
        """Insert many jobs as `enqueue_many_in`, in a program without an event loop; return the jobs' ids."""
        return [job.id for job in finish(self.enqueue_many_in(without_loop(connection), calls))]

    async def _insert(self, connection: Any, jobs: list[New], options: JobOptions) -> list[Job[R]]:
        client = self._app.client
        jobs = [*await client.sealed(jobs)]
        critical, on_conflict, unique = options.get("critical"), options.get("on_conflict"), options.get("unique")
        insertion = Insertion(self._queue, jobs, critical, on_conflict, unique, client.ledger_time())
        rows = insertion.read(await insertion.statement().by_any(connection)) if jobs else []
        client.note_rows(connection, rows)
        found = zip(jobs, rows, strict=True)
        return [Job(job.id, self._queue, self._task.signature.returns, client, row) for job, row in found]

    @cached_property
    def _make(self) -> Callable[[Sequence[Any], dict[str, Any]], New]:
        """Builds a job with the options of this handle: they are read once."""
        return self._maker(self._options)

    def _maker(
        self, options: JobOptions, later: Sequence[str | int] = ()
    ) -> Callable[[Sequence[Any], dict[str, Any]], New]:
        """Return a function that builds a job from its arguments, and checks them. `later`: as of `check`."""
        task, unique = self._task, options.get("unique")
        if task.redact:
            options = {**options, "redact": (*task.redact, *(options.get("redact") or ()))}
        codec = self._app.codec
        # With a codec, the sealed payload counts: a store may have taken the arguments.
        cap = self._app.payload_cap if codec is None else sys.maxsize
        make = job_maker(task.name, options, cap, task.signature)

        def checked(args: Sequence[Any], kwargs: dict[str, Any]) -> New:
            job = make(args, kwargs)
            check(task.signature, task.check, args, kwargs, job.payload, later)
            return job if unique is None else replace(job, id=unique_id(task, unique, args, kwargs, digest_of(codec)))

        return checked

    def _new(self, args: Sequence[Any], kwargs: dict[str, Any], sending: Sending) -> New:
        make = self._make if sending.options is self._options else self._maker(sending.options)
        job = make(args, kwargs)
        sending.jobs = (job,)
        return job

    def _new_many(self, calls: Iterable[Any], sending: Sending) -> list[New]:
        jobs = list[New]()
        make = self._maker(sending.options)
        for call in calls:
            args, kwargs = (call.args, call.kwargs) if isinstance(call, Arguments) else (call, {})
            try:
                if not issubclass(type(args), _SEQUENCES):  # a forgotten comma
                    hides = self._task.redact or self._options.get("redact")
                    shown = REDACTED if hides else repr(args)[:200]
                    raise BadArguments(f"task {self._task.name}: {shown} is not a tuple of arguments")
                jobs.append(make(args, kwargs))
            except BadArguments as error:
                raise BadArguments(f"call {len(jobs)}: {error}") from None
        sending.jobs = jobs
        return jobs

    def _all(self, calls: Any) -> list[Any]:
        if not isinstance(calls, Iterable):
            kind = type(calls).__name__
            raise BadArguments(
                f"task {self._task.name}: the calls are of type {kind}: give a list of tuples of arguments"
            )
        return list(cast("Iterable[Any]", calls))

    def _sending(self, many: int | None = None, batch: str = "") -> Sending:
        return Sending(self.name, self._queue, self._options, self._app.instruments, many, batch)


class TaskHandle(Enqueuer[P, R]):
    """A registered task: enqueue it, or call it as the function that it is (see the subclasses)."""

    def __init__(self, app: Outlet, task: Task) -> None:
        super().__init__(app, task, JobOptions())
        self.task = task

    @property
    def handler(self) -> Callable[P, Any]:
        return self.task.handler

    def arguments(self, *args: P.args, **kwargs: P.kwargs) -> Arguments[P]:
        """Return the arguments of one call, for `enqueue_many`."""
        redact = self.task.redact
        return Arguments(args, kwargs, self.task.signature.redacted(redact, len(args), kwargs) if redact else ())

    def using(self, **options: Unpack[JobOptions]) -> Enqueuer[P, R]:
        """Return this task with options for its jobs.

        `due` is an aware datetime or Unix seconds, `delay` a timedelta or seconds from Redis's now; `timeout` and
        `retention` are seconds. With an `id`, a second job of that id fails with JobExists until the first has ended;
        with `on_conflict`, the first one's payload and time are replaced ("replace", with a later due: debounce), or
        the first is kept and the second is dropped ("keep"). With `unique`, the id is made of the task and its
        arguments; see `Unique`. A job does not start outside its `window`, such as
        "mon-fri 22:00-06:00 Europe/Berlin", or the name of a window that `evsched windows` keeps.

        Raises:
            ConfigError: an option is not valid.
        """
        check_job_options(options)
        self._task.signature.check_redact(options.get("redact") or ())
        return Enqueuer(self._app, self._task, options)


def check_task(task: Any) -> None:
    """Check what a program enqueues.

    Raises:
        ConfigError: it is not a task.
    """
    if not isinstance(task, Enqueuer):
        raise ConfigError(
            f"{task!r:.100} is not a task: give a function that is decorated with @app.task, or its .using(...), and "
            "then its arguments; for a task whose code is elsewhere, declare a stub of that name"
        )


def target(app: Outlet, name: str, arguments: Callable[P, TargetJob[R]]) -> TaskHandle[P, R]:
    """Return a handle of a task of evsched.targets. It is not registered in the app, whose workers cannot run it."""
    return TaskHandle(app, definition(name))


class AsyncTask(TaskHandle[P, R]):
    """A task of an async function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function itself, without a job; await the result."""
        return self.task.handler(*args, **kwargs)


class PlainTask(TaskHandle[P, R]):
    """A task of a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, without a job."""
        return self.task.handler(*args, **kwargs)


class Register:
    """The type of `app.task(...)`: turns a function into a task."""

    @overload  # the overlap is meant: the first match wins
    def __call__(self, handler: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, handler: Callable[P, R], /) -> PlainTask[P, R]: ...
    def __call__(self, handler: Any, /) -> Any: ...


H = TypeVar("H", bound=TaskHandle[..., Any])


class Recur:
    """The type of `app.recurring(...)`: returns a task as it is, and turns a function into a task."""

    @overload
    def __call__(self, handler: H, /) -> H: ...
    @overload  # the overlap is meant: the first match wins
    def __call__(self, handler: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, handler: Callable[P, R], /) -> PlainTask[P, R]: ...
    def __call__(self, handler: Any, /) -> Any: ...


class SyncGraph(Protocol):
    """A graph, as `App.graph` and `App.chain` make it."""

    async def put(self, client: Client) -> Any: ...


class SyncSession:
    """The client of a program without an event loop. Any number of threads, and forked processes, may share it."""

    def __init__(self, client: SyncClient, queue: str) -> None:
        self._client = client
        self._queue = queue

    def enqueue(self, task: Enqueuer[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Put a job of a task, or of `task.using(...)`, on the schedule. Raises as `Enqueuer.enqueue` does."""
        try:
            return task.known(finish(task.put(self._client.client, args, kwargs)), self._client)
        except AttributeError:
            check_task(task)  # only here, so that it costs a job nothing
            raise

    def enqueue_many(self, task: Enqueuer[P, R], calls: Iterable[tuple[Any, ...] | Arguments[P]]) -> list[SyncJob[R]]:
        """Put many jobs on the schedule, as `Enqueuer.enqueue_many`."""
        check_task(task)
        return [task.known(job_id, self._client) for job_id in finish(task.put_many(self._client.client, calls))]

    def enqueue_graph(self, graph: SyncGraph) -> str:
        """Enqueue a graph or a chain; return its id. Raises as `Graph.enqueue` does."""
        if isinstance(graph, Enqueuer) or not hasattr(graph, "put"):
            raise ConfigError(f"{graph!r:.100} is not a graph: give it app.graph(...) or app.chain(...)")
        return finish(graph.put(self._client.client)).id

    def job(self, id: str, *, queue: str | None = None) -> SyncJob[Any]:  # noqa: A002 - the contract's name
        """Return a handle for a job whose id you know, as `App.job`."""
        return SyncJob(id, check_queue(self._queue if queue is None else queue), None, self._client)
