"""The tables of the ledger: their parts, how to see in the catalog whether each is there, and how it is made.

A row of `evsched_job` is a job that a program wants done. Programs write the first seven columns, and may later change
`due` and set `cancelled`. Relays write the others:

    state         open, or how the job ended: done, dead, expired, cancelled, dropped
    reason        why it is dead, expired or cancelled
    number        another one each time that the row is used; the record in Redis has it
    epoch         of the Redis data in which the job was scheduled (epoch.py); empty = in none
    report        the place of the last report about the job among all reports
    xact          the transaction that made the row wait to be scheduled, which a trigger notes
    revision      how often `due` or `cancelled` was changed, which a trigger counts; the record in Redis says which of
                  them it has seen

A row of `evsched_recurrence` is a recurrence. Relays write its last two columns: the epoch in which it was declared,
and the reason why it could not be: then it waits until it is changed.

`evsched_ledger` has one row, which relays use: who this database is (epoch.py), and the epoch that was found last, with
the time when a relay found it, and the last one in which jobs were compared with their rows (ends.py).

A row of `evsched_run` is one end of a job, which `evsched ledger history` copies from Redis (run_writer.py); `entry`
and `place` are its place there. client/history.py searches the rows. Each day has a partition, `evsched_run_` and the
date (UTC): the writer makes it ahead, and drops it when it is too old. `evsched_run_position` has the last entry of
each queue that is written, and a hash of its content.

`evsched_setting` has copies of settings that Redis has, and the epoch in which each was copied (relay.py).

Rows are found by the index `evsched_job_open`: the rows of one epoch, in the order in which they are restored. A row
leaves it when its job ends. But while a transaction with an older snapshot is open, as in a dump or a forgotten
BEGIN, PostgreSQL keeps the entries of rows that have left, and passes over each of them. So rows that were just
committed are found by `evsched_job_new`: those of transactions that had not ended at the last look.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

CHANNEL: Final = "evsched_ledger"
"""The channel on which relays are notified of new rows, once for each statement that inserts."""

OLDEST: Final = 140000
"""The oldest PostgreSQL that has what the tables need: CREATE OR REPLACE TRIGGER."""

NEW: Final = "(state = 'open' AND epoch = '') IS TRUE"
"""The condition of the rows in the index `evsched_job_new`. IS TRUE, so that no other index fits a statement with it:
PostgreSQL does not know how many entries of rows that have left the other one has."""

_DECLARES: Final = "UPDATE OF rule, zone, payload, options, critical, removed"
"""A change of a column of a recurrence that programs write: it is declared."""

_NAME: Final = r"^(?!\.{1,2}$)[A-Za-z0-9._:@-]{1,200}$"
"""For a queue or a job. Not `.` or `..`, which the HTTP API cannot address."""
_PAYLOAD: Final = "json_typeof(payload) = 'object' AND coalesce(payload ->> 'task', '') <> ''"
_SOME_ID: Final = "replace(gen_random_uuid()::text, '-', '')"


class Part(Struct, frozen=True):
    """A part that `migrate` makes if it is missing."""

    name: str
    found: str
    """A condition that is true if it is there. It reads the catalog alone, so it waits for nobody."""
    make: str


_JOBS: Final = f"""
queue text NOT NULL DEFAULT 'default' CHECK queue ~ '{_NAME}'
id text NOT NULL DEFAULT {_SOME_ID} CHECK id ~ '{_NAME}'
payload json NOT NULL CHECK {_PAYLOAD}
priority smallint CHECK priority BETWEEN 0 AND 9
grp text CHECK octet_length(grp) BETWEEN 1 AND 200 AND position('}}' IN grp) = 0
due timestamptz NOT NULL DEFAULT now()
critical smallint NOT NULL DEFAULT 0 CHECK critical >= 0
state text NOT NULL DEFAULT 'open' CHECK state IN ('open', 'done', 'dead', 'expired', 'cancelled', 'dropped')
reason text
number bigint NOT NULL GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME evsched_job_number)
epoch text COLLATE "C" NOT NULL DEFAULT ''
report bigint NOT NULL DEFAULT 0
created timestamptz NOT NULL DEFAULT now()
scheduled_at timestamptz
finished_at timestamptz
cancelled boolean NOT NULL DEFAULT false
revision integer NOT NULL DEFAULT 0
xact xid8 NOT NULL DEFAULT pg_current_xact_id()
"""
"""The columns, one a line: name, type, default, and the check that values must pass. Since `number` is generated
ALWAYS, PostgreSQL refuses a program's own."""

_RECURRENCES: Final = f"""
queue text NOT NULL DEFAULT 'default' CHECK queue ~ '{_NAME}'
name text NOT NULL CHECK name <> ''
rule text NOT NULL
zone text NOT NULL DEFAULT 'UTC'
payload json NOT NULL CHECK {_PAYLOAD}
options json NOT NULL DEFAULT '{{}}' CHECK json_typeof(options) = 'object'
critical smallint NOT NULL DEFAULT 0 CHECK critical >= 0
removed boolean NOT NULL DEFAULT false
epoch text COLLATE "C" NOT NULL DEFAULT ''
reason text
"""

_LEDGER: Final = f"""
one boolean NOT NULL DEFAULT true CHECK one
identity text NOT NULL DEFAULT {_SOME_ID}
epoch text COLLATE "C" NOT NULL DEFAULT ''
found timestamptz
checked text COLLATE "C" NOT NULL DEFAULT ''
"""

_SETTINGS: Final = f"""
queue text NOT NULL CHECK queue ~ '{_NAME}'
kind text NOT NULL CHECK kind IN ('calendar', 'window', 'limit')
name text NOT NULL
value text NOT NULL
epoch text COLLATE "C" NOT NULL
"""

_RUNS: Final = """
queue text NOT NULL
ended timestamptz NOT NULL
entry bigint NOT NULL
place integer NOT NULL
id text NOT NULL
task text NOT NULL DEFAULT ''
outcome text NOT NULL DEFAULT ''
due timestamptz
started timestamptz
attempt bigint NOT NULL DEFAULT 0
worker text NOT NULL DEFAULT ''
grp text NOT NULL DEFAULT ''
enqueued_by text NOT NULL DEFAULT ''
tags text[] NOT NULL DEFAULT '{}'
error text NOT NULL DEFAULT ''
location text NOT NULL DEFAULT ''
"""

_POSITIONS: Final = """
queue text NOT NULL
entry text NOT NULL
digest text NOT NULL
"""

KEYS: Final = {
    "evsched_job": "queue, id",
    "evsched_recurrence": "queue, name",
    "evsched_ledger": "one",
    "evsched_setting": "queue, kind, name",
    "evsched_run": "queue, ended, entry, place",
    "evsched_run_position": "queue",
}
"""The tables with their primary keys."""


def _table(name: str, columns: str, options: str = "") -> Iterator[Part]:
    of, key, definitions = f"to_regclass('{name}')", KEYS[name], list[str]()
    parts = list[Part]()
    for line in columns.strip().splitlines():
        definition, _, rule = line.partition(" CHECK ")
        column = definition.split()[0]
        check = f"{name}_{column}_check"
        definitions.append(f"{definition} CONSTRAINT {check} CHECK ({rule})" if rule else definition)
        found = f"EXISTS (SELECT FROM pg_attribute WHERE attrelid = {of} AND attname = '{column}')"
        parts.append(Part(f"column {name}.{column}", found, f"ALTER TABLE {name} ADD COLUMN {definitions[-1]}"))
        if rule:
            found = f"EXISTS (SELECT FROM pg_constraint WHERE conrelid = {of} AND conname = '{check}')"
            # NOT VALID: only new rows are checked, so the table is not locked while all are read.
            made = f"ALTER TABLE {name} ADD CONSTRAINT {check} CHECK ({rule}) NOT VALID"
            parts.append(Part(f"check {check}", found, made))
    made = f"CREATE TABLE {name} ({', '.join(definitions)}, PRIMARY KEY ({key})) {options}"
    yield Part(f"table {name}", f"{of} IS NOT NULL", made)
    yield from parts
    found = f"EXISTS (SELECT FROM pg_constraint WHERE conrelid = {of} AND contype = 'p')"
    yield Part(f"primary key of {name}", found, f"ALTER TABLE {name} ADD PRIMARY KEY ({key})")


def _index(name: str, on: str) -> Part:
    return Part(f"index {name}", f"to_regclass('{name}') IS NOT NULL", f"CREATE INDEX {name} ON {on}")


def _function(name: str, body: str) -> Part:
    found = f"EXISTS (SELECT FROM pg_proc WHERE oid = to_regprocedure('{name}()') AND prosrc = $${body}$$)"
    made = f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"
    return Part(f"function {name}", found, made)


def _trigger(name: str, when: str, table: str, each: str, function: str) -> Part:
    found = f"EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass('{table}') AND tgname = '{name}')"
    made = f"CREATE OR REPLACE TRIGGER {name} {when} ON {table} FOR EACH {each} EXECUTE FUNCTION {function}()"
    return Part(f"trigger {name}", found, made)


_WAITS: Final = "ROW WHEN (NEW.state = 'open' AND NEW.epoch = '')"
_MOVED: Final = "UPDATE OF due, cancelled"
_JOB: Final = "evsched_job"
_RECURRENCE: Final = "evsched_recurrence"

PARTS: Final = (
    *_table(_JOB, _JOBS, "WITH (autovacuum_vacuum_scale_factor = 0.02)"),
    _index("evsched_job_open", "evsched_job (epoch, critical DESC, due) WHERE state = 'open'"),
    _index("evsched_job_new", f"evsched_job (xact) WHERE {NEW}"),
    *_table(_RECURRENCE, _RECURRENCES),
    _index("evsched_recurrence_epoch", "evsched_recurrence (epoch)"),
    *_table("evsched_ledger", _LEDGER),
    *_table("evsched_setting", _SETTINGS),
    *_table("evsched_run", _RUNS, "PARTITION BY RANGE (ended)"),
    _index("evsched_run_id", "evsched_run (id)"),
    _index("evsched_run_tags", "evsched_run USING gin (tags)"),
    *_table("evsched_run_position", _POSITIONS),
    _function("evsched_notify", f" BEGIN PERFORM pg_notify('{CHANNEL}', ''); RETURN NULL; END "),
    _function("evsched_changed", " BEGIN NEW.epoch := ''; RETURN NEW; END "),
    _function("evsched_job_changed", " BEGIN NEW.epoch := ''; NEW.revision := OLD.revision + 1; RETURN NEW; END "),
    _function("evsched_job_waits", " BEGIN NEW.xact := pg_current_xact_id(); RETURN NEW; END "),
    _trigger("evsched_job_notify", "AFTER INSERT", _JOB, "STATEMENT", "evsched_notify"),
    _trigger("evsched_job_changed", f"BEFORE {_MOVED}", _JOB, "ROW", "evsched_job_changed"),
    # Triggers run in the order of their names: this one sees what `evsched_job_changed` has written.
    _trigger("evsched_job_waits", "BEFORE UPDATE", _JOB, _WAITS, "evsched_job_waits"),
    _trigger("evsched_job_change_notify", f"AFTER {_MOVED}", _JOB, "STATEMENT", "evsched_notify"),
    _trigger("evsched_recurrence_changed", f"BEFORE {_DECLARES}", _RECURRENCE, "ROW", "evsched_changed"),
    _trigger("evsched_recurrence_notify", f"AFTER INSERT OR {_DECLARES}", _RECURRENCE, "STATEMENT", "evsched_notify"),
)
"""In the order in which they are made: a part needs only those before it."""
