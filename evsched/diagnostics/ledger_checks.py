"""The checks of the ledger: missing relays, rows whose jobs Redis lacks, and ends that did not reach their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from evsched.diagnostics.finding import Finding
from evsched.errors import ConfigError, StoreRefused
from evsched.transport.senders import BatchingSender

if TYPE_CHECKING:
    from evsched.ledger.audit import Attendance  # needs psycopg

_WAITS: Final = 60.0
"""Seconds that a row may wait until it is scheduled."""

_LOST: Final = "UPDATE evsched_job SET epoch = '' WHERE queue = '{queue}' AND id = '{id}'; NOTIFY evsched_ledger"


async def ledger(url: str, sender: BatchingSender, *, repair: bool = False) -> list[Finding]:
    """Return what is wrong with the relays, and each row about which the table and Redis differ.

    `repair`: schedule lost jobs again.

    Raises:
        StoreDown, StoreRefused
    """
    try:
        import psycopg

        from evsched.ledger import audit
        from evsched.ledger.database import check_url, explain, transaction
        from evsched.ledger.epoch import OTHER
    except ImportError:
        mend = "pip install '.[ledger]' in a checkout of evsched, or unset EVSCHED_LEDGER_URL"
        return [Finding("ledger", "warning", "the ledger was not checked: psycopg is missing", "the ledger", mend)]
    try:
        async with transaction(check_url(url)) as connection:
            old = await audit.oldest_transaction(connection)
            relays = await audit.attendance(connection, sender)
            differences = await audit.compare(connection, sender)
            lost = [one.row for one in differences if one.what == "lost"]
            if repair and lost:
                await audit.schedule_again(connection, lost)
    except StoreRefused as error:
        if error.kind != OTHER:
            raise
        mend = "correct EVSCHED_URL or EVSCHED_LEDGER_URL"
        return [Finding("ledger", "fault", f"the ledger was not checked: {error}", "the ledger", mend)]
    except (psycopg.Error, ConfigError) as error:
        what = f"the ledger was not checked: {explain(error) if isinstance(error, psycopg.Error) else error}"
        return [Finding("ledger", "fault", what, "the ledger", "correct EVSCHED_LEDGER_URL, or start the database")]
    found = _relays(relays)
    if old is not None:
        what = (
            f"a transaction has been open for {old.seconds:.0f} s (pid {old.pid}, {old.application or 'no name'}, "
            f"{old.state}): PostgreSQL cannot remove old versions of rows meanwhile, and relays slow down"
        )
        mend = f"let it end, or end it: SELECT pg_terminate_backend({old.pid}); idle_in_transaction_session_timeout"
        found.append(Finding("ledger-transaction", "warning", what, "the ledger", f"{mend} ends forgotten ones"))
    for one in differences:
        where = f"queue {one.row.queue}, job {one.row.id}"
        if one.what == "lost":
            what = "its row says that the job is scheduled, and Redis does not have it"
            mend = (
                f"evsched doctor --repair has it scheduled again; or {_LOST.format(queue=one.row.queue, id=one.row.id)}"
            )
            found.append(Finding("ledger-lost", "fault", what, where, mend, repair))
        else:
            what = "the job ended over a minute ago, and its row is open: it would run again after a loss of Redis"
            mend = "start a relay: evsched ledger run; if one runs, read its log, and look into evsched ledger status"
            found.append(Finding("ledger-open", "fault", what, where, mend))
    return found


def _relays(now: Attendance) -> list[Finding]:
    found, where = list[Finding](), "the ledger"
    count, run = now.waiting.rows, "start a relay, better two: evsched ledger run"
    if not now.relays:
        what = "no relay is connected to the database of the ledger"
        if count:
            what += f", and open rows wait to be scheduled: {count}"
        found.append(Finding("ledger-no-relay", "fault" if count else "warning", what, where, run))
    elif not now.serving:
        what = "relays are connected to the database of the ledger, and none of them serves this Redis"
        mend = "give the relays the EVSCHED_URL of this command; if it is the same, read their logs"
        found.append(Finding("ledger-redis", "fault", what, where, mend))
    elif now.redises > 1:
        what = f"the relays of this database use {now.redises} Redises, so those of one wait until the others are gone"
        mend = "give all relays the same EVSCHED_URL; the log of one that waits has the pids in pg_stat_activity"
        found.append(Finding("ledger-redis", "fault", what, where, mend))
    if now.relays and now.waiting.seconds > _WAITS:
        what = f"open rows wait to be scheduled: {count}, the oldest for {now.waiting.seconds:.0f} s"
        mend = "read the relays' logs; a relay with --critical-only leaves rows where they are"
        found.append(Finding("ledger-wait", "fault", what, where, mend))
    return found
