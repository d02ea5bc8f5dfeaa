"""A job's payload, a run that a worker was given, and the outcome of a run; to and from the bytes that Redis holds."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from hashlib import sha1
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from evsched.jobs.sealed import Sealed
from evsched.jobs.steering import Snooze


class RetryFields(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The payload's `retry`: the values that it has override those of the task's policy (`jobs/retry.py`)."""

    attempts: int | UnsetType = UNSET
    interval: float | UnsetType = UNSET
    factor: float | UnsetType = UNSET
    max_interval: float | UnsetType = UNSET
    jitter: float | UnsetType = UNSET


TAGS_MOST: Final = 5
"""Tags that a job may have."""

TAG: Final = re.compile(r"[!-+\x2d-~]{1,64}")
"""A tag: ASCII that is not a control character, a space or a comma, which every client and terminal handles alike."""


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
    """A window (`recurrence/windows.py`), or the name of a window in Redis."""
    tags: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    """Arguments that readers do not get (`jobs/redaction.py`)."""
    sealed: Sealed | None = None
    """The arguments as a codec has sealed them (`jobs/sealed.py`); `args` and `kwargs` come after these."""
    id: Any = None
    priority: Any = None
    group: Any = None


class FetchedJob(Struct, frozen=True):
    """A run that `start` handed to a worker. `due` in Unix seconds."""

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
    run: str = ""
    """The name that `start` gave this run: its attempt, and when it was started. An id that is used again has runs with
    the same attempts, so the verbs that end runs compare this."""
    opened: bytes | None = None
    """The payload with its arguments, once the codec of the app has opened them."""

    @property
    def readable(self) -> bytes:
        """The payload, with its arguments as far as they are known."""
        return self.opened or self.payload

    @property
    def is_unnamed(self) -> bool:
        """Whether it is an inline job without an id: nobody asks for its record, which is not kept by default."""
        return len(self.id) == 40 and sha1(self.payload, usedforsecurity=False).hexdigest() == self.id


Mark = Literal["1", "alone", "soon", "soon alone"]
"""The mark in the record of a run that has not ended. "1": it has begun. "alone": it has begun, and nothing else runs
in its worker. "soon", "soon alone": it is about to begin."""


class Done(Struct, frozen=True, tag=True):
    """The run returned; `result` is JSON."""

    result: bytes
    retention: float
    reply: bool
    label: bytes = b'[""]'
    """JSON, a list of its task and its tags, for the history."""


Into = Literal["stream", "left", "right", "channel"]
"""The target of a message: a stream, a list at its left or its right end, or a channel."""


class Message(Struct, frozen=True):
    """A message for a key or a channel of the same Redis.

    An async handler that returns one has it sent by the script that ends the run: both are written, or neither is. The
    job's result is then null.
    """

    into: Into
    name: str
    """The key or the channel."""
    text: bytes
    most: int | None = None
    """About how many entries the stream keeps; None = all."""


class Retried(Struct, frozen=True, tag=True):
    """The run failed; the job runs again after `delay` seconds."""

    delay: float
    reason: str
    killed: bool = False
    """The run killed the process in which it was isolated, so the job's doubtful runs count as attempts."""
    unsure: bool = False
    """That process died before the handler began. The run counts all the same, and a later reason says so."""
    traceback: str = ""
    error: str = ""
    """The class of the handler's exception, see `retry.class_name`; empty = it raised none."""
    location: str = ""
    """The line of the user's code that raised it."""


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
    """The class of the handler's exception, see `retry.class_name`; empty = it raised none."""
    location: str = ""
    """The line of the user's code that raised it."""


class Forwarded(Done, frozen=True, tag=True, kw_only=True):
    """The run returned a message, which is sent when the job ends."""

    message: Message
    otherwise: Retried | Buried
    """The outcome if Redis refuses the message."""

    def refused(self, why: str) -> Retried | Buried:
        """Return the outcome of the run after Redis has refused the message."""
        return replace(self.otherwise, reason=shorten(f"{self.otherwise.reason}: {why}"))

    def put_off(self, delay: float, why: str) -> Snoozed:
        """Return the outcome of the run if Redis takes no message now: it runs again after `delay` seconds."""
        return Snoozed(shorten(str(Snooze(delay, why))), delay)


class Aborted(Struct, frozen=True, tag=True):
    """The run stopped because the job was cancelled."""

    retention: float
    reply: bool
    began: bool = True
    """Whether the run had begun."""


DeferCause = Literal["window", "code", "task", "store"]
"""Why a run did not begin: its window, which is closed or cannot be read; the code on disk, which has no handler; its
task, which the worker's app does not have; the store of the app, which does not give its arguments."""


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
    signal: str = ""
    """The signal that the job waits for: it runs again as soon as that comes, and has not snoozed."""


class Requeued(Struct, frozen=True, tag=True):
    """The run did not begin: the worker has no room for it now. The job goes back to the front of ready."""

    reason: str = "no process of the pool was free"


Outcome = Done | Forwarded | Retried | Buried | Aborted | Deferred | Snoozed | Requeued

OnConflict = Literal["replace", "keep"]
"""The treatment of a job of the same id that has not ended: replace its payload and due, or keep it as it is."""

_REASON_MOST: Final = 2000
"""Characters of a reason that are stored: enough for the end of a traceback and its message."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder[Any]().decode
_decode_payload: Final = msgspec.json.Decoder(Payload).decode

_EMPTY: Final[dict[str, Any]] = {"args": [], "kwargs": {}, "retry": {}, "meta": {}, "tags": [], "redact": []}


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


_labels = dict[str, bytes]()
"""By task. The tasks of an app are few."""


def label_of(payload: Payload) -> bytes:
    """Return the task of a payload, and its tags, as the history has them."""
    if payload.tags:
        return encode([payload.task, *payload.tags])
    found = _labels.get(payload.task)
    if found is None:
        found = _labels[payload.task] = encode([payload.task])
    return found


def shorten(reason: str) -> str:
    """Return a reason as it is stored: as valid UTF-8, and only its beginning and end when it is long."""
    reason = reason.encode(errors="backslashreplace").decode()
    if len(reason) <= _REASON_MOST:
        return reason
    half = _REASON_MOST // 2
    return f"{reason[:half]} ... {reason[-half:]}"


_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
"""A surrogate pair: one character as two escapes."""

_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def describe_malformed(text: bytes, error: Exception) -> str:
    """Describe why a text cannot be decoded. msgspec may call half a surrogate pair truncated."""
    escapes = text.replace(rb"\\", b"")  # an escaped backslash escapes nothing
    if _HALF.search(_PAIR.sub(b"", escapes)):
        return "it has half of a surrogate pair, \\ud800 to \\udfff, which is not a character"
    if isinstance(error, UnicodeDecodeError):
        try:
            text.decode()
        except UnicodeDecodeError as first:  # msgspec counts from the begin of the string
            return f"byte {first.start} is {text[first.start]:#x}, which is not UTF-8"
    return str(error)
