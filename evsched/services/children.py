"""The worker processes of a parent: each runs while it is wanted, and is restarted when it ends by itself.

When one dies, its parent puts the jobs that it held back at once (`Recovery`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from evsched import events
from evsched.config import Config
from evsched.events import Emit
from evsched.lease import Times
from evsched.process_events import ChildKilled
from evsched.runtime.loops import background
from evsched.runtime.reconnect import Reconnect
from evsched.services.worker_process import NOT_STARTED, ChildReport, Fetching, WorkerProcess, WorkerReady
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_CANNOT_START: Final = (1, 2)
"""Exit codes of a command that has printed why it cannot start (`cli`). With any other code the next start may work."""

_MARGIN: Final = 1.0
"""Seconds for a child to end after its own time limit. If it has not ended then, it is suspended or the host hangs."""

_RESTART_FIRST: Final = 0.25
"""Seconds until a child that ended by itself is started again. They double with each further end."""

_RESTART_MOST: Final = 30.0
"""The longest of these waits."""

_STABLE: Final = _RESTART_MOST
"""Seconds for which a child must have run so that its end counts as the first one."""

_COUNTED: Final = 0.5
"""Seconds for which a restart waits until the jobs of the process that died are put back, so that the new process
counts them. While Redis is down that takes longer; then the process after it counts them."""

_READY_WITHIN: Final = 300.0
"""Seconds that a replacement has until it is ready: an app may load a large model."""

Make = Callable[[int, asyncio.Future[int] | None], WorkerProcess]
"""Makes a worker process with a number; the future is done when its predecessor has ended for good."""


class ChildrenListener(Protocol):
    """Handles what the children report and how they end."""

    def reported(self, child: WorkerProcess, report: ChildReport) -> None:
        """Handle a report of a child that is ready."""
        ...

    def cannot_start(self, child: WorkerProcess, code: int) -> None:
        """Handle the exit of a child before any child was ready: the others would not start either."""
        ...

    def changed(self) -> None:
        """Handle a change of which children are wanted."""
        ...


class Children:
    """Up to `count` worker processes, of which none runs at first.

    `bound`: seconds within which a process ends after it is asked to.
    """

    def __init__(
        self, make: Make, count: int, bound: float, recovery: Recovery, listener: ChildrenListener, emit: Emit
    ) -> None:
        self.current = [make(number, None) for number in range(count)]
        """By their numbers. Processes that are being replaced, or that replace one, are not all among them."""
        self.last_ready: WorkerReady | None = None
        """The last report of a child that was ready; None = none ever was, so the command line may be wrong."""
        self.none_wanted = asyncio.Event()
        """A child was ready, and now none is wanted."""
        self.some_wanted = asyncio.Event()
        """At least one is wanted."""
        self._make = make
        self._bound = bound + _MARGIN
        self._recovery = recovery
        self._listener = listener
        self._emit = emit
        self._keepers: dict[WorkerProcess, asyncio.Task[int]] = {}
        """The task that starts and restarts each child; its result is the last exit code."""

    @property
    def wanted(self) -> list[WorkerProcess]:
        return [child for child in self.current if child.wanted]

    def begin(self, child: WorkerProcess) -> None:
        """Have a child run."""
        self._want(child, True)
        child.settled.clear()
        keeper = self._keepers.get(child)
        if keeper is None or keeper.done():
            self._keepers[child] = asyncio.ensure_future(self._keep(child, proven=True))

    def end(self, child: WorkerProcess) -> None:
        """Ask a child to end, and do not start it again."""
        self._want(child, False)
        child.terminate()

    async def end_all(self) -> list[int]:
        """End all, and kill children that hang; return the exit codes."""
        running = {child: keeper for child, keeper in self._keepers.items() if not keeper.done()}
        for child in running:
            self.end(child)
        if running:
            await asyncio.wait(running.values(), timeout=self._bound)
        for child in self.kill():
            self._emit(ChildKilled(number=child.number, pid=child.pid))
        return await asyncio.gather(*running.values())

    def kill(self) -> list[WorkerProcess]:
        """Kill the children that are alive, and return them. For any thread."""
        alive = [child for child in list(self._keepers) if child.alive]
        for child in alive:
            child.kill()
        return alive

    async def replace(self, old: WorkerProcess, abandon: asyncio.Event) -> str | None:
        """Start a process in the place of `old`, and end `old` when the new one is ready; return when it has ended.

        If the new one does not become ready, or `abandon` is set before it is, `old` stays; return why. None = it is
        replaced.
        """
        new = self._make(old.number, self._keepers.get(old))
        new.unwanted.clear()
        keeper = self._keepers[new] = asyncio.ensure_future(self._keep(new, proven=False))
        await _first(new.became_ready, abandon, keeper)
        if new.ready is None:
            reason = _describe(keeper.result()) if keeper.done() else f"was not ready after {_READY_WITHIN:g} s"
            await self._dismiss(new)
            return reason
        new.put_back = old.put_back
        self.current[old.number] = new
        await self._dismiss(old)
        return None

    async def _dismiss(self, child: WorkerProcess) -> None:
        """End a child for good, and kill it if it hangs."""
        self.end(child)
        if (keeper := self._keepers.get(child)) is None:
            return
        await asyncio.wait([keeper], timeout=self._bound)
        if child.alive:
            child.kill()
            self._emit(ChildKilled(number=child.number, pid=child.pid))
        await asyncio.wait([keeper])
        del self._keepers[child]

    def _want(self, child: WorkerProcess, wanted: bool) -> None:
        (child.unwanted.clear if wanted else child.unwanted.set)()
        some = bool(self.wanted)
        (self.some_wanted.set if some else self.some_wanted.clear)()
        (self.none_wanted.set if self.last_ready is not None and not some else self.none_wanted.clear)()
        self._listener.changed()

    async def _keep(self, child: WorkerProcess, *, proven: bool) -> int:
        """Run a child as long as it is wanted; start it again when it ends by itself. Return the exit code.

        A child that is not `proven` is not started again if it ends before it was ready once.
        """
        failures = 0
        while True:
            began = time.monotonic()
            code = await child.run(self._emit, partial(self._on_report, child), self.last_ready)
            resumed = child.terminated and child.wanted  # asked to end, and wanted again before it had ended
            if not resumed:
                child.settled.set()
            await self._recover(child, code)
            proven = proven or child.ready is not None
            if not child.wanted or not proven:
                return code
            if self.last_ready is None and code in _CANNOT_START:
                self._listener.cannot_start(child, code)
                return code
            failures = 0 if resumed or time.monotonic() - began > _STABLE else failures + 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.unwanted.wait(), restart_delay(failures))
            if not child.wanted:
                return 0

    async def _recover(self, child: WorkerProcess, code: int) -> None:
        """Put back the jobs of a process that has died. A process that ends in order does so itself."""
        if child.ready is not None and code != 0:
            recovering = self._recovery.begin(child.ready, code, child.put_back)
            await asyncio.wait([recovering], timeout=_COUNTED)

    def _on_report(self, child: WorkerProcess, report: ChildReport) -> None:
        if isinstance(report, WorkerReady):
            child.ready = self.last_ready = report
            child.became_ready.set()
        elif isinstance(report, Fetching):
            child.fetching.set()
            child.settled.set()
        elif child.wanted and not child.terminated and self.current[child.number] is child:
            self._listener.reported(child, report)


def restart_delay(failures: int) -> float:
    """Return the seconds until a child is started again that ended too soon `failures` times in a row.

    They grow further than the delay before Redis is tried again: each start costs as much CPU as the app's import. Half
    is random, so that the children of a fleet do not all start at once.
    """
    if not failures:
        return 0.0
    longest = min(_RESTART_FIRST * 2 ** min(failures - 1, 10), _RESTART_MOST)
    return random.uniform(longest / 2, longest)  # noqa: S311 - no secret


async def _first(ready: asyncio.Event, abandon: asyncio.Event, keeper: asyncio.Task[int]) -> None:
    """Wait for the first of these, at most as long as a replacement has."""
    async with background(ready.wait(), abandon.wait()) as waiting:
        await asyncio.wait([*waiting, keeper], timeout=_READY_WITHIN, return_when=asyncio.FIRST_COMPLETED)


def _describe(code: int) -> str:
    return "could not be started" if code == NOT_STARTED else f"ended with {code}"


_NO_LEASE = b"none"
"""The word for `requeue` if a worker has no lease."""


class Recovery:
    """Puts back the jobs of worker processes that have died.

    Only the parent knows at once that the process is gone. All others wait until its lease ends, and then a janitor
    does the same. `requeue` removes each job from the worker's list, so only one of the two puts it back. The parent
    leaves the lease alone: a BLMOVE of the dead process may still wait in Redis and move another job into that list,
    which the janitor finds when the lease ends.
    """

    def __init__(self, config: Config, emit: Emit) -> None:
        self._times, self._batch = Times(config), config.batch
        self._emit = emit
        self._running = set[asyncio.Task[None]]()

    def begin(self, worker: WorkerReady, code: int, count: Counter[str]) -> asyncio.Task[None]:
        """Put back the jobs of a worker whose process has ended with `code`; add to `count` how many, by queue.

        While Redis is down it tries again, for as long as a lease.
        """
        task = asyncio.ensure_future(self._put_back_all(worker, code, count))
        self._running.add(task)  # asyncio itself holds no reference to a task
        task.add_done_callback(self._running.discard)
        return task

    async def _put_back_all(self, worker: WorkerReady, code: int, count: Counter[str]) -> None:
        reason = f"worker {worker.worker} died: its process {_end_of(code)}"
        sender = BatchingSender(worker.url, reply_timeout=self._times.reply_timeout)
        try:
            async with asyncio.timeout(self._times.lease):
                async with asyncio.TaskGroup() as group:
                    for queue in worker.queues:
                        group.create_task(self._put_back(sender, Store(queue), worker.worker, reason, count))
        except TimeoutError:
            pass
        finally:
            await sender.close()

    async def _put_back(
        self, sender: BatchingSender, store: Store, worker: str, reason: str, count: Counter[str]
    ) -> None:
        """Put back the jobs of one queue, also if another queue fails."""
        reconnect, done = Reconnect("recovery", self._emit, store.queue), False
        while not done:
            async with reconnect:
                await self._try(sender, store, worker, reason, count)
                done = True

    async def _try(self, sender: BatchingSender, store: Store, worker: str, reason: str, count: Counter[str]) -> None:
        """Put back the jobs in the worker's list of one queue.

        Raises:
            StoreDown, StoreRefused: some may have been put back.
        """
        survey, held = await sender.send_all([store.survey(), store.held(worker)])
        lease, rest = next((one.end for one in survey.leases if one.worker == worker), _NO_LEASE), ""
        while held and rest != "moved":  # moved: a janitor was quicker
            # The last ones first, each slice to the front of ready: so their order stays.
            held, ids = held[: -self._batch], held[-self._batch :]
            done = await sender.send(store.requeue(worker, reason, ids=ids, lease=lease))
            rest, queue = done.rest, store.queue
            count[queue] += len(done.ids)
            if done.ids:
                self._emit(events.JobsRequeued(queue=queue, worker=worker, ids=done.ids, cause="died", reason=reason))
            for job_id in done.cancelled:
                self._emit(events.JobAborted(queue=queue, id=job_id))


def _end_of(code: int) -> str:
    """Say how a process ended, by its exit code; a negative one is the signal that ended it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
