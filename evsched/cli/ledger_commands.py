"""The commands of the ledger, and the rows of jobs that Redis does not have, as other commands show them.

The ledger is jobs in PostgreSQL, which relays copy to Redis. Rows are shown if EVSCHED_LEDGER_URL is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import App, Parameter

import evsched
from evsched.cli import output
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Url, settings, takes_settings
from evsched.cli.output import Column, table
from evsched.client.explain import Explanation
from evsched.config import Config
from evsched.display import format_duration
from evsched.errors import CannotStart, JobMissing
from evsched.telemetry import log

if TYPE_CHECKING:
    from evsched.ledger.row_audit import LostRow


T = TypeVar("T")

_MOMENTS = ("due", "created", "scheduled", "finished")


def ask(url: str | None, question: Callable[[ModuleType, str, str], Coroutine[Any, Any, T]], default: T) -> T:
    """Return what the ledger says of jobs that Redis lacks; `default` without a ledger, or if it does not answer.

    `question` is called with the module `ledger.row_audit`, the URL of the database and that of Redis.
    """
    config = settings(url)
    if config.ledger_url is None:
        return default
    try:
        from evsched.ledger import row_audit

        return asyncio.run(question(row_audit, config.ledger_url, config.url))
    except ImportError:
        reason = "it needs psycopg: pip install '.[ledger]' in a checkout of evsched"
    except CannotStart as error:
        reason = str(error)
    output.note(f"the ledger was not asked for jobs that Redis does not have: {reason}")
    return default


def find(url: str | None, queue: str | None, job: str) -> LostRow | None:
    """Return the row of a job that Redis does not have; None if there is none, or no ledger."""
    return ask(url, lambda row_audit, database, redis: row_audit.find_lost(database, redis, queue, job), None)


def cancel(url: str | None, queue: str | None, job: str) -> bool:
    """Cancel the row of a job that Redis does not have, and say so; return whether there is a row.

    Raises:
        JobMissing: it is not open, or is cancelled already.
    """
    row: LostRow | None = ask(
        url, lambda row_audit, database, redis: row_audit.find_lost(database, redis, queue, job, cancel=True), None
    )
    if row is None:
        return False
    if row.state != "open" or row.cancelled:
        raise JobMissing(f"{job}: {_sentence(row)}")
    print(f"{job} cancelled in the ledger, because Redis does not have it{_no_relay(row)}")
    return True


def explain(row: LostRow) -> Explanation:
    """Explain what became of a job that Redis does not have."""
    facts = {"state": row.state, "queue": row.queue, "task": row.task, "group": row.group, "reason": row.reason}
    found = {name: value for name, value in facts.items() if value is not None}
    for name in _MOMENTS:
        moment: float | None = getattr(row, name)
        if moment is not None:
            wait = moment - row.now
            found[name] = f"in {format_duration(wait)}" if wait >= 0 else f"{format_duration(-wait)} ago"
    return Explanation(_sentence(row), found)


def fields(row: LostRow) -> dict[str, Any]:
    """Return the fields of such a job, as `evsched show` prints them."""
    named = ("id", "queue", "state", "cancelled", "task", "group", "reason", *_MOMENTS)
    return {"place": "ledger"} | {name: value for name in named if (value := getattr(row, name)) not in (None, False)}


def _sentence(row: LostRow) -> str:
    since = "" if row.finished is None else format_duration(max(row.now - row.finished, 0.0))
    ago = since and f" {since} ago"
    reason = "" if row.reason is None else f": {row.reason}"
    if row.state in ("dead", "expired"):
        how_long = f" for {since}" if since and row.state == "dead" else ago
        return (
            f"{row.state}{how_long}, as its row in the ledger says{reason}; Redis does not have it: "
            f"`evsched dead revive {row.id}` schedules it again, `evsched dead drop {row.id}` drops it"
        )
    if row.state != "open":
        return f"{row.state}{ago}, as its row in the ledger says{reason}"
    if row.cancelled:
        return f"cancelled in the ledger, which a relay has yet to note in its row{_no_relay(row)}"
    if row.scheduled is None:
        since = format_duration(max(row.now - row.created, 0.0))
        return (
            f"its row in the ledger has waited for a relay for {since}, and Redis does not have it yet{_no_relay(row)}"
        )
    since = format_duration(max(row.now - row.scheduled, 0.0))
    return (
        f"a relay scheduled its row in the ledger {since} ago, and Redis does not have it now: either it was lost, and "
        f"waits for a relay to schedule it again, or it has ended, and a relay has yet to write that{_no_relay(row)}"
    )


def _no_relay(row: LostRow) -> str:
    return "" if row.relays else "; no relay is connected: start one with `evsched ledger run`"


app = App(
    name="ledger",
    help="Schedule jobs by rows of a PostgreSQL database, which Redis cannot lose: migrate, run, status.",
    version=evsched.__version__,
)

LedgerUrl = Annotated[str | None, Parameter(help="The PostgreSQL database. Default: EVSCHED_LEDGER_URL.")]


@contextmanager
def _psycopg() -> Generator[None]:
    """Say how to install what the ledger needs, if it is not there.

    Raises:
        UsageError
    """
    try:
        yield
    except ImportError as error:
        # Without its extra `binary`, and without libpq, the import of psycopg itself fails.
        if error.name != "psycopg" and "pq wrapper" not in str(error):
            raise
        raise UsageError("the ledger needs psycopg: pip install '.[ledger]' in a checkout of evsched") from None


@app.command
def migrate(*, ledger_url: LedgerUrl = None) -> None:
    """Create the tables of the ledger, or add what they lack. It may run any number of times.

    Example: evsched ledger migrate --ledger-url postgresql://localhost/shop
    """
    url = settings(ledger_url=ledger_url).ledger_url
    with _psycopg():
        from evsched.ledger import database

        asyncio.run(database.migrate(url))
    print("the tables evsched_job and evsched_recurrence are up to date")


@app.command
def status(*, json: Json = False, ledger_url: LedgerUrl = None, url: Url = None) -> None:
    """Count the rows by state, show how many wait to be scheduled and for how long, and the epoch of Redis.

    Example: evsched ledger status --ledger-url postgresql://localhost/shop
    """
    found = settings(url, ledger_url=ledger_url)
    with _psycopg():
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

    log.configure(config.log_level)
    with _psycopg():
        run_ledger(config)
