"""For tests of programs that use evsched: a private Redis, and a clock that the test moves.

    # conftest.py
    pytest_plugins = ["evsched.testing"]

    @pytest.fixture
    def evsched_app():
        return tasks.app

    # test_tasks.py
    pytestmark = pytest.mark.anyio

    async def test_the_reminder_comes_after_three_hours(clock):
        await tasks.remind.using(delay=timedelta(hours=3)).enqueue("bob")
        assert await clock.advance(hours=2) == []
        (run,) = await clock.advance(hours=1)
        assert run.outcome == "done"

There is no dispatcher and no worker, and nothing waits: `advance` moves the clock from one due time to the next, and
runs the due jobs one after the other, in this process and event loop. Recurrences that the app declares are scheduled
too. The rest works as in production: the scripts, retries, limits, middleware, and the lifespan (around each
`advance`). Only the timeouts of tasks count real seconds, and retention follows Redis's own clock.

PYTEST_DONT_REWRITE: a conftest.py may import `Clock` before pytest loads this plugin.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, cast

import anyio
import pytest
from msgspec import Struct
from msgspec.structs import replace

from evsched import App
from evsched.batches.keeper import BatchKeeper
from evsched.client.client import BlockingClient, Client, SyncClient
from evsched.client.named_times import calendar_text
from evsched.client.operations import Send, SendMany, Step, Wait, nodes
from evsched.client.option_values import unix
from evsched.client.queue_names import find_queues
from evsched.client.recurrence_operations import kept
from evsched.client.target_tasks import HttpResponse
from evsched.client.task_handle import TaskHandle
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.events import ChoresDone, Event
from evsched.execution.deferral import RunStore
from evsched.execution.executor import Executor
from evsched.execution.program import Program
from evsched.execution.run import Delivery, Run
from evsched.jobs import option_checks as check
from evsched.jobs.job import Aborted, Buried, Deferred, Done, Outcome, Requeued, Retried, Snoozed, decode
from evsched.jobs.kept import KeptAnswer, Question
from evsched.jobs.retry import task_of
from evsched.jobs.tasks import Tasks
from evsched.lease import DEFAULT
from evsched.recurrence.calendars import just_before, names_of
from evsched.recurrence.recurrence import Plan, Recurrence, read_declared, read_recurrence, window_names
from evsched.recurrence.windows import WINDOW_NAME, parse_window
from evsched.runtime.loops import Runtime
from evsched.shards import Shards
from evsched.store.acts import Act
from evsched.store.dispatcher_calls import Agenda
from evsched.store.server import flush
from evsched.store.store import Store
from evsched.targets.forward import RETRY
from evsched.targets.intake import Answer, judge
from evsched.testing_ledger import WrittenRows
from evsched.transport.call import Call, T
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender

__all__ = ["Clock", "Ran", "RunOutcome", "clock", "evsched_app", "evsched_server"]

RunOutcome = Literal["done", "retry", "snoozed", "dead", "expired", "cancelled"]
"""The outcome of a run, in the words of the metrics."""

_MOST: Final = 10_000
"""The most runs of one `advance`. More of them most likely mean a job that schedules itself for now."""

_TICK: Final = 1e-6
"""Seconds: the scripts compare dues in whole microseconds, so the clock moves by whole microseconds."""

_SLICE: Final = 100
"""Recurrences of one step."""

_WORKER: Final = "test"

_STANDS: Final = "it has not ended, and does not end until `await clock.advance(...)` runs its jobs"


_logger: Final = logging.getLogger("evsched")


class Ran(Struct, frozen=True):
    """A run of `advance`. `at` in Unix seconds."""

    id: str
    queue: str
    task: str
    attempt: int
    at: float
    outcome: RunOutcome
    result: Any = None
    """The result of a run that is done, as JSON has it."""
    reason: str | None = None
    """Why it is not done; None if it is done or cancelled."""


class _SyncClockClient(BlockingClient):
    """The client of `app.sync()`, on the test's clock."""

    def __init__(self, clock: Clock, url: str, shards: Shards) -> None:
        super().__init__(url, shards)
        self._clock = clock

    def _make(self, queue: str, act: Act | None = None) -> Store:
        return self._clock.store(queue, act)

    async def wait_for(self, wait: Wait) -> Any:
        raise TimeoutError(_STANDS)


class _AppClient(Client):
    """The app's client, on the test's clock. It sends without the event loop, so it leaves no connection open there."""

    def __init__(self, clock: Clock, sender: SyncClient, url: str) -> None:
        super().__init__(url)
        self._clock = clock
        self._sync = sender

    def _make(self, queue: str, act: Act | None = None) -> Store:
        return self._clock.store(queue, act)

    def ledger_time(self) -> float:
        return self._clock.store_time()

    def note_rows(self, connection: Any, rows: Sequence[int | None]) -> None:
        self._clock.written.note(connection, rows)

    def without_loop(self) -> SyncClient:
        return SyncClient(self._url, kind=partial(_SyncClockClient, self._clock))

    async def wait_for(self, wait: Wait) -> Any:
        raise TimeoutError(_STANDS)

    async def perform(self, step: Step) -> Any:
        if isinstance(step, SendMany):
            return [self._sync.send(call) for call in step.calls]
        if not isinstance(step, Send):
            return await super().perform(step)
        return self._clock.now if step.call.name == "TIME" else self._sync.send(step.call)

    async def result(self, queue: str, job_id: str, timeout: timedelta | float | None, row: int | None = None) -> Any:
        """Return a job's result, as `Client.result`. A job that has not ended does not end until the clock is moved."""
        status = await self.status(queue, job_id)
        if status is None and row is not None:
            raise TimeoutError(f"{job_id} is in no transaction that `await clock.advance()` has seen")
        if status is not None and status.place not in ("finished", "dead"):
            raise TimeoutError(f"{job_id} has not ended: it is in {status.place}. `await clock.advance(...)` runs jobs")
        return await super().result(queue, job_id, timeout, row)


class _ChoreSender(BatchingSender):
    """Sends the calls of the keeper of batches without the event loop, on the test's clock."""

    def __init__(self, clock: Clock, sender: SyncClient, url: str) -> None:
        super().__init__(url)
        self._clock = clock
        self._sync = sender

    async def send(self, call: Call[T]) -> T:
        """Send a call; that for Redis's clock gets the test's."""
        return cast(T, self._clock.now) if call.name == "TIME" else self._sync.send(call)

    async def send_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return [await self.send(call) for call in calls]


class _Windows(RunStore):
    """Reads the windows that are kept in Redis."""

    def __init__(self, sender: SyncClient) -> None:
        self._sender = sender

    async def read_window(self, queue: str, name: str) -> str | None:
        """Return a window, as `RunStore.read_window`."""
        return self._sender.send(Store(queue).window(name))


class Clock:
    """The clock of a test. Moving it runs the jobs that become due."""

    def __init__(self, app: App, url: str) -> None:
        self.now: float = float(int(time.time()))
        """Unix seconds. Only `start` and `advance` move it."""
        self._config = Config(url=url)
        self._program = app.program
        self._sender = SyncClient(url)
        windows = _Windows(self._sender)
        self._executor = Executor(app.program, 1, 1, windows)
        self._targets = Tasks()
        """They run the jobs of `app.http` and `app.forward`, without the app's middleware, as in production."""
        self._target_executor = Executor(Program(self._targets), 1, 1, windows)
        for handle in (app.http, app.forward):
            self.answer(handle, _accept)
        self._own_queues = {*app.queues, *(queue for queue, *_ in app.program.limits if queue)}
        self.written = WrittenRows(self._sender, self.store, lambda: self.now)
        """The rows that the test has written to the ledger."""
        self._used = False
        self._runs = 0
        """Runs of the `advance` that is under way, also jobs that did not begin."""
        app.move_to(url, _AppClient(self, self._sender, url))
        runtime = Runtime(self._config, _ChoreSender(self, self._sender, url), self._note)
        self._keeper, self._chores = BatchKeeper(runtime, list, app.client), 0
        """Does the chores of batches; and how many were done."""
        for node in self._sender.run(nodes()):
            self._sender.send(flush().at(node))
        for queue, declared in app.program.recurrences:
            self._sender.send(Store(queue).declare(declared, app.program.owner))
        for queue in self._own_queues:
            self._sender.send(Store(queue).limit(app.program.wholes_in(queue)))

    def start(self, at: datetime | float) -> None:
        """Set the clock to the moment at which the test begins: an aware datetime, or Unix seconds.

        Raises:
            ConfigError: the moment is not valid; or the test has enqueued something or moved the clock before.
        """
        if self._used:
            raise ConfigError("clock.start comes first in a test, before it enqueues jobs and moves the clock")
        self.now = _tick_from(unix("start", at))

    async def advance(
        self,
        *,
        days: float = 0.0,
        hours: float = 0.0,
        minutes: float = 0.0,
        seconds: float = 0.0,
        until: datetime | float | None = None,
    ) -> list[Ran]:
        """Move the clock by a duration, or to a moment; run the jobs that become due, in order, and return the runs.

        `until`: the moment, an aware datetime or Unix seconds. A job that waits for its window has not run yet.

        Raises:
            ConfigError: the moment is not valid or in the past; or it is given with a duration; or more than 10,000
                runs were made.
        """
        self._used = True
        length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        if until is not None and length:
            raise ConfigError("advance: give `until` or a duration, not both")
        end = _tick(self.now + length) if until is None else _tick_from(unix("until", until))
        if not end >= self.now:  # nor NaN
            raise ConfigError(f"the clock is at {self.now}, and cannot go back to {end}")
        ran, self._runs = list[Ran](), 0
        async with self._executor, self._program.lifespan() as self._executor.handlers.state:
            relayed = -1
            while True:
                if relayed != self._runs:  # only handlers write while the clock moves
                    await self.written.relay()
                    relayed = self._runs
                rest = min([await self._run_due(queue, ran) for queue in self._queues()], default=float("inf"))
                if rest <= 0:
                    continue
                if _tick(self.now + rest) > end:
                    break
                self.now = _tick(self.now + rest)
        self.now = end
        return ran

    def set_calendar(self, name: str, days: str | Iterable[date], *, queue: str | None = None) -> None:
        """Give the test a calendar, or change it, for the recurrences that skip its days.

        `days`: dates, or a text such as "2030-01-01 2030-12-24..2030-12-26". `queue`: else all queues of the app.

        Raises:
            ConfigError: the name or a day is not valid, or there is no day.
        """
        check.text("name", name)
        text = calendar_text(name, days)
        for store in self._stores(queue):
            self._sender.send(store.set_calendar(name, text))
            self._replan(store, lambda fields: name in names_of(fields.get("skip")))

    def set_window(self, name: str, window: str, *, queue: str | None = None) -> None:
        """Give the test a named window, or change it, such as "mon-fri 09:00-17:00 Europe/Berlin".

        `queue`: else all queues of the app.

        Raises:
            ConfigError: the name or the window is not valid.
        """
        check.text("name", name)
        check.text("window", window)
        parse_window(window)
        if not WINDOW_NAME.fullmatch(name):
            raise ConfigError(f"window name {name!r}: 1 to 100 of A-Z a-z 0-9 . _ -")
        for store in self._stores(queue):
            self._sender.send(store.set_window(name, window))
            while self._sender.send(store.reopen(name))[1]:
                pass
            self._replan(store, lambda fields: name in window_names(fields.get("window"), fields.get("payload", b"")))

    def answer(self, task: TaskHandle[..., Any], handler: Callable[..., Any]) -> None:
        """Choose the outcome of requests of `app.http`, or messages of `app.forward`: `handler` runs instead.

        It is called with the arguments of `enqueue` by their names, may be async, and may raise `RetryLater` or
        `GiveUp`. For `app.http` it returns an `HttpResponse`, or None for a 200; its status decides as in production.

        Raises:
            ConfigError: it is another task.
        """
        if task.name not in ("evsched.http", "evsched.forward"):
            raise ConfigError(
                f"clock.answer takes app.http or app.forward, not task {task.name}: that task itself runs"
            )
        signature = inspect.signature(task.handler)

        async def run(*args: Any, **kwargs: Any) -> HttpResponse | None:
            given = signature.bind(*args, **kwargs).arguments
            answer = handler(**given)
            if inspect.isawaitable(answer):
                answer = await answer
            return self._judged(answer, given) if task.name == "evsched.http" else None

        policy = RETRY if task.name == "evsched.forward" else task.task.retry
        self._targets[task.name] = replace(task.task, handler=run, on="loop", retry=policy)

    def _judged(self, answer: HttpResponse | None, given: dict[str, Any]) -> HttpResponse | None:
        """Return the result of a request that was answered."""
        if answer is None:
            answer = HttpResponse(200, {}, "", False)
        elif not isinstance(answer, HttpResponse):  # pyright: ignore[reportUnnecessaryIsInstance] - a test may return anything
            raise TypeError(
                f"the handler of clock.answer(app.http, ...) returns an HttpResponse or None, not {answer!r}"
            )
        headers = [(name.lower(), value) for name, value in answer.headers.items()]
        judge(Answer(answer.status, headers, answer.body.encode(), not answer.cut), given["url"], self.now)
        return answer if given.get("response") else None

    def store(self, queue: str, act: Act | None = None) -> Store:
        self._used = True
        return Store(queue, lambda: self.now, act=act)

    def store_time(self) -> float:
        """Return the time at which the test writes to the ledger."""
        self._used = True
        return self.now

    def close(self) -> None:
        self._sender.close()

    def _stores(self, queue: str | None) -> list[Store]:
        queues = self._own_queues if queue is None else {queue}
        return [Store(name, lambda: self.now) for name in queues]

    def _replan(self, store: Store, concerns: Callable[[dict[str, bytes]], bool]) -> None:
        for name, _, fields in self._sender.run(kept(store)):
            if concerns(fields):
                self._sender.send(store.replan(name))

    def _queues(self) -> list[str]:
        return self._sender.run(find_queues())

    async def _run_due(self, queue: str, ran: list[Ran]) -> float:
        """Run the due jobs of a queue; return the seconds until more is due, at least a tick; 0 = look again."""
        store, config = self.store(queue), self._config
        recurs, done = self._recur(store), self._chores
        chores = await self._keeper.step(queue)
        step = self._sender.send(store.dispatch(limit=config.batch, cap=config.payload_cap))
        worked = bool(step.moved or step.buried or recurs <= 0 or self._chores > done)
        while jobs := self._sender.send(store.start(_WORKER, (), hold=1, lease=DEFAULT)).jobs:
            (job,) = jobs
            run = Run(job, Delivery(queue, self.now, time.monotonic(), keeper=self))
            task = task_of(job.payload)
            is_target = task in self._targets and task not in self._program.tasks
            await self._work(store, run, self._target_executor if is_target else self._executor)
            self._end(store, run)
            if run.outcome is not None and (words := _words_of(run.outcome)) is not None:
                ran.append(Ran(job.id, queue, run.task, job.attempt, self.now, *words))
            worked = True
            self._runs += 1
            if self._runs > _MOST:
                raise ConfigError(f"more than {_MOST} runs: does job {job.id}, task {run.task}, schedule itself?")
        return 0.0 if worked else max(_TICK, min(step.sleep, recurs, chores))

    async def _work(self, store: Store, run: Run, executor: Executor) -> None:
        """Have an executor run a job as a worker does, in an asyncio task of its own, which its timeout cancels.

        If the test is cancelled meanwhile, the run is stopped, and its job waits to run again, unless it is done.
        """
        run.work = work = asyncio.ensure_future(executor.run(run))
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            run.stop("lost")
            with anyio.CancelScope(shield=True):  # it must not go on while the test ends
                await asyncio.wait([work])
            if not isinstance(run.outcome, Done):
                run.outcome = Requeued("the test was cancelled")
            self._end(store, run)
            raise

    def _note(self, event: Event) -> None:
        if isinstance(event, ChoresDone):
            self._chores += 1

    def ask(self, run: Run, question: Question) -> Future[KeptAnswer]:
        """Answer a question of a run about the data of its job; for evsched's own use."""
        answer = Future[KeptAnswer]()
        answer.set_result(self._sender.send(self.store(run.delivery.queue).answer(_WORKER, run.job, question)))
        return answer

    def _end(self, store: Store, run: Run) -> None:
        for call, _ in store.end_runs(_WORKER, [run]):
            why = self._sender.send(call).refused.get(run.job.id)
            if why is not None:
                run.refuse(why)
                self._end(store, run)

    def _recur(self, store: Store) -> float:
        """Put the occurrences that are due now on the schedule; return the seconds until more are due."""
        agenda = self._sender.send(store.agenda(0.0, _SLICE))
        read = self._reader(store, agenda)
        for name, seen, fields in agenda.over:
            recurrence = read(name, fields)
            next_ = 0.0 if recurrence is None else next(recurrence.walk(just_before(float(seen))), None)
            self._sender.send(store.unpause(name, seen, next_))
        for name, seen, fields in agenda.rows:
            recurrence = read(name, fields)
            plan = Plan([], None, 0) if recurrence is None else recurrence.plan(float(seen), self.now, 0.0)
            self._sender.send(store.recur(name, seen, plan.put, next_=plan.next, missed=plan.missed))
        if agenda.rows or agenda.over:
            return 0.0
        nearest = [moment for moment in (agenda.beyond, agenda.pause_ends) if moment is not None]
        return min(nearest, default=float("inf")) - self.now

    def _reader(self, store: Store, agenda: Agenda) -> Callable[[str, dict[str, bytes]], Recurrence | None]:
        """Return a function that reads a recurrence; None if it stands still, which is logged with the remedy."""
        calendars = self._sender.send(store.calendars(agenda.calendars)) if agenda.calendars else {}
        windows = self._sender.send(store.windows())

        def read(name: str, fields: dict[str, bytes]) -> Recurrence | None:
            try:
                return read_recurrence(read_declared(name, fields), calendars, windows)
            except ConfigError as error:
                _logger.warning(
                    "recurrence %s of queue %s makes no jobs: %s; in a test, clock.set_calendar(NAME, DAYS) or "
                    "clock.set_window(NAME, WINDOW)",
                    *(name, store.queue, error),
                )
                return None

        return read


def _accept(**arguments: Any) -> None:
    """Answer as a server that accepts everything."""


def _words_of(outcome: Outcome) -> tuple[RunOutcome, Any, str | None] | None:
    """Return the name of an outcome, its result, and its reason; None if the run did not begin and the job waits."""
    match outcome:
        case Done():
            return "done", decode(outcome.result), None
        case Retried():
            return "retry", None, outcome.reason
        case Buried():
            return outcome.outcome, None, outcome.reason
        case Aborted():
            return "cancelled", None, None
        case Snoozed():
            return "snoozed", None, outcome.reason
        case Deferred() | Requeued():
            return None


def _tick(moment: float) -> float:
    return round(moment, 6)


def _tick_from(moment: float) -> float:
    """Return a moment rounded up to whole microseconds, so that jobs of this moment are due."""
    tick = _tick(moment)
    return tick if tick >= moment else _tick(tick + _TICK)


@pytest.fixture(scope="session")
def evsched_server() -> Generator[EmbeddedRedis]:
    """Start a private Redis or Valkey for the tests."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def evsched_app() -> App:
    """Return the app under test: override this fixture to return yours."""
    return App()


@pytest.fixture
def clock(evsched_app: App, evsched_server: EmbeddedRedis) -> Generator[Clock]:
    """Give the app an empty private Redis and a clock that the test moves."""
    url = evsched_app.url
    found = Clock(evsched_app, evsched_server.url)
    yield found
    found.close()
    evsched_app.move_to(url)
