"""`evsched.testing` with `enqueue_in`: jobs of transactions run when the clock moves, if they were not rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from evsched import App, GiveUp, JobExists, Unique
from evsched.testing import Clock, Ran
from evsched.transport.embedded import EmbeddedRedis
from tests.ledger.test_transactions import django_connection

Insert = Callable[[Any, str], Any]


@pytest.fixture
def app(ledger_url: str) -> App:
    app = App("redis://localhost:1/0", queue="tested")

    @app.task
    async def send(to: str) -> str:
        if to == "nobody":
            raise GiveUp("there is nobody")
        return to

    return app


@pytest.fixture
def clock(app: App, own: EmbeddedRedis) -> Any:
    clock = Clock(app, own.url)
    yield clock
    clock.close()


def results(runs: list[Ran]) -> list[Any]:
    return [run.result for run in runs]


def rows(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT id, state FROM evsched_job ORDER BY number").fetchall()


def sqlalchemy_url(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:")


@asynccontextmanager
async def a_psycopg(url: str) -> AsyncGenerator[Any]:
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


@asynccontextmanager
async def an_async_psycopg(url: str) -> AsyncGenerator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection
        await connection.rollback()


@asynccontextmanager
async def a_session(url: str) -> AsyncGenerator[Any]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url))
    with Session(engine) as session:
        yield session
    engine.dispose()


@asynccontextmanager
async def an_async_session(url: str) -> AsyncGenerator[Any]:
    engine = create_async_engine(sqlalchemy_url(url))
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


KINDS = [a_psycopg, an_async_psycopg, a_session, an_async_session]
Kind = Callable[[str], AbstractAsyncContextManager[Any]]


async def end(done: Any) -> None:
    """Await the result of a commit or rollback if it is awaitable."""
    if done is not None:
        await done


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_of_an_open_transaction_run_but_rolled_back_rows_do_not(
    app: App, clock: Clock, ledger_url: str, kind: Kind
) -> None:
    """As in tests whose one transaction is rolled back at their end."""
    send = handle(app)
    async with kind(ledger_url) as connection:
        await send.using(delay=3600).enqueue_in(connection, "gone")
        await end(connection.rollback())
        job = await send.using(delay=3600).enqueue_in(connection, "bob")
        with pytest.raises(TimeoutError, match="no transaction"):
            await job.result()
        assert await clock.advance(minutes=59) == []
        with pytest.raises(TimeoutError, match="in schedule"):
            await job.result()
        assert results(await clock.advance(minutes=1)) == ["bob"]
        assert await job.result() == "bob"
        await send.using(delay=60).enqueue_in(connection, "eve")
        assert await clock.advance() == []
        await end(connection.rollback())
        assert await clock.advance(days=1) == []
    assert rows(ledger_url) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_that_were_committed_run_also_after_the_connection_is_closed(
    app: App, clock: Clock, ledger_url: str, kind: Kind
) -> None:
    send = handle(app)
    async with kind(ledger_url) as connection:
        first = await send.using(id="a", delay=60).enqueue_in(connection, "bob")
        await send.using(id="b").enqueue_in(connection, "nobody")
        await end(connection.commit())
        assert [run.outcome for run in await clock.advance()] == ["dead"]
        assert rows(ledger_url) == [("a", "open"), ("b", "dead")]
        await send.enqueue_in(connection, "gone")
    assert results(await clock.advance(hours=1)) == ["bob"]
    assert await first.result() == "bob"
    assert rows(ledger_url) == [("a", "done"), ("b", "dead")]


def handle(app: App) -> Any:
    """Return the task of the app as its module has it."""
    from evsched.client.task_handle import AsyncTask

    return AsyncTask[..., Any](app, app.tasks["send"])


@pytest.mark.extra
@pytest.mark.parametrize("commits", [True, False])
def test_a_test_without_an_event_loop_as_django_needs_it(
    app: App, clock: Clock, ledger_url: str, commits: bool
) -> None:
    send = handle(app)
    connection = django_connection(ledger_url)
    send.using(delay=60).enqueue_in_sync(connection, "gone")
    connection.rollback()
    send.using(delay=60).enqueue_in_sync(connection, "bob")
    if commits:
        connection.commit()
    assert results(asyncio.run(clock.advance(hours=1))) == ["bob"]
    connection.rollback()
    connection.close()
    assert len(rows(ledger_url)) == commits


async def test_a_session_that_is_bound_to_the_transaction_of_the_test(app: App, clock: Clock, ledger_url: str) -> None:
    """SQLAlchemy's recipe for test suites: a commit of the code releases a savepoint of the test."""
    send = handle(app)
    engine = sqlalchemy.create_engine(sqlalchemy_url(ledger_url))
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            send.enqueue_in_sync(session, "bob")
            session.commit()
            send.enqueue_in_sync(session, "gone")
            session.rollback()
        assert results(await clock.advance()) == ["bob"]
        outer.rollback()
    engine.dispose()
    assert rows(ledger_url) == []


async def test_an_async_session_that_is_bound_to_the_transaction_of_the_test(
    app: App, clock: Clock, ledger_url: str
) -> None:
    send = handle(app)
    engine = create_async_engine(sqlalchemy_url(ledger_url))
    async with engine.connect() as connection:
        outer = await connection.begin()
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            await send.enqueue_in(session, "bob")
            await session.commit()
        assert results(await clock.advance()) == ["bob"]
        await outer.rollback()
    async with engine.begin() as connection:
        await send.enqueue_in(connection, "eve")
    assert results(await clock.advance()) == ["eve"]
    await engine.dispose()
    assert [state for _, state in rows(ledger_url)] == ["done"]


async def test_jobs_are_moved_and_cancelled_and_their_ids_used_again(app: App, clock: Clock, ledger_url: str) -> None:
    send = handle(app)
    with psycopg.connect(ledger_url) as connection:
        ids = send.using(delay=60).enqueue_many_in_sync(connection, [("a",), ("b",), ("c",)])
        assert await clock.advance(seconds=30) == []
        app.job(ids[0]).cancel_in_sync(connection)
        assert app.job(ids[1]).reschedule_in_sync(connection, delay=60) == clock.now + 60
        assert results(await clock.advance(seconds=30)) == ["c"]
        with pytest.raises(JobExists):
            send.using(id=ids[1]).enqueue_in_sync(connection, "again")
        send.using(id=ids[0]).enqueue_in_sync(connection, "again")
        assert results(await clock.advance(hours=1)) == ["again", "b"]


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize("between", ["nothing", "advance", "reschedule"])
async def test_a_cancelled_row_has_its_end_and_its_id_is_free(
    app: App, clock: Clock, ledger_url: str, between: str, autocommit: bool
) -> None:
    send = handle(app)
    with psycopg.connect(ledger_url, autocommit=autocommit) as connection:
        send.using(id="tz", delay=3600).enqueue_in_sync(connection, "bob")
        if between != "nothing":
            await clock.advance()
        if between == "reschedule":
            app.job("tz").reschedule_in_sync(connection, delay=7200)
        app.job("tz").cancel_in_sync(connection)
        assert await clock.advance() == []
        ended = connection.execute("SELECT state, cancelled FROM evsched_job").fetchall()
        assert ended == [("cancelled", True)]
        await send.using(id="tz").enqueue("again")
        assert results(await clock.advance(hours=3)) == ["again"]


async def test_the_clock_ends_the_time_in_which_a_row_is_unique(app: App, clock: Clock, ledger_url: str) -> None:
    once = handle(app).using(unique=Unique(within=3600))
    clock.start(1_000_000_000)
    with psycopg.connect(ledger_url) as connection:
        once.enqueue_in_sync(connection, "bob")
        assert results(await clock.advance(minutes=59)) == ["bob"]
        with pytest.raises(JobExists):
            once.enqueue_in_sync(connection, "bob")
        await clock.advance(minutes=1)
        once.enqueue_in_sync(connection, "bob")
        assert results(await clock.advance()) == ["bob"]


async def test_a_handler_enqueues_in_a_transaction_of_its_own(clock: Clock, app: App, ledger_url: str) -> None:
    send = handle(app)

    @app.task
    async def order(n: int) -> None:
        async with await psycopg.AsyncConnection.connect(ledger_url) as connection:
            await send.enqueue_in(connection, f"customer {n}")
            if n:
                await order.using(delay=60).enqueue_in(connection, n - 1)

    await order.enqueue(2)
    assert [run.result for run in await clock.advance(hours=1) if run.task == "send"] == [
        "customer 2",
        "customer 1",
        "customer 0",
    ]


async def test_a_row_whose_id_a_job_in_redis_has_is_dead(app: App, clock: Clock, ledger_url: str) -> None:
    send = handle(app)
    await send.using(id="a", delay=60).enqueue("bob")
    with psycopg.connect(ledger_url) as connection:
        send.using(id="a").enqueue_in_sync(connection, "eve")
    assert results(await clock.advance(hours=1)) == ["bob"]
    assert rows(ledger_url) == [("a", "dead")]
