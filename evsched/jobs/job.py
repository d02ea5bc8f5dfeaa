"""A job's payload, the outcome of a run, and a job's record as a value; to and from the bytes that Redis holds."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from evsched.jobs.steering import Snooze
from evsched.jobs.untrusted import number, unknown_since, whole

Place = Literal["schedule", "backlog", "ready", "processing", "finished", "dead"]
PLACES: Final[tuple[Place, ...]] = ("schedule", "backlog", "ready", "processing", "finished", "dead")


class RetryFields(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The payload's `retry`: the values that it has override those of the task's policy (`jobs/retry.py`)."""

    attempts: int | UnsetType = UNSET
    interval: float | UnsetType = UNSET
    factor: float | UnsetType = UNSET
    max_interval: float | UnsetType = UNSET
    jitter: float | UnsetType = UNSET


class Payload(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The job's JSON (docs/protocol.md). A field with another name is refused: it is most often a typing error.

    Seconds: `timeout`, `retention`. Unix seconds: `expires`. `id`, `priority` and `group` are read and checked at
    dispatch, from an inline job only; in a record's payload they are ignored, whatever their type.
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
    """A window (`recurrence/windows.py`), or the name of one that is kept in Redis."""
    id: Any = None
    priority: Any = None
    group: Any = None


class FetchedJob(Struct, frozen=True):
    """A run that `start` handed to a worker; `(id, attempt)` identifies it. `due` in Unix seconds."""

    id: str
    attempt: int
    due: float
    payload: bytes
    planned: float = 0.0
    """The due of the first attempt, or the planned time of an occurrence: the same for all attempts. Unix seconds."""
    deaths: int = 0
    """How many workers in a row died while they held the job. Above 0 the job is a suspect."""
    doubts: int = 0
    """How many of those runs may have begun, which is not known. `attempt` does not count them."""
    counted: int = 0
    """How many such runs `attempt` counts, since the job ended its process later. Known until the job has ended."""


Mark = Literal["1", "alone", "soon", "soon alone"]
"""What the record says of a run that has not ended. "1": it has begun. "alone": it has begun, and nothing else runs in
its worker. "soon", "soon alone": it is about to begin."""


class Done(Struct, frozen=True, tag=True):
    """The run returned; `result` is JSON."""

    result: bytes
    retention: float
    reply: bool


Into = Literal["stream", "left", "right", "channel"]
"""What a message goes into: a stream, a list at its left or its right end, or a channel."""


class Message(Struct, frozen=True):
    """A message for a key or a channel of the same Redis.

    An async handler that returns one has it sent by the script that ends the run: both are written, or neither is. The
    job's result is then null.
    """

    into: Into
    name: str
    """Of the key or the channel."""
    text: bytes
    most: int | None = None
    """About how many entries the stream keeps; None = all."""


class Retried(Struct, frozen=True, tag=True):
    """The run failed; the job runs again after `delay` seconds."""

    delay: float
    reason: str
    killed: bool = False
    """The run killed the process in which it was isolated, so the job's doubtful runs count as attempts."""
    traceback: str = ""
    error: str = ""
    """The class of what the handler raised, see `retry.class_name`; empty = it raised nothing."""


class Buried(Struct, frozen=True, tag=True):
    """The job is given up, and goes to dead."""

    reason: str
    reply: bool
    outcome: Literal["dead", "expired"] = "dead"
    began: bool = True
    """Whether the last run began; if not, it costs no attempt."""
    killed: bool = False
    """The last run killed the process in which it was isolated, so the job's doubtful runs count as attempts."""
    traceback: str = ""
    error: str = ""
    """The class of what the handler raised, see `retry.class_name`; empty = it raised nothing."""


class Forwarded(Done, frozen=True, tag=True):
    """The run returned a message, which is sent when the job ends."""

    message: Message
    otherwise: Retried | Buried
    """What comes of the run if Redis refuses the message."""

    def refused(self, why: str) -> Retried | Buried:
        """Return what comes of the run, because Redis has refused the message."""
        return replace(self.otherwise, reason=shorten(f"{self.otherwise.reason}: {why}"))

    def put_off(self, delay: float, why: str) -> Snoozed:
        """Return what comes of the run, because Redis takes no message now: it runs again after `delay` seconds."""
        return Snoozed(shorten(str(Snooze(delay, why))), delay)


class Aborted(Struct, frozen=True, tag=True):
    """The run stopped because the job was cancelled."""

    retention: float
    reply: bool
    began: bool = True
    """Whether the run had begun."""


DeferCause = Literal["window", "code", "task"]
"""Why a run did not begin: its window, which is closed or cannot be read; the code on disk, which has no handler; its
task, which the worker's app does not have."""


class Deferred(Struct, frozen=True, tag=True):
    """The run did not begin, for one of the causes above. The job is due again at `due`, Unix seconds."""

    due: float
    reason: str
    window: str = ""
    """The window's name, if it has one: the job is looked at again when the window of that name changes."""
    text: str = ""
    """The window that was found under that name."""
    elsewhere: bool = False
    """Whether it was found in another queue than the job's: the job is in a shard."""
    cause: DeferCause = "window"
    unknown_since: float | None = None
    """Since when workers have not known the task; None = this one knows it."""


class Snoozed(Struct, frozen=True, tag=True):
    """The run is put off: to `until`, Unix seconds, or for `delay` seconds. It costs no attempt.

    Its handler asked for that; or it returned a message, for which Redis has no memory now.
    """

    reason: str
    delay: float = 0.0
    until: float | None = None


class Requeued(Struct, frozen=True, tag=True):
    """The run did not begin: the worker has no room for it now. The job goes back to the front of ready."""

    reason: str = "no process of the pool was free"


Outcome = Done | Forwarded | Retried | Buried | Aborted | Deferred | Snoozed | Requeued

OnConflict = Literal["replace", "keep"]
"""What happens when a job of the same id has not ended: its payload and due are replaced, or it is kept as it is."""

_REASON_MOST: Final = 2000
"""Characters of a reason that are stored: enough for the end of a traceback and its message."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder[Any]().decode
_decode_payload: Final = msgspec.json.Decoder(Payload).decode

_EMPTY: Final[dict[str, Any]] = {"args": [], "kwargs": {}, "retry": {}, "meta": {}}


def is_not_finite(value: Any) -> bool:
    """Return whether a number in a value is NaN or infinite, or larger than any float.

    `encode`, which has accepted the value, makes NaN and infinity null. No reader accepts an integer of that size.
    """
    left: list[Any] = [msgspec.to_builtins(value)]
    while left:
        one = left.pop()
        if isinstance(one, int) and abs(one) > sys.float_info.max:
            return True
        if one is None or isinstance(one, str | int):
            continue
        if isinstance(one, float) and not math.isfinite(one):
            return True
        if isinstance(one, Mapping):
            left += cast("Mapping[Any, Any]", one).values()
        elif isinstance(one, list | tuple | set | frozenset):
            left += cast("list[Any]", one)
    return False


def decode_payload(text: bytes) -> Payload:
    """Read a payload. PHP writes an empty object as an empty array, and Lua the reverse, so both are accepted.

    Raises:
        msgspec.MsgspecError, RecursionError, UnicodeDecodeError: it is not a payload; a ValidationError has the path of
            the wrong field.
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
    """Return a reason as it is stored: as valid UTF-8, and only its beginning and end when it is long."""
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
    """Of the last failed run, as long as `reason` or `failure` describes that run: at most 4 KiB."""
    error: str | None = None
    """The class of what the handler raised in that run, such as ValueError or requests.exceptions.Timeout."""
    result: Any = None
    payload: Any = None
    expires: float | None = None
    """The payload's: the job is not started after this moment."""
    window: str | None = None
    """The payload's: when the job may start, or the name of a window that is kept in Redis."""
    progress: Any = None
    """The handler's last report: done, total, note."""
    stopping: bool = False
    """Whether its worker was told to stop it."""
    unknown_since: float | None = None
    """Since when it has been returned to the schedule by workers that do not know its task. None: it is not."""


def read_status(queue: str, job_id: str, place: Place, score: str, fields: dict[str, bytes]) -> JobStatus:
    """Build a status from a place and a record, whatever the record holds. Unreadable JSON is shown as text."""

    def string(name: str) -> str | None:
        return fields[name].decode(errors="backslashreplace") if name in fields else None

    def json(name: str) -> Any:
        try:
            value = decode(fields[name]) if name in fields else None
            encode(value)  # what is nested too deeply to be encoded is shown as text too
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return string(name)
        return value

    payload = json("payload")
    said = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    task, window, expires = said.get("task"), said.get("window"), said.get("expires")
    priority = fields.get("priority", b"")
    due = number(score.encode() if place == "schedule" else fields.get("due"))
    return JobStatus(
        id=job_id,
        queue=queue,
        place=place,
        due=due,
        attempt=whole(fields.get("attempt")),
        snoozes=whole(fields.get("snoozes")),
        priority=int(priority) if len(priority) == 1 and priority.isdigit() else 5,
        group=string("group"),
        task=task if isinstance(task, str) else None,
        created=number(fields.get("created")),
        by=string("by"),
        worker=string("worker"),
        started=number(fields.get("started")),
        finished=number(fields.get("finished")),
        outcome=string("outcome"),
        reason=string("reason"),
        failure=string("failure"),
        traceback=string("traceback"),
        error=string("error"),
        result=json("result"),
        payload=payload,
        expires=float(expires) if isinstance(expires, int | float) and not isinstance(expires, bool) else None,
        window=window if isinstance(window, str) else None,
        progress=json("progress"),
        stopping="stop" in fields and "finished" not in fields,
        unknown_since=unknown_since(fields.get("unknown"), due) if "finished" not in fields else None,
    )
