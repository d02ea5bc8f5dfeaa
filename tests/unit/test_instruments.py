"""The instruments of an app: several see each enqueue and each run, in order, whichever app they are given to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import pytest

import evsched.app
from evsched import App, JobExists, Retry, Snooze
from evsched.app import instrument_all
from evsched.client.new_job import Sending
from evsched.execution import instruments
from evsched.execution.executor import Executor
from evsched.execution.run import Delivery, Run
from evsched.jobs.job import FetchedJob


class Noted:
    """An instrument that notes what it sees. `fails`: where it raises."""

    def __init__(self, name: str, seen: list[str], *, fails: str = "", error: type[BaseException] = ValueError) -> None:
        self._name, self._seen, self._fails, self._error = name, seen, fails, error

    def _note(self, where: str, what: str) -> None:
        self._seen.append(what)
        if self._fails == where:
            raise self._error(f"{self._name} has no luck {where}")

    @contextmanager
    def sending(self, sending: Sending) -> Generator[None]:
        self._note("before", f"{self._name} before")
        try:
            yield
        finally:
            self._note("after", f"{self._name} after {[job.payload.decode() for job in sending.jobs]}")

    def carried(self, meta: Mapping[str, Any], batch: str) -> dict[str, Any]:
        if self._fails == "carried":
            raise ValueError("no luck")
        return {self._name: 1, **meta}

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        self._note("before", f"{self._name} {run.job.id}")
        try:
            yield
        except BaseException as error:
            self._seen.append(f"{self._name} {type(error).__name__}")
            raise
        finally:
            self._note("after", f"{self._name} ended")


class Writes:
    """The part of a client that an enqueue needs."""

    def __init__(self, refused: BaseException | None = None) -> None:
        self._refused, self.count = refused, 0

    async def enqueue(self, *args: Any) -> None:
        self.count += 1
        if self._refused is not None:
            raise self._refused


async def test_each_sees_the_enqueue_and_adds_to_its_meta() -> None:
    app, seen = App(), list[str]()
    app.instrument(Noted("a", seen))
    app.instrument(Noted("b", seen))

    @app.task
    async def noop() -> None: ...

    writes: Any = Writes()
    await noop.put(writes, (), {})
    payloads = ['{"task":"noop","meta":{"b":1,"a":1}}']
    assert seen == ["a before", "b before", f"b after {payloads}", f"a after {payloads}"]


def test_the_job_of_a_callback_carries_the_entries_of_all() -> None:
    app = App()
    for name in ("a", "b"):
        app.instrument(Noted(name, []))

    @app.task
    async def note(batch: Any) -> None: ...

    assert note.using(meta={"b": "own"}).template(None)["payload"]["meta"] == {"a": 1, "b": "own"}


FAILURES = ["before", "after", "carried"]


@pytest.mark.parametrize("fails", FAILURES)
@pytest.mark.parametrize("refused", [None, JobExists("it is there"), asyncio.CancelledError()], ids=repr)
async def test_an_enqueue_ends_as_without_an_instrument_that_raises(
    fails: str, refused: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen = App(), list[str]()
    app.instrument(Noted("a", seen))
    app.instrument(Noted("b", seen, fails=fails))
    instruments._logged.clear()  # pyright: ignore[reportPrivateUsage]

    @app.task
    async def noop() -> None: ...

    writes: Any = Writes(refused)
    for _ in range(2):
        raised = await caught(noop.put(writes, (), {}))
        assert raised is refused
        assert refused is None or names(refused)[-1] == "enqueue"
    assert writes.count == 2
    assert [line.partition(" [")[0] for line in seen[: len(seen) // 2] if line[0] == "a"] == ["a before", "a after"]
    (record,) = caplog.records  # once, for two enqueues
    assert "has no luck" in record.message or fails == "carried"
    assert "jobs and enqueues go on" in record.message


@pytest.mark.parametrize("on", ["loop", "thread"])
@pytest.mark.parametrize(
    ("fails", "error"),
    [("before", ValueError), ("after", ValueError), ("before", SystemExit), ("after", asyncio.CancelledError)],
)
@pytest.mark.parametrize("raised", [None, KeyError("mine"), Snooze(1.0, "not yet")], ids=repr)
async def test_a_run_ends_as_without_an_instrument_that_raises(
    on: str, fails: str, error: type[BaseException], raised: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen = App(), list[str]()
    instruments._logged.clear()  # pyright: ignore[reportPrivateUsage]

    def plain() -> int:
        if raised is not None:
            raise raised
        return 7

    async def asynchronous() -> int:
        return plain()

    app.task(name="t", retry=Retry(attempts=1))(plain if on == "thread" else asynchronous)
    outcomes = list[Any]()
    async with Executor(app.program, 1) as executor:
        for name in ("", "a", "b"):  # without one, with one that works, and with one that raises
            if name:
                app.instrument(Noted(name, seen, fails=fails if name == "b" else "", error=error))
            run = Run(FetchedJob("1", 1, 1.0, b'{"task":"t","reply":true}'), Delivery("q", 1.0, 0.0))
            await executor.run(run)
            outcomes.append(run.outcome)
    assert outcomes == [outcomes[0]] * 3
    assert seen[-1] == "a ended"
    assert ("a " + type(raised).__name__ in seen) is (raised is not None)
    (record,) = caplog.records
    assert f"{error.__name__}: b has no luck {fails}" in record.message


async def test_a_run_that_is_cancelled_stays_so_if_an_instrument_raises() -> None:
    app, begun = App(), asyncio.Event()
    app.instrument(Noted("a", [], fails="after"))

    @app.task
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Executor(app.program, 1) as executor:
        run = Run(FetchedJob("1", 1, 1.0, b'{"task":"hang"}'), Delivery("q", 1.0, 0.0))
        run.work = work = asyncio.ensure_future(executor.run(run))
        await begun.wait()
        run.stop("lost")
        with pytest.raises(asyncio.CancelledError):
            await work
    assert run.outcome is None


async def caught(work: Coroutine[Any, Any, Any]) -> BaseException | None:
    try:
        await work
    except BaseException as error:  # noqa: BLE001 - also a cancellation
        return error
    return None


def names(error: BaseException) -> list[str]:
    """Return the functions of a traceback."""
    return [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)]


async def test_runs_pass_through_all_of_them_before_the_middleware() -> None:
    app, seen = App(), list[str]()

    @app.middleware
    async def outermost(job: Any, call: Callable[[], Awaitable[Any]]) -> Any:  # pyright: ignore[reportUnusedFunction]
        seen.append("middleware")
        return await call()

    app.instrument(Noted("a", seen))
    app.instrument(Noted("b", seen))

    @app.task
    async def noop() -> None:
        seen.append("handler")

    async with Executor(app.program, 1) as executor:
        await executor.run(Run(FetchedJob("1", 1, 1.0, b'{"task":"noop"}'), Delivery("q", 1.0, 0.0)))
    assert seen == ["a 1", "b 1", "middleware", "handler", "b ended", "a ended"]


def test_an_instrument_of_all_apps_is_given_to_those_made_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evsched.app, "_instruments_of_all", [])
    before, made = App(), list[App]()

    def make(app: App) -> Noted:
        made.append(app)
        return Noted("a", [])

    instrument_all(make)
    after = App()
    assert before in made
    assert made[-1] is after
    assert [len(app.instruments) for app in (before, after)] == [len(before.program.around), 1]
