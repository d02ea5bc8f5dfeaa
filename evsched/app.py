"""The app: registers tasks, declares recurrences, and enqueues their jobs."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack, cast, overload
from weakref import WeakSet

from evsched import environment
from evsched.batches.sync_batch import BatchSession
from evsched.client.client import Client
from evsched.client.job_handle import Job
from evsched.client.new_job import Instrument
from evsched.client.option_values import finite_seconds
from evsched.client.recurrence_operations import RecurringOptions, check_recurring_options, declared
from evsched.client.target_tasks import ForwardJob, HttpJob
from evsched.client.task_handle import AsyncTask, PlainTask, Recur, Register, TaskHandle, target
from evsched.config import DEFAULT_QUEUE
from evsched.errors import CannotStart, ConfigError
from evsched.execution.program import Lifespan, Middleware, Program, no_lifespan
from evsched.jobs import option_checks as check
from evsched.jobs.current_job import current_job
from evsched.jobs.sealed import PayloadCodec
from evsched.jobs.tasks import RESERVED, TaskOptions, Tasks, check_task_options, define
from evsched.keys import check_queue
from evsched.shards import check_count, check_shards
from evsched.store.gate_limits import field
from evsched.transport.call import read_scripts

if TYPE_CHECKING:
    from evsched.batches.batch import Batch, NewBatch
    from evsched.batches.batch_options import BatchOptions
    from evsched.client.task_handle import TaskCall
    from evsched.graphs.graph import Graph

P = ParamSpec("P")
R = TypeVar("R")

_logger: Final = logging.getLogger("evsched")

_SETTINGS: Final = ("EVSCHED_URL", "EVSCHED_PAYLOAD_CAP")


class App:
    """A set of tasks, and the Redis and queue that their jobs go to. It connects on first use.

    `url`: else EVSCHED_URL, else redis://localhost:6379/0. A worker that is started with another URL moves its app
    there. `shards`: how many shards the queue has, each of which may be on another node of a cluster; for several
    queues, a number for each name. All programs that use a queue must name the same number. `lifespan`: each worker
    calls it once, and runs its jobs inside the async context manager that it returns; handlers find its value in
    `current_job().state`. `name`: marks the recurrences and limits that this app declares, by default the queue's name.
    Two apps that share a queue need different names. `revision`: a whole number that grows with each deploy, such as
    the number of the build: an older deploy never changes the declarations of a newer one. By default, Redis counts the
    deploys by their declarations. `codec`: an `evsched.codec.Codec` compresses or encrypts arguments and results, or
    puts large ones into a store of yours.

    Raises:
        ConfigError: an argument or a setting is not valid.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        shards: int | Mapping[str, int] = 0,
        lifespan: Lifespan | None = None,
        name: str | None = None,
        revision: int | None = None,
        codec: PayloadCodec | None = None,
    ) -> None:
        read_scripts()
        # Only these: a program that enqueues does not need valid settings for workers and dispatchers.
        settings = environment.load({name: os.environ[name] for name in _SETTINGS if name in os.environ})
        self.url = url or settings.url
        self.payload_cap = settings.payload_cap
        """The largest payload in bytes, EVSCHED_PAYLOAD_CAP: set it to the same value here and for dispatchers."""
        self.queue = check_queue(queue)
        counts = shards if isinstance(shards, Mapping) else {queue: shards}
        self.shards = check_shards({check_queue(name): check_count(name, count) for name, count in counts.items()})
        """How many shards queues have."""
        if revision is not None:
            check.revision("revision", revision)
        owner = check_queue(queue if name is None else name)
        self.codec = codec
        self.program = Program(Tasks(), [], lifespan or no_lifespan, owner, revision, codec=codec)
        """All that a worker runs."""
        self.instruments: list[Instrument] = []
        """See `instrument`. The outermost comes first."""
        self.origin: str | None = None
        """MODULE:APP, if the app was found by that name: another process can then find it too."""
        self._client: Client | None = None
        self.http = target(self, "evsched.http", HttpJob)
        """Requests as jobs: `await app.http.enqueue(url, json=...)`. Workers of evsched.targets send them."""
        self.forward = target(self, "evsched.forward", ForwardJob)
        """Messages as jobs: `await app.forward.enqueue("stream:orders", ...)`, for the same workers."""
        _every.add(self)
        for make in _instruments_of_all:
            self.instrument(make(self))

    @property
    def tasks(self) -> Tasks:
        """The registered tasks, by name."""
        return self.program.tasks

    @property
    def queues(self) -> list[str]:
        """The queues that its workers serve by default: its own, and those of its tasks and recurrences."""
        of_tasks = (task.queue for task in self.tasks.values() if task.queue)
        return list(dict.fromkeys([self.queue, *of_tasks, *(queue for queue, _ in self.program.recurrences)]))

    def middleware(self, function: Middleware) -> Middleware:
        """Register an async function that wraps each run: it gets the job, and a function that continues the run.

        The first one that is registered is the outermost. The job's result is its return value; if it raises, the run
        has failed, as if the handler had raised.
        """
        self.program.middleware.append(function)
        return function

    def instrument(self, instrument: Instrument) -> None:
        """Have an instrument see each enqueue, and each run with all of its middleware; for evsched's own packages."""
        self.instruments.append(instrument)
        self.program.around.append(instrument.running)

    def recurring(self, rule: str | None = None, **options: Unpack[RecurringOptions]) -> Recur:
        """Declare that a task recurs: by a cron `rule` in a `zone`, or `every` some seconds.

        Put it above `@app.task(...)`, or above a function, which becomes a task. When a worker starts, it makes the
        recurrences in Redis agree with the app's declarations. `name`: else the task's. `after="end"`: `every` is
        counted from the end of each run, otherwise from 1970. `spread`: each occurrence is
        delayed by up to this many seconds, and always by the same part of them. `misfire`: the treatment of missed
        occurrences: "skip", "once", or "all" up to `most`. `overlap`: the treatment of an occurrence that falls due
        before the one before it has ended: "skip", "wait" or "allow". `skip`: the calendar on whose days it makes no
        jobs. `pause_after`: it is paused after this many failures in a row.

        Raises (when the function is decorated):
            ConfigError: the rule, zone or window is not valid; or the interval is shorter than the retries may take.
            BadArguments: the task cannot be called with `args` and `kwargs`.
        """
        check_recurring_options(options)

        def declare(function: Callable[..., Any]) -> Any:
            handle = cast("TaskHandle[..., Any]", function if isinstance(function, TaskHandle) else self.task(function))
            recurrence = declared(handle.task, rule, options, self.payload_cap)
            queue = options.get("queue") or handle.task.queue or self.queue
            if any(name == queue and other.name == recurrence.name for name, other in self.program.recurrences):
                raise ConfigError(f"recurrence {recurrence.name!r} is declared twice: give one of them another name=")
            self.program.recurrences.append((queue, recurrence))
            return handle

        return cast("Recur", declare)

    def limit(
        self,
        queue: str | None = None,
        *,
        group: str | None = None,
        concurrency: int | None = None,
        rate: float | None = None,
        burst: int | None = None,
        weight: float | None = None,
    ) -> None:
        """Declare limits of a queue, or of one of its groups: they hold over all workers.

        A worker sets them when it starts, for each of its queues. A limit that is changed by hand (`evsched limit`)
        stays so until the declaration changes. `queue`: else the app's. `group`: "*" is each group that has none of its
        own, "task:NAME" all jobs of a task. `concurrency`: how many jobs may run at the same time. `rate`: how many may
        start in a second, and `burst` how many of them at once. `weight`: the group's share of the queue.

        Raises:
            ConfigError: a value is not valid, or a limit is declared twice.
        """
        given = {"concurrency": concurrency, "rate": rate, "burst": burst, "weight": weight}
        if all(value is None for value in given.values()):
            raise ConfigError("limit() declares nothing: give it concurrency, rate, burst or weight")
        self._declare(queue, group, given)

    def _declare(self, queue: str | None, group: str | None, given: Mapping[str, float | None]) -> None:
        name = check_queue(self.queue if queue is None else queue)
        fields = {field(limit, group, value): value for limit, value in given.items() if value is not None}
        known = {limit for of, limit, _ in self.program.limits if of == name}
        if twice := known & fields.keys():
            raise ConfigError(f"limit {', '.join(sorted(twice))} of queue {name} is declared twice")
        self.program.limits.extend((name, limit, float(value)) for limit, value in fields.items())

    def history(
        self, queue: str | None = None, *, most: int | None = None, age: timedelta | float | None = None
    ) -> None:
        """Declare how many ended jobs a queue lists in its history: by default 10,000, until a day after the last one.

        `most`: a few more may be listed; 0 = it keeps no history, and no counts. `age`: a timedelta, or seconds. Works
        as `limit`; these are the limits `history` and `history_age`.

        Raises:
            ConfigError: a value is not valid, or is declared twice.
        """
        if queue is not None and not isinstance(queue, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"history: queue is {queue!r}: give the name of a queue, and the number as most=")
        if most is None and age is None:
            raise ConfigError("history() declares nothing: give it most or age")
        self._declare(
            queue, None, {"history": most, "history_age": None if age is None else finite_seconds("age", age)}
        )

    @property
    def client(self) -> Client:
        """The client of this app's Redis."""
        if self._client is None:
            self._client = Client(self.url, self.shards).with_codec(self.codec, self.payload_cap)
        return self._client

    def move_to(self, url: str, client: Client | None = None) -> None:
        """Enqueue to another Redis from now on: that of the worker which runs the app, or through a given client."""
        self.url, self._client = url, client and client.with_codec(self.codec, self.payload_cap)

    async def close(self) -> None:
        """Close the client's connection."""
        if self._client is not None:
            await self._client.close()

    def job(self, id: str, *, queue: str | None = None) -> Job[Any]:  # noqa: A002 - the contract's name
        """Return a handle for a job whose id you know; `queue`: else the app's.

        It asks nothing of Redis: if there is no such job, the handle's methods raise JobMissing.
        """
        return Job(id, check_queue(self.queue if queue is None else queue), None, self.client)

    async def signal(self, job_id: str, signal: str, value: Any = None, *, queue: str | None = None) -> bool:
        """Send a signal to a job, with a JSON value, for which its handler may wait; `queue`: else the app's.

        A job that waits for it goes on at once; otherwise the job keeps it. Return False if a signal of that name had
        come to the job before: the first one stays.

        Raises:
            JobMissing: there is no such job, it has ended or is dead, or its wait for the signal is over.
            ConfigError: the name or the value is not valid.
        """
        return await self.client.signal(check_queue(self.queue if queue is None else queue), job_id, signal, value)

    def batch(
        self,
        id: str | None = None,  # noqa: A002 - as of a job
        *,
        queue: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> NewBatch:
        """Return a batch, to be opened by `async with`, or by `await ... .open()`: see docs/batches.md.

        `id`: else a random one. `queue`: its home, else the app's queue; its jobs may be in any queues. `on_done`,
        `on_failed`, `on_progress`: a task, or `task.using(...)`, whose job gets one argument, an `EndedBatch`.
        `complete_on="all"`: it is done when all jobs have ended, however. `expires`: after how many seconds it has
        failed if it has not ended. `retention`: for how many seconds it is kept then.

        Raises:
            ConfigError, BadArguments: an option is not valid, or a callback does not take such an argument.
        """
        from evsched.batches.batch import NewBatch  # few programs need it

        return NewBatch(id, self.queue if queue is None else queue, self.client, options)

    def graph(
        self,
        id: str | None = None,  # noqa: A002 - as of a job
        *,
        queue: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> Graph:
        """Return a graph without nodes: jobs that run in an order and get each other's results. See docs/graphs.md.

        The arguments are those of `batch`: a graph is a batch.
        """
        from evsched.graphs.graph import Graph  # few programs need it

        return Graph(self, id, self.queue if queue is None else queue, options)

    def chain(
        self,
        *calls: TaskCall[Any],
        id: str | None = None,  # noqa: A002 - as of a job
        queue: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> Graph:
        """Return a graph of jobs one after the other: `await app.chain(load.s(url), parse.s(), save.s()).enqueue()`.

        Each gets the result of the one before it as its next argument by position, if its handler takes one. The other
        arguments are those of `batch`.

        Raises:
            BadArguments: a task cannot be called with its arguments.
            ConfigError: a call names an id, or is not `task.s(...)`.
        """
        from evsched.graphs.graph import chain

        return chain(self, calls, id, self.queue if queue is None else queue, options)

    def known_batch(self, id: str, *, queue: str | None = None) -> Batch:  # noqa: A002
        """Return a handle for a batch whose id you know; `queue`: its home, else the app's. It asks Redis nothing."""
        from evsched.batches.batch import Batch

        return Batch(id, self.queue if queue is None else queue, self.client)

    async def current_batch(self) -> Batch | None:
        """Return the batch that the running job is a member of; None if it is in none. It may add jobs to it.

        Raises:
            LookupError: the caller is not inside a run.
        """
        from evsched.batches.batch import batch_of_job

        job = current_job()
        return await batch_of_job(self.client, job.queue, job.id)

    @contextmanager
    def sync(self) -> Generator[BatchSession]:
        """Yield a client for a program without an event loop. All its threads may share it; see `SyncSession`."""
        client = self.client.without_loop()
        try:
            yield BatchSession(client, self.queue)
        finally:
            client.close()

    @overload  # the overlap is meant: the first match wins
    def task(self, handler: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def task(self, handler: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, handler: None = None, /, **options: Unpack[TaskOptions]) -> Register: ...
    def task(self, handler: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Register a function as a task. An async function runs in the worker's event loop, a plain one in a thread.

        `name`: else the function's. `timeout`: seconds that a run may take, None = no limit. `retention`: seconds for
        which the result is kept, 0 = not at all. `on="process"`: run a plain function in a process of its own.
        `on_done`, `on_dead`: a task of this app that gets a job for each job that is done, or that is dead or expired;
        its handler takes one argument, annotated with `EndedJob`. `queue`: where its jobs go, else the app's.
        `concurrency`: how many of its jobs may run at the same time in a queue, over all workers.

        Raises:
            ConfigError: the name is taken or begins with `evsched.`, an option is not valid, or it is a task already.
        """
        check_task_options(options)
        if (options.get("name") or "").startswith(RESERVED):
            raise ConfigError(
                f"task {options.get('name')}: the names that begin with {RESERVED} are evsched's own: to schedule "
                "requests and messages, use app.http.enqueue(...) and app.forward.enqueue(...)"
            )

        def register(function: Callable[..., Any]) -> Any:
            if isinstance(function, TaskHandle):
                known = cast("TaskHandle[..., Any]", function).task.name
                raise ConfigError(f"{known} is a task already: to give it a second name, register its `handler`")
            task = define(function, **options)
            self.tasks.add(task)
            kind = AsyncTask[..., Any] if task.on == "loop" else PlainTask[..., Any]
            return kind(self, task)

        return register if handler is None else register(handler)


_every: Final = WeakSet[App]()
"""The apps of this process."""

_instruments_of_all: Final[list[Callable[[App], Instrument]]] = []


def instrument_all(make: Callable[[App], Instrument]) -> None:
    """Give each app of this process an instrument, now or when it is made."""
    _instruments_of_all.append(make)
    for app in list(_every):
        app.instrument(make(app))


def find_codec(name: str | None) -> PayloadCodec | None:
    """Return the codec of an app, by the name in the setting `codec`; None without a name.

    Raises:
        ConfigError: that app has no codec.
        CannotStart: there is no such app.
    """
    if name is None:
        return None
    codec = find_app(name).codec
    if codec is None:
        raise ConfigError(f"EVSCHED_CODEC is {name}, and that app has no codec: give it App(codec=Codec(...))")
    return codec


def find_app(name: str) -> App:
    """Import MODULE:APP.

    Raises:
        ConfigError: that is not the form of a name.
        CannotStart: there is no such app; the message says why.
    """
    module, app = find_variable(name, "app")
    if not isinstance(app, App):
        there = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f": it has {', '.join(there)}" if there else ": make one with app = evsched.App()"
        module_name, _, attribute = name.partition(":")
        raise CannotStart(f"module {module_name!r} has no app {attribute!r}{hint}")
    app.origin = name
    return app


def find_variable(name: str, what: str) -> tuple[ModuleType, Any]:
    """Import a module, and return it with one of its variables, None if it has none; `name`: MODULE:VARIABLE.

    `what`: the kind of the variable, for messages.

    Raises:
        ConfigError: that is not the form of a name.
        CannotStart: the module does not import; the message says why.
    """
    module_name, colon, attribute = name.partition(":")
    dotted = all(map(str.isidentifier, module_name.split("."))) and not module_name.endswith(".py")
    if not colon or not dotted or not attribute.isidentifier():
        raise ConfigError(
            f"{name!r} names no {what}: write MODULE:{what.upper()}, the dotted name of a module (no path) and the "
            f"variable that holds the {what} in it, such as tasks:{what} or shop.tasks:{what}"
        )
    place = "in this folder and in the installed packages"
    try:
        if "" not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
    except FileNotFoundError:
        place = "in the installed packages alone: the current folder has been deleted, change to one that exists"
    try:
        module = importlib.import_module(module_name)
    # Whatever a user's module raises while it is imported is the user's mistake, and is reported in one line.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        from evsched.execution.failure import failure_of  # programs that only enqueue do without it

        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            why = f"{error} (looked {place})"
        else:
            failure = failure_of(error, module_name)
            _logger.debug("%s", failure.traceback)
            why = failure.reason
        raise CannotStart(f"module {module_name!r} does not import: {why}") from None
    return module, getattr(module, attribute, None)
