"""`evsched ledger migrate` creates missing tables and columns, and locks nothing else."""

from __future__ import annotations

import psycopg
import pytest

from evsched.errors import CannotStart
from evsched.ledger.database import migrate

INSERT = 'INSERT INTO evsched_job (payload) VALUES (\'{"task":"t"}\')'

PARTS = [
    "ALTER TABLE evsched_job DROP COLUMN report",
    "ALTER TABLE evsched_job DROP COLUMN grp",
    "ALTER TABLE evsched_job DROP CONSTRAINT evsched_job_grp_check",
    "ALTER TABLE evsched_job DROP CONSTRAINT evsched_job_pkey",
    "DROP INDEX evsched_job_open",
    "DROP TRIGGER evsched_job_notify ON evsched_job",
    "DROP FUNCTION evsched_changed CASCADE",
    "DROP TABLE evsched_recurrence",
    "DROP TABLE evsched_ledger",
]

SCHEMA = """
SELECT 'column', attrelid::regclass::text, attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid::regclass::text LIKE 'evsched%' AND attnum > 0 AND NOT attisdropped
UNION ALL SELECT 'constraint', conrelid::regclass::text, conname,
    regexp_replace(pg_get_constraintdef(oid), ' NOT VALID', '')
FROM pg_constraint WHERE conrelid::regclass::text LIKE 'evsched%'
UNION ALL SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'evsched%'
UNION ALL SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger
WHERE NOT tgisinternal
UNION ALL SELECT 'function', proname, '', prosrc FROM pg_proc WHERE proname LIKE 'evsched%'
ORDER BY 1, 2, 3
"""


@pytest.mark.extra
@pytest.mark.parametrize("drop", PARTS)
async def test_migrate_creates_whatever_was_dropped(ledger_url: str, drop: str) -> None:
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute(INSERT)
        whole = connection.execute(SCHEMA).fetchall()
        connection.execute(drop.encode())
        assert connection.execute(SCHEMA).fetchall() != whole
        await migrate(ledger_url)
        assert connection.execute(SCHEMA).fetchall() == whole
        connection.execute(INSERT)


async def test_tables_that_are_up_to_date_are_not_locked(ledger_url: str) -> None:
    with psycopg.connect(ledger_url) as connection:
        connection.execute("LOCK TABLE evsched_job, evsched_recurrence, evsched_ledger IN ACCESS EXCLUSIVE MODE")
        await migrate(ledger_url)


async def test_migrate_waits_briefly_for_a_locked_table(ledger_url: str) -> None:
    with psycopg.connect(ledger_url, autocommit=True) as other:
        other.execute("ALTER TABLE evsched_job DROP COLUMN report")
    with psycopg.connect(ledger_url) as connection:
        connection.execute(INSERT)
        with pytest.raises(CannotStart, match=r"column evsched_job.report cannot be made .* pg_stat_activity"):
            await migrate(ledger_url)
    await migrate(ledger_url)


@pytest.mark.parametrize("table", ["evsched_job", "evsched_recurrence", "evsched_ledger"])
async def test_a_table_of_another_program_is_left_alone(ledger_url: str, table: str) -> None:
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE {table}; CREATE TABLE {table} (x int)".encode())
        before = connection.execute(SCHEMA).fetchall()
        with pytest.raises(CannotStart, match=f"{table} is there and has no column .* nothing was changed"):
            await migrate(ledger_url)
        assert connection.execute(SCHEMA).fetchall() == before
