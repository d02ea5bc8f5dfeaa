"""`enqueue_in`: with every library, the job exists if and only if the program's transaction commits."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy
from msgspec.structs import replace
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from evsched import App, BadArguments, Unique
from evsched.client.transaction import Insertion
from evsched.errors import ConfigError, JobExists, JobMissing
from evsched.ledger import rows as rows_of_ledger
from evsched.store.client_calls import New
from tests.support.patience import PATIENCE

COLUMNS = "queue, id, payload::text, priority, grp, extract(epoch FROM due)::float8, critical, state, number"
DUE = 1_900_000_000.25


@pytest.fixture
def send(app: App) -> Any:
    @app.task
    async def send(to: str) -> int:
        return len(to)

    return send


@pytest.fixture
def rows(ledger_url: str) -> Generator[Any]:
    """Return a function that reads the rows as another session sees them."""
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        yield lambda: connection.execute(f"SELECT {COLUMNS} FROM evsched_job ORDER BY number".encode()).fetchall()


def set_state(url: str, state: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE evsched_job SET state = %s", [state])


async def test_job_is_inserted_with_async_psycopg(send: Any, rows: Any, ledger_url: str, queue: str) -> None:
    async with await psycopg.AsyncConnection.connect(ledger_url) as connection:
        task = send.using(id="a", due=DUE, priority=7, group="g", critical=3)
        job = await task.enqueue_in(connection, "bob")
        assert rows() == []
        await connection.commit()
        assert rows() == [(queue, "a", '{"task":"send","args":["bob"]}', 7, "g", DUE, 3, "open", 1)]
        await send.enqueue_in(connection, "eve")
        await connection.rollback()
    assert job.id == "a"
    assert len(rows()) == 1


async def test_job_is_inserted_with_sync_psycopg(send: Any, rows: Any, ledger_url: str) -> None:
    with psycopg.connect(ledger_url) as connection:
        job_id = send.enqueue_in_sync(connection, "bob")
        job = await send.using(delay=3600).enqueue_in(connection, "eve")
        assert rows() == []
        connection.commit()
        send.enqueue_in_sync(connection, "ann")
        connection.rollback()
        (now,) = cast("tuple[float]", connection.execute("SELECT extract(epoch FROM now())::float8").fetchone())
    first, second = rows()
    assert [first[1], second[1]] == [job_id, job.id]
    assert abs(first[5] - now) < 60
    assert abs(second[5] - now - 3600) < 60


def test_job_is_inserted_with_sqlalchemy(send: Any, rows: Any, ledger_url: str) -> None:
    engine = sqlalchemy.create_engine(ledger_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        send.using(id="a").enqueue_in_sync(connection, "bob")
        assert rows() == []
    with Session(engine) as session, session.begin():
        send.using(id="b").enqueue_in_sync(session, "bob")
    with Session(engine) as session:
        send.using(id="c").enqueue_in_sync(session, "bob")
        session.rollback()
    engine.dispose()
    assert [row[1] for row in rows()] == ["a", "b"]


async def test_job_is_inserted_with_async_sqlalchemy(send: Any, rows: Any, ledger_url: str) -> None:
    engine = create_async_engine(ledger_url.replace("postgresql:", "postgresql+psycopg:"))
    async with engine.begin() as connection:
        await send.using(id="a").enqueue_in(connection, "bob")
        assert rows() == []
    async with AsyncSession(engine) as session, session.begin():
        await send.using(id="b").enqueue_in(session, "bob")
        with pytest.raises(JobExists):
            await send.using(id="a").enqueue_in(session, "bob")
    async with AsyncSession(engine) as session:
        await send.using(id="c").enqueue_in(session, "bob")
        await session.rollback()
        with pytest.raises(ConfigError, match="await"):
            send.using(id="d").enqueue_in_sync(session, "bob")
    await engine.dispose()
    assert [row[1] for row in rows()] == ["a", "b"]


def django_handlers() -> Any:
    """Return the module of Django that makes connections."""
    django, django_db, handlers = (import_module(f"django{name}") for name in ("", ".conf", ".db.utils"))
    if not django_db.settings.configured:
        django_db.settings.configure()
        django.setup()
    return handlers


def django_connection(url: str) -> Any:
    """Return a connection as Django's settings make it; in a transaction, as within `atomic`."""
    handlers = django_handlers()
    words = conninfo_to_dict(url)
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": words["dbname"], "USER": words["user"]}
    connection = handlers.ConnectionHandler({"default": {**database, "HOST": words["host"]}})["default"]
    connection.set_autocommit(False)
    return connection


def test_job_is_inserted_with_django(send: Any, rows: Any, ledger_url: str) -> None:
    connection = django_connection(ledger_url)
    send.using(id="a").enqueue_in_sync(connection, "bob")
    assert rows() == []
    connection.commit()
    send.using(id="b").enqueue_in_sync(connection, "bob")
    connection.rollback()
    connection.close()
    assert [row[1] for row in rows()] == ["a"]


@pytest.mark.parametrize("state", ["open", "dead", "expired"])
def test_duplicate_id_is_refused_without_aborting_the_transaction(
    send: Any, rows: Any, ledger_url: str, state: str
) -> None:
    with psycopg.connect(ledger_url) as connection:
        send.using(id="a").enqueue_in_sync(connection, "bob")
    set_state(ledger_url, state)
    before = rows()
    with psycopg.connect(ledger_url) as connection:
        with pytest.raises(JobExists, match=r"row a of .*dead or expired"):
            send.using(id="a").enqueue_in_sync(connection, "eve")
        assert send.using(id="a", on_conflict="keep").enqueue_in_sync(connection, "eve") == "a"
        send.using(id="b").enqueue_in_sync(connection, "eve")
    assert rows()[0] == before[0]
    assert [row[1] for row in rows()] == ["a", "b"]


@pytest.mark.parametrize("state", ["done", "cancelled", "dropped"])
def test_an_id_whose_job_has_ended_is_used_again_with_another_number(
    send: Any, rows: Any, ledger_url: str, state: str
) -> None:
    with psycopg.connect(ledger_url) as connection:
        send.using(id="a", priority=7).enqueue_in_sync(connection, "bob")
    set_state(ledger_url, state)
    with psycopg.connect(ledger_url) as connection:
        send.using(id="a").enqueue_in_sync(connection, "eve")
    ((_, _, payload, priority, _, _, _, now_is, number),) = rows()
    assert (payload, priority, now_is) == ('{"task":"send","args":["eve"]}', None, "open")
    assert number > 1


def test_a_unique_job_is_one_as_long_as_it_has_not_ended_and_for_its_time(
    send: Any, rows: Any, ledger_url: str
) -> None:
    once, hourly = send.using(unique=Unique()), send.using(unique=Unique(within=3600))
    with psycopg.connect(ledger_url) as connection:
        first = once.enqueue_in_sync(connection, "bob")
        with pytest.raises(JobExists):
            once.enqueue_in_sync(connection, "bob")
        connection.commit()
        set_state(ledger_url, "dead")
        with pytest.raises(JobExists):
            hourly.enqueue_in_sync(connection, "bob")
        assert once.enqueue_in_sync(connection, "bob") == first
    assert len(rows()) == 1


class AsyncpgConnection:
    """An asyncpg connection's methods whose names other libraries share, with asyncpg's parameters."""

    async def execute(self, query: str, *args: Any) -> str:
        raise NotImplementedError

    def cursor(self, query: str, *args: Any) -> Any:
        raise NotImplementedError


async def test_invalid_insert_is_refused_before_the_database_is_asked(send: Any, ledger_url: str) -> None:
    with pytest.raises(ConfigError, match="int is not a connection"):
        await send.enqueue_in(7, "bob")
    with pytest.raises(ConfigError, match="AsyncpgConnection is not a connection"):
        await send.enqueue_in(AsyncpgConnection(), "bob")
    async with await psycopg.AsyncConnection.connect(ledger_url) as connection:
        with pytest.raises(ConfigError, match="await"):
            send.enqueue_in_sync(connection, "bob")
        with pytest.raises(BadArguments):
            await send.enqueue_in(connection, 7, 8)
        with pytest.raises(ConfigError, match="replace"):
            await send.using(id="a", on_conflict="replace").enqueue_in(connection, "bob")
    with pytest.raises(ConfigError, match="critical"):
        send.using(critical=-1)


@pytest.mark.parametrize(
    ("column", "value"),
    [("queue", "a b"), ("id", ""), ("payload", "[]"), ("payload", "{}"), ("priority", 10), ("grp", "}"), ("grp", "")],
)
def test_the_table_refuses_rows_that_could_not_run(ledger_url: str, column: str, value: Any) -> None:
    words = {"payload": '{"task":"t"}', column: value}
    places = ", ".join(f"%({name})s" for name in words)
    statement = f"INSERT INTO evsched_job ({', '.join(words)}) VALUES ({places})"
    with psycopg.connect(ledger_url) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(statement.encode(), words)


async def test_a_nul_is_refused_before_the_database_is_asked(send: Any, rows: Any, ledger_url: str) -> None:
    with psycopg.connect(ledger_url) as connection:
        for to in ("a\x00", "\\\x00"):
            with pytest.raises(BadArguments, match="NUL"):
                send.enqueue_in_sync(connection, to)
        send.enqueue_in_sync(connection, "\\u0000")
    assert [row[2] for row in rows()] == [r'{"task":"send","args":["\\u0000"]}']


async def test_other_databases_are_refused(send: Any) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    plain = sqlite3.connect(":memory:")
    with engine.connect() as connection, Session(engine) as session:
        for one in (connection, session, plain):
            with pytest.raises(ConfigError, match="one of sqlite: the ledger needs PostgreSQL"):
                send.enqueue_in_sync(one, "bob")
            with pytest.raises(ConfigError, match="one of sqlite"):
                await send.enqueue_in(one, "bob")
    plain.close()
    engine.dispose()
    handlers = django_handlers()
    lite = handlers.ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    with pytest.raises(ConfigError, match="one of sqlite"):
        send.enqueue_in_sync(lite["default"], "bob")


@pytest.mark.parametrize("time", [{"due": 1e15}, {"due": -1e15}, {"delay": 1e15}])
def test_time_beyond_postgresql_range_is_refused_without_aborting(
    send: Any, rows: Any, ledger_url: str, time: dict[str, float]
) -> None:
    with psycopg.connect(ledger_url) as connection:
        with pytest.raises(ConfigError, match="PostgreSQL"):
            send.using(**time).enqueue_in_sync(connection, "bob")
        send.using(id="never", due=math.inf).enqueue_in_sync(connection, "bob")
        send.using(id="late", due=8.9e12).enqueue_in_sync(connection, "bob")
        send.using(id="later", delay=4.4e12).enqueue_in_sync(connection, "bob")
        send.using(id="early", due=-1.9e11).enqueue_in_sync(connection, "bob")
    assert [row[1] for row in rows()] == ["never", "late", "later", "early"]


def changed(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        columns = "id, extract(epoch FROM due)::float8, cancelled, revision, epoch"
        return connection.execute(f"SELECT {columns} FROM evsched_job ORDER BY number".encode()).fetchall()


def mark_scheduled(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE evsched_job SET epoch = 'e1', scheduled_at = now()")


@contextmanager
def session_of(url: str) -> Generator[Any]:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with Session(engine) as session:
        yield session
    engine.dispose()


@contextmanager
def connection_of_django(url: str) -> Generator[Any]:
    connection = django_connection(url)
    yield connection
    connection.close()


@pytest.mark.parametrize("connect", [psycopg.connect, session_of, connection_of_django])
def test_a_job_is_moved_and_cancelled_when_the_transaction_commits(
    app: App, send: Any, ledger_url: str, connect: Any
) -> None:
    with connect(ledger_url) as connection:
        send.enqueue_many_in_sync(connection, [("a",), ("b",)])
        connection.commit()
    mark_scheduled(ledger_url)
    (first, *was), (second, *_) = changed(ledger_url)
    with connect(ledger_url) as connection:
        app.job(first).cancel_in_sync(connection)
        app.job(second).reschedule_in_sync(connection, due=DUE)
        connection.rollback()
        assert changed(ledger_url)[0] == (first, *was)
        assert app.job(second).reschedule_in_sync(connection, due=DUE) == DUE
        app.job(first).cancel_in_sync(connection)
        assert changed(ledger_url)[0] == (first, *was)
        connection.commit()
    assert changed(ledger_url) == [(first, was[0], True, 1, ""), (second, DUE, False, 1, "")]


async def test_a_job_is_moved_and_cancelled_in_an_event_loop(app: App, send: Any, ledger_url: str) -> None:
    engine = create_async_engine(ledger_url.replace("postgresql:", "postgresql+psycopg:"))
    async with engine.begin() as connection:
        jobs = await send.using(due=DUE).enqueue_many_in(connection, [("a",), ("b",), ("c",)])
    async with AsyncSession(engine) as session, session.begin():
        await jobs[0].cancel_in(session)
        with pytest.raises(JobMissing):
            await jobs[0].cancel_in(session)
        with pytest.raises(JobMissing):
            await jobs[0].reschedule_in(session)
        with pytest.raises(JobMissing, match="enqueue_in"):
            await app.job("strange").cancel_in(session)
    async with await psycopg.AsyncConnection.connect(ledger_url) as plain:
        at = await jobs[1].reschedule_in(plain, delay=3600)
        assert math.isinf(await jobs[2].reschedule_in(plain, math.inf))
        for wrong in ({"due": 1e15}, {"delay": 1e15}, {"due": DUE, "delay": 1}):
            with pytest.raises(ConfigError):
                await jobs[1].reschedule_in(plain, **wrong)
    await engine.dispose()
    found = changed(ledger_url)
    assert [row[0] for row in found] == [job.id for job in jobs]
    assert [row[1] for row in found] == [DUE, at, math.inf]
    assert [row[2] for row in found] == [True, False, False]


@pytest.mark.parametrize("state", ["done", "dead", "expired", "cancelled", "dropped"])
def test_a_job_that_has_ended_is_neither_moved_nor_cancelled(app: App, send: Any, ledger_url: str, state: str) -> None:
    with psycopg.connect(ledger_url) as connection:
        job_id = send.using(due=DUE).enqueue_in_sync(connection, "bob")
    set_state(ledger_url, state)
    with psycopg.connect(ledger_url) as connection:
        with pytest.raises(JobMissing, match="has ended"):
            app.job(job_id).cancel_in_sync(connection)
        with pytest.raises(JobMissing, match="has ended"):
            app.job(job_id).reschedule_in_sync(connection)
        send.enqueue_in_sync(connection, "the transaction goes on")
    assert changed(ledger_url)[0] == (job_id, DUE, False, 0, "")


def test_an_id_that_was_cancelled_is_used_again_when_its_job_has_ended(
    app: App, send: Any, rows: Any, ledger_url: str
) -> None:
    with psycopg.connect(ledger_url) as connection:
        send.using(id="a").enqueue_in_sync(connection, "bob")
        app.job("a").cancel_in_sync(connection)
        with pytest.raises(JobExists):
            send.using(id="a").enqueue_in_sync(connection, "eve")
    set_state(ledger_url, "cancelled")
    with psycopg.connect(ledger_url) as connection:
        send.using(id="a", due=DUE).enqueue_in_sync(connection, "eve")
    assert [row[2] for row in rows()] == ['{"task":"send","args":["eve"]}']
    assert changed(ledger_url)[0][:3] == ("a", DUE, False)


def test_the_last_of_two_transactions_decides(app: App, send: Any, ledger_url: str) -> None:
    with psycopg.connect(ledger_url) as connection:
        job_id = send.enqueue_in_sync(connection, "bob")
    with psycopg.connect(ledger_url) as one, psycopg.connect(ledger_url) as other:
        app.job(job_id).reschedule_in_sync(one, due=DUE)
        with ThreadPoolExecutor(1) as pool:
            cancelling = pool.submit(app.job(job_id).cancel_in_sync, other)
            until_blocked(ledger_url)
            one.commit()
            cancelling.result(PATIENCE)
        other.commit()
        with pytest.raises(JobMissing):
            app.job(job_id).reschedule_in_sync(one, due=DUE)
    assert changed(ledger_url) == [(job_id, DUE, True, 2, "")]


def initial(to: str) -> str:
    return to[0]


def until_blocked(url: str) -> None:
    """Wait until a session waits for a lock."""
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(query).fetchall() == [(0,)]:
            pass


async def test_many_jobs_are_inserted_in_their_order(send: Any, rows: Any, ledger_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(ledger_url) as connection:
        task = send.using(priority=7, group="g", critical=3, due=DUE)
        jobs = await task.enqueue_many_in(connection, [("a",), send.arguments("\u00e9 {x} %s :y"), ("c",)])
        assert await send.enqueue_many_in(connection, []) == []
    written = rows()
    assert [row[1] for row in written] == [job.id for job in jobs]
    assert [json.loads(row[2])["args"] for row in written] == [["a"], ["\u00e9 {x} %s :y"], ["c"]]
    assert {row[3:8] for row in written} == {(7, "g", DUE, 3, "open")}


def test_batch_with_an_invalid_or_duplicate_job_inserts_nothing(send: Any, rows: Any, ledger_url: str) -> None:
    by_letter = send.using(unique=Unique(by=initial))
    with psycopg.connect(ledger_url) as connection:
        (eve,) = by_letter.enqueue_many_in_sync(connection, [("eve",)])
        connection.commit()
        with pytest.raises(BadArguments, match="call 1"):
            send.enqueue_many_in_sync(connection, [("a",), (1, 2)])
        with pytest.raises(JobExists, match="of 2 ids"):
            by_letter.enqueue_many_in_sync(connection, [("bob",), ("erna",)])
        with pytest.raises(JobExists, match="same id"):
            by_letter.enqueue_many_in_sync(connection, [("ann",), ("arno",)])
        assert len(rows()) == 1
        keep = send.using(unique=Unique(by=initial), on_conflict="keep")
        ids = keep.enqueue_many_in_sync(connection, [("ann",), ("arno",), ("erna",)])
    assert ids[0] == ids[1]
    assert ids[2] == eve
    assert [json.loads(row[2])["args"] for row in rows()] == [["eve"], ["ann"]]


@pytest.mark.parametrize("factory", ["tuple_row", "dict_row", "namedtuple_row", "scalar_row", "class"])
async def test_rows_of_any_kind_are_read(send: Any, ledger_url: str, factory: str) -> None:
    rows = import_module("psycopg.rows")
    kind = rows.class_row(SimpleNamespace) if factory == "class" else getattr(rows, factory)
    async with await psycopg.AsyncConnection.connect(ledger_url, row_factory=kind) as connection:
        job = await send.using(id="a").enqueue_in(connection, "bob")
        assert job._row == 1  # pyright: ignore[reportPrivateUsage]
        assert await job.reschedule_in(connection, DUE) == DUE


def rows_read(plan: dict[str, Any]) -> int:
    """Return how many rows of the table the nodes of a plan have read."""
    read = sum(rows_read(part) for part in plan.get("Plans", ()))
    if plan.get("Relation Name") == "evsched_job" and "Scan" in plan["Node Type"]:
        removed = plan.get("Rows Removed by Filter", 0)
        read += round((plan["Actual Rows"] + removed) * plan["Actual Loops"])
    return read


@pytest.mark.parametrize("analyzed", [True, False])
def test_many_jobs_are_looked_up_by_their_ids_however_long_the_queue_is(
    send: Any, ledger_url: str, queue: str, analyzed: bool
) -> None:
    with psycopg.connect(ledger_url) as connection:
        for _ in range(4):
            send.enqueue_many_in_sync(connection, [("bob",)] * 500)
        connection.commit()
        if analyzed:
            connection.execute("ANALYZE evsched_job")
        jobs = [New(f"j{n}", b'{"task":"send"}') for n in range(500)]
        statement = Insertion(queue, jobs, None, None, None).statement()
        explained = replace(statement, text=f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}")
        ((found,),) = explained.by(connection)
    assert rows_read(found["Plan"]) < 1500


def compared(plan: dict[str, Any]) -> int:
    """Return how many pairs of rows the joins of a plan have compared in vain."""
    own = round(plan.get("Rows Removed by Join Filter", 0) * plan["Actual Loops"])
    return own + sum(compared(part) for part in plan.get("Plans", ()))


@pytest.mark.parametrize("name", ["_END", "_REFUSE", "_REVIVED"])
def test_outcomes_are_written_by_id_before_table_statistics_exist(ledger_url: str, queue: str, name: str) -> None:
    with psycopg.connect(ledger_url) as connection:
        connection.execute(
            "INSERT INTO evsched_job (queue, id, payload) SELECT %s, 'j' || n, '{\"task\":\"t\"}' "
            "FROM generate_series(1, 7000) AS n",
            [queue],
        )
        words = {
            "queue": queue,
            "queues": [queue] * 20,
            "ids": [f"j{n}" for n in range(20)],
            "numbers": [*range(20)],
            "states": ["done"] * 20,
            "reasons": [""] * 20,
            "reports": [1] * 20,
            "ats": [1.0] * 20,
        }
        statement = f"EXPLAIN (ANALYZE, FORMAT JSON) {getattr(rows_of_ledger, name)}"
        row = connection.execute(statement.encode(), words).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    assert rows_read(plan) + compared(plan) < 200
