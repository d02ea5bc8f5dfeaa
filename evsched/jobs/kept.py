"""Data that runs keep in their job's record for later runs: results of steps, positions, and signals.

`lua/_steps.lua` has the form of the fields. A handler uses it through `evsched.steps`, which the core does not import:
this file has the questions that such code asks, and the `Keeper` that answers them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final, Literal, Protocol

from msgspec import Struct

STEPS_MOST: Final = 262_144
"""Bytes that the results of a job's steps have, and its positions, with their names; as in lua/_steps.lua."""

SIGNALS_MOST: Final = 65_536
"""Bytes that the signals of a job have, with their names; as in lua/_steps.lua."""

SIGNAL: Final = re.compile(r"[A-Za-z0-9._:@-]{1,100}")
"""The name of a signal."""


class Recall(Struct, frozen=True, tag=True):
    """Read the data that earlier runs have kept; the answer is "kept", with the field `steps`, or "lost"."""


class Keep(Struct, frozen=True, tag=True):
    """Keep the result of a step, or a position; the answer is "kept", "full" or "lost"."""

    name: str
    """A JSON text; of a position, with `@` before it."""
    value: bytes
    """JSON."""


class WaitFor(Struct, frozen=True, tag=True):
    """Ask for a signal; the answer is "come" with its value, "over", "waits" with until when, "full" or "lost"."""

    signal: str
    timeout: float | None
    """Seconds from the first time on; None = without an end."""


Question = Recall | Keep | WaitFor


class KeptAnswer(Struct, frozen=True):
    """The answer to a question. "lost": the run is not this worker's any more, and nothing was written."""

    how: Literal["kept", "full", "come", "over", "waits", "lost", "refused"]
    """"refused": Redis refuses the call, for the reason in `value`."""
    value: bytes = b""


class Keeper(Protocol):
    """Answers the questions of one run. For any thread."""

    def ask(self, question: Question) -> Future[KeptAnswer]:
        """Ask; the answer waits while Redis is down."""
        ...

    def note_position(self, name: str, value: bytes) -> None:
        """Note a position, which is written when the run ends before a later one is kept."""
        ...


class Line(Struct, frozen=True):
    """A line of one of the fields."""

    name: str
    at: float
    """When it was written, Unix seconds on Redis's clock."""
    rest: bytes


def read_lines(field: bytes) -> Iterator[Line]:
    """Read the lines of a field. Those that are malformed, since another client wrote them, are left out."""
    for line in field.split(b"\n"):
        name, _, more = line.partition(b"\t")
        at, there, rest = more.partition(b"\t")
        try:
            yield Line(name.decode(), float(at if there else "none"), rest)
        except ValueError:
            continue
