"""A job's record: the hash in Redis with its description and its history. To add a field, begin with `FIELDS`.

Two things follow from that table: the fields that the scripts delete when a job, a run or an attempt begins or ends
(`LUA_CONSTANTS`, which transport/scripts.py writes into the Lua files), and how `JobStatus` is read. A test compares it
with the table in docs/protocol.md, which says what each field means.

Any client may have written any field. So the readers here, like those in lua/_prelude.lua, treat a malformed value as
missing, never as an error. Pure.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from hashlib import sha1
from typing import Any, Final, Literal, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evsched.jobs.job import TAG, TAGS_MOST, decode, encode
from evsched.jobs.kept import read_lines
from evsched.jobs.redaction import NONE_DECLARED, Redactions, redacted
from evsched.jobs.sealed import has_seals, masked

Place = Literal["schedule", "backlog", "ready", "processing", "finished", "dead"]
PLACES: Final[tuple[Place, ...]] = ("schedule", "backlog", "ready", "processing", "finished", "dead")

DEFAULT_RETENTION: Final = 300.0
"""Seconds for which the record of a finished job is kept unless its task or payload says otherwise: long enough to read
a result; at 1,000 jobs/s results take about 100 MB."""

Kind = Literal["text", "JSON", "time", "number", "count", "digit", "group"]
"""Which values of a field are valid. "time" is Unix seconds, "group" at most 200 bytes without `}`."""

Lifetime = Literal["id", "description", "end", "work", "job", "run", "attempt"]
"""When the scripts delete a field, besides with its record:

id           never; it is overwritten, or deleted by the script that no longer needs it
description  when another job of the same id takes the place of this one
end          when the job's id is used again after its end, or it is revived
work         when the job's id is used again after its end, or was scheduled again meanwhile; not when it is revived
job          as "end", and when the job has ended and its id was scheduled again meanwhile
run          as "job", and when a run is over
attempt      as "job", and when the next attempt fails or the job ends
"""


class Field(Struct, frozen=True):
    """A field of a job's record."""

    name: str
    kind: Kind
    lifetime: Lifetime
    writer: Literal["client", "evsched"] = "evsched"
    """Who writes it: any client that schedules a job, or evsched's own client and scripts alone."""


FIELDS: Final = (
    Field("payload", "JSON", "description", "client"),
    Field("priority", "digit", "description", "client"),
    Field("group", "group", "description", "client"),
    Field("created", "time", "description"),
    Field("by", "text", "description"),
    Field("ledger", "text", "description"),
    Field("edited", "text", "description"),
    Field("batch", "text", "description"),
    Field("life", "text", "description"),
    Field("revised", "text", "id"),
    Field("due", "time", "job"),
    Field("attempt", "count", "job"),
    Field("snoozes", "count", "job"),
    Field("worker", "text", "run"),
    Field("started", "time", "job"),
    Field("reason", "text", "end"),
    Field("traceback", "text", "attempt"),
    Field("error", "text", "attempt"),
    Field("location", "text", "attempt"),
    Field("failure", "text", "attempt"),
    Field("runs", "text", "job"),
    Field("outcome", "text", "end"),
    Field("progress", "JSON", "job"),
    Field("steps", "text", "work"),
    Field("signals", "text", "work"),
    Field("waits", "text", "job"),
    Field("waiting", "text", "run"),
    Field("result", "JSON", "end"),
    Field("finished", "time", "end"),
    Field("planned", "time", "job"),
    Field("recurrence", "text", "id"),
    Field("misfire_grace", "number", "id"),
    Field("begun", "text", "run"),
    Field("stop", "text", "job"),
    Field("parked", "group", "id"),
    Field("again", "number", "id"),
    Field("renewed", "text", "id"),
    Field("unknown", "text", "id"),
    Field("awaited", "time", "end"),
    Field("reply", "text", "job"),
    Field("member", "text", "id"),
)
"""All fields. docs/protocol.md says what each means, in the same order."""


DESCRIPTION: Final = tuple(field.name for field in FIELDS if field.lifetime == "description")
"""The fields that say what a job is, in the order in which digests have them."""


def _quoted(chosen: Callable[[Field], bool]) -> str:
    return ", ".join(f"'{field.name}'" for field in FIELDS if chosen(field))


LUA_CONSTANTS: Final = {
    "DESCRIPTION_FIELDS": _quoted(lambda field: field.lifetime == "description"),
    "OWN_FIELDS": _quoted(lambda field: field.lifetime == "description" and field.writer == "evsched"),
    "END_FIELDS": _quoted(lambda field: field.lifetime == "end"),
    "WORK_FIELDS": _quoted(lambda field: field.lifetime == "work"),
    "JOB_FIELDS": _quoted(lambda field: field.lifetime in ("job", "run", "attempt")),
    "RUN_FIELDS": _quoted(lambda field: field.lifetime == "run"),
    "ATTEMPT_FIELDS": _quoted(lambda field: field.lifetime == "attempt"),
    "TIME_FIELDS": _quoted(lambda field: field.kind == "time"),
    "COUNT_FIELDS": _quoted(lambda field: field.kind == "count"),
    "GROUP_FIELDS": _quoted(lambda field: field.kind == "group"),
    "RETENTION": f"{DEFAULT_RETENTION:g}",
}
"""Names that stand in the Lua files for lists of field names, and for a number."""


RunOutcome = Literal[
    "done", "failed", "snoozed", "lost", "lost before it began", "interrupted", "dead", "expired", "cancelled"
]
"""How a run ended. "lost": its worker died, or hung; it may not have begun, unless it is known that it had not.
"interrupted": its worker handed it back as it ended. A run whose job ended with it has the outcome of the job."""


class JobRun(Struct, frozen=True, array_like=True):
    """A run of a job that has ended. Times in Unix seconds on Redis's clock; empty texts if there is none.

    A run that was handed back, or lost before it was known to have begun, is not counted: the next one has its number.
    """

    attempt: int
    worker: str
    started: float | None
    """When the worker got the job; None = its handler did not begin."""
    ended: float
    outcome: RunOutcome
    error: str = ""
    """The class of the exception."""
    location: str = ""
    reason: str = ""
    """At most 300 bytes."""


class SignalWait(Struct, frozen=True):
    """A job's wait for a signal. Times in Unix seconds on Redis's clock."""

    signal: str
    since: float | None
    """When a run of the job waited for it first."""
    until: float | None
    """When the wait is over; None = it has no end."""


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
    batch: str | None = None
    """The batch that it is a member of: its home queue, its id and the ordinal of the job, separated by slashes."""
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
    location: str | None = None
    """The line of the user's code that raised it, such as /srv/tasks.py:7 in pay."""
    runs: list[JobRun] = []
    """The runs of the job that have ended, the first and the last ten; see `JobRun`."""
    result: Any = None
    payload: Any = None
    sealed: bool = False
    """Whether the payload or the result has something that is sealed, and that this reader cannot open."""
    expires: float | None = None
    """The payload's: the job is not started after this moment."""
    tags: tuple[str, ...] = ()
    """The payload's."""
    window: str | None = None
    """The payload's: when the job may start, or the name of a window that is kept in Redis."""
    progress: Any = None
    """The handler's last report: done, total, note."""
    steps: tuple[str, ...] = ()
    """The names of the steps whose results are kept, the first one first."""
    signals: tuple[str, ...] = ()
    """The names of the signals that have come, the first one first."""
    waiting: SignalWait | None = None
    """The signal that the job waits for, while no run holds it."""
    stopping: bool = False
    """Whether its worker was asked to stop it."""
    again: float | None = None
    """When the next run is due, if the id was scheduled again while this one ran, and waits for its end."""
    version: str | None = None
    """Changes when the job is edited, replaced, or due at another time; `edit` compares it. None = it cannot be edited.

    A job that replaces an equal one within the same second has the same version."""
    unknown_since: float | None = None
    """Since when it has been returned to the schedule by workers that do not know its task. None: it is not."""


class MemberAddress(Struct, frozen=True):
    """Which member of a batch a job is."""

    queue: str
    """The home of the batch."""
    batch: str
    ordinal: int

    @property
    def words(self) -> str:
        return f"{self.batch} of queue {self.queue}"


_ADDRESS: Final = re.compile(r"([^/]+)/([^/]+)/(\d{1,9})(?:/.*)?")


def read_member(address: str | None) -> MemberAddress | None:
    """Read the field `batch` of a job; None if it is in no batch, or the field is malformed."""
    found = _ADDRESS.fullmatch(address or "")
    return None if found is None else MemberAddress(found[1], found[2], int(found[3]))


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


def _tags(value: Any) -> tuple[str, ...]:
    """Return the valid ones of a payload's tags."""
    given = cast("list[Any]", value)[:TAGS_MOST] if isinstance(value, list) else []
    return tuple(tag for tag in given if isinstance(tag, str) and TAG.fullmatch(tag))


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
    (field.name, _READERS[field.kind])
    for field in FIELDS
    if field.name in JobStatus.__struct_fields__ and field.name not in ("runs", "steps", "signals", "waiting")
)


def _read_runs(field: bytes) -> list[JobRun]:
    """Read the lines of the field `runs`. Lines that are malformed, since another client wrote them, are left out."""
    found = list[JobRun]()
    for line in field.decode(errors="replace").splitlines()[:100]:
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            found.append(msgspec.json.decode(line, type=JobRun))
    return found


def _steps(field: bytes) -> tuple[str, ...]:
    """Read the names of steps; positions have none that a reader knows."""
    names = (_json(line.name.encode()) for line in read_lines(field) if not line.name.startswith("@"))
    return tuple(name for name in names if isinstance(name, str))


def _waiting(fields: dict[str, bytes]) -> SignalWait | None:
    """Read which signal a job waits for; None if a run has the job, or it has ended."""
    signal = _text(fields.get("waiting", b""))
    if not signal or "worker" in fields or "finished" in fields:
        return None
    for line in read_lines(fields.get("waits", b"")):
        if line.name == signal:
            until = number(line.rest)
            return SignalWait(signal, line.at, None if until == math.inf else until)
    return SignalWait(signal, None, None)


def _with_last(runs: list[JobRun], status: JobStatus) -> list[JobRun]:
    """Add the run with which a job has ended; the record has it in its own fields."""
    if (
        status.finished is None
        or status.outcome not in get_args(RunOutcome)
        or not status.attempt
        or not status.started
    ):
        return runs
    if runs and runs[-1].started == status.started:
        return runs  # the job ended before the next run began
    outcome = cast(RunOutcome, status.outcome)
    last = status.attempt, status.worker or "", status.started, status.finished, outcome
    return [*runs, JobRun(*last, status.error or "", status.location or "", (status.reason or "")[:300])]


def _version(fields: dict[str, bytes], shown: Any, due: float | None) -> str:
    """Return a digest of a job's description and due.

    Readers get it, and could guess a short redacted value from a digest of it. So of the payload as it is stored, it
    has one byte: that tells hardly anything, and misses one change of 256 that a second job of the same id makes within
    the same second.
    """
    parts = [encode(shown) if name == "payload" else fields.get(name, b"") for name in DESCRIPTION]
    stored = sha1(fields["payload"], usedforsecurity=False).digest()[:1]
    parts += [b"" if due is None else f"{due:.6f}".encode(), stored]
    return sha1(b"\0".join(parts), usedforsecurity=False).hexdigest()[:16]


def read_status(
    queue: str, job_id: str, place: Place, score: str, fields: dict[str, bytes], declared: Redactions = NONE_DECLARED
) -> JobStatus:
    """Build a status from a place and a record, whatever the record holds. Unreadable JSON is shown as text.

    `declared`: the redacted arguments that workers have declared.
    """
    found = {name: read(fields[name]) for name, read in _SHOWN if name in fields}
    if place == "schedule":
        found["due"] = number(score.encode())
    if place == "processing" and (again := number(score.encode())) is not None:
        found["again"] = again
    sealed = any(b"sealed" in fields.get(name, b"") and has_seals(found[name]) for name in ("payload", "result"))
    if sealed:
        found |= {name: masked(found[name]) for name in ("payload", "result") if name in found}
    payload = found["payload"] = redacted(found.get("payload"), declared)
    said = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    task, window, expires = said.get("task"), said.get("window"), said.get("expires")
    editable = "payload" in fields and place not in ("processing", "finished")
    ended, runs = "finished" in fields, _read_runs(fields.get("runs", b""))
    status = JobStatus(
        id=job_id,
        queue=queue,
        place=place,
        task=task if isinstance(task, str) else None,
        expires=float(expires) if isinstance(expires, int | float) and not isinstance(expires, bool) else None,
        tags=_tags(said.get("tags")),
        sealed=sealed,
        window=window if isinstance(window, str) else None,
        steps=_steps(fields.get("steps", b"")),
        signals=tuple(line.name for line in read_lines(fields.get("signals", b""))),
        waiting=_waiting(fields),
        stopping="stop" in fields and not ended,
        version=_version(fields, payload, None if place == "dead" else found.get("due")) if editable else None,
        unknown_since=None if ended else unknown_since(fields.get("unknown"), found.get("due")),
        **found,
    )
    return replace(status, runs=_with_last(runs, status))
