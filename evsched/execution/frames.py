"""The frames between a worker and a process that runs user code for it.

    worker -> process   Find, Call; of an isolated run: Isolate, Begin, Stop
    process -> worker   Reported, Begun; and one reply to each order but Stop

They pass over a pair of sockets without a name, so nobody else can write there, and each side reads the end of the
stream when the other one has ended. A frame is the length of a MessagePack value, and the value. `process_pool.py` has
the worker's end, `services/job_process.py` the program that holds the other one.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

from evsched.execution.run import StopReason
from evsched.jobs.current_job import Progress
from evsched.jobs.job import FetchedJob, Outcome

LENGTH: Final = 8
"""Bytes of the length."""


class Find(Struct, frozen=True, tag=True):
    """Import a module as the worker does, and find a handler in it; the module alone for ''."""

    module: str
    name: str
    path: list[bytes]
    """The worker's `sys.path`, as the file system has it; empty if the process has it already."""
    main: bytes | None
    """The file of the worker's main module, which may define handlers."""


class Call(Struct, frozen=True, tag=True):
    """Call a handler that was found, with the arguments of a job's payload."""

    module: str
    name: str
    job: FetchedJob
    queue: str
    lateness: float


class Isolate(Struct, frozen=True, tag=True):
    """Import an app and prepare one of its jobs, as a worker does."""

    app: str
    """MODULE:APP."""
    log_level: str
    """Of evsched's log; empty = the app configures logging itself."""
    job: FetchedJob
    queue: str
    now: float
    """By Redis's clock."""


class Begin(Struct, frozen=True, tag=True):
    """Call the handler of the isolated job that is ready."""


class Stop(Struct, frozen=True, tag=True):
    """Stop the handler of the isolated job. It has no reply, and may arrive after the run has ended."""

    reason: StopReason


class Ready(Struct, frozen=True, tag=True):
    """The handler is found, or the isolated job can begin."""


class Missing(Struct, frozen=True, tag=True):
    """The handler or the app is not found, or does not fit the job. No handler has begun."""

    reason: str


class Returned(Struct, frozen=True, tag=True):
    """The handler returned this, as JSON."""

    result: bytes


class Raised(Struct, frozen=True, tag=True):
    """The handler raised. An exception of a user's class need not be made again in the worker."""

    how: Literal["failed", "retry", "snooze", "give up"]
    """The last three: it raised RetryLater, Snooze or GiveUp."""
    reason: str
    delay: float | None = None
    until: float | None = None
    traceback: str = ""
    error: str = ""
    """The class, see `retry.class_name`."""
    kinds: frozenset[str] = frozenset()
    """Its class and the classes that it inherits from, see `retry.kinds_of`."""


class Ended(Struct, frozen=True, tag=True):
    """The isolated run has ended."""

    outcome: Outcome


class Begun(Struct, frozen=True, tag=True):
    """The handler of the isolated job begins."""


class Reported(Struct, frozen=True, tag=True):
    """The handler has reported progress."""

    progress: Progress


Order = Find | Call | Isolate | Begin | Stop
Reply = Ready | Missing | Returned | Raised | Ended
Answer = Reply | Reported | Begun

_encode: Final = msgspec.msgpack.Encoder().encode
read_order: Final = msgspec.msgpack.Decoder[Order](Order).decode
read_answer: Final = msgspec.msgpack.Decoder[Answer](Answer).decode


def frame(value: Order | Answer) -> bytes:
    """Return a value as a frame."""
    text = _encode(value)
    return len(text).to_bytes(LENGTH, "big") + text
