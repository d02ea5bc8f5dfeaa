"""How a service ends when it is asked to: heard at once, whatever its event loop does, and over within a bound.

A thread hears SIGTERM and SIGINT, and the end of the parent that the process works for. The event loop alone would hear
them when the handler that blocks it gives way.

    asked ──▶ grace ──▶ 5 s later the loop has not come round: `rescue`, and end ──▶ 10 s: it has not ended: end
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Final, Self

from evsched import forks
from evsched.events import Emit, EndedAtOnce, EndedByForce

FORCED: Final = 70
"""Exit code of a process that was held past its bounds (EX_SOFTWARE of sysexits)."""

_LATE: Final = 5.0
"""Seconds after the grace in which a loop that turns has come round to hand back, on the busiest machine."""

_LAST: Final = 10.0
"""Seconds after the grace in which all is over: what is left has been handed back, and the app's lifespan has ended."""

_TWICE: Final = 1.0
"""Seconds after which a second signal is meant as one: a runner may pass on the Ctrl-C that the terminal sent too."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def bound(shutdown_grace: float) -> float:
    """Return the seconds from the signal to the end of the process, at the most."""
    return shutdown_grace + _LAST


def _nothing() -> None:
    pass


def _none_needed() -> bool:
    return False


class Shutdown:
    """`with` it around the event loop, in the main thread; `attach` it in there.

    `shutdown_grace`: how long running jobs may go on. `parent`: a socket whose other end the parent holds: when that is
    closed, the process is asked to end. Who was signalled twice is then for the parent to count.
    """

    def __init__(self, shutdown_grace: float, emit: Emit, parent: socket.socket | None = None) -> None:
        self.heard: Callable[[], None] = _nothing
        """Called at once, in the thread: what takes work takes no more."""
        self.rescue: Callable[[], bool] = _none_needed
        """Called in the thread when the loop is late. True: it has not handed back, and that was done for it."""
        self.hurry: Callable[[], object] = _nothing
        """Called in the thread before a second signal ends the process."""
        self._grace = shutdown_grace
        self._emit = emit
        self._parent = parent
        self._ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="evsched-shutdown", daemon=True)
        self._asked = False
        self._told = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self._theirs.setblocking(False)
        forks.hold(self)
        forks.separate_children()
        signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._before = [signal.signal(number, self._pass_on) for number in _SIGNALS]
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._asked:
            return  # the interpreter's own end is bounded too: it waits for threads of the user's
        for number, before in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, before)
        signal.set_wakeup_fd(-1)
        self._theirs.close()
        self._thread.join()
        self._ours.close()

    def descriptors(self) -> Iterable[int]:
        """Return the descriptors of its sockets: a forked child has no use for them."""
        return [one.fileno() for one in (self._ours, self._theirs, self._parent) if one is not None]

    def attach(self) -> None:
        """Tell the running event loop, from now on."""
        self._loop = asyncio.get_running_loop()
        if self._asked:
            self._told.set()

    async def wait(self) -> None:
        """Wait until the process is asked to end."""
        await self._told.wait()

    async def asked_within(self, seconds: float) -> bool:
        """Wait for that long; return whether the process is asked to end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._told.wait(), seconds)
        return self._told.is_set()

    async def unless_asked(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do work until the process is asked to end, which cancels it; return whether it was done before."""
        working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            return False
        finally:
            working.cancel()
            waiting.cancel()
            await asyncio.gather(working, waiting, return_exceptions=True)

    def _pass_on(self, number: int, frame: object) -> None:
        # Where a handler minds signals of its own, its event loop has taken the wake-up descriptor.
        ours = self._theirs.fileno()
        descriptor = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
        if descriptor != ours:
            signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
            self._theirs.send(bytes([number]))

    # In the thread.

    def _run(self) -> None:
        try:
            self._until_asked()
            self._asked = True
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # it is closed: the service ends by itself
                    self._loop.call_soon_threadsafe(self._told.set)
            self.heard()
            began = time.monotonic()
            self._rest(began, began + self._grace + _LATE)
            if self._loop_is_blocked():
                self._end(FORCED)
            self._rest(began, began + self._grace + _LAST)
            _within(1.0, lambda: self._emit(EndedByForce(seconds=time.monotonic() - began)))
            self._end(FORCED)
        except EOFError:
            pass  # the service has ended by itself

    def _until_asked(self) -> None:
        waits = select.poll()
        for one in filter(None, (self._ours, self._parent)):
            waits.register(one, select.POLLIN)
        ready = {descriptor for descriptor, _ in waits.poll()}
        if self._ours.fileno() in ready and not self._ours.recv(64):
            raise EOFError

    def _rest(self, began: float, until: float) -> None:
        """Wait, and mind a second signal."""
        while (left := until - time.monotonic()) > 0:
            self._ours.settimeout(left)
            try:
                numbers = self._ours.recv(64)
            except TimeoutError:
                return
            if not numbers:
                raise EOFError
            if self._parent is None and time.monotonic() - began > _TWICE:
                _within(1.0, lambda: self._emit(EndedAtOnce()))
                self.hurry()
                self._end(128 + numbers[0])

    def _end(self, code: int) -> None:
        _within(1.0, lambda: forks.end_children(0.5))
        os._exit(code)

    def _loop_is_blocked(self) -> bool:
        answers = list[bool]()
        _within(_LAST - _LATE, lambda: answers.append(self.rescue()))
        return answers != [False]


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Wait for a call that may never return: the log's reader hangs, or Redis does."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
