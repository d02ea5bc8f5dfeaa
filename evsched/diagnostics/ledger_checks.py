"""The checks of the ledger: rows whose jobs Redis lacks, and ends that did not reach their rows."""

from __future__ import annotations

from typing import Final

from evsched.diagnostics.finding import Finding
from evsched.errors import ConfigError, StoreRefused
from evsched.transport.senders import BatchingSender

_LOST: Final = "UPDATE evsched_job SET epoch = '' WHERE queue = '{queue}' AND id = '{id}'; NOTIFY evsched_ledger"


async def ledger(url: str, sender: BatchingSender, *, repair: bool = False) -> list[Finding]:
    """Return a finding for each row about which the table and Redis differ. `repair`: schedule lost jobs again.

    Raises:
        StoreDown, StoreRefused
    """
    try:
        import psycopg

        from evsched.ledger import audit
        from evsched.ledger.database import check_url, connect, explain
        from evsched.ledger.epoch import OTHER
    except ImportError:
        mend = "pip install 'evsched[ledger]', or unset EVSCHED_LEDGER_URL"
        return [Finding("ledger", "warning", "the ledger was not checked: psycopg is missing", "the ledger", mend)]
    try:
        async with await connect(check_url(url)) as connection:
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
    found = list[Finding]()
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
