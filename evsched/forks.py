"""Forked children: a process that a handler forks (`multiprocessing`, `os.fork`) must not share with its parent.

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
    """Has descriptors that are of no use to a forked child."""

    def descriptors(self) -> Iterable[int]:
        """Return them; -1 stands for none. Called in the child: wait for no lock."""
        ...


_holders = WeakSet[Holder]()
_owner = 0
"""The process whose children are separated. Children that they fork in turn are not."""
_forking = threading.local()
_is_child = False
"""Whether a handler forked this process."""


def hold(holder: Holder) -> None:
    """Have the descriptors of `holder` closed in forked children, once `separate_children` was called."""
    _holders.add(holder)


def separate_children() -> None:
    """From now on, give forked children Python's own handlers of SIGTERM and SIGINT, and close the descriptors held.

    For a process whose signal handlers are evsched's. May be called again.
    """
    global _owner
    if not _owner:
        os.register_at_fork(before=_before, after_in_parent=_unblock, after_in_child=_separate)
    _owner = os.getpid()


def end_children(patience: float) -> int:
    """End the processes that handlers started with `multiprocessing` and left; return how many. For any thread.

    They get SIGTERM, and SIGKILL after `patience` seconds. Python would otherwise wait for them before it ends.
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

    If it returned, it would go on in a copy of its parent's event loop, or of a thread that waits for more handlers.
    """
    if _is_child:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(0)


def _before() -> None:
    # A signal may be sent to the child before `_separate` has run in it.
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
        # Python swallows a KeyboardInterrupt that is raised in this hook. So a SIGINT that is pending ends the child.
        early = signal.SIGINT in signal.sigpending()
        signal.signal(signal.SIGINT, signal.SIG_DFL if early else signal.default_int_handler)
        _close_all()
    finally:
        _unblock()


def _close_all() -> None:
    # The objects that hold the descriptors exist in the child too, and may close them later. So each one stays open,
    # and leads to /dev/null.
    devnull = os.open(os.devnull, os.O_RDWR)
    for holder in list(_holders):
        for descriptor in holder.descriptors():
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.dup2(devnull, descriptor, inheritable=False)
    os.close(devnull)
