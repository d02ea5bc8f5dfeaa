"""A job, its payload, and what a run of it came to; to and from the bytes that Redis holds."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from evsched.jobs.untrusted import number, whole

Place = Literal["schedule", "backlog", "ready", "processing", "finished", "dead"]
PLACES: Final[tuple[Place, ...]] = ("schedule", "backlog", "ready", "processing", "finished", "dead")


class RetryFields(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The payload's `retry`: what it names stands in for the task's own policy (`backoff.Retry`)."""

    attempts: int | UnsetType = UNSET
    interval: float | UnsetType = UNSET
    factor: float | UnsetType = UNSET
    max_interval: float | UnsetType = UNSET
    jitter: float | UnsetType = UNSET


class Payload(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The job's JSON (docs/protocol.md). A field that is not named here is refused: it is most often a slip.

    Seconds: `timeout`, `retention`. Unix seconds: `expires`. `id`, `priority` and `group` are read at dispatch, from
    an inline job only.
    """

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None
    retry: RetryFields | None = None
    retention: float | None = None
    expires: float | None = None
    reply: bool = False
    meta: dict[str, Any] = {}
    window: str | None = None
    """A window (`windows.parse_window`), or the name of one that is kept in Redis."""
    id: str | None = None
    priority: float | None = None
    group: str | None = None


class FetchedJob(Struct, frozen=True):
    """A run that `start` handed out: `(id, attempt)` names it. `due` in Unix seconds."""

    id: str
    attempt: int
    due: float
    payload: bytes
    planned: float = 0.0
    """The due of the first attempt, or the planned time of an occurrence: the same for all attempts. Unix seconds."""
    deaths: int = 0
    """Workers that died in a row while they held the job. Over 0 it is a suspect."""
    doubts: int = 0
    """Of those runs, how many are not known to have begun. `attempt` does not count them."""


class Done(Struct, frozen=True):
    """The run returned; `result` is JSON."""

    result: bytes
    retention: float
    reply: bool


class Retried(Struct, frozen=True):
    """The run failed; the job runs again after `delay` seconds."""

    delay: float
    reason: str
    killed: bool = False
    """It ended the process that ran it alone."""
    traceback: str = ""


class Buried(Struct, frozen=True):
    """The job is given up."""

    reason: str
    reply: bool
    outcome: Literal["dead", "expired"] = "dead"
    began: bool = True
    """Its last run did; else that costs no attempt."""
    killed: bool = False
    """Its last run ended the process that ran it alone."""
    traceback: str = ""


class Aborted(Struct, frozen=True):
    """The run was told to stop, and has."""

    retention: float
    reply: bool


DeferCause = Literal["window", "code"]
"""Why a run did not begin: its window, which is closed or cannot be read; the code on disk, which has no handler."""


class Deferred(Struct, frozen=True):
    """The run did not begin: the window is closed, or the code is missing. It comes back at `due`, Unix seconds."""

    due: float
    reason: str
    window: str = ""
    """The name of the window, if it has one: the job is judged again when that is changed."""
    text: str = ""
    """Of the window that was found under that name."""
    cause: DeferCause = "window"


class Returned(Struct, frozen=True):
    """The run did not begin: there is no room for it here now. The job goes back to the front of ready."""

    reason: str = "no process of the pool was free"


Outcome = Done | Retried | Buried | Aborted | Deferred | Returned

OnConflict = Literal["replace", "keep"]
"""What becomes of an id whose job has not ended: its payload and time are replaced, or it is kept as it is."""

_REASON_MOST: Final = 2000
"""Characters of a reason that are stored: the end of a traceback and its message."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder[Any]().decode
_decode_payload: Final = msgspec.json.Decoder(Payload).decode

_EMPTY: Final[dict[str, Any]] = {"args": [], "kwargs": {}, "retry": {}, "meta": {}}


def decode_payload(text: bytes) -> Payload:
    """Read a payload. PHP writes an empty object as an empty array, and Lua the reverse: either is taken for the other.

    Raises:
        msgspec.MsgspecError, RecursionError, UnicodeDecodeError: it is none; a ValidationError names the place.
    """
    try:
        return _decode_payload(text)
    except msgspec.ValidationError:
        fields: Any = decode(text)
        empty = [name for name in _EMPTY if isinstance(fields, dict) and fields.get(name) in ([], {})]  # pyright: ignore[reportUnknownMemberType]
        if not empty:
            raise
        return msgspec.convert({**fields, **{name: _EMPTY[name] for name in empty}}, Payload)


def shorten(reason: str) -> str:
    """Return `reason` as it may be stored: as UTF-8, and its beginning and end alone when it is long."""
    reason = reason.encode(errors="backslashreplace").decode()
    if len(reason) <= _REASON_MOST:
        return reason
    half = _REASON_MOST // 2
    return f"{reason[:half]} ... {reason[-half:]}"


class JobStatus(Struct, frozen=True):
    """Where a job is, and what its record says. Times in Unix seconds on Redis's clock; None = not yet."""

    id: str
    queue: str
    place: Place
    due: float | None = None
    attempt: int = 0
    priority: int = 5
    group: str | None = None
    task: str | None = None
    worker: str | None = None
    started: float | None = None
    finished: float | None = None
    outcome: str | None = None
    reason: str | None = None
    traceback: str | None = None
    """Of the run that failed last, while that is what `reason` tells: at most 4 KiB."""
    result: Any = None
    payload: Any = None
    progress: Any = None
    """What the handler told last: done, total, note."""
    stopping: bool = False
    """Its worker was told to stop it."""


def read_status(queue: str, job_id: str, place: Place, score: str, fields: dict[str, bytes]) -> JobStatus:
    """Build a status from a place and a record, whatever that holds. JSON that cannot be read shows as text."""

    def string(name: str) -> str | None:
        return fields[name].decode(errors="backslashreplace") if name in fields else None

    def json(name: str) -> Any:
        try:
            value = decode(fields[name]) if name in fields else None
            encode(value)  # what is nested too deep to be written is text as well
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return string(name)
        return value

    payload = json("payload")
    task = payload.get("task") if isinstance(payload, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    priority = fields.get("priority", b"")
    return JobStatus(
        id=job_id,
        queue=queue,
        place=place,
        due=number(score.encode() if place == "schedule" else fields.get("due")),
        attempt=whole(fields.get("attempt")),
        priority=int(priority) if len(priority) == 1 and priority.isdigit() else 5,
        group=string("group"),
        task=task if isinstance(task, str) else None,
        worker=string("worker"),
        started=number(fields.get("started")),
        finished=number(fields.get("finished")),
        outcome=string("outcome"),
        reason=string("reason"),
        traceback=string("traceback"),
        result=json("result"),
        payload=payload,
        progress=json("progress"),
        stopping="stop" in fields and "finished" not in fields,
    )
