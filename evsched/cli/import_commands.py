"""The commands that take over the schedules of other schedulers: a crontab, Celery beat, APScheduler, rq-scheduler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter
from msgspec import Struct

import evsched
from evsched.app import find_variable
from evsched.cli import output
from evsched.cli.command_client import CommandClient, client
from evsched.cli.options import Json, settings
from evsched.cli.output import Column, Moment, listing
from evsched.client import recurrence_operations
from evsched.client.client import SyncClient
from evsched.config import DEFAULT_QUEUE
from evsched.errors import CannotStart, ConfigError
from evsched.imports.imported import Entry, Imported, Remark, source_of
from evsched.keys import check_queue
from evsched.recurrence.cron import find_zone
from evsched.recurrence.recurrence import Declared, read_recurrence
from evsched.store.client_calls import New
from evsched.store.store import Store

app = App(
    name="import",
    help="Take over the schedule of a crontab, Celery beat, APScheduler or rq-scheduler.",
    version=evsched.__version__,
)


@dataclass(frozen=True)
class ImportFlags:
    """The flags of each of these commands."""

    queue: Annotated[str, Parameter(help="The queue, for entries that do not name one.")] = DEFAULT_QUEUE
    prefix: Annotated[
        str, Parameter(help="What the names begin with, such as web1-, to tell several schedules of a queue apart.")
    ] = ""
    dry_run: Annotated[bool, Parameter(negative="", help="List what would be made or changed, and change nothing.")] = (
        False
    )
    json: Json = False
    url: Annotated[
        str | None, Parameter(help="The Redis of evsched. Default: EVSCHED_URL, or else redis://localhost:6379/0.")
    ] = None


Change = Literal["made", "changed", "same"]
Flags = Annotated[ImportFlags | None, Parameter(name="*")]
ZoneOfMachine = Annotated[
    str | None,
    Parameter(help="The time zone of the machine whose schedule this is. Default: this machine's."),
]


@app.command
def crontab(
    file: Annotated[Path | None, Parameter(help="The file. Default: stdin.")] = None,
    /,
    *,
    task: Annotated[str, Parameter(help="The task of yours that runs a command: it gets the command as its argument.")],
    user_column: Annotated[
        bool, Parameter(negative="", help="Each entry names a user before its command, as in /etc/cron.d.")
    ] = False,
    zone: ZoneOfMachine = None,
    flags: Flags = None,
) -> int:
    """Make a recurrence for each entry of a crontab.

    Lines that a recurrence cannot express are listed on stderr, with the reason. Importing a file again changes only
    the recurrences whose entries have changed. It removes none, and lists those whose entries are gone.

    Exit code 1: something was left out, or differs from what cron does.

    Example: crontab -l | evsched import crontab --task run_command --dry-run
    """
    from evsched.imports.crontab import machine_zone, read_crontab

    try:
        content = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as error:
        raise CannotStart(f"{file or 'stdin'} cannot be read: {error.strerror}") from None
    source = f"crontab {'' if file is None else file.absolute()}"
    found, in_zone = _imported(flags, source), machine_zone() if zone is None else find_zone(zone).key
    read_crontab(content.decode(errors="surrogateescape"), found, task=task, zone=in_zone, users=user_column)
    return _write(found, flags)


@app.command
def celery_beat(
    module: Annotated[str, Parameter(name="MODULE:APP", help="Where the Celery app is, such as shop.celery:app.")],
    /,
    *,
    flags: Flags = None,
) -> int:
    """Make a recurrence for each entry of the `beat_schedule` of a Celery app. It imports the module.

    The tasks keep their names: register them with `@app.task(name="shop.tasks.report")`.

    Exit code 1: something was left out, or differs from what Celery does.

    Example: evsched import celery-beat shop.celery:app --dry-run
    """
    from evsched.imports.celery_beat import read_beat

    found = _imported(flags, f"celery-beat {module}")
    read_beat(_variable(module, "app"), found)
    return _write(found, flags)


@app.command
def apscheduler(
    module: Annotated[str, Parameter(name="MODULE:SCHEDULER", help="Where the scheduler is: jobs:scheduler.")],
    /,
    *,
    flags: Flags = None,
) -> int:
    """Make a recurrence, or a single job, for each job of an APScheduler 3. It imports the module and reads the stores.

    The tasks have the names of the functions: register them with `@app.task(name="shop.jobs:report")`.

    Exit code 1: something was left out, or differs from what APScheduler does.

    Example: evsched import apscheduler shop.jobs:scheduler --dry-run
    """
    from evsched.imports.apscheduler_jobs import read_scheduler

    found = _imported(flags, f"apscheduler {module}")
    read_scheduler(_variable(module, "scheduler"), found)
    return _write(found, flags)


@app.command
def rq_scheduler(
    redis: Annotated[str, Parameter(name="REDIS", help="The Redis of rq-scheduler: redis://HOST:PORT/DB.")],
    /,
    *,
    zone: ZoneOfMachine = None,
    flags: Flags = None,
) -> int:
    """Make a recurrence, or a single job, for each job of rq-scheduler. It reads them from the Redis of RQ.

    The tasks have the names of the functions: register them with `@app.task(name="shop.jobs.report")`. Jobs go to the
    queue that they have in RQ, else to --queue.

    Exit code 1: something was left out, or differs from what rq-scheduler does.

    Example: evsched import rq-scheduler redis://localhost:6379/0 --dry-run
    """
    from evsched.imports.crontab import machine_zone
    from evsched.imports.rq_scheduler import read_jobs

    host = redis.partition("?")[0].rpartition("@")[2]  # without the password
    found = _imported(flags, f"rq-scheduler {host}")
    in_zone = machine_zone() if zone is None else find_zone(zone).key
    source = SyncClient(settings(redis).url)
    try:
        read_jobs(source, found, zone=in_zone)
    finally:
        source.close()
    return _write(found, flags)


def _imported(flags: ImportFlags | None, source: str) -> Imported:
    given = flags or ImportFlags()
    return Imported(check_queue(given.queue), given.prefix, source.strip())


def _variable(name: str, what: str) -> Any:
    """Import a module and return its variable.

    Raises:
        CannotStart: it does not import, or has no such variable.
    """
    module, found = find_variable(name, what)
    if found is None:
        raise CannotStart(f"module {module.__name__!r} has no variable {name.partition(':')[2]!r}")
    return found


class ImportedRow(Struct, frozen=True):
    """An entry that was imported, or would be."""

    name: str
    rule: str
    zone: str | None
    next: float | None
    change: Change
    queue: str
    task: str
    where: str


_COLUMNS: Final = (
    Column("name"),
    Column("change", 2),
    Column("rule", 1),
    Column("zone", 4),
    Column("next", 3),
    Column("queue", 6),
    Column("task", 5),
)


def _write(found: Imported, flags: ImportFlags | None) -> int:
    """Write the entries, or with --dry-run only list them; print the remarks; return the exit code."""
    given, remarks, rows = flags or ImportFlags(), [*found.remarks], list[ImportedRow]()
    with client(given.url, changes_queue=True) as redis:
        for entry in found.entries:
            try:
                rows.append(_write_one(redis, entry, dry_run=given.dry_run))
            except ConfigError as error:
                remarks.append(Remark(entry.where, str(error)))
        if found.whole:
            remarks += _gone(redis, found, given.queue)
    listed = {"dry_run": given.dry_run, "entries": rows, "remarks": remarks}
    shown = ([row.name, row.change, row.rule, row.zone, Moment(row.next), row.queue, row.task] for row in rows)
    listing(given.json, listed, _COLUMNS, shown, "nothing to import")
    _note(rows, remarks, given)
    return int(bool(remarks))


def _gone(redis: CommandClient, found: Imported, queue: str) -> list[Remark]:
    """Return a remark for each recurrence that an earlier import of the same source made, and this one does not have.

    It looks in the queue of the flags, and in those of the entries.
    """
    names = {(entry.queue, entry.made.name) for entry in found.entries if isinstance(entry.made, Declared)}
    return [
        Remark(name, f"not among the entries now, and it stays: evsched recurrences remove {name} --queue {one}")
        for one in sorted({queue, *(entry.queue for entry in found.entries)})
        for name, _, fields in redis.run(recurrence_operations.kept(Store(one)))
        if (one, name) not in names and source_of(name, fields) == found.source
    ]


def _write_one(redis: CommandClient, entry: Entry, *, dry_run: bool) -> ImportedRow:
    """Make or change one entry; return its row.

    Raises:
        ConfigError: it would not recur any more, or an app declares a recurrence of its name.
    """
    made = entry.made
    if isinstance(made, New):
        change = _write_job(redis, entry.queue, made, dry_run=dry_run)
        return ImportedRow(made.id, "once", None, made.due, change, entry.queue, entry.task, entry.where)
    next_ = next(read_recurrence(made).walk(redis.now(entry.queue)), None)
    if next_ is None:
        raise ConfigError(f"{made.name}: no time of the rule {made.rule!r} is ahead")
    change = _write_recurrence(redis, Store(entry.queue), made, dry_run=dry_run)
    return ImportedRow(made.name, made.rule, made.zone, next_, change, entry.queue, entry.task, entry.where)


def _write_recurrence(redis: CommandClient, store: Store, declared: Declared, *, dry_run: bool) -> Change:
    if owner := redis.send(store.recurrence(declared.name)).get("owner"):
        raise ConfigError(f"{declared.name}: the code of app {owner.decode(errors='replace')} declares it already")
    if dry_run:
        return redis.run(recurrence_operations.preview(store, declared))
    return redis.run(recurrence_operations.declare(store, declared))


def _write_job(redis: CommandClient, queue: str, job: New, *, dry_run: bool) -> Change:
    status = redis.status(queue, job.id)
    change: Change = "made" if status is None else "same"
    if status is not None and status.place == "schedule" and status.due != job.due:
        change = "changed"
    if change != "same" and not dry_run:
        redis.enqueue(queue, [job], on_conflict="replace")
    return change


def _note(rows: Sequence[ImportedRow], remarks: Sequence[Remark], flags: ImportFlags) -> None:
    """Print the remarks, and how much was done, on stderr."""
    for remark in remarks:
        output.note(f"{remark.where}: {remark.why}")
    counts = {change: sum(row.change == change for row in rows) for change in ("made", "changed", "same")}
    done = "would be " if flags.dry_run else ""
    output.note(
        f"{done}made: {counts['made']}, {done}changed: {counts['changed']}, the same: {counts['same']}"
        + (f"; remarks: {len(remarks)}" if remarks else "")
    )
