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

_DECLARES: Final = "rule, zone, payload, options, critical, removed"
"""The columns of a recurrence that programs write: a change of one is declared."""

_NAME: Final = r"^(?!\.{1,2}$)[A-Za-z0-9._:@-]{1,200}$"
"""For a queue or a job. Not `.` or `..`, which the HTTP API cannot address."""
_PAYLOAD: Final = "json_typeof(payload) = 'object' AND coalesce(payload ->> 'task', '') <> ''"
_SOME_ID: Final = "replace(gen_random_uuid()::text, '-', '')"


class TableColumn(Struct, frozen=True):
    """A column of a table."""

    name: str
    kind: str
    """Its type, and its default."""
    check: str = ""
    """The check that its values must pass; "" = any."""

    def definition(self, table: str) -> str:
        check = f" CONSTRAINT {table}_{self.name}_check CHECK ({self.check})" if self.check else ""
        return f"{self.name} {self.kind}{check}"


class Table(Struct, frozen=True):
    """A table, with its primary key."""

    name: str
    key: str
    columns: tuple[TableColumn, ...]
    options: str = ""


class Part(Struct, frozen=True):
    """A part that `migrate` makes if it is missing."""

    name: str
    found: str
    """A condition that is true if it is there. It reads the catalog alone, so it waits for nobody."""
    make: str


_JOBS: Final = Table(
    "evsched_job",
    "queue, id",
    (
        TableColumn("queue", "text NOT NULL DEFAULT 'default'", f"queue ~ '{_NAME}'"),
        TableColumn("id", f"text NOT NULL DEFAULT {_SOME_ID}", f"id ~ '{_NAME}'"),
        TableColumn("payload", "json NOT NULL", _PAYLOAD),
        TableColumn("priority", "smallint", "priority BETWEEN 0 AND 9"),
        TableColumn("grp", "text", "octet_length(grp) BETWEEN 1 AND 200 AND position('}' IN grp) = 0"),
        TableColumn("due", "timestamptz NOT NULL DEFAULT now()"),
        TableColumn("critical", "smallint NOT NULL DEFAULT 0", "critical >= 0"),
        TableColumn(
            "state",
            "text NOT NULL DEFAULT 'open'",
            "state IN ('open', 'done', 'dead', 'expired', 'cancelled', 'dropped')",
        ),
        TableColumn("reason", "text"),
        # ALWAYS: PostgreSQL refuses a number of a program's own.
        TableColumn("number", "bigint NOT NULL GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME evsched_job_number)"),
        TableColumn("epoch", "text COLLATE \"C\" NOT NULL DEFAULT ''"),
        TableColumn("report", "bigint NOT NULL DEFAULT 0"),
        TableColumn("created", "timestamptz NOT NULL DEFAULT now()"),
        TableColumn("scheduled_at", "timestamptz"),
        TableColumn("finished_at", "timestamptz"),
        TableColumn("cancelled", "boolean NOT NULL DEFAULT false"),
        TableColumn("revision", "integer NOT NULL DEFAULT 0"),
        TableColumn("xact", "xid8 NOT NULL DEFAULT pg_current_xact_id()"),
    ),
    "WITH (autovacuum_vacuum_scale_factor = 0.02)",
)

_RECURRENCES: Final = Table(
    "evsched_recurrence",
    "queue, name",
    (
        TableColumn("queue", "text NOT NULL DEFAULT 'default'", f"queue ~ '{_NAME}'"),
        TableColumn("name", "text NOT NULL", "name <> ''"),
        TableColumn("rule", "text NOT NULL"),
        TableColumn("zone", "text NOT NULL DEFAULT 'UTC'"),
        TableColumn("payload", "json NOT NULL", _PAYLOAD),
        TableColumn("options", "json NOT NULL DEFAULT '{}'", "json_typeof(options) = 'object'"),
        TableColumn("critical", "smallint NOT NULL DEFAULT 0", "critical >= 0"),
        TableColumn("removed", "boolean NOT NULL DEFAULT false"),
        TableColumn("epoch", "text COLLATE \"C\" NOT NULL DEFAULT ''"),
        TableColumn("reason", "text"),
    ),
)

_LEDGER: Final = Table(
    "evsched_ledger",
    "one",
    (
        TableColumn("one", "boolean NOT NULL DEFAULT true", "one"),
        TableColumn("identity", f"text NOT NULL DEFAULT {_SOME_ID}"),
        TableColumn("epoch", "text COLLATE \"C\" NOT NULL DEFAULT ''"),
        TableColumn("found", "timestamptz"),
        TableColumn("checked", "text COLLATE \"C\" NOT NULL DEFAULT ''"),
    ),
)

_SETTINGS: Final = Table(
    "evsched_setting",
    "queue, kind, name",
    (
        TableColumn("queue", "text NOT NULL", f"queue ~ '{_NAME}'"),
        TableColumn("kind", "text NOT NULL", "kind IN ('calendar', 'window', 'limit')"),
        TableColumn("name", "text NOT NULL"),
        TableColumn("value", "text NOT NULL"),
        TableColumn("epoch", 'text COLLATE "C" NOT NULL'),
    ),
)

TABLES: Final = (_JOBS, _RECURRENCES, _LEDGER, _SETTINGS)


def _of_table(table: Table) -> Iterator[Part]:
    of, name = f"to_regclass('{table.name}')", table.name
    columns = ", ".join(column.definition(name) for column in table.columns)
    made = f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({table.key})) {table.options}"
    yield Part(f"table {name}", f"{of} IS NOT NULL", made)
    for column in table.columns:
        found = f"EXISTS (SELECT FROM pg_attribute WHERE attrelid = {of} AND attname = '{column.name}')"
        yield Part(f"column {name}.{column.name}", found, f"ALTER TABLE {name} ADD COLUMN {column.definition(name)}")
        if column.check:
            check = f"{name}_{column.name}_check"
            found = f"EXISTS (SELECT FROM pg_constraint WHERE conrelid = {of} AND conname = '{check}')"
            # NOT VALID: only new rows are checked, so the table is not locked while all are read.
            made = f"ALTER TABLE {name} ADD CONSTRAINT {check} CHECK ({column.check}) NOT VALID"
            yield Part(f"check {check}", found, made)
    found = f"EXISTS (SELECT FROM pg_constraint WHERE conrelid = {of} AND contype = 'p')"
    yield Part(f"primary key of {name}", found, f"ALTER TABLE {name} ADD PRIMARY KEY ({table.key})")


def _index(name: str, on: str) -> Part:
    return Part(f"index {name}", f"to_regclass('{name}') IS NOT NULL", f"CREATE INDEX {name} ON {on}")


def _function(name: str, body: str) -> Part:
    found = f"EXISTS (SELECT FROM pg_proc WHERE oid = to_regprocedure('{name}()') AND prosrc = $${body}$$)"
    made = f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"
    return Part(f"function {name}", found, made)


def _trigger(name: str, when: str, table: str, what: str) -> Part:
    found = f"EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass('{table}') AND tgname = '{name}')"
    return Part(f"trigger {name}", found, f"CREATE OR REPLACE TRIGGER {name} {when} ON {table} FOR EACH {what}()")


PARTS: Final = (
    *_of_table(_JOBS),
    _index("evsched_job_open", "evsched_job (epoch, critical DESC, due) WHERE state = 'open'"),
    _index("evsched_job_new", f"evsched_job (xact) WHERE {NEW}"),
    *_of_table(_RECURRENCES),
    _index("evsched_recurrence_epoch", "evsched_recurrence (epoch)"),
    *_of_table(_LEDGER),
    *_of_table(_SETTINGS),
    _function("evsched_notify", f" BEGIN PERFORM pg_notify('{CHANNEL}', ''); RETURN NULL; END "),
    _function("evsched_changed", " BEGIN NEW.epoch := ''; RETURN NEW; END "),
    _function("evsched_job_changed", " BEGIN NEW.epoch := ''; NEW.revision := OLD.revision + 1; RETURN NEW; END "),
    _function("evsched_job_waits", " BEGIN NEW.xact := pg_current_xact_id(); RETURN NEW; END "),
    _trigger("evsched_job_notify", "AFTER INSERT", "evsched_job", "STATEMENT EXECUTE FUNCTION evsched_notify"),
    _trigger(
        "evsched_job_changed",
        "BEFORE UPDATE OF due, cancelled",
        "evsched_job",
        "ROW EXECUTE FUNCTION evsched_job_changed",
    ),
    # Triggers run in the order of their names: this one sees what `evsched_job_changed` has written.
    _trigger(
        "evsched_job_waits",
        "BEFORE UPDATE",
        "evsched_job",
        "ROW WHEN (NEW.state = 'open' AND NEW.epoch = '') EXECUTE FUNCTION evsched_job_waits",
    ),
    _trigger(
        "evsched_job_change_notify",
        "AFTER UPDATE OF due, cancelled",
        "evsched_job",
        "STATEMENT EXECUTE FUNCTION evsched_notify",
    ),
    _trigger(
        "evsched_recurrence_changed",
        f"BEFORE UPDATE OF {_DECLARES}",
        "evsched_recurrence",
        "ROW EXECUTE FUNCTION evsched_changed",
    ),
    _trigger(
        "evsched_recurrence_notify",
        f"AFTER INSERT OR UPDATE OF {_DECLARES}",
        "evsched_recurrence",
        "STATEMENT EXECUTE FUNCTION evsched_notify",
    ),
)
"""In the order in which they are made: a part needs only those before it."""
