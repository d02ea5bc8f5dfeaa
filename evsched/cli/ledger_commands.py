"""The commands of the ledger: jobs in PostgreSQL, which relays copy to Redis, and the ends of all jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import App, Parameter

import evsched
from evsched.cli import output
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Url, parse_length, settings, takes_settings
from evsched.cli.output import Column, table
from evsched.config import Config

app = App(
    name="ledger",
    help="Schedule jobs by rows of a PostgreSQL database, which Redis cannot lose; keep the ends of all jobs there.",
    version=evsched.__version__,
)

LedgerUrl = Annotated[str | None, Parameter(help="The PostgreSQL database. Default: EVSCHED_LEDGER_URL.")]


@contextmanager
def needs_psycopg() -> Generator[None]:
    """Check that the ledger's libraries are installed.

    Raises:
        UsageError
    """
    try:
        yield
    except ImportError as error:
        # Without its extra `binary`, and without libpq, the import of psycopg itself fails.
        if error.name != "psycopg" and "pq wrapper" not in str(error):
            raise
        raise UsageError("the ledger needs psycopg: pip install 'evsched[ledger]'") from None


@app.command
def migrate(*, ledger_url: LedgerUrl = None) -> None:
    """Create the tables of the ledger, or add missing parts. It may run any number of times.

    Example: evsched ledger migrate --ledger-url postgresql://localhost/shop
    """
    url = settings(ledger_url=ledger_url).ledger_url
    with needs_psycopg():
        from evsched.ledger import database

        asyncio.run(database.migrate(url))
    print("the tables evsched_job, evsched_recurrence and evsched_run are up to date")


@app.command
def status(*, json: Json = False, ledger_url: LedgerUrl = None, url: Url = None) -> None:
    """Count the rows by state, show how many wait to be scheduled and for how long, and the epoch of Redis.

    Example: evsched ledger status --ledger-url postgresql://localhost/shop
    """
    found = settings(url, ledger_url=ledger_url)
    with needs_psycopg():
        from evsched.ledger.row_audit import read_status

        now = asyncio.run(read_status(found.ledger_url, found.url))
    if json:
        output.as_json(now)
        return
    waiting, oldest = now.waiting.rows, f", the oldest for {now.waiting.seconds:.1f} s" if now.waiting.rows else ""
    rows = [(f"rows {state}", count) for state, count in now.states.items()]
    rows += [("waiting to be scheduled", f"{waiting}{oldest}"), ("recurrences", now.recurrences)]
    rows += [("recurrences waiting to be declared", now.undeclared), ("recurrences refused", now.refused)]
    if now.lost_dead:
        count = "1,000 or more" if now.lost_dead >= 1000 else now.lost_dead
        rows.append(("dead rows whose jobs Redis lacks", f"{count}: evsched dead revive schedules them"))
    redises = f", of {now.redises} Redises: see evsched doctor" if now.redises > 1 else ""
    rows.append(("relays", f"{now.relays or 'none is connected: evsched ledger run'}{redises}"))
    rows += [(f"ends not written yet, queue {queue}", count) for queue, count in now.unwritten.items()]
    if now.away is None:
        if now.epoch:
            rows.append(("jobs of ended rows removed from Redis", "yes" if now.compared else "not yet"))
        rows.append(("epoch", now.epoch or "none: no relay has seen this Redis, or its data is lost"))
    else:
        rows.append(
            (
                "Redis is of another ledger" if now.foreign else "Redis is down",
                f"{now.away}; rows that were scheduled before do not count as waiting",
            )
        )
    table((Column("what"), Column("value", 1, prose=True)), rows, "")


@app.command(name="run")
@takes_settings
def ledger(*, config: Config) -> None:
    """Run a relay: it schedules the rows that are committed, and writes back how their jobs end.

    Start a second on another machine, in case the first fails. After a loss of Redis, relays schedule all rows again
    whose jobs have not ended.

    Example: evsched ledger run --ledger-url postgresql://localhost/shop
    """
    from evsched.services.service import run_ledger

    with needs_psycopg():
        run_ledger(config)


_LEAST: float = 86400.0
"""Seconds: a whole day is dropped at once."""


@app.command
@takes_settings
def history(
    *,
    keep: Annotated[
        str, Parameter(help="For how long ends of jobs are kept, and rows of jobs that are done: 90d, at least 1d.")
    ] = "90d",
    config: Config,
) -> None:
    """Write the ends of the jobs of all queues into the ledger, and delete the old ones.

    Then `evsched history` and `evsched history counts` search there too. Any number of these processes may run: one
    writes, and another one takes over if it ends. Rows in evsched_job whose jobs were done, cancelled or dropped so
    long ago are deleted too.

    Example: evsched ledger history --keep 365d --ledger-url postgresql://localhost/shop
    """
    from evsched.services.service import run_history

    if (seconds := parse_length(keep)) < _LEAST:
        raise UsageError(f"--keep is {keep}: at least 1d")
    with needs_psycopg():
        run_history(config, seconds)
