"""A job's record: the hash at Redis that describes it and says what became of it. To add a field, begin with `FIELDS`.

Everything else follows from that table: the fields that the scripts delete when a job, a run or an attempt begins or
ends (`LUA_CONSTANTS`, which transport/scripts.py writes into the Lua files), how `JobStatus` is read, and the table in
docs/protocol.md (`protocol_table`, which a test compares).

Any client may have written any field. So the readers here, like those in lua/_fields.lua, treat a malformed value as
missing, never as an error. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct

from evsched.jobs.job import decode, encode

Place = Literal["schedule", "backlog", "ready", "processing", "finished", "dead"]
PLACES: Final[tuple[Place, ...]] = ("schedule", "backlog", "ready", "processing", "finished", "dead")

DEFAULT_RETENTION: Final = 300.0
"""Seconds for which the record of a finished job is kept unless its task or payload says otherwise: long enough to read
a result; at 1,000 jobs/s results take about 100 MB."""

Kind = Literal["text", "JSON", "time", "number", "count", "digit", "group"]
"""Which values of a field are valid. "time" is Unix seconds, "group" at most 200 bytes without `}`."""

Lifetime = Literal["id", "description", "end", "job", "run", "attempt"]
"""When the scripts delete a field, besides with its record:

id           not; it is overwritten, or deleted by the script that needs it no more
description  when another job of the same id takes the place of this one
end          when the job's id is used again after its end, or it is revived
job          then, and when the job has ended and its id was scheduled again meanwhile
run          as "job", and when a run is over
attempt      as "job", and when the next attempt has failed, or the job ends without being dead
"""


class Field(Struct, frozen=True):
    """A field of a job's record."""

    name: str
    kind: Kind
    lifetime: Lifetime
    meaning: str
    """For the table in docs/protocol.md."""
    writer: Literal["client", "evsched"] = "evsched"
    """Who writes it: any client that schedules a job, or evsched's own client and scripts alone."""


FIELDS: Final = (
    Field("payload", "JSON", "description", "as scheduled", "client"),
    Field("priority", "digit", "description", "as scheduled", "client"),
    Field("group", "group", "description", "as scheduled", "client"),
    Field(
        "created",
        "time",
        "description",
        "when the record was written, in whole seconds: by the Python client, a command, a recurrence or a hook. For a "
        "job that was replaced, when it was replaced. Absent if another client wrote the record, and once such a "
        "client has used the id of an ended job again",
    ),
    Field(
        "by",
        "text",
        "description",
        "the ACL user that enqueued it with the Python client or `evsched enqueue`: the user name in the URL. Absent "
        "for the user `default`",
    ),
    Field(
        "ledger",
        "text",
        "description",
        "for a job of the [ledger](ledger.md): the number of its row. When the job ends, this is reported to the "
        "stream `ends`, and the record is kept until the ledger has it. Leave it alone",
    ),
    Field(
        "revised",
        "text",
        "id",
        "for a job of the ledger whose due was changed in its row: the number of the row, and how often it was changed "
        "when the job last got its due from there. Leave it alone",
    ),
    Field(
        "due",
        "time",
        "id",
        "the score with which it was last dispatched; or the time of dispatch if the score was 0 or less",
    ),
    Field(
        "attempt",
        "count",
        "job",
        "how many attempts are used, including the run that is under way. A run that is handed out counts from then "
        "on; [if it is interrupted](python.md#which-runs-count-as-attempts), it may count no more",
    ),
    Field(
        "snoozes",
        "count",
        "job",
        "how often the job was put off, which does not count as an attempt: by a handler that raised `Snooze`, or "
        "because the server of its message took none",
    ),
    Field("worker", "text", "run", "the worker that runs or ran it"),
    Field("started", "time", "job", "when it was handed out to that worker"),
    Field(
        "reason",
        "text",
        "end",
        "why the job is dead or cancelled; until it has ended, why its last run failed, was interrupted, was put off "
        "or could not begin. Absent when it is done",
    ),
    Field(
        "traceback",
        "text",
        "attempt",
        "of the last failed attempt, at most 4 KiB. Absent if the handler raised nothing, as after a timeout",
    ),
    Field(
        "error",
        "text",
        "attempt",
        "the class of the exception in the last failed attempt, such as `ValueError` or `requests.exceptions.Timeout`. "
        "Absent if the handler raised nothing, as after a timeout",
    ),
    Field(
        "failure",
        "text",
        "attempt",
        "why the last attempt failed, while `reason` says why the run after it did not begin, or that it was snoozed",
    ),
    Field(
        "outcome",
        "text",
        "end",
        "`done`, `dead`, `expired` (dead because it was not started in time) or `cancelled`; absent = it has not ended",
    ),
    Field("progress", "JSON", "job", "the progress that the handler reported: `done`, `total`, `note`"),
    Field(
        "result",
        "JSON",
        "end",
        "the value that the handler returned. If it has more than 1 MiB, the job is dead instead",
    ),
    Field("finished", "time", "end", "when it ended"),
    Field("planned", "time", "job", "the due time of the first attempt; for an occurrence, its planned time"),
    Field("recurrence", "text", "id", "for an occurrence: its recurrence"),
    Field("misfire_grace", "number", "id", "for an occurrence: after how many seconds it counts as missed"),
    Field("begun", "text", "run", "internal: whether the run has begun, for the case that its worker dies"),
    Field("stop", "text", "job", "internal: the job was cancelled, so the run must stop"),
    Field("parked", "group", "id", "internal: the group whose limit holds the job back"),
    Field(
        "again",
        "number",
        "id",
        "internal: the due time of the next run, if the id was scheduled again and became due while the job ran",
    ),
    Field("renewed", "text", "id", "internal: a client replaced the job of a row of the ledger, or it was revived"),
    Field(
        "unknown",
        "text",
        "id",
        "internal: since when workers have not known the job's task, and the due time that the last of them gave the "
        "job",
    ),
    Field("awaited", "time", "end", "internal: the time since which evsched has been waiting for the payload"),
    Field("reply", "text", "job", "internal: a client waits for the outcome, although the payload has no `reply`"),
    Field(
        "member",
        "text",
        "id",
        "for a job with an id `bad-...`, or an inline job of more than 1 MiB: the first 1,024 bytes of the member",
    ),
)
"""All fields, in the order of docs/protocol.md."""


def _quoted(chosen: Callable[[Field], bool]) -> str:
    return ", ".join(f"'{field.name}'" for field in FIELDS if chosen(field))


LUA_CONSTANTS: Final = {
    "DESCRIPTION_FIELDS": _quoted(lambda field: field.lifetime == "description"),
    "OWN_FIELDS": _quoted(lambda field: field.lifetime == "description" and field.writer == "evsched"),
    "END_FIELDS": _quoted(lambda field: field.lifetime == "end"),
    "JOB_FIELDS": _quoted(lambda field: field.lifetime in ("job", "run", "attempt")),
    "RUN_FIELDS": _quoted(lambda field: field.lifetime == "run"),
    "ATTEMPT_FIELDS": _quoted(lambda field: field.lifetime == "attempt"),
    "TIME_FIELDS": _quoted(lambda field: field.kind == "time"),
    "COUNT_FIELDS": _quoted(lambda field: field.kind == "count"),
    "GROUP_FIELDS": _quoted(lambda field: field.kind == "group"),
    "RETENTION": f"{DEFAULT_RETENTION:g}",
}
"""Names that stand in the Lua files for lists of field names, and for a number."""


def protocol_table() -> str:
    """Return the table of docs/protocol.md."""
    rows = [f"| `{field.name}` | {field.kind} | {field.meaning} |" for field in FIELDS]
    return "\n".join(("| field | form | meaning |", "|---|---|---|", *rows))


class JobStatus(Struct, frozen=True):
    """The place of a job, and the values of its record. Times in Unix seconds on Redis's clock; None = not yet."""

    id: str
    queue: str
    place: Place
    due: float | None = None
    attempt: int = 0
    snoozes: int = 0
    """How often it was put off: by its handler, or because there was no memory for its message."""
    priority: int = 5
    group: str | None = None
    task: str | None = None
    created: float | None = None
    """When it was enqueued, in whole seconds; None if a client wrote the record that does not say so."""
    by: str | None = None
    """The user at Redis that enqueued it; None = the default user, a recurrence or a hook, or another client."""
    worker: str | None = None
    started: float | None = None
    finished: float | None = None
    outcome: str | None = None
    reason: str | None = None
    failure: str | None = None
    """Why the last attempt failed, while `reason` says why the run after it did not begin, or that it was snoozed."""
    traceback: str | None = None
    """The traceback of the last failed run, as long as `reason` or `failure` describes that run: at most 4 KiB."""
    error: str | None = None
    """The class of the exception that the handler raised in that run, such as requests.exceptions.Timeout."""
    result: Any = None
    payload: Any = None
    expires: float | None = None
    """The payload's: the job is not started after this moment."""
    window: str | None = None
    """The payload's: when the job may start, or the name of a window that is kept in Redis."""
    progress: Any = None
    """The handler's last report: done, total, note."""
    stopping: bool = False
    """Whether its worker was asked to stop it."""
    unknown_since: float | None = None
    """Since when it has been returned to the schedule by workers that do not know its task. None: it is not."""


_EXACT: Final = 2.0**53
"""Up to this size every whole number is exact as a float."""


def number(reply: bytes | None) -> float | None:
    """Read a number; None if it is missing or malformed."""
    try:
        found = float(reply) if reply else None
    except ValueError:
        return None
    return None if found is None or math.isnan(found) else found


def whole(reply: bytes | None) -> int:
    """Read a count; 0 if it is missing or malformed."""
    found = number(reply) or 0.0
    return int(found) if abs(found) <= _EXACT else 0


def unknown_since(field: bytes | None, due: float | None) -> float | None:
    """Read since when workers have not known a job's task; None if that is not so, or the field is malformed.

    The field `unknown` has that moment, and the due time that the last of these workers gave the job. If the job has
    another due time now, it has been retried, rescheduled or scheduled again since then, and the field says nothing.
    """
    since, _, given = (field or b"").partition(b" ")
    return number(since) if due is not None and number(given) == due else None


def _text(field: bytes) -> str:
    return field.decode(errors="backslashreplace")


def _json(field: bytes) -> Any:
    """Read JSON; text that is not valid, or nested too deeply to be written again, is returned as it is."""
    try:
        value = decode(field)
        encode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _text(field)
    return value


def _digit(field: bytes) -> int:
    return int(field) if len(field) == 1 and field.isdigit() else 5


_READERS: Final[dict[Kind, Callable[[bytes], Any]]] = {
    "text": _text,
    "group": _text,
    "JSON": _json,
    "time": number,
    "number": number,
    "count": whole,
    "digit": _digit,
}
_SHOWN: Final = tuple(
    (field.name, _READERS[field.kind]) for field in FIELDS if field.name in JobStatus.__struct_fields__
)


def read_status(queue: str, job_id: str, place: Place, score: str, fields: dict[str, bytes]) -> JobStatus:
    """Build a status from a place and a record, whatever the record holds. Unreadable JSON is shown as text."""
    found = {name: read(fields[name]) for name, read in _SHOWN if name in fields}
    if place == "schedule":
        found["due"] = number(score.encode())
    payload = found.get("payload")
    said = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    task, window, expires = said.get("task"), said.get("window"), said.get("expires")
    ended = "finished" in fields
    return JobStatus(
        id=job_id,
        queue=queue,
        place=place,
        task=task if isinstance(task, str) else None,
        expires=float(expires) if isinstance(expires, int | float) and not isinstance(expires, bool) else None,
        window=window if isinstance(window, str) else None,
        stopping="stop" in fields and not ended,
        unknown_since=None if ended else unknown_since(fields.get("unknown"), found.get("due")),
        **found,
    )
