"""The fault: a process strikes itself before or after one of its calls to Redis.

Nothing in evsched knows of this. All calls go through two functions of `evsched.transport.senders`, which `arm` wraps
in a process before it starts. A batch is cut at its call: those before it are made, and those after it only if the
process goes on.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, cast

from evsched.transport import senders
from evsched.transport.call import Call
from evsched.transport.connection import Connection
from evsched.transport.senders import DirectSender

VARIABLE: Final = "EVSCHED_TEST_CRASH"
"""A point, which a process reads once, when it is armed; empty = it only writes down its calls."""
FOLDER: Final = "EVSCHED_TEST_CRASH_FOLDER"
"""Where processes write down their calls, and that one has struck."""

Moment = Literal["before", "after"]
Fault = Literal["kill", "stop"]


class Point(NamedTuple):
    """The `nth` call of a verb, or of a command, that a process makes."""

    verb: str
    nth: int
    moment: Moment
    fault: Fault

    @classmethod
    def read(cls, text: str) -> Self:
        verb, nth, moment, fault = text.rsplit(" ", 3)
        return cls(verb, int(nth), cast(Moment, moment), cast(Fault, fault))

    def __str__(self) -> str:
        return f"{self.verb} {self.nth} {self.moment} {self.fault}"


def arm() -> None:
    """Have this process strike at the point that its environment names, unless one has struck there already."""
    if VARIABLE not in os.environ:
        return
    text, folder = os.environ.pop(VARIABLE), Path(os.environ[FOLDER])
    if (folder / "struck").exists():
        return
    calls = _Calls(folder / "calls", folder / "struck", Point.read(text) if text else None)
    deliver, send = senders._deliver, DirectSender.send  # pyright: ignore[reportPrivateUsage]

    async def deliver_and_strike(connection: Connection, batch: Sequence[Call[Any]], reply_timeout: float) -> list[Any]:
        rest, values = list(batch), list[Any]()
        for n, call in enumerate(batch):
            strike = calls.count(call.name)
            if strike is None:
                continue
            made = n + (strike == "after")
            values += await deliver(connection, rest[:made], reply_timeout) if made else []
            rest = rest[made:]
            calls.strike()
        return values + (await deliver(connection, rest, reply_timeout) if rest else [])

    async def send_and_strike(self: DirectSender, call: Call[Any], block: float = 0.0) -> Any:
        strike = calls.count(call.name)
        if strike == "before":
            calls.strike()
        value = await send(self, call, block)
        if strike == "after":
            calls.strike()
        return value

    senders._deliver = deliver_and_strike  # pyright: ignore[reportPrivateUsage]
    DirectSender.send = cast(Any, send_and_strike)


class _Calls:
    """The calls of this process, from all its threads."""

    def __init__(self, record: Path, struck: Path, point: Point | None) -> None:
        self._record = record
        self._struck = struck
        self._point = point
        self._counts = Counter[str]()
        self._counting = threading.Lock()

    def count(self, verb: str) -> Moment | None:
        """Count a call, and return when to strike, if it is the one."""
        with self._counting:
            self._counts[verb] += 1
            nth, point = self._counts[verb], self._point
        if point is None:
            append(self._record, f"{verb} {nth}")
            return None
        return point.moment if (verb, nth) == point[:2] else None

    def strike(self) -> None:
        """Kill or stop this process. A process that was stopped goes on when somebody continues it."""
        assert self._point is not None
        append(self._struck, str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL if self._point.fault == "kill" else signal.SIGSTOP)


def append(file: Path, line: str) -> None:
    """Append a line; O_APPEND keeps the lines of several processes whole."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
