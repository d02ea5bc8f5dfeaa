"""A user's program. Each line that a type checker must refuse ends in `# refused`; no other line may be refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from evsched import (
    App,
    Arguments,
    CurrentJob,
    EndedJob,
    HttpResponse,
    Job,
    JobStatus,
    Retry,
    RetryLater,
    Snooze,
    SyncJob,
    TaskHandle,
    Unique,
    current_job,
)
from evsched.testing import Clock, Ran, RunOutcome


@asynccontextmanager
async def lifespan() -> AsyncGenerator[dict[str, str]]:
    yield {}


app = App("redis://localhost:1/0", queue="typed", lifespan=lifespan)


@app.task
async def send_mail(to: str, subject: str = "") -> int:
    current_job().progress(1, 2)
    await current_job().progress(2, 2, note="sent")
    if current_job().attempt > 3:
        raise RetryLater(2.5)
    return len(to + subject)


@app.task(timeout=30, retry=Retry(attempts=5), on="thread")
def index(page: UUID, *, deep: bool = False) -> list[float]:
    return [page.int / 2, deep]


@app.task
async def alert(ended: EndedJob) -> None:
    assert_type(ended.reason, str | None)
    raise Snooze(timedelta(minutes=1), "chat is down") if ended.attempts else Snooze(until=datetime.now(UTC))


@app.task(on_dead=alert, on_done=alert, retry=Retry(retry_on=(ConnectionError,), give_up_on=(ValueError, KeyError)))
def ping() -> None: ...


@app.recurring("0 9 * * mon-fri", zone="Europe/Berlin")
async def report() -> str:
    return "all is well"


@app.recurring("@daily", name="late", args=("eve",))
@app.recurring(every=timedelta(hours=1), args=("bob",), kwargs={"subject": "hi"})
@app.task(name="remind_him", retry=Retry(attempts=1))
def remind(name: str, subject: str = "") -> bool:
    return bool(name + subject)


@app.middleware
async def timed(job: CurrentJob, call_next: Callable[[], Awaitable[Any]]) -> Any:
    assert_type(job.id, str)
    return await call_next()


async def all_of(task: TaskHandle[[str, str], int]) -> Job[int]:
    return await task.enqueue("bob", "hi")


def receiver_of(to: str, subject: str = "") -> str:
    return to


async def enqueued() -> None:
    job = await send_mail.enqueue("bob", subject="hi")
    assert_type(job, Job[int])
    assert_type(await job.result(timeout=5), int)
    assert_type(await job.status(), JobStatus)
    assert_type(await (await index.enqueue(UUID(int=1), deep=True)).result(), list[float])
    assert_type(await (await ping.enqueue()).result(), None)
    assert_type(await (await report.enqueue()).result(), str)
    assert_type(await (await remind.using(delay=10, id="x").enqueue("bob")).result(), bool)
    await send_mail.using(due=datetime.now(UTC), expires=1.5, on_conflict="keep").enqueue("bob")
    await send_mail.using(unique=Unique()).enqueue("bob")
    await send_mail.using(unique=Unique(by=receiver_of, within=timedelta(hours=1))).enqueue("bob")
    await send_mail.using(queue="typed", timeout=5, retry=Retry(attempts=1), retention=0, window="nights").enqueue(
        "bob"
    )
    await send_mail.using(group="a", reply=True, meta={"trace": [1]}, delay=timedelta(hours=1)).enqueue("bob")
    assert_type(await all_of(send_mail), Job[int])
    known = app.job("welcome-42", queue="typed")
    assert_type(known, Job[Any])
    assert_type(await known.reschedule(delay=timedelta(hours=1)), float)
    assert_type(await known.reschedule(due=datetime.now(UTC)), float)
    await all_of(index)  # refused
    await send_mail.enqueue(3)  # refused
    await send_mail.enqueue()  # refused
    await send_mail.enqueue("bob", sbject="hi")  # refused
    await send_mail.using(delay=1).enqueue(b"bob")  # refused
    await index.enqueue(UUID(int=1), True)  # refused
    await ping.enqueue(1)  # refused
    await report.enqueue("now")  # refused
    await remind.using(priority=1).enqueue(1)  # refused
    send_mail.using(delay="10 s")  # refused
    send_mail.using(on_conflict="drop")  # refused
    send_mail.using(unique=Unique(by="arguments"))  # refused
    send_mail.using(unique=True)  # refused
    send_mail.using(prioriti=3)  # refused
    send_mail.using(priority="high")  # refused
    send_mail.using(10)  # refused
    send_mail.using(retry=5)  # refused
    send_mail.using(meta=["x"])  # refused
    sent = await app.http.using(delay=60, id="invoice-7").enqueue("https://a.example/", json={"n": 7}, response=True)
    assert_type(sent, Job[HttpResponse | None])
    assert_type(await app.forward.enqueue("stream:orders", {"n": 7}), Job[None])
    await app.http.enqueue("https://a.example/", "FETCH")  # refused
    await app.http.enqueue("https://a.example/", jsn={})  # refused
    await app.http.enqueue(b"https://a.example/")  # refused
    await app.forward.enqueue("stream:orders")  # refused
    await known.reschedule(delay="1h")  # refused
    await known.reschedule(timedelta(hours=1))  # refused
    app.job(42)  # refused


async def enqueued_many() -> None:
    jobs = await send_mail.enqueue_many([("bob",), ("eve", "hi")])
    assert_type(jobs, list[Job[int]])
    calls = [send_mail.arguments("bob"), send_mail.arguments("eve", subject="hi")]
    assert_type(await send_mail.using(delay=1).enqueue_many(calls), list[Job[int]])
    await send_mail.enqueue_many([send_mail.arguments(3)])  # refused
    await send_mail.enqueue_many([index.arguments(UUID(int=1))])  # refused
    await send_mail.enqueue_many(["bob"])  # refused
    await send_mail.enqueue_many([send_mail("bob")])  # refused


async def in_a_transaction(connection: Any) -> None:
    assert_type(await send_mail.enqueue_in(connection, "bob"), Job[int])
    assert_type(
        await send_mail.using(delay=1).enqueue_many_in(connection, [send_mail.arguments("bob")]), list[Job[int]]
    )
    assert_type(send_mail.enqueue_many_in_sync(connection, [("bob",)]), list[str])
    assert_type(await app.job("a").reschedule_in(connection, delay=timedelta(hours=1)), float)
    assert_type(app.job("a").reschedule_in_sync(connection, datetime.now(UTC)), float)
    await app.job("a").cancel_in(connection)
    app.job("a").cancel_in_sync(connection)
    await send_mail.enqueue_in(connection, 3)  # refused
    await send_mail.enqueue_many_in(connection, [send_mail.arguments(3)])  # refused
    await app.job("a").reschedule_in(connection, delay="1h")  # refused


async def called() -> None:
    coroutine: Coroutine[Any, Any, int] = send_mail("bob")
    assert_type(await coroutine, int)
    assert_type(await report(), str)
    assert_type(index(UUID(int=1)), list[float])
    assert_type(remind("bob"), bool)
    assert_type(send_mail.name, str)
    assert_type(index.handler(UUID(int=1)), Any)
    await send_mail(3)  # refused
    remind()  # refused
    await remind("bob")  # refused
    index.handler("page")  # refused


def without_a_loop() -> None:
    with app.sync() as client:
        job = client.enqueue(send_mail, "bob", subject="hi")
        assert_type(job, SyncJob[int])
        assert_type(job.result(), int)
        assert_type(client.enqueue(index.using(priority=7), UUID(int=1)).result(), list[float])
        assert_type(client.enqueue_many(remind, [("bob",), remind.arguments("eve")]), list[SyncJob[bool]])
        assert_type(client.job("welcome-42"), SyncJob[Any])
        assert_type(client.job("welcome-42").reschedule(delay=60), float)
        client.enqueue(send_mail, 3)  # refused
        client.enqueue(ping, "x")  # refused
        client.enqueue_many(send_mail, [index.arguments(UUID(int=1))])  # refused


async def tested(clock: Clock) -> None:
    (run,) = await clock.advance(hours=3)
    assert_type(run, Ran)
    wanted: RunOutcome = "retry"
    assert run.outcome in ("done", wanted)
    assert_type(run.result, Any)
    assert_type(run.reason, str | None)
    clock.start(datetime.now(UTC))
    clock.set_calendar("holidays", [date(2030, 1, 1)])
    clock.set_calendar("holidays", "2030-01-01..2030-01-06", queue="typed")
    clock.set_window("office", "mon-fri 09:00-17:00 Europe/Berlin")
    clock.start("2030-01-01")  # refused
    done = [one for one in await clock.advance() if one.outcome == "finished"]  # refused
    assert not done
    await clock.advance(hours="3")  # refused


def declared() -> None:
    app.recurring("@daily", start=datetime.now(UTC), count=3, spread=timedelta(minutes=5))
    app.recurring("@daily", misfire="all", most=5, overlap="allow")
    app.task(name="other", timeout=None, retention=0, on="process")
    app.task(name="few", queue="slow", concurrency=3)
    app.limit("slow", rate=0.5, burst=2)
    app.limit(group="*", concurrency=2)
    app.limit(concurrency="2")  # refused
    app.limit(rates=5)  # refused
    app.task(concurrency="3")  # refused
    app.recurring(5)  # refused
    app.recurring("@daily", zon="UTC")  # refused
    app.recurring("@daily", zone=5)  # refused
    app.recurring(every="hour")  # refused
    app.task(time_out=30)  # refused
    app.task(on="loop")  # refused
    app.recurring("@daily", overlap="maybe")  # refused
    app.task(timeout="30")  # refused
    app.task(3)  # refused
    Retry(attempts="5")  # refused
    app.task(on_done=alert, on_dead=None)
    app.task(on_dead=ping)  # refused
    app.task(on_dead="alert")  # refused
    Retry(give_up_on=ValueError)  # refused
    Retry(retry_on=("ValueError",))  # refused
    Snooze("1m")  # refused
    given: Arguments[[]] = ping.arguments()
    assert_type(given.args, tuple[Any, ...])
