"""The ledger in other commands, if EVSCHED_LEDGER_URL is set: jobs that Redis does not have, and the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from evsched.cli import output
from evsched.cli.options import settings
from evsched.client.explain import Explanation
from evsched.client.transaction import Statement
from evsched.display import format_duration
from evsched.errors import CannotStart, JobMissing

if TYPE_CHECKING:
    from evsched.ledger.row_audit import LostRow  # needs psycopg

T = TypeVar("T")

_NO_PSYCOPG: Final = "it needs psycopg: pip install 'evsched[ledger]'"

_MOMENTS = ("due", "created", "scheduled", "finished")


def ask(url: str | None, default: T, function: str, *args: object, **options: object) -> T:
    """Ask the ledger about jobs that Redis lacks, by a function of `ledger.row_audit`.

    Return `default` without a ledger, or if it does not answer.
    """
    config = settings(url)
    if config.ledger_url is None:
        return default
    try:
        from evsched.ledger import row_audit

        return asyncio.run(getattr(row_audit, function)(config.ledger_url, config.url, *args, **options))
    except ImportError:
        reason = _NO_PSYCOPG
    except CannotStart as error:
        reason = str(error)
    output.note(f"the ledger was not asked for jobs that Redis does not have: {reason}")
    return default


def search(url: str | None, work: Callable[[Any], T]) -> T:
    """Return what `work` reads by a connection to the ledger's database; by None without a ledger, or if that fails."""
    config = settings(url)
    if config.ledger_url is None:
        return work(None)
    try:
        import psycopg

        from evsched.ledger.database import explain, open_connection
    except ImportError:
        reason = _NO_PSYCOPG
    else:
        try:
            with open_connection(config.ledger_url) as connection:
                return work(connection)
        except psycopg.Error as error:
            reason = explain(error)
    output.note(f"the ledger was not searched, only the last ends, which Redis has: {reason}")
    return work(None)


def queues_written(connection: Any) -> list[str]:
    """Return the queues whose ends are in the ledger; none without a connection."""
    return (
        [] if connection is None else Statement("SELECT queue AS written FROM evsched_run_position", {}).by(connection)
    )


def find(url: str | None, queue: str | None, job: str) -> LostRow | None:
    """Return the row of a job that Redis does not have; None without a row, or without a ledger."""
    return ask(url, None, "find_lost", queue, job)


def cancel(url: str | None, queue: str | None, job: str) -> bool:
    """Cancel the row of a job that Redis does not have, and say so; return whether there is a row.

    Raises:
        JobMissing: it is not open, or is cancelled already.
    """
    row: LostRow | None = ask(url, None, "find_lost", queue, job, cancel=True)
    if row is None:
        return False
    if row.state != "open" or row.cancelled:
        raise JobMissing(f"{job}: {_sentence(row)}")
    print(f"{job} cancelled in the ledger, because Redis does not have it{_no_relay(row)}")
    return True


def explain(row: LostRow) -> Explanation:
    """Explain a job that Redis does not have."""
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
