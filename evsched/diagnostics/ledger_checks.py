"""The checks of the ledger: its relays, and each row about which its table and Redis differ. They need psycopg."""

from __future__ import annotations

import asyncio
from typing import Final

import psycopg
from psycopg import AsyncConnection

from evsched.diagnostics.finding import Finding
from evsched.errors import ConfigError, StoreRefused
from evsched.ledger import rows
from evsched.ledger.database import check_url, explain, transaction
from evsched.ledger.epoch import OTHER, Present, known_epoch, read_identity, read_present
from evsched.ledger.rows import NO_EPOCH, SAME, SLICE, Row, arrays, fetch, given
from evsched.ledger.tables import CHANNEL
from evsched.store.relay_calls import Mark
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_WHERE: Final = "the ledger"

_AGAIN: Final = 2.5
"""Seconds until relays and differences are looked at again: a failover, or an end, may have been on its way."""

_WAITS: Final = 60.0
"""Seconds that a row may wait until it is scheduled."""

_LATE: Final = 60.0
"""Seconds that an end may take to reach its row."""

_OLD: Final = 600.0
"""Seconds after which an open transaction is reported."""

_OLDEST: Final = """
SELECT pid, coalesce(nullif(application_name, ''), 'no name'), coalesce(state, ''),
    extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND datname = current_database() AND pid <> pg_backend_pid()
    AND xact_start < clock_timestamp() - make_interval(secs => %s)
ORDER BY xact_start LIMIT 1
"""

_OPEN: Final = """
SELECT queue, id, number FROM evsched_job
WHERE state = 'open' AND epoch = %(epoch)s AND (queue, id) > (%(after_queue)s, %(after_id)s)
ORDER BY queue, id LIMIT %(limit)s
"""

_STILL_OPEN: Final = f"""
SELECT job.queue, job.id, job.number FROM evsched_job AS job JOIN {given()} ON {SAME}
WHERE job.state = 'open' AND job.epoch = %(epoch)s
"""  # noqa: S608 - the parts are constants

_WAIT_AGAIN: Final = f"""
WITH again AS (UPDATE evsched_job AS job SET epoch = '' FROM {given()} WHERE {SAME} AND job.state = 'open')
SELECT pg_notify('{CHANNEL}', '')
"""  # noqa: S608 - likewise

_LOST: Final = "UPDATE evsched_job SET epoch = '' WHERE queue = '{0.queue}' AND id = '{0.id}'; NOTIFY evsched_ledger"


async def ledger(url: str, sender: BatchingSender, *, repair: bool = False) -> list[Finding]:
    """Return the faults of the relays, and each row about which the table and Redis differ, at most 1,000.

    `repair`: schedule lost jobs again.

    Raises:
        StoreDown, StoreRefused
    """
    try:
        async with transaction(check_url(url)) as connection:
            found = await _check_relays(connection, sender) + await _check_transactions(connection)
            return found + await _compare(connection, sender, repair=repair)
    except StoreRefused as error:
        if error.kind != OTHER:
            raise
        why, mend = str(error), "correct EVSCHED_URL or EVSCHED_LEDGER_URL"
    except (psycopg.Error, ConfigError) as error:
        why = explain(error) if isinstance(error, psycopg.Error) else str(error)
        mend = "correct EVSCHED_LEDGER_URL, or start the database"
    return [Finding("ledger", "fault", f"the ledger was not checked: {why}", _WHERE, mend)]


async def _check_relays(connection: AsyncConnection, sender: BatchingSender) -> list[Finding]:
    epoch, present = await _read_relays(connection, sender)
    if present.relays and (present.redises != 1 or not present.serving(epoch)):
        await asyncio.sleep(_AGAIN)
        epoch, present = await _read_relays(connection, sender)
    waiting = await rows.backlog(connection, epoch or NO_EPOCH, None)
    found, count = list[Finding](), waiting.rows
    if not present.relays:
        what = "no relay is connected to the database of the ledger"
        if count:
            what += f", and open rows wait to be scheduled: {count}"
        mend = "start a relay, better two: evsched ledger run"
        found.append(Finding("ledger-no-relay", "fault" if count else "warning", what, _WHERE, mend))
    elif not present.serving(epoch):
        what = "relays are connected to the database of the ledger, and none of them serves this Redis"
        mend = "give the relays the EVSCHED_URL of this command; if it is the same, read their logs"
        found.append(Finding("ledger-redis", "fault", what, _WHERE, mend))
    elif present.redises > 1:
        what = f"the relays of this database use {present.redises} Redises; all but one set wait until it is gone"
        mend = "give all relays the same EVSCHED_URL; the log of one that waits has the pids in pg_stat_activity"
        found.append(Finding("ledger-redis", "fault", what, _WHERE, mend))
    if present.relays and waiting.seconds > _WAITS:
        what = f"open rows wait to be scheduled: {count}, the oldest for {waiting.seconds:.0f} s"
        mend = "read the relays' logs; a relay with --critical-only leaves rows where they are"
        found.append(Finding("ledger-wait", "fault", what, _WHERE, mend))
    return found


async def _read_relays(connection: AsyncConnection, sender: BatchingSender) -> tuple[str, Present]:
    """Return the present epoch, and the relays that are connected."""
    epoch = await known_epoch(sender, (await read_identity(connection)).text)
    return epoch, await read_present(connection)


async def _check_transactions(connection: AsyncConnection) -> list[Finding]:
    """Report the oldest transaction, if it has been open for long."""
    found = list[Finding]()
    for pid, application, state, seconds in await fetch(connection, _OLDEST, [_OLD]):
        what = (
            f"a transaction has been open for {seconds:.0f} s (pid {pid}, {application}, {state}): PostgreSQL cannot "
            "remove old versions of rows meanwhile, and relays slow down"
        )
        mend = f"let it end, or end it: SELECT pg_terminate_backend({pid}); idle_in_transaction_session_timeout"
        found.append(Finding("ledger-transaction", "warning", what, _WHERE, f"{mend} ends forgotten ones"))
    return found


async def _compare(connection: AsyncConnection, sender: BatchingSender, *, repair: bool) -> list[Finding]:
    """Report the differences that are still there 2.5 s later."""
    epoch, _ = await _read_relays(connection, sender)
    if not epoch:
        return []
    suspects = list[Row]()
    async for some in rows.slices(connection, _OPEN, {"epoch": epoch}):
        lost, late = await _differences(sender, some)
        suspects += lost + late
        if len(suspects) >= SLICE:
            break
    if not suspects:
        return []
    await asyncio.sleep(_AGAIN)
    again = await fetch(connection, _STILL_OPEN, {"epoch": epoch, **arrays(suspects[:SLICE])})
    lost, late = await _differences(sender, [Row(*row) for row in again])
    if repair and lost:
        await connection.execute(_WAIT_AGAIN.encode(), arrays(lost))
    found = list[Finding]()
    for row in lost:
        what = "its row says that the job is scheduled, and Redis does not have it"
        mend = f"evsched doctor --repair has it scheduled again; or {_LOST.format(row)}"
        found.append(Finding("ledger-lost", "fault", what, _place(row), mend, repair))
    for row in late:
        what = "the job ended over a minute ago, and its row is open: it would run again after a loss of Redis"
        mend = "start a relay: evsched ledger run; if one runs, read its log, and look into evsched ledger status"
        found.append(Finding("ledger-open", "fault", what, _place(row), mend))
    return found


async def _differences(sender: BatchingSender, some: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows whose jobs Redis does not have, and those whose jobs have ended there over a minute ago."""
    now, lost, late = await sender.send(clock()), list[Row](), list[Row]()
    marks: list[Mark] = await sender.send_all([Store(row.queue).mark(row.id) for row in some])
    for row, mark in zip(some, marks, strict=True):
        if str(row.number) not in (mark.row, mark.next_row):
            lost.append(row)
        elif mark.next_row != str(row.number) and mark.finished is not None and mark.finished < now - _LATE:
            late.append(row)
    return lost, late


def _place(row: Row) -> str:
    return f"queue {row.queue}, job {row.id}"
