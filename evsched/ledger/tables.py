"""The tables of the ledger, as SQL that may run any number of times.

A row of `evsched_job` is a job that a program wants done. Programs write the first seven columns, relays the others:

    state         open, or how the job ended: done, dead, expired, cancelled, dropped
    reason        why it is dead, expired or cancelled
    number        another one each time that the row is used; the record in Redis has it
    epoch         of the Redis data in which the job was scheduled (epoch.py); empty = in none
    report        the place of the last report about the job among all reports

A row of `evsched_recurrence` is a recurrence. Relays write its last two columns: the epoch in which it was declared,
and the reason why it could not be.

Rows are found by the index `evsched_job_open`: those of one epoch, in the order in which they are restored. A row
leaves it when its job ends.
"""

from __future__ import annotations

from typing import Final

CHANNEL: Final = "evsched_ledger"
"""The channel on which relays are notified of new rows, once for each statement that inserts."""

OLDEST: Final = 140000
"""The oldest PostgreSQL that has what the tables need: CREATE OR REPLACE TRIGGER."""

_DECLARES: Final = "rule, zone, payload, options, critical, removed"
"""The columns of a recurrence that programs write: a change of one is declared."""

STATEMENTS: Final = (
    "CREATE SEQUENCE IF NOT EXISTS evsched_job_number",
    r"""
    CREATE TABLE IF NOT EXISTS evsched_job (
        queue text NOT NULL DEFAULT 'default' CHECK (queue ~ '^[A-Za-z0-9._:@-]{1,200}$'),
        id text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', '') CHECK (id ~ '^[A-Za-z0-9._:@-]{1,200}$'),
        payload json NOT NULL CHECK (json_typeof(payload) = 'object' AND coalesce(payload ->> 'task', '') <> ''),
        priority smallint CHECK (priority BETWEEN 0 AND 9),
        grp text CHECK (octet_length(grp) BETWEEN 1 AND 200 AND position('}' IN grp) = 0),
        due timestamptz NOT NULL DEFAULT now(),
        critical smallint NOT NULL DEFAULT 0 CHECK (critical >= 0),
        state text NOT NULL DEFAULT 'open'
            CHECK (state IN ('open', 'done', 'dead', 'expired', 'cancelled', 'dropped')),
        reason text,
        number bigint NOT NULL DEFAULT nextval('evsched_job_number'),
        epoch text COLLATE "C" NOT NULL DEFAULT '',
        report bigint NOT NULL DEFAULT 0,
        created timestamptz NOT NULL DEFAULT now(),
        scheduled_at timestamptz,
        finished_at timestamptz,
        PRIMARY KEY (queue, id)
    ) WITH (autovacuum_vacuum_scale_factor = 0.02)
    """,
    """
    CREATE INDEX IF NOT EXISTS evsched_job_open ON evsched_job (epoch, critical DESC, due) WHERE state = 'open'
    """,
    f"""
    CREATE OR REPLACE FUNCTION evsched_notify() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('{CHANNEL}', '');
        RETURN NULL;
    END $$
    """,
    """
    CREATE OR REPLACE TRIGGER evsched_job_notify AFTER INSERT ON evsched_job
    FOR EACH STATEMENT EXECUTE FUNCTION evsched_notify()
    """,
    r"""
    CREATE TABLE IF NOT EXISTS evsched_recurrence (
        queue text NOT NULL DEFAULT 'default' CHECK (queue ~ '^[A-Za-z0-9._:@-]{1,200}$'),
        name text NOT NULL CHECK (name <> ''),
        rule text NOT NULL,
        zone text NOT NULL DEFAULT 'UTC',
        payload json NOT NULL CHECK (json_typeof(payload) = 'object' AND coalesce(payload ->> 'task', '') <> ''),
        options json NOT NULL DEFAULT '{}' CHECK (json_typeof(options) = 'object'),
        critical smallint NOT NULL DEFAULT 0 CHECK (critical >= 0),
        removed boolean NOT NULL DEFAULT false,
        epoch text COLLATE "C" NOT NULL DEFAULT '',
        reason text,
        PRIMARY KEY (queue, name)
    )
    """,
    "CREATE INDEX IF NOT EXISTS evsched_recurrence_epoch ON evsched_recurrence (epoch)",
    """
    CREATE OR REPLACE FUNCTION evsched_changed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.epoch := '';
        RETURN NEW;
    END $$
    """,
    f"""
    CREATE OR REPLACE TRIGGER evsched_recurrence_changed BEFORE UPDATE OF {_DECLARES} ON evsched_recurrence
    FOR EACH ROW EXECUTE FUNCTION evsched_changed()
    """,
    f"""
    CREATE OR REPLACE TRIGGER evsched_recurrence_notify AFTER INSERT OR UPDATE OF {_DECLARES} ON evsched_recurrence
    FOR EACH STATEMENT EXECUTE FUNCTION evsched_notify()
    """,
)
"""In this order, in one transaction."""
