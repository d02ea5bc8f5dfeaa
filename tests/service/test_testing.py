"""`evsched.testing`: the clock of a test moves, and due jobs run in order, without waiting."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest

from evsched import (
    App,
    ConfigError,
    EndedBatch,
    EndedJob,
    GiveUp,
    HttpResponse,
    JobExists,
    JobMissing,
    Retry,
    Snooze,
    Unique,
    current_job,
)
from evsched.client.new_job import new_job
from evsched.jobs.job import Message
from evsched.store.store import Store
from evsched.testing import Clock, Ran, clock, evsched_app, evsched_server
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client

__all__ = ["clock", "evsched_app", "evsched_server"]

calls: list[tuple[str, int]] = []


@asynccontextmanager
async def lifespan() -> AsyncGenerator[str]:
    yield "shared"


app = App(queue="tested", lifespan=lifespan)


@app.task(retry=Retry(attempts=3, interval=60, factor=1, jitter=0))
async def remind(name: str, fail: int = 0) -> str:
    calls.append((name, current_job().attempt))
    current_job().progress(0, 3)
    current_job().progress(current_job().attempt, 3, name)
    if current_job().attempt <= fail:
        raise ValueError("no luck")
    return f"{name}, {current_job().state}"


@app.task
async def again(times: int) -> None:
    if times:
        await again.using(delay=60).enqueue(times - 1)


@app.task(retry=Retry(attempts=2, interval=60, jitter=0))
async def publish(name: str) -> Message | None:
    return Message("right", name, b"1")


@app.task
async def note(ended: EndedJob) -> str:
    return f"{ended.task} is {ended.outcome}"


@app.task(on_done=note, on_dead=note)
async def poll(ready: int) -> None:
    if current_job().due < current_job().planned + ready:
        raise Snooze(60)


@app.task
async def forever() -> None:
    await forever.enqueue()


@app.task
async def summarize(batch: EndedBatch) -> str:
    return f"{batch.outcome}: {batch.done} of {batch.total}"


@pytest.fixture(name="evsched_app")
def my_app() -> App:
    calls.clear()
    return app


async def test_due_jobs_run_in_order_without_waiting(clock: Clock) -> None:
    late = await remind.using(delay=timedelta(hours=3)).enqueue("late")
    early = await remind.using(delay=60).enqueue("early")
    assert await clock.advance(seconds=59) == []
    with pytest.raises(TimeoutError, match="in schedule"):
        await late.result()
    (run,) = await clock.advance(hours=2)
    assert (run.id, run.task, run.queue, run.attempt) == (early.id, "remind", "tested", 1)
    assert (run.outcome, run.result, run.reason) == ("done", "early, shared", None)
    assert await early.result() == "early, shared"
    began = clock.now
    (run,) = await clock.advance(hours=1)
    assert run.at == pytest.approx(began + 3600 - 59)
    assert calls == [("early", 1), ("late", 1)]
    assert await late.result() == "late, shared"


async def test_retries_run_when_they_are_due(clock: Clock) -> None:
    job = await remind.enqueue("bob", fail=2)
    began = clock.now
    runs = await clock.advance(minutes=5)
    assert [run.at - began for run in runs] == [0, 60, 120]
    assert [run.outcome for run in runs] == ["retry", "retry", "done"]
    assert [run.reason is not None and "ValueError: no luck" in run.reason for run in runs] == [True, True, False]
    assert (await job.status()).attempt == 3


async def test_recurrences_recur(evsched_server: EmbeddedRedis) -> None:
    calendar = App()

    @calendar.recurring("0 9 * * *", zone="Europe/Berlin")
    @calendar.task
    async def daily() -> None: ...

    clock = Clock(calendar, evsched_server.url)
    runs = await clock.advance(days=3)
    assert [run.task for run in runs] == ["daily"] * 3
    assert all(datetime.fromtimestamp(run.at, ZoneInfo("Europe/Berlin")).hour == 9 for run in runs)
    clock.close()


async def test_occurrences_that_are_spread_recur(evsched_server: EmbeddedRedis) -> None:
    calendar = App()

    @calendar.recurring(every=timedelta(minutes=5), spread=30)
    @calendar.task
    async def often() -> None: ...

    clock = Clock(calendar, evsched_server.url)
    runs = await clock.advance(hours=2)
    assert 23 <= len(runs) <= 24
    assert all(0 <= run.at % 300 <= 30 for run in runs)
    clock.close()


@pytest.fixture
def office(evsched_server: EmbeddedRedis) -> Generator[tuple[App, Clock]]:
    """Give an app whose recurrences name a calendar and a window, and which has another task."""
    office = App()

    @office.recurring("0 9 * * *", skip="holidays")
    @office.task
    async def daily() -> None: ...  # pyright: ignore[reportUnusedFunction]

    @office.recurring("0 * * * *", window="hours")
    @office.task
    async def hourly() -> None: ...  # pyright: ignore[reportUnusedFunction]

    @office.task
    async def other() -> None: ...  # pyright: ignore[reportUnusedFunction]

    clock = Clock(office, evsched_server.url)
    yield office, clock
    clock.close()


def tasks_of(runs: list[Ran]) -> list[str]:
    return [f"{run.task} {datetime.fromtimestamp(run.at, UTC):%d %H}" for run in runs]


async def test_missing_calendar_stops_a_recurrence_and_the_log_names_the_remedy(
    office: tuple[App, Clock], caplog: pytest.LogCaptureFixture
) -> None:
    app, clock = office
    clock.start(datetime(2030, 6, 1, 8, tzinfo=UTC))
    await app.client.enqueue("default", [new_job("other", (), {}, {})])
    assert tasks_of(await clock.advance(hours=3)) == ["other 01 08"]
    assert await clock.advance(days=1) == []
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert any("recurrence daily of queue default makes no jobs" in line for line in said)
    assert all("clock.set_calendar(NAME, DAYS)" in line for line in said)


async def test_calendars_and_windows_are_given_and_changed(office: tuple[App, Clock]) -> None:
    _, clock = office
    clock.start(datetime(2030, 6, 1, 8, tzinfo=UTC))
    clock.set_window("hours", "10:00-11:30 UTC")
    assert tasks_of(await clock.advance(days=1)) == ["hourly 01 10", "hourly 01 11"]
    clock.set_calendar("holidays", [date(2030, 6, 2)])
    clock.set_window("hours", "not 2030-06-02; 10:00-10:30 UTC")
    assert tasks_of(await clock.advance(days=2)) == ["daily 03 09", "hourly 03 10"]
    clock.set_calendar("holidays", "2030-06-05..2030-06-06", queue="default")
    runs = tasks_of(await clock.advance(days=4))
    assert [run for run in runs if "daily" in run] == ["daily 04 09", "daily 07 09"]
    for wrong in (
        lambda: clock.set_calendar("holidays", "first of May"),
        lambda: clock.set_calendar("my holidays", "2030-05-01"),
        lambda: clock.set_calendar("holidays", ""),
        lambda: clock.set_calendar("holidays", [5]),  # pyright: ignore[reportArgumentType] - the mistake
        lambda: clock.set_window("hours", "always"),
        lambda: clock.set_window("hours", 5),  # pyright: ignore[reportArgumentType]
        lambda: clock.set_calendar(5, "2030-01-01"),  # pyright: ignore[reportArgumentType]
        lambda: clock.set_window("my hours", "10:00-11:00 UTC"),
    ):
        with pytest.raises(ConfigError):
            wrong()


async def test_requests_and_messages_are_accepted_unless_the_test_answers_them(clock: Clock) -> None:
    job = await app.http.using(delay=60).enqueue("https://a.example/", json={"order": 7}, response=True)
    await app.forward.enqueue("stream:orders", {"order": 7})
    runs = await clock.advance(minutes=1)
    assert [(run.task, run.outcome) for run in runs] == [("evsched.forward", "done"), ("evsched.http", "done")]
    assert await job.result() == HttpResponse(200, {}, "", False)


async def test_the_test_answers_requests_and_messages(clock: Clock) -> None:
    asked: list[dict[str, Any]] = []

    async def busy_once(**arguments: Any) -> HttpResponse:
        asked.append(arguments)
        again = len(asked) > 1
        return HttpResponse(201 if again else 503, {} if again else {"Retry-After": "90"}, "made", False)

    def refuse(to: str, **_: Any) -> None:
        raise GiveUp(f"there is no {to}")

    clock.answer(app.http, busy_once)
    clock.answer(app.forward, refuse)
    began = clock.now
    job = await app.http.enqueue("https://a.example/", "PUT", json=7, response=True)
    await app.forward.using(delay=100).enqueue("list:orders", 1)
    runs = await clock.advance(hours=1)
    assert [(run.outcome, run.at - began) for run in runs] == [("retry", 0), ("done", 90), ("dead", 100)]
    assert asked == [{"url": "https://a.example/", "method": "PUT", "json": 7, "response": True}] * 2
    assert await job.result() == HttpResponse(201, {}, "made", False)
    assert [run.reason is not None and "503" in run.reason for run in runs] == [True, False, False]
    assert runs[2].reason == "there is no list:orders"
    with pytest.raises(ConfigError, match=r"app\.http"):
        clock.answer(remind, refuse)


async def test_an_answer_of_the_wrong_type_is_an_error_of_the_run(clock: Clock) -> None:
    def wrong(url: str) -> int:
        return 204

    clock.answer(app.http, wrong)
    await app.http.enqueue("https://a.example/")
    (run,) = await clock.advance()
    assert run.reason is not None
    assert "returns an HttpResponse or None, not 204" in run.reason


@pytest.mark.parametrize("year", [2020, 2040])
async def test_clock_starts_at_the_chosen_time(clock: Clock, year: int) -> None:
    begin = datetime(year, 3, 31, 0, 59, 59, tzinfo=UTC)
    clock.start(begin)
    clock.start(begin)
    await remind.using(delay=1).enqueue("bob")
    with app.sync() as client:
        assert client.enqueue(remind.using(delay=2), "eve").status().due == begin.timestamp() + 2
    with pytest.raises(ConfigError, match="comes first"):
        clock.start(begin)
    runs = await clock.advance(until=begin + timedelta(seconds=2))
    assert [run.at - begin.timestamp() for run in runs] == [1, 2]
    with pytest.raises(ConfigError, match="comes first"):
        clock.start(begin)


@pytest.mark.parametrize("at", [datetime(2030, 1, 1), "tomorrow"])  # noqa: DTZ001 - it has no zone
def test_start_that_is_not_a_time_is_refused(clock: Clock, at: Any) -> None:
    with pytest.raises(ConfigError, match="start"):
        clock.start(at)


async def test_a_limit_of_the_code_holds_in_the_past(evsched_server: EmbeddedRedis) -> None:
    shop = App()
    shop.limit(rate=1, burst=1)
    send = shop.task(name="send")(remind.handler)
    clock = Clock(shop, evsched_server.url)
    clock.start(datetime(2020, 1, 1, tzinfo=UTC))
    began = clock.now
    await send.enqueue_many([(f"n{n}",) for n in range(3)])
    assert [round(run.at - began, 3) for run in await clock.advance(minutes=1)] == [0, 1, 2]
    clock.close()


@pytest.mark.extra
def test_a_conftest_may_import_the_clock(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('from evsched.testing import Clock\n\npytest_plugins = ["evsched.testing"]\n')
    (tmp_path / "test_it.py").write_text("def test_it(clock) -> None:\n    assert clock.now\n")
    words = sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", tmp_path
    done = subprocess.run([*words, tmp_path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


async def test_calendars_pauses_and_intervals_after_the_end_follow_the_clock(evsched_server: EmbeddedRedis) -> None:
    calendar, store = App(), Store("default")

    @calendar.recurring("0 9 * * *", skip="holidays")
    @calendar.task
    async def daily() -> None: ...

    @calendar.recurring(every=3600, after="end")
    @calendar.task
    async def hourly() -> None: ...

    clock = Clock(calendar, evsched_server.url)
    closed = datetime.fromtimestamp(clock.now + 86400, UTC).date()
    clock.set_calendar("holidays", [closed])
    await clock.advance(seconds=1)
    until = clock.now + 86400
    await calendar.client.send(store.hold("hourly", True, until=until))
    runs = await clock.advance(days=3)
    days = [datetime.fromtimestamp(run.at, UTC).date() for run in runs if run.task == "daily"]
    assert len(days) == 2
    assert closed not in days
    hours = [round(run.at - until) for run in runs if run.task == "hourly"]
    assert hours == list(range(3600, 2 * 86400 + 1, 3600))
    await calendar.close()
    clock.close()


async def test_a_due_between_two_microseconds_is_reached(clock: Clock) -> None:
    dues = [clock.now + 60 + n / 4e6 for n in range(1, 9)]
    for due in dues:
        await remind.using(due=due).enqueue("bob")
    assert len(await clock.advance(until=dues[-1])) == len(dues)
    assert calls == [("bob", 1)] * len(dues)


async def test_jobs_that_jobs_schedule_run_too(clock: Clock) -> None:
    await again.enqueue(5)
    assert len(await clock.advance(minutes=3)) == 4
    assert len(await clock.advance(minutes=9)) == 2


async def test_advance_goes_to_a_moment(clock: Clock) -> None:
    due = datetime.now(UTC) + timedelta(hours=4)
    await remind.using(due=due).enqueue("far")
    assert [run.at for run in await clock.advance(until=due)] == [pytest.approx(due.timestamp(), abs=1e-5)]
    with pytest.raises(ConfigError, match="cannot go back"):
        await clock.advance(until=due - timedelta(1))
    with pytest.raises(ConfigError, match="not both"):
        await clock.advance(until=due + timedelta(1), hours=1)


async def test_limits_are_enforced(clock: Clock) -> None:
    clock._sender.send(app.client.store("tested").limit({"rate": 1, "burst": 1}))  # pyright: ignore[reportPrivateUsage]
    await remind.enqueue_many([(f"n{n}",) for n in range(5)])
    began = clock.now
    assert [round(run.at - began, 3) for run in await clock.advance(minutes=1)] == [0, 1, 2, 3, 4]


async def test_limits_in_code_hold_in_the_queue_that_they_name(evsched_server: EmbeddedRedis) -> None:
    shop = App()
    shop.limit("mail", rate=1, burst=1)
    send = shop.task(name="send", queue="mail")(remind.handler)
    clock = Clock(shop, evsched_server.url)
    began = clock.now
    await send.enqueue_many([(f"n{n}",) for n in range(3)])
    assert [(run.queue, round(run.at - began, 3)) for run in await clock.advance(minutes=1)] == [
        ("mail", 0),
        ("mail", 1),
        ("mail", 2),
    ]
    clock.close()


@app.task(timeout=0.05, retry=Retry(attempts=1))
async def slow() -> None:
    await asyncio.Event().wait()


async def test_a_timeout_ends_a_handler_that_waits(clock: Clock) -> None:
    await slow.enqueue()
    async with asyncio.timeout(PATIENCE):
        (run,) = await clock.advance()
    assert run.outcome == "dead"
    assert "timeout: it ran longer than its limit" in (run.reason or "")


began, stopped = threading.Event(), list[str]()


@app.task(retry=Retry(attempts=1))
async def hold() -> int:
    if stopped:
        return current_job().attempt
    began.set()
    try:
        await asyncio.Event().wait()
    finally:
        stopped.append("loop")
    return 0


@app.task(retry=Retry(attempts=1))
def hold_thread() -> int:
    if stopped:
        return current_job().attempt
    began.set()
    while not current_job().cancelled:
        threading.Event().wait(0.005)
    stopped.append("thread")
    raise GiveUp("it was stopped")


async def cancel_when_it_runs(cancel: Callable[[], Any]) -> None:
    assert await asyncio.to_thread(began.wait, PATIENCE)
    cancel()


@pytest.mark.parametrize("scoped", [False, True], ids=["asyncio", "anyio"])
@pytest.mark.parametrize(("task", "on"), [(hold, "loop"), (hold_thread, "thread")], ids=["loop", "thread"])
async def test_a_test_that_is_cancelled_stops_the_run_and_its_job_runs_again(
    clock: Clock, scoped: bool, task: Any, on: str
) -> None:
    began.clear()
    stopped.clear()
    start, job = clock.now, await task.enqueue()
    if scoped:
        scope = anyio.CancelScope()
        watch = asyncio.ensure_future(cancel_when_it_runs(scope.cancel))
        with scope:
            await clock.advance(seconds=10)
        assert scope.cancelled_caught
    else:
        advancing = asyncio.ensure_future(clock.advance(seconds=10))
        watch = asyncio.ensure_future(cancel_when_it_runs(advancing.cancel))
        with pytest.raises(asyncio.CancelledError):
            await advancing
    await watch
    assert stopped == [on]
    (run,) = await clock.advance()
    assert (run.id, run.outcome, run.result, run.at) == (job.id, "done", 1, start)


async def test_a_job_that_schedules_itself_for_now_is_found(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evsched.testing._MOST", 50)
    await forever.enqueue()
    with pytest.raises(ConfigError, match=r"more than 50 runs.*task forever"):
        await clock.advance()


async def test_progress_is_kept_as_in_production(clock: Clock) -> None:
    job = await remind.using(delay=1).enqueue("bob", 1)
    await clock.advance(seconds=1)
    assert (await job.status()).progress == {"done": 1, "total": 3, "note": "bob"}
    await clock.advance(seconds=60)
    assert (await job.status()).progress == {"done": 2, "total": 3, "note": "bob"}


async def test_a_job_may_snooze_and_its_hook_runs_when_it_has_ended(clock: Clock) -> None:
    await poll.enqueue(180)
    ran = await clock.advance(hours=1)
    assert [(run.task, run.at - ran[0].at) for run in ran] == [
        ("poll", 0),
        ("poll", 60),
        ("poll", 120),
        ("poll", 180),
        ("note", 180),
    ]
    assert [run.outcome for run in ran] == ["snoozed", "snoozed", "snoozed", "done", "done"]
    assert ran[-1].result == "poll is done"


async def test_the_clock_ends_the_time_in_which_a_job_is_unique(clock: Clock) -> None:
    once = remind.using(unique=Unique(within=timedelta(hours=1)))
    await once.enqueue("bob")
    assert len(await clock.advance(minutes=59)) == 1
    with pytest.raises(JobExists, match="free again in 60 s"):
        await once.enqueue("bob")
    assert await clock.advance(minutes=1) == []
    await once.enqueue("bob")
    assert len(await clock.advance()) == 1


async def test_batch_ends_and_its_callback_runs_as_the_clock_is_moved(clock: Clock) -> None:
    async with app.batch(on_done=summarize, on_failed=summarize) as batch:
        await batch.add(remind, "bob")
        await batch.add(remind.using(delay=3600, queue="other"), "eve")
    assert [run.task for run in await clock.advance(minutes=59)] == ["remind"]
    with pytest.raises(TimeoutError, match=r"clock.advance"):
        await batch.wait()
    runs = await clock.advance(minutes=1)
    assert [(run.task, run.result) for run in runs] == [("remind", "eve, shared"), ("summarize", "done: 2 of 2")]
    found = await batch.wait()
    assert (found.state, found.finished) == ("done", clock.now)
    await clock.advance(days=8)
    with pytest.raises(JobMissing):
        await batch.status()


async def test_pause_of_a_batch_ends_on_the_clock(clock: Clock) -> None:
    outer = await app.batch().open()
    await outer.add(remind, "bob")
    await outer.pause(until=clock.now + 7200)
    async with outer.batch() as inner:
        await inner.add(remind, "eve")
    assert (await inner.status()).paused
    await outer.close()
    assert await clock.advance(hours=1) == []
    assert len(await clock.advance(hours=2)) == 2
    assert (await outer.wait()).done == 2
    with pytest.raises(ConfigError, match="until has passed"):
        await (await app.batch().open()).pause(until=clock.now - 1)


async def test_batch_fails_expires_and_is_cancelled_on_the_clock(clock: Clock) -> None:
    async with app.batch(on_failed=summarize) as batch:
        await batch.add(remind, "bob", fail=3)
    runs = await clock.advance(minutes=5)
    assert [run.outcome for run in runs] == ["retry", "retry", "dead", "done"]
    assert runs[-1].result == "failed: 0 of 1"
    slow = await app.batch(on_failed=summarize, expires=60).open()
    await slow.add(remind.using(delay=3600), "late")
    await slow.close()
    assert [run.result for run in await clock.advance(minutes=2)] == ["failed: 0 of 1"]
    cancelled = await app.batch(on_done=summarize).open()
    await cancelled.add(remind.using(delay=60), "never")
    await cancelled.cancel()
    assert await clock.advance(hours=1) == []
    assert (await cancelled.status()).state == "cancelled"


async def test_batch_that_is_cancelled_in_the_past_ends_then(clock: Clock) -> None:
    clock.start(datetime(2001, 1, 1, tzinfo=UTC))
    cancelled = await app.batch("b").open()
    await cancelled.add(remind.using(delay=60), "never")
    await cancelled.cancel()
    await clock.advance()
    found = await cancelled.status()
    assert (found.state, found.finished) == ("cancelled", clock.now)
    assert (await app.job("b.0").status()).finished == clock.now
    async with app.batch(on_failed=summarize, expires=60) as slow:
        await slow.add(remind.using(delay=3600), "late")
    assert [run.result for run in await clock.advance(minutes=2)] == ["failed: 0 of 1"]


async def test_batch_without_an_event_loop_is_on_the_clock(clock: Clock) -> None:
    with app.sync() as client:
        with client.batch("b", on_done=summarize) as batch:
            batch.add(remind, "bob")
            with batch.batch() as inner:
                inner.add_many(remind, [("eve",), ("ann",)])
        with pytest.raises(TimeoutError, match=r"clock.advance"):
            batch.wait()
        assert [run.task for run in await clock.advance()] == ["remind", "remind", "remind", "summarize"]
        known = client.known_batch("b")
        assert (known.status().done, known.wait().state) == (2, "done")
        assert known.results() == ["bob, shared"]


async def test_message_is_sent_at_the_end_of_its_job_and_retried_if_refused(
    clock: Clock, evsched_server: EmbeddedRedis
) -> None:
    raw = plain_client(evsched_server.url)
    raw.set("news", "a string")
    await publish.enqueue("news")
    ran = await clock.advance(seconds=1)
    assert [run.outcome for run in ran] == ["retry"]
    raw.delete("news")
    ran = await clock.advance(seconds=60)
    assert [(run.outcome, run.result) for run in ran] == [("done", None)]
    assert raw.lrange("news", 0, -1) == [b"1"]
    raw.close()
