"""How a service ends when it is asked to: at once, even if its event loop is blocked, and within a time limit.

A thread waits for SIGTERM, SIGINT, or the end of the parent process. It passes the request to the event loop, which
does the rest. If the event loop is blocked, the thread hands back the worker's jobs and ends the process.

    request ──▶ grace ──▶ 5 s later, if the loop is blocked: `rescue`, exit ──▶ 10 s after the grace: exit
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
from typing import Any, Final, Protocol, Self

from evsched import forks
from evsched.events import Emit
from evsched.process_events import EndedAtOnce, EndedByForce, HandlersLeft
from evsched.runtime.loops import background, first_of

FORCED: Final = 70
"""Exit code of a process that did not end within its limits (EX_SOFTWARE of sysexits)."""

_BLOCKED: Final = 5.0
"""Seconds after the grace, after which an event loop that has not begun to hand back jobs counts as blocked. On a busy
machine, a loop that is not blocked is quicker than this."""

_LAST: Final = 10.0
"""Seconds after the grace, by which the jobs must have been handed back and the app's lifespan must have ended."""

_TWICE: Final = 1.0
"""Seconds after which a second signal counts. Before that, it may be a Ctrl-C that both the terminal and a process
manager sent."""


def bound(shutdown_grace: float) -> float:
    """Return the seconds from the signal to the end of the process, at the most."""
    return shutdown_grace + _LAST


class Drainable(Protocol):
    """A worker, as its shutdown sees it. The methods are called in the shutdown's thread."""

    def fetch_no_more(self) -> None:
        """Begin no other fetch. Called as soon as the process is asked to end."""
        ...

    def rescue(self) -> bool:
        """Hand back the jobs and return True, or False if the event loop is not blocked."""
        ...


class Shutdown:
    """Use it with `with` around the event loop, in the main thread. Inside the loop, call `request.attach`.

    `shutdown_grace`: how long running jobs may go on. `parent`: a socket whose other end the parent process holds; when
    that end is closed, the process is asked to end. A process with a parent ignores a second signal. `reloads`: SIGHUP
    calls `reload`; without it SIGHUP ends the process at once, as the system does by default.
    """

    def __init__(
        self, shutdown_grace: float, emit: Emit, parent: socket.socket | None = None, *, reloads: bool = False
    ) -> None:
        self.request = StopRequest()
        self.worker: Drainable | None = None
        self.kill_children: Callable[[], object] | None = None
        """Called in the thread before a second signal ends the process."""
        self.reload: Callable[[], object] | None = None
        """Called in the thread at SIGHUP."""
        self._grace = shutdown_grace
        self._emit = emit
        self._parent = parent
        self._signals = StopSignals(reloads=reloads)
        self._thread = threading.Thread(target=self._run, name="evsched-shutdown", daemon=True)
        self._ends_now = False
        """The thread is ending the process."""

    def __enter__(self) -> Self:
        forks.hold(self)
        forks.separate_children()
        self._signals.install()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ends_now:
            self._thread.join()  # it never returns: the process ends with the thread's exit code
        if self.request.made:
            return  # the thread goes on: the interpreter waits for the user's threads, and that has a limit too
        self._signals.restore()
        self._thread.join()
        self._signals.close()

    def descriptors(self) -> Iterable[int]:
        return [*self._signals.descriptors(), *([] if self._parent is None else [self._parent.fileno()])]

    # The rest runs in the thread.

    def _run(self) -> None:
        try:
            while (number := self._signals.next(parent=self._parent)) and not self._signals.is_stop(number):
                if self.reload is not None:
                    self.reload()
            self.request.make()
            if self.worker is not None:
                self.worker.fetch_no_more()
            began = time.monotonic()
            self._wait(began, began + self._grace + _BLOCKED)
            if self._rescue():
                self._exit(FORCED)
            self._wait(began, began + self._grace + _LAST)
            call_within(1.0, lambda: self._emit(EndedByForce(seconds=time.monotonic() - began)))
            self._exit(FORCED)
        except EOFError:
            pass  # the service has ended by itself

    def _wait(self, began: float, until: float) -> None:
        """Wait; end the process at a second signal."""
        while (left := until - time.monotonic()) > 0:
            number = self._signals.next(left)
            if not number or not self._signals.is_stop(number):
                continue
            if self._parent is None and time.monotonic() - began > _TWICE:
                self._ends_now = True  # before the children's end, which may end the event loop
                call_within(1.0, lambda: self._emit(EndedAtOnce()))
                if self.kill_children is not None:
                    self.kill_children()
                self._exit(128 + number)

    def _rescue(self) -> bool:
        """Have the worker hand back its jobs, in case the event loop is blocked.

        Return False if there is no worker, or if its event loop is not blocked.
        """
        worker, replies = self.worker, list[bool]()
        if worker is None:
            return False
        call_within(_LAST - _BLOCKED, lambda: replies.append(worker.rescue()))
        return replies != [False]

    def _exit(self, code: int) -> None:
        end_children(self._emit)
        os._exit(code)


def end_children(emit: Emit) -> None:
    """End the processes that handlers have left, and report them, within a second. For a process that ends now."""

    def end() -> None:
        if ended := forks.end_children(0.5):
            emit(HandlersLeft(processes=ended))

    call_within(1.0, end)


def call_within(seconds: float, call: Callable[[], object]) -> None:
    """Call a function, and wait for it at most so long: the reader of the log may hang, or Redis."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)


class StopRequest:
    """The request that the process ends. Any thread may make it, and the event loop awaits it."""

    def __init__(self) -> None:
        self.made = False
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def make(self) -> None:
        """Make the request. For any thread."""
        self.made = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended by itself
                self._loop.call_soon_threadsafe(self._arrived.set)

    def attach(self) -> None:
        """Let the running event loop await the request."""
        self._loop = asyncio.get_running_loop()
        if self.made:
            self._arrived.set()

    async def wait(self) -> None:
        await self._arrived.wait()

    async def comes_within(self, seconds: float) -> bool:
        """Wait for the request at most that long; return whether it was made."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), seconds)
        return self._arrived.is_set()

    async def run_until_made(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run a coroutine, which the request cancels; return whether it finished first."""
        async with background(work, self.wait()) as (working, waiting):
            await first_of((working, waiting))
            if working.done():
                working.result()
            return working.done()


_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Receives SIGTERM and SIGINT for a thread, so that a handler that blocks the event loop does not delay them.

    It writes the number of each signal to a socket. Call `install` and `restore` in the main thread. With `reloads`, it
    receives SIGHUP too, which asks the parent of worker processes to reload. If the parent's terminal has hung up,
    SIGHUP asks it to end, as it does any program.
    """

    def __init__(self, *, reloads: bool = False) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)
        self._received = (*_STOPS, signal.SIGHUP) if reloads else _STOPS
        self._terminals = [number for number in (0, 1, 2) if os.isatty(number)]
        """The standard descriptors that are terminals."""
        self._before: list[Any] = []
        """The signal handlers that `install` replaced."""

    def install(self) -> None:
        """Receive the signals from now on."""
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)
        self._before = [signal.signal(number, self._forward) for number in self._received]

    def restore(self) -> None:
        """Receive no more signals. `next` raises EOFError from now on."""
        for number, before in zip(self._received, self._before, strict=True):
            signal.signal(number, before)
        signal.set_wakeup_fd(-1)
        self._write_end.close()

    def close(self) -> None:
        self._read_end.close()

    def descriptors(self) -> Iterable[int]:
        return self._read_end.fileno(), self._write_end.fileno()

    def next(self, seconds: float | None = None, parent: socket.socket | None = None) -> int | None:
        """Wait for a signal and return its number; None = none has come within `seconds`.

        SIGTERM stands for the end of the parent too, which closes the other end of `parent`.

        Raises:
            EOFError: `restore` was called.
        """
        until = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        for one in filter(None, (self._read_end, parent)):
            poll.register(one, select.POLLIN)
        while True:
            left = None if until is None else max(0.0, until - time.monotonic()) * 1000
            ready = [descriptor for descriptor, _ in poll.poll(left)]
            if not ready:
                return None
            if self._read_end.fileno() not in ready:
                return signal.SIGTERM
            received = self._read_end.recv(1)
            if not received:
                raise EOFError
            if received[0] in self._received:  # an app may handle others itself: Python writes their numbers too
                return received[0]

    def is_stop(self, number: int) -> bool:
        """Return whether a signal asks to end: SIGHUP does if the terminal has hung up."""
        return number in _STOPS or any(not os.isatty(descriptor) for descriptor in self._terminals)

    def _forward(self, number: int, frame: object) -> None:
        # Python writes the number to the wake-up descriptor, unless a job's own event loop has replaced the descriptor.
        ours = self._write_end.fileno()
        descriptor = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
        if descriptor != ours:
            signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
            self._write_end.send(bytes([number]))
