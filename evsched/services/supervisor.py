"""The parent of worker processes: how many run, with which code, and how they end.

It imports neither the app nor the worker, so it stays small, and it does not poll: its children report to it. It
connects to Redis only when a child has died (`Recovery`), and while none runs (`scale_to_zero.py`).
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from evsched.config import Config
from evsched.errors import ConfigError
from evsched.events import Emit, Events
from evsched.process_events import ChildCannotStart, ParentWaits, ParentWoken, Reloaded, ReloadFailed, Reloading
from evsched.runtime.loops import background, ended_loop, first_of
from evsched.runtime.shutdown import FORCED, Shutdown, bound
from evsched.services.children import Children
from evsched.services.scale_to_zero import ReadyWatch
from evsched.services.worker_process import (
    Behind,
    ChildReport,
    Idle,
    Launch,
    WorkerProcess,
    working_directory,
)
from evsched.store.queue import Announced
from evsched.telemetry import log
from evsched.transport.call import read_scripts


class ProcessRange(Struct, frozen=True):
    """How many processes there are, at least and at most."""

    least: int
    most: int


_BOUNDS: Final = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")


def read_process_range(text: str) -> ProcessRange:
    """Read `4` or `2:8`.

    Raises:
        ConfigError: it is neither.
    """
    found = _BOUNDS.fullmatch(text)
    bounds = ProcessRange(int(found[1]), int(found[2] or found[1])) if found else ProcessRange(0, 0)
    if not 0 <= bounds.least <= bounds.most <= 256 or not bounds.most:
        raise ConfigError(f"processes {text!r}: a number such as 4, 1 to 256, or MIN:MAX such as 2:8 or 0:8")
    return bounds


_APART: Final = 2.0
"""Seconds between the starts of two more processes: the first one needs this time before it fetches jobs."""

_SOUGHT: Final = 20.0
"""Seconds for which a process stays that was started for a task of other apps' jobs: about five offers of a job."""


class ProcessCount:
    """Decides when to start another process because one is behind, and when to end an idle one. Pure.

    If the lower bound is 0, the last process ends too when it is idle; `ReadyWatch` then decides when one starts again.
    """

    def __init__(self, bounds: ProcessRange) -> None:
        self.bounds = bounds
        self._last_added = float("-inf")
        """When another process was started, by the monotonic clock."""
        self._keep_until = float("-inf")

    def keep(self, now: float) -> None:
        """End no process for a while, because workers of another app look for a task that only this app has.

        A job of that task is offered again after some seconds, and those workers may fetch it first.
        """
        self._keep_until = now + _SOUGHT

    def decide(self, report: ChildReport, running: int, now: float) -> Literal["add", "end"] | None:
        """Return what to do about a report of one of `running` processes; "end" is about the one that reports."""
        if isinstance(report, Behind) and running < self.bounds.most and now - self._last_added > _APART:
            self._last_added = now
            return "add"
        if isinstance(report, Idle) and running > self.bounds.least and now > self._keep_until:
            return "end"
        return None


class Supervisor:
    """Keeps `bounds` worker processes.

    Raises:
        CannotStart: a metrics port is taken.
    """

    def __init__(
        self,
        config: Config,
        bounds: ProcessRange,
        launch: Launch,
        emit: Emit,
        shutdown: Shutdown,
        targets: Path | None = None,
    ) -> None:
        self._config = config
        self._count = ProcessCount(bounds)
        self._emit = emit
        self._shutdown = shutdown
        self._children = Children(
            config, bounds.most, launch, targets, emit, self._note_report, self._end_since_none_starts
        )
        self._reload_asked = asyncio.Event()
        self._none_starts = asyncio.Event()
        self._code = 0
        """The exit code of a first child that could not start."""

    async def run(self) -> int:
        """Keep the children running until asked to end, or until the first one cannot start; return the exit code.

        The exit code is that of the first child if it cannot start. It is FORCED if, after the signal, a child crashed
        or exceeded its time limit.

        Raises:
            CannotStart: the targets' file cannot be written.
            LoopEnded: a loop has ended, which is a bug.
        """
        loop, request = asyncio.get_running_loop(), self._shutdown.request
        request.attach()
        self._shutdown.kill_children = self._children.kill
        self._shutdown.reload = lambda: loop.call_soon_threadsafe(self._reload_asked.set)
        loops = {"reload": self._reload_when_asked()}
        if self._count.bounds.least == 0:
            loops["parent"] = self._start_when_jobs_wait()
        try:
            async with background(request.wait(), self._none_starts.wait(), *loops.values()) as tasks:
                # The first one runs in any case: it declares recurrences, and reports the app's queues and its Redis.
                for child in self._children.current[: max(1, self._count.bounds.least)]:
                    self._children.begin(child)
                await first_of(tasks)
                ended = [ended_loop(name, task) for name, task in zip(loops, tasks[2:], strict=True) if task.done()]
                for task in tasks:
                    task.cancel()
                codes = await self._children.end_all()
        finally:
            self._children.close()
        if ended:
            raise ended[0]
        # -SIGTERM: the signal came before the child handled signals.
        if any(code not in (0, -signal.SIGTERM) for code in codes):
            return self._code or FORCED
        return self._code

    async def _reload_when_asked(self) -> None:
        """Replace the children one by one with processes that run the code on disk; start over when asked meanwhile.

        Each new process must be ready before the old one is asked to end. So there is no gap, and at most one process
        more than before. If a new one does not become ready, its code is broken: the reload stops, and the processes
        that have not been replaced continue.
        """
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            # Without a child, one is started all the same: the new code is tried, and its recurrences are declared.
            began, old = time.monotonic(), self._children.wanted or self._children.current[:1]
            self._emit(Reloading(processes=len(old)))
            for replaced, child in enumerate(old):
                failure = await self._children.replace(child, self._reload_asked)
                if self._reload_asked.is_set():
                    break
                if failure is not None:
                    self._emit(ReloadFailed(number=child.number, reason=failure, replaced=replaced, processes=len(old)))
                    break
            else:
                self._emit(Reloaded(processes=len(old), seconds=time.monotonic() - began))

    async def _start_when_jobs_wait(self) -> None:
        """Start a child when none is wanted, and a queue needs one."""
        while True:
            await self._children.none_wanted.wait()
            if (last := self._children.last_ready) is not None:
                self._emit(ParentWaits(queues=last.queues))
                async with ReadyWatch(self._config, self._children.times, last, self._emit, self._announced) as watch:
                    # A reload starts one too, and the new code may serve other queues.
                    if (found := await watch.wait(self._children.some_wanted)) is not None:
                        queue, need = found
                        self._emit(ParentWoken(queue=queue, need=need))
                        if need == "sought":
                            self._count.keep(time.monotonic())
                        child = self._children.current[0]
                        self._children.begin(child)
                        await watch.hand_over(queue, child.settled.wait, child.until_it_fetches)

    def _announced(self, queue: str) -> Announced:
        """Return what the last child that was ready has announced: a reload may bring other code while none runs."""
        last = self._children.last_ready
        return Announced() if last is None else last.announced.get(queue, Announced())

    def _note_report(self, child: WorkerProcess, report: ChildReport) -> None:
        """Start another child if this one is behind, or end it if it is idle."""
        if self._shutdown.request.made or self._none_starts.is_set():
            return
        decision = self._count.decide(report, len(self._children.wanted), time.monotonic())
        if decision == "add":
            self._children.begin(next(one for one in self._children.current if not one.wanted))
        elif decision == "end":
            self._children.end(child)

    def _end_since_none_starts(self, child: WorkerProcess, code: int) -> None:
        """End, since no other child would start either."""
        self._emit(ChildCannotStart(number=child.number, code=code))
        self._code = code
        self._none_starts.set()


def run_workers(
    config: Config, bounds: ProcessRange, command: Sequence[str], environment: Mapping[str, str], targets: Path | None
) -> int:
    """Run worker processes until SIGTERM or SIGINT, and reload their code at SIGHUP; return the exit code.

    `command`: their command line. `environment`: the variables that are added to this process's own for them.
    """
    read_scripts()  # before a deployment replaces the files
    launch = Launch(command, environment, working_directory())
    emit = Events(log.Log(jobs=config.log_jobs).on_event).emit
    with Shutdown(bound(config.shutdown_grace), emit, reloads=True) as shutdown:
        return asyncio.run(Supervisor(config, bounds, launch, emit, shutdown, targets).run())
