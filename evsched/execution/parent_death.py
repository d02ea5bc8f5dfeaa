"""A process that ends with its parent, even when that is killed (kill -9, the out-of-memory killer).

Without this, a child whose parent has ended would continue a job that another worker runs again.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
"""An option of prctl(2): the signal that the kernel sends to this process when the thread that started it ends."""

_process = 0
"""The process that `end_with` has tied; its forks are tied to it in turn."""

_by_main_thread = False


def end_with(link: int) -> None:
    """End this process with its parent, which holds the other end of the socket `link`; and its forks with it.

    Linux watches the thread that started this process, not the whole parent: start such a child from the event loop's
    thread, which lives as long as the parent needs the child.
    """
    global _process
    _process = os.getpid()
    os.register_at_fork(before=_note_thread, after_in_child=_tie_fork)
    _tie(link, threading.Event())


@contextmanager
def tied(link: int) -> Generator[None]:
    """End this process meanwhile with its parent, which holds the other end of the socket `link`.

    For code that may hang before the process can end in order, such as the import of an app.
    """
    over = threading.Event()
    by_kernel = _tie(link, over)
    try:
        yield
    finally:
        over.set()
        if by_kernel:
            _ask_kernel(0)


def _tie(link: int, over: threading.Event) -> bool:
    """Have the kernel or, where it cannot, a thread end this process; return whether the kernel does."""
    watched = select.poll()
    watched.register(link, 0)  # only its end, not the data that it carries
    by_kernel = _ask_kernel()
    if not by_kernel:
        threading.Thread(target=_wait_for_close, args=(watched, over), name="evsched-parent-death", daemon=True).start()
    elif watched.poll(0):
        _end()  # the parent ended before it was watched
    return by_kernel


def _wait_for_close(watched: select.poll, over: threading.Event) -> None:
    watched.poll()
    if not over.is_set():
        _end()


def _note_thread() -> None:
    global _by_main_thread
    _by_main_thread = os.getpid() == _process and threading.current_thread() is threading.main_thread()


def _tie_fork() -> None:
    # A fork is not tied by itself. One that another thread makes would end with that thread, and is left alone.
    if _by_main_thread and _ask_kernel() and os.getppid() != _process:
        _end()


def _ask_kernel(number: int = signal.SIGKILL) -> bool:
    """Have the kernel do it, 0 = no longer: this works even while a handler's C code holds the interpreter."""
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number)) == 0


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
