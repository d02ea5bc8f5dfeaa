"""The parent of worker processes: how many run (`scaling.py`), with which code (`reload.py`), and how they end.

It imports no app and does not poll: its children report to it (`reports.py`). It connects to Redis only when a child
has died (`recovery.py`), and while none runs (`ready_watch.py`).
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from evsched.config import Config
from evsched.events import ChildCannotStart, Emit, ParentWaits, ParentWoken
from evsched.process.children import Children
from evsched.process.metrics_ports import MetricsPorts
from evsched.process.ready_watch import ReadyWatch
from evsched.process.recovery import Recovery
from evsched.process.reload import Reload
from evsched.process.reports import Report
from evsched.process.scaling import Scaling, Span
from evsched.process.worker_process import Launch, WorkerProcess
from evsched.runtime.loops import ended_loop
from evsched.runtime.shutdown import FORCED, Shutdown, bound
from evsched.store.queue import Announced


class Supervisor:
    """Keeps `span` worker processes.

    Raises:
        CannotStart: a metrics port is taken.
    """

    def __init__(
        self,
        config: Config,
        span: Span,
        launch: Launch,
        emit: Emit,
        shutdown: Shutdown,
        targets: Path | None = None,
    ) -> None:
        self._config = config
        self._scaling = Scaling(span)
        self._emit = emit
        self._shutdown = shutdown
        self._ports = MetricsPorts(config, span.most, targets)

        def make(number: int, predecessor: asyncio.Future[int] | None) -> WorkerProcess:
            return WorkerProcess(number, launch, self._ports.of(number), predecessor)

        recovery = Recovery(config, emit)
        self._children = Children(make, span.most, bound(config.shutdown_grace), recovery, self, emit)
        self._reload = Reload(self._children, emit)
        self._stop = asyncio.Event()
        self._code = 0

    async def run(self) -> int:
        """Keep the children running until asked to end, or until the first one cannot start; return the exit code.

        The exit code is that of the first child if it cannot start. It is FORCED if, after the signal, a child crashed
        or exceeded its time limit.

        Raises:
            CannotStart: the targets' file cannot be written.
        """
        loop, request = asyncio.get_running_loop(), self._shutdown.request
        request.attach()
        self._shutdown.kill_children = self._children.kill
        self._shutdown.reload = lambda: loop.call_soon_threadsafe(self._reload.ask)
        requested = asyncio.ensure_future(request.wait())
        requested.add_done_callback(lambda _: self._stop.set())
        stopping = asyncio.ensure_future(self._stop.wait())
        loops = {"reload": asyncio.ensure_future(self._reload.run())}
        if self._scaling.span.least == 0:
            loops["parent"] = asyncio.ensure_future(self._start_when_jobs_wait())
        try:
            # The first one runs in any case: it declares recurrences, and reports the app's queues and its Redis.
            for child in self._children.current[: max(1, self._scaling.span.least)]:
                self._children.begin(child)
            await asyncio.wait([stopping, *loops.values()], return_when=asyncio.FIRST_COMPLETED)
            await self._end(loops)
        finally:
            for task in (requested, stopping, *loops.values()):
                task.cancel()
            self._ports.close()
        return self._code

    async def _end(self, loops: dict[str, asyncio.Task[None]]) -> None:
        """End the children.

        Raises:
            LoopEnded: this is not because the process was asked to end.
        """
        ended = [ended_loop(name, loop) for name, loop in loops.items() if loop.done()]
        for loop in loops.values():
            loop.cancel()
        codes = await self._children.end_all()
        await asyncio.gather(*loops.values(), return_exceptions=True)
        # -SIGTERM: the signal came before the child handled signals.
        if any(code not in (0, -signal.SIGTERM) for code in codes):
            self._code = self._code or FORCED  # keep the code of a first child that could not start
        if ended:
            raise ended[0]

    async def _start_when_jobs_wait(self) -> None:
        """Start a child when none is wanted, and a queue needs one."""
        while True:
            await self._children.none_wanted.wait()
            if (last := self._children.last_ready) is not None:
                self._emit(ParentWaits(queues=last.queues))
                async with ReadyWatch(self._config, last, self._emit, self._announced) as watch:
                    # A reload starts one too, and the new code may serve other queues.
                    if (found := await watch.wait(self._children.some_wanted)) is not None:
                        queue, need = found
                        self._emit(ParentWoken(queue=queue, need=need))
                        if need == "sought":
                            self._scaling.keep(time.monotonic())
                        child = self._children.current[0]
                        self._children.begin(child)
                        await watch.keep_claim(queue, child.settled.wait())
                        await watch.stay(child.until_it_fetches())

    def _announced(self, queue: str) -> Announced:
        """Return what the last child that was ready has announced: a reload may bring other code while none runs."""
        last = self._children.last_ready
        return Announced() if last is None else last.announced.get(queue, Announced())

    # Called by the children.

    def reported(self, child: WorkerProcess, report: Report) -> None:
        """Start another child if this one is behind, or end it if it is idle."""
        if self._stop.is_set():
            return
        match self._scaling.decide(report, len(self._children.wanted), time.monotonic()):
            case "add":
                self._children.begin(next(one for one in self._children.current if not one.wanted))
            case "end":
                self._children.end(child)
            case None:
                pass

    def cannot_start(self, child: WorkerProcess, code: int) -> None:
        """End, since no other child would start either."""
        self._emit(ChildCannotStart(number=child.number, code=code))
        self._code = code
        self._stop.set()

    def changed(self) -> None:
        """Write the list of metrics ports.

        Raises:
            CannotStart: it cannot be written.
        """
        self._ports.write_targets(child.number for child in self._children.wanted)
