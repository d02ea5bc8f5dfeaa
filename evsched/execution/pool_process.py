"""A process of the pool belongs to its worker: it ends with it, and leaves its signals and its pipes alone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from io import FileIO, TextIOWrapper
from typing import Any, Final

from evsched import forks
from evsched.execution import parent_death


def belong_to(worker: int) -> None:
    """Let the worker alone end this process: Ctrl-C and many supervisors signal all processes of a group at once."""
    parent_death.end_with(worker)
    _pipes.move()
    forks.hold(_pipes)
    forks.separate_children()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Ignored by a function: what the handler starts inherits SIG_IGN, and a function not.
        signal.signal(number, _ignore)


class _Pipes:
    """The pipes to the worker, which anyio has put in place of standard input and output."""

    def __init__(self) -> None:
        self._moved = list[int]()

    def move(self) -> None:
        """Give them numbers that nothing inherits: what a handler runs would write its output into the worker's."""
        if self._moved:
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream, mode in ((sys.__stdin__, "rb"), (sys.__stdout__, "wb")):
            buffer: Any = stream.buffer  # pyright: ignore[reportOptionalMemberAccess]
            file: FileIO = getattr(buffer, "raw", buffer)
            before = file.fileno()
            after = os.dup(before)
            file.__init__(after, mode, closefd=False)  # the same object, since anyio holds it
            os.dup2(nowhere, before)
            self._moved.append(after)
        os.dup2(nowhere, 2)  # anyio's pipe, which nobody reads
        os.close(nowhere)
        # An isolated run redirects 1 and 2: so also for those who have got hold of these streams, such as `logging`.
        sys.stdout, sys.stderr = _writer(1), _writer(2)

    def descriptors(self) -> Iterable[int]:
        """Return their descriptors: a forked child that held them would hide the end of its parent."""
        return self._moved


def _writer(number: int) -> TextIOWrapper:
    return TextIOWrapper(FileIO(number, "w", closefd=False), errors="backslashreplace", write_through=True)


_pipes: Final = _Pipes()


def _ignore(number: int, frame: object) -> None:
    pass
