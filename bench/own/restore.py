"""Redis loses its data: when relays of the ledger have the rows back, the critical ones first, and what is late."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import psycopg

from bench.figures import Failed, Figures, Table, percentile
from bench.scale import Scale
from bench.server import Server, server
from evsched.client.new_job import JobOptions, new_job
from tests.support.postgres import Postgres, find_postgres

_RELAYS: Final = 5
_CRITICAL: Final = 100
"""One row of so many is critical."""

_DUE: Final = 500
"""Critical rows that become due one after the other while the rows come back."""

_PER_SECOND: Final = 11_000.0
"""Rows a second that come back, roughly: over so long the due rows are spread."""

_LIMIT: Final = 900.0
"""Seconds that the rows have until they are in Redis."""


class _Ledger:
    """The ledger's table in a database."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def all(self, statement: str, *words: object) -> list[Any]:
        """Return the rows of a statement."""
        return self._connection.execute(statement.encode(), words or None).fetchall()

    def one(self, statement: str, *words: object) -> Any:
        """Return the only row of a statement."""
        (row,) = self.all(statement, *words)
        return row

    def insert(self, rows: int, prefix: str, first_due: str, apart: float, critical: int) -> None:
        """Insert rows; one of `critical` is critical. Each is due so many seconds after the one before."""
        payload = new_job("lateness", (), {}, JobOptions()).payload.decode()
        self._connection.execute(
            "INSERT INTO evsched_job (id, payload, due, critical) SELECT %s || n, %s, "
            "%s::timestamptz + n * make_interval(secs => %s), CASE WHEN n %% %s = 0 THEN 1 ELSE 0 END "
            "FROM generate_series(0, %s) AS n",
            [prefix, payload, first_due, apart, critical, rows - 1],
        )

    def wait(self, condition: str, *words: object) -> None:
        """Wait until no row whose job has not ended meets a condition."""
        end = time.monotonic() + _LIMIT
        select = f"SELECT count(*) FROM evsched_job WHERE state = 'open' AND {condition}"
        while self.one(select, *words)[0]:
            if time.monotonic() > end:
                raise Failed(f"rows were not back within {_LIMIT:g} s")
            time.sleep(0.2)


@contextmanager
def _ledger() -> Generator[tuple[_Ledger, str]]:
    """Start a database, and return its ledger and its URL."""
    programs = find_postgres()
    if programs is None:
        raise Failed("PostgreSQL is not installed (Debian: postgresql)")
    with (
        Postgres(programs) as postgres,
        postgres.ledger() as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        yield _Ledger(connection), url


@contextmanager
def _relays(where: Server, url: str, *options: str) -> Generator[None]:
    with ExitStack() as stack:
        for _ in range(_RELAYS):
            stack.enter_context(where.evsched("ledger", "run", *options, environment={"EVSCHED_LEDGER_URL": url}))
        yield


def _late(where: Server, ledger: _Ledger) -> list[float]:
    """Return how late each due row started, after its due or, if that was later, after a relay took it."""
    taken: dict[str, float] = dict(
        ledger.all(
            "SELECT id, extract(epoch FROM greatest(due, scheduled_at))::float8 FROM evsched_job WHERE id ~ 'due'"
        )
    )
    started = where.fields("default", list(taken), "started")
    return [row[0] - since for row, since in zip(started, taken.values(), strict=True)]


def _lose(rows: int, *options: str) -> Figures:
    with server() as where, _ledger() as (ledger, url):
        ledger.insert(rows, "far-", "infinity", 0, _CRITICAL)
        with _relays(where, url):
            ledger.wait("epoch = ''")
        seconds = rows / _PER_SECOND
        with _relays(where, url, *options), where.fleet():
            epoch = where.redis.get("evsched:{}:epoch").decode()
            lost = time.time() + 1
            ledger.insert(_DUE, "due-", datetime.fromtimestamp(lost, UTC).isoformat(), seconds / _DUE, 1)
            time.sleep(lost - time.time())
            where.redis.flushall()
            wanted = "critical = 1" if options else "true"
            ledger.wait(f"{wanted} AND (epoch = '' OR starts_with(epoch, %s))", epoch)
            ledger.wait("id LIKE 'due-%%'")
            expected, critical, back = ledger.one(
                "SELECT count(*), extract(epoch FROM max(scheduled_at) FILTER (WHERE critical = 1))::float8, "
                f"extract(epoch FROM max(scheduled_at))::float8 FROM evsched_job WHERE state = 'open' AND {wanted}"
            )
            late = _late(where, ledger)
            found = where.redis.zcard("evsched:{default}:schedule")
    return {
        "rows": rows,
        "last critical one back, s": critical - lost,
        "last of all back, s": None if options else back - lost,
        "missing or doubled": abs(found - expected),
        "due meanwhile": len(late),
        "started p50, ms": percentile(late, 0.5) * 1e3,
        "at the latest, ms": max(late) * 1e3,
    }


def table(scale: Scale) -> Table:
    """Return the table: all rows come back, or the critical ones alone."""
    rows = {
        "all rows": partial(_lose, scale.rows),
        "--critical-only": partial(_lose, scale.rows, "--critical-only", "1"),
    }
    return Table("Redis loses its data, and five relays bring it back from the ledger", rows)
