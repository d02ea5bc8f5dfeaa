"""What a worker process reports to its parent: values, of which each is a line of JSON on the link between them.

The code of a process may be newer than that of its parent. So fields are only ever added, and the parent ignores a
report that it does not know.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from evsched.store.queue import Announced


class Ready(Struct, frozen=True, tag="ready"):
    """The worker has its leases, and begins to fetch jobs."""

    worker: str
    queues: list[str]
    url: str
    """The Redis that it is connected to, which its app may choose."""
    announced: dict[str, Announced] = {}
    """By queue, what it has written to Redis of its app."""

    def __repr__(self) -> str:
        return f"Ready(worker={self.worker!r}, queues={self.queues!r})"  # the URL may contain a password


class Fetching(Struct, frozen=True, tag="fetching"):
    """Redis has answered its first fetch from each queue: what was ready then, it or another worker has."""


class Behind(Struct, frozen=True, tag="behind"):
    """More jobs are ready than it can run."""


class Idle(Struct, frozen=True, tag="idle"):
    """It holds no job, and has had none for a while."""


Report = Ready | Fetching | Behind | Idle

_DECODER: Final = msgspec.json.Decoder(Report)


def as_line(report: Report) -> bytes:
    """Return a report as a line."""
    return msgspec.json.encode(report) + b"\n"


def read(line: bytes) -> Report | None:
    """Read a line; None = the report is not known here."""
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, ValueError):
        return None
