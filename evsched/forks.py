"""Forked children: what a process that a handler forks (`multiprocessing`, `os.fork`) must not share with its parent.

A fork copies signal handlers and descriptors. With them a SIGTERM for the child would reach its parent, through the
wake-up descriptor, and the parent's connections and ports would stay open for as long as the child lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Final, Protocol
from weakref import WeakSet

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Holder(Protocol):
    """What has descriptors that are of no use to a forked child."""

    def descriptors(self) -> Iterable[int]:
        """Return them; -1 stands for none. Called in the child: wait for no lock."""
        ...


_holders = WeakSet[Holder]()
_owner = 0
"""The process whose children are separated: what they fork in turn is their own."""
_forking = threading.local()
_is_child = False
"""Whether a handler forked this process."""


def hold(holder: Holder) -> None:
    """Have the descriptors of `holder` closed in forked children, once `separate_children` was called."""
    _holders.add(holder)


def separate_children() -> None:
    """From now on, give forked children Python's own handlers of SIGTERM and SIGINT, and none of the descriptors held.

    For a process whose signal handlers are evsched's. May be called again.
    """
    global _owner
    if not _owner:
        os.register_at_fork(before=_before, after_in_parent=_unblock, after_in_child=_separate)
    _owner = os.getpid()


def end_children(patience: float) -> int:
    """End what handlers started with `multiprocessing` and left, and return how many there were. For any thread.

    Python would wait for them before it ends. They have SIGTERM, `patience` seconds, and then SIGKILL.
    """
    if (multiprocessing := sys.modules.get("multiprocessing")) is None:
        return 0
    left: list[Any] = multiprocessing.active_children()
    for child in left:
        child.terminate()
    deadline = time.monotonic() + patience
    for child in left:
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
    return len(left)


def end_child() -> None:
    """End this process if a handler forked it. Call this when a handler has ended.

    What called the handler, an event loop or a thread that waits for more to do, is its parent's.
    """
    if _is_child:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(0)


def _before() -> None:
    # A signal may be sent to the child before it has come to `_separate`.
    mine = os.getpid() == _owner
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS) if mine else None


def _unblock() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _separate() -> None:
    global _is_child
    if _forking.mask is None:
        return
    _is_child = True
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # A KeyboardInterrupt would be raised in here, where Python swallows it: one that is on its way ends the child.
        early = signal.SIGINT in signal.sigpending()
        signal.signal(signal.SIGINT, signal.SIG_DFL if early else signal.default_int_handler)
        _close_all()
    finally:
        _unblock()


def _close_all() -> None:
    # The objects that hold the numbers live on here, and may close them later: so each number leads to nowhere.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for holder in list(_holders):
        for descriptor in holder.descriptors():
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)
