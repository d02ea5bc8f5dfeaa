"""What a process inherits from the one that started it, in environment variables: descriptors of sockets, counts."""

from __future__ import annotations

import os
import socket
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import msgspec

from evsched.execution.parent_death import tied
from evsched.store.queue import Announced

LINK: Final = "_EVSCHED_LINK_FD"
"""The end of the link to the parent: the process reports on it, and stops when the other end is closed."""

METRICS: Final = "_EVSCHED_METRICS_FD"
"""The socket that reserves the metrics port."""

METRICS_TAKEN: Final = "_EVSCHED_METRICS_TAKEN_FD"
"""A socket whose other end is closed when another process no longer answers on the metrics port; absent = none does."""

PUT_BACK: Final = "_EVSCHED_PUT_BACK"
"""How many jobs of the processes that ran here before the parent put back, by queue, as JSON; absent = none."""

ANNOUNCED: Final = "_EVSCHED_ANNOUNCED"
"""What the last worker process of the parent had announced to Redis, by queue, as JSON; absent = nothing."""


def tied_to_parent() -> AbstractContextManager[None]:
    """End this process meanwhile with its parent, if it has one, even while it hangs; later the link is watched."""
    number = os.environ.get(LINK)
    return nullcontext() if number is None else tied(int(number))


def inherited(name: str) -> socket.socket | None:
    """Return a socket that the parent passed to this process; None = it passed none. It is not passed on further."""
    number = os.environ.pop(name, None)
    if number is None:
        return None
    passed = socket.socket(fileno=int(number))
    passed.set_inheritable(False)
    return passed


def put_back() -> dict[str, int]:
    """Return how many jobs the parent put back, by queue. Processes that this one starts do not see it."""
    text = os.environ.pop(PUT_BACK, None)
    return {} if text is None else msgspec.json.decode(text, type=dict[str, int])


def announced() -> dict[str, Announced]:
    """Return what the last worker process of the parent had announced, by queue."""
    text = os.environ.pop(ANNOUNCED, None)
    return {} if text is None else msgspec.json.decode(text, type=dict[str, Announced])
