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
        assert run.outcome == Done(...)

There is no dispatcher and no worker, and nothing waits: `advance` moves the clock from one due time to the next, and
runs the due jobs one after the other, in this process and event loop. Recurrences that the app declares are scheduled
too. The rest works as in production: the scripts, retries, limits, middleware, and the lifespan (around each
`advance`). Only retention follows Redis's own clock.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any, Final, cast

import pytest
from msgspec import Struct

from evsched import App
from evsched.client.client import Client
from evsched.client.find_queues import find_queues
from evsched.client.operations import Send, Step, nodes
from evsched.client.sync_client import SyncClient
from evsched.client.times import unix
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.execution.executor import Executor
from evsched.execution.run import Delivery, Run
from evsched.execution.run_store import NoRunStore
from evsched.jobs.job import Outcome
from evsched.recurrence.calendars import just_before
from evsched.recurrence.recurrence import read_declared, read_recurrence
from evsched.store.server import flush
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis

__all__ = ["Clock", "Ran", "clock", "evsched_app", "evsched_server"]

_MOST: Final = 10_000
"""The most runs of one `advance`. More of them most likely mean a job that schedules itself for now."""

_TICK: Final = 1e-6
"""Seconds: the scripts compare dues in whole microseconds, so the clock moves by whole microseconds."""

_SLICE: Final = 100
"""Recurrences of one step."""

_WORKER: Final = "test"


class Ran(Struct, frozen=True):
    """A run of `advance`, and its outcome. `at` in Unix seconds."""

    id: str
    queue: str
    task: str
    attempt: int
    at: float
    outcome: Outcome


class _Client(Client):
    """The app's client, on the test's clock. It sends without the event loop, so it leaves no connection open there."""

    def __init__(self, clock: Clock, sender: SyncClient, url: str) -> None:
        super().__init__(url)
        self._clock = clock
        self._sync = sender

    def store(self, queue: str) -> Store:
        return Store(queue, lambda: self._clock.now)

    async def perform(self, step: Step) -> Any:
        return self._sync.send(step.call) if isinstance(step, Send) else await super().perform(step)

    async def result(self, queue: str, job_id: str, timeout: timedelta | float | None, row: int | None = None) -> Any:
        """Return a job's result, as `Client.result`. A job that has not ended does not end until the clock is moved."""
        status = await self.status(queue, job_id)
        if status is not None and status.place not in ("finished", "dead"):
            raise TimeoutError(f"{job_id} has not ended: it is in {status.place}. `await clock.advance(...)` runs jobs")
        return await super().result(queue, job_id, timeout, row)


class _Windows(NoRunStore):
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
        """Unix seconds. Only `advance` moves it."""
        self._config = Config(url=url)
        self._program = app.program
        self._sender = SyncClient(url)
        self._executor = Executor(app.program, 1, 1, _Windows(self._sender))
        app.move_to(url, _Client(self, self._sender, url))
        for node in self._sender.run(nodes()):
            self._sender.send(flush().at(node))
        for queue, declared in app.program.recurrences:
            self._sender.send(Store(queue).declare(declared, app.program.owner))
        for queue in {*app.queues, *(name for name, *_ in app.program.limits)}:
            self._sender.send(Store(queue).limit(app.program.wholes_in(queue)))

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

        Raises:
            ConfigError: the moment is not valid or in the past; or more than 10,000 runs were made.
        """
        length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        end = _tick(self.now + length) if until is None else _tick_from(unix("until", until))
        if not end >= self.now:  # nor NaN
            raise ConfigError(f"the clock is at {self.now}, and cannot go back to {end}")
        ran = list[Ran]()
        async with self._program.lifespan() as self._executor.handlers.state:
            while True:
                rest = min([await self._run_due(queue, ran) for queue in self._queues()], default=float("inf"))
                if rest <= 0:
                    continue
                if _tick(self.now + rest) > end:
                    break
                self.now = _tick(self.now + rest)
        self.now = end
        return ran

    def close(self) -> None:
        """Close the connection."""
        self._sender.close()

    def _queues(self) -> list[str]:
        return self._sender.run(find_queues())

    async def _run_due(self, queue: str, ran: list[Ran]) -> float:
        """Run what is due now in a queue; return the seconds until more is due, at least a tick; 0 = look again."""
        store, config = Store(queue, lambda: self.now), self._config
        recurs = self._recur(store)
        step = self._sender.send(store.dispatch(limit=config.batch, cap=config.payload_cap))
        worked = bool(step.moved or step.buried or recurs <= 0)
        while jobs := self._sender.send(store.start(_WORKER, (), hold=1, lease=config.lease)).jobs:
            (job,) = jobs
            run = Run(job, Delivery(queue, self.now, time.monotonic()))
            await self._executor.run(run)
            self._end(store, run)
            outcome = cast(Outcome, run.outcome)  # only a run that loses its lease has none
            ran.append(Ran(job.id, queue, run.task, job.attempt, self.now, outcome))
            worked = True
            if len(ran) > _MOST:
                raise ConfigError(f"more than {_MOST} runs: does job {job.id}, task {run.task}, schedule itself?")
        return 0.0 if worked else max(_TICK, min(step.sleep, recurs))

    def _end(self, store: Store, run: Run) -> None:
        for call, _ in store.end_runs(_WORKER, [run]):
            why = self._sender.send(call).refused.get(run.job.id)
            if why is not None:
                run.refuse(why)
                self._end(store, run)

    def _recur(self, store: Store) -> float:
        """Put the occurrences that are due now on the schedule; return the seconds until more are due."""
        agenda = self._sender.send(store.agenda(0.0, _SLICE))
        calendars = self._sender.send(store.calendars(agenda.calendars)) if agenda.calendars else {}
        for name, seen, fields in agenda.over:
            recurrence = read_recurrence(read_declared(name, fields), calendars)
            self._sender.send(store.unpause(name, seen, next(recurrence.walk(just_before(float(seen))), None)))
        for name, seen, fields in agenda.rows:
            plan = read_recurrence(read_declared(name, fields), calendars).plan(float(seen), self.now, 0.0)
            self._sender.send(store.recur(name, seen, plan.put, next_=plan.next, missed=plan.missed))
        if agenda.rows or agenda.over:
            return 0.0
        nearest = [moment for moment in (agenda.beyond, agenda.pause_ends) if moment is not None]
        return min(nearest, default=float("inf")) - self.now


def _tick(moment: float) -> float:
    return round(moment, 6)


def _tick_from(moment: float) -> float:
    """Return a moment rounded up to whole microseconds, so that what is due at the moment is due."""
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
