"""The parent of worker processes: starts them, restarts those that end, starts more and ends idle ones (`scaling.py`).

It has no connection to Redis and does not poll: its children report to it (`child_link.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from evsched.config import Config, as_environment
from evsched.events import ChildCannotStart, ChildKilled, Emit
from evsched.process import child_link
from evsched.process.metrics_ports import MetricsPorts
from evsched.process.scaling import Scaling, Span
from evsched.process.worker_process import WorkerProcess
from evsched.runtime.shutdown import FORCED, Shutdown, bound
from evsched.transport.backoff import reconnect_delay

_CANNOT_START: Final = (1, 2)
"""Exit codes of a command that has printed why it cannot start (`cli`). With any other code the next start may work."""

_MARGIN: Final = 1.0
"""Seconds for a child to end after its own time limit. If it has not ended then, it is suspended or the host hangs."""

_STABLE: Final = 60.0
"""Seconds after which an end is no longer counted as a failure to start."""


class Supervisor:
    """Keeps `span` worker processes of a command line.

    Raises:
        CannotStart: a metrics port is taken.
    """

    def __init__(
        self,
        config: Config,
        span: Span,
        command: Sequence[str],
        emit: Emit,
        shutdown: Shutdown,
        targets: Path | None = None,
    ) -> None:
        self._scaling = Scaling(span)
        self._emit = emit
        self._shutdown = shutdown
        self._shutdown_bound = bound(config.shutdown_grace)
        self._ports = MetricsPorts(config, span.most, targets)
        environment = as_environment(config)
        self._children = [WorkerProcess(n, command, environment, self._ports.of(n)) for n in range(span.most)]
        self._keepers: dict[WorkerProcess, asyncio.Task[None]] = {}
        """The task that starts and restarts each child."""
        self._stop = asyncio.Event()
        self._ready = False
        """A child has become ready, so the command line is right."""
        self._code = 0

    async def run(self) -> int:
        """Keep the children running until asked to end, or until the first one cannot start; return the exit code.

        The exit code is that of the first child if it cannot start. It is FORCED if, after the signal, a child crashed
        or exceeded its time limit.

        Raises:
            CannotStart: the targets' file cannot be written.
        """
        request = self._shutdown.request
        request.attach()
        self._shutdown.kill_children = self._kill
        requested = asyncio.ensure_future(request.wait())
        requested.add_done_callback(lambda _: self._stop.set())
        try:
            for child in self._children[: self._scaling.span.least]:
                self._begin(child)
            await self._stop.wait()
            for child in self._children:
                self._end(child)
            await self._wait_for_children()
        finally:
            requested.cancel()
            self._ports.close()
        return self._code

    async def _wait_for_children(self) -> None:
        """Wait for the children's end. Kill those that hang; the janitor then puts back the jobs that they held."""
        keepers = list(self._keepers.values())
        if keepers:
            await asyncio.wait(keepers, timeout=self._shutdown_bound + _MARGIN)
        for child in self._kill():
            self._emit(ChildKilled(number=child.number, pid=child.pid))
        await asyncio.gather(*keepers)

    def _kill(self) -> list[WorkerProcess]:
        """Kill the children that are alive, and return them. For any thread."""
        alive = [child for child in self._children if child.alive]
        for child in alive:
            child.kill()
        return alive

    def _begin(self, child: WorkerProcess) -> None:
        child.wanted = True
        self._write_targets()
        keeper = self._keepers.get(child)
        if keeper is None or keeper.done():
            self._keepers[child] = asyncio.ensure_future(self._keep(child))

    def _end(self, child: WorkerProcess) -> None:
        child.wanted = False
        self._write_targets()
        child.terminate()

    def _write_targets(self) -> None:
        self._ports.write_targets(child.number for child in self._children if child.wanted)

    async def _keep(self, child: WorkerProcess) -> None:
        """Run a child as long as it is wanted; start it again when it ends by itself."""
        failures = 0
        while child.wanted and not self._stop.is_set():
            began = time.monotonic()
            code = await child.run(self._emit, partial(self._on_report, child))
            if not child.wanted:
                # -SIGTERM: the signal came before the child handled signals.
                if self._stop.is_set() and code not in (0, -signal.SIGTERM):
                    self._code = self._code or FORCED  # keep the code of a first child that could not start
                return
            if not self._ready and code in _CANNOT_START:
                # No child has become ready so far: the others would not start either.
                self._emit(ChildCannotStart(number=child.number, code=code))
                self._code = code
                self._stop.set()
                return
            failures = 0 if time.monotonic() - began > _STABLE else failures + 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), reconnect_delay(failures) if failures else 0.0)

    def _on_report(self, child: WorkerProcess, report: bytes) -> None:
        if report == child_link.READY:
            self._ready = True
        elif not self._stop.is_set():
            running = sum(one.wanted for one in self._children)
            match self._scaling.decide(report, running, time.monotonic()):
                case "add":
                    self._begin(next(one for one in self._children if not one.wanted))
                case "end":
                    self._end(child)
                case None:
                    pass
