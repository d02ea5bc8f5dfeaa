"""The instruments of an app: several see each enqueue and each run, in order, whichever app they are given to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

import evsched.app
from evsched import App
from evsched.app import instrument_all
from evsched.client.new_job import Sending
from evsched.execution.executor import Executor
from evsched.execution.run import Delivery, Run
from evsched.jobs.job import FetchedJob


class Noted:
    """An instrument that notes what it sees."""

    def __init__(self, name: str, seen: list[str], *, fails: bool = False) -> None:
        self._name, self._seen, self._fails = name, seen, fails

    @contextmanager
    def sending(self, sending: Sending) -> Generator[None]:
        if self._fails:
            raise ValueError("no luck")
        self._seen.append(f"{self._name} before")
        sending.options = {**sending.options, "meta": {**(sending.options.get("meta") or {}), self._name: 1}}
        try:
            yield
        finally:
            self._seen.append(f"{self._name} after {[job.payload.decode() for job in sending.jobs]}")

    def carried(self) -> dict[str, str]:
        return {self._name: "1"}

    async def running(self, run: Run, call: Callable[[], Awaitable[Any]]) -> Any:
        self._seen.append(f"{self._name} {run.job.id}")
        return await call()


class Writes:
    """The part of a client that an enqueue needs."""

    async def enqueue(self, *args: Any) -> None: ...


async def test_each_sees_the_enqueue_and_may_change_its_options() -> None:
    app, seen = App(), list[str]()
    app.instrument(Noted("a", seen))
    app.instrument(Noted("b", seen))

    @app.task
    async def noop() -> None: ...

    writes: Any = Writes()
    await noop.put(writes, (), {})
    payloads = ['{"task":"noop","meta":{"a":1,"b":1}}']
    assert seen == ["a before", "b before", f"b after {payloads}", f"a after {payloads}"]


def test_the_job_of_a_callback_carries_the_entries_of_all() -> None:
    app = App()
    for name in ("a", "b"):
        app.instrument(Noted(name, []))

    @app.task
    async def note(batch: Any) -> None: ...

    assert note.using(meta={"b": "own"}).template(None)["payload"]["meta"] == {"a": "1", "b": "own"}


async def test_the_first_is_entered_first_and_left_if_the_second_fails() -> None:
    app, seen = App(), list[str]()
    app.instrument(Noted("a", seen))
    app.instrument(Noted("b", seen, fails=True))

    @app.task
    async def noop() -> None: ...

    writes: Any = Writes()
    with pytest.raises(ValueError, match="no luck"):
        await noop.put(writes, (), {})
    assert seen == ["a before", "a after []"]


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
    assert seen == ["a 1", "b 1", "middleware", "handler"]


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
