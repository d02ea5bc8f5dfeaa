"""The worker processes of a parent: each runs while it is wanted, and is restarted when it ends by itself.

When one dies, its parent puts the jobs that it held back at once (`Recovery`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from evsched import events, shard_map
from evsched.config import Config
from evsched.errors import CannotStart
from evsched.events import Emit
from evsched.lease import Times
from evsched.process_events import ChildKilled
from evsched.runtime.loops import Runtime, background
from evsched.runtime.reconnect import Reconnect
from evsched.runtime.shutdown import bound
from evsched.services.worker_process import NOT_STARTED, ChildReport, Fetching, Launch, WorkerProcess, WorkerReady
from evsched.store.run_ends import NO_LEASE
from evsched.store.store import Store
from evsched.telemetry.http_server import reserve
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


class Children:
    """Up to `count` worker processes, of which none runs at first.

    `targets`: the file that lists their metrics ports. `on_report`: gets what a child reports once it is ready.
    `on_cannot_start`: gets the exit code of a child that ends before any child was ready; the others would not start
    either.

    Raises:
        CannotStart: a metrics port is taken.
    """

    def __init__(
        self,
        config: Config,
        count: int,
        launch: Launch,
        targets: Path | None,
        emit: Emit,
        on_report: Callable[[WorkerProcess, ChildReport], None],
        on_cannot_start: Callable[[WorkerProcess, int], None],
    ) -> None:
        self._launch = launch
        self._ports = MetricsPorts(config, count, targets)
        self.current = [WorkerProcess(number, launch, self._ports.of(number)) for number in range(count)]
        """By their numbers. Processes that are being replaced, or that replace one, are not all among them."""
        self.last_ready: WorkerReady | None = None
        """The last report of a child that was ready; None = none ever was, so the command line may be wrong."""
        self.none_wanted = asyncio.Event()
        """A child was ready, and now none is wanted."""
        self.some_wanted = asyncio.Event()
        """At least one is wanted."""
        self._bound = bound(config.shutdown_grace) + _MARGIN
        self.times = Times(config)
        """The times that follow from the lease, which the parent reads whenever it connects to Redis."""
        self._recovery = Recovery(config, self.times, emit)
        self._emit = emit
        self._on_report = on_report
        self._on_cannot_start = on_cannot_start
        self._keepers: dict[WorkerProcess, asyncio.Task[int]] = {}
        """The task that starts and restarts each child; its result is the last exit code."""

    @property
    def wanted(self) -> list[WorkerProcess]:
        return [child for child in self.current if child.wanted]

    def begin(self, child: WorkerProcess, *, proven: bool = True) -> None:
        """Have a child run. One that is not `proven` is not started again if it ends before it was ready once."""
        self._want(child, True)
        child.settled.clear()
        keeper = self._keepers.get(child)
        if keeper is None or keeper.done():
            self._keepers[child] = asyncio.ensure_future(self._keep(child, proven))

    def end(self, child: WorkerProcess) -> None:
        """Ask a child to end, and do not start it again."""
        self._want(child, False)
        child.terminate()

    async def end_all(self) -> list[int]:
        """End all, and kill children that hang; return the exit codes."""
        running = [child for child, keeper in self._keepers.items() if not keeper.done()]
        await self._end_within_bound(running)
        return [self._keepers[child].result() for child in running]

    async def _end_within_bound(self, children: Sequence[WorkerProcess]) -> None:
        """End children for good, and kill any that hang."""
        for child in children:
            self.end(child)
        if keepers := [self._keepers[child] for child in children if child in self._keepers]:
            await asyncio.wait(keepers, timeout=self._bound)
            for child in self.kill(children):
                self._emit(ChildKilled(number=child.number, pid=child.pid))
            await asyncio.wait(keepers)

    def kill(self, children: Iterable[WorkerProcess] | None = None) -> list[WorkerProcess]:
        """Kill the children that are alive, of these or of all, and return them. For any thread."""
        alive = [child for child in list(self._keepers if children is None else children) if child.alive]
        for child in alive:
            child.kill()
        return alive

    def close(self) -> None:
        """Give up the metrics ports."""
        self._ports.close()

    async def replace(self, old: WorkerProcess, abandon: asyncio.Event) -> str | None:
        """Start a process in the place of `old`, and end `old` when the new one is ready; return when it has ended.

        If the new one does not become ready, or `abandon` is set before it is, `old` stays; return why. None = it is
        replaced.
        """
        new = WorkerProcess(old.number, self._launch, self._ports.of(old.number), self._keepers.get(old))
        self.begin(new, proven=False)
        keeper = self._keepers[new]
        async with background(new.became_ready.wait(), abandon.wait()) as waiting:
            await asyncio.wait([*waiting, keeper], timeout=_READY_WITHIN, return_when=asyncio.FIRST_COMPLETED)
        if new.ready is None:
            reason = f"was not ready after {_READY_WITHIN:g} s"
            if keeper.done():
                code = keeper.result()
                reason = "could not be started" if code == NOT_STARTED else f"ended with {code}"
            await self._end_within_bound([new])
            del self._keepers[new]
            return reason
        new.put_back = old.put_back
        self.current[old.number] = new
        await self._end_within_bound([old])
        self._keepers.pop(old, None)
        return None

    def _want(self, child: WorkerProcess, wanted: bool) -> None:
        """Note whether a child should run.

        Raises:
            CannotStart: the list of metrics ports cannot be written.
        """
        (child.unwanted.clear if wanted else child.unwanted.set)()
        some = bool(self.wanted)
        (self.some_wanted.set if some else self.some_wanted.clear)()
        (self.none_wanted.set if self.last_ready is not None and not some else self.none_wanted.clear)()
        self._ports.write_targets(child.number for child in self.wanted)

    async def _keep(self, child: WorkerProcess, proven: bool) -> int:
        """Run a child as long as it is wanted; start it again when it ends by itself. Return the exit code."""
        failures = 0
        while True:
            began = time.monotonic()
            code = await child.run(self._emit, partial(self._note_report, child), self.last_ready)
            resumed = child.terminated and child.wanted  # asked to end, and wanted again before it had ended
            if not resumed:
                child.settled.set()
            if child.ready is not None and code != 0:  # it has died: otherwise it has put back its jobs itself
                recovering = self._recovery.begin(child.ready, code, child.put_back)
                await asyncio.wait([recovering], timeout=_COUNTED)
            proven = proven or child.ready is not None
            if not child.wanted or not proven:
                return code
            if self.last_ready is None and code in _CANNOT_START:
                self._on_cannot_start(child, code)
                return code
            failures = 0 if resumed or time.monotonic() - began > _STABLE else failures + 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.unwanted.wait(), restart_delay(failures))
            if not child.wanted:
                return 0

    def _note_report(self, child: WorkerProcess, report: ChildReport) -> None:
        if isinstance(report, WorkerReady):
            child.ready = self.last_ready = report
            child.became_ready.set()
        elif isinstance(report, Fetching):
            child.fetching.set()
            child.settled.set()
        elif child.wanted and not child.terminated and self.current[child.number] is child:
            self._on_report(child, report)


def restart_delay(failures: int) -> float:
    """Return the seconds until a child is started again that ended too soon `failures` times in a row.

    They grow further than the delay before Redis is tried again: each start costs as much CPU as the app's import. Half
    is random, so that the children of a fleet do not all start at once.
    """
    if not failures:
        return 0.0
    longest = min(_RESTART_FIRST * 2 ** min(failures - 1, 10), _RESTART_MOST)
    return random.uniform(longest / 2, longest)  # noqa: S311 - no secret


class Recovery:
    """Puts back the jobs of worker processes that have died.

    Only the parent knows at once that the process is gone. All others wait until its lease ends, and then a janitor
    does the same. `requeue` removes each job from the worker's list, so only one of the two puts it back. The parent
    leaves the lease alone: Redis may not know yet that the process is gone, and another job may be handed over to it,
    which the janitor finds when the lease ends.
    """

    def __init__(self, config: Config, times: Times, emit: Emit) -> None:
        self._config = config
        self._times = times
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
            await shard_map.learn_lease(Runtime(self._config, sender, self._emit, made_times=self._times))
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
        """Put back the jobs in the worker's list of one queue, also if another queue fails."""
        reconnect, queue, batch = Reconnect("recovery", self._emit, store.queue), store.queue, self._config.batch
        while True:
            async with reconnect:
                survey, held = await sender.send_all([store.survey(), store.held(worker)])
                lease, rest = next((one.end for one in survey.leases if one.worker == worker), NO_LEASE), ""
                while held and rest != "moved":  # moved: a janitor was quicker
                    # The last ones first, each slice to the front of ready: so their order stays.
                    held, last = held[:-batch], held[-batch:]
                    runs = [(job_id, "") for job_id in last]
                    done = await sender.send(store.requeue(worker, reason, runs=runs, lease=lease))
                    rest = done.rest
                    count[queue] += len(done.ids)
                    if done.ids:
                        back = events.JobsRequeued(
                            queue=queue, worker=worker, ids=done.ids, cause="died", reason=reason
                        )
                        self._emit(back)
                    for job_id in done.cancelled:
                        self._emit(events.JobAborted(queue=queue, id=job_id))
                return


def _end_of(code: int) -> str:
    """Say how a process ended, by its exit code; a negative one is the signal that ended it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


_EVERY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104
"""Addresses to listen on, but not to connect to: the file has the host's name instead."""


class MetricsPorts:
    """The metrics ports of worker processes, and the file that lists them for Prometheus (`file_sd_configs`).

    There are `count` consecutive ports, beginning with the configured one, or none if none is configured. The parent
    reserves them, so a worker process that is started again keeps its port. It does not listen: while the process does
    not run, a scraper is refused at once.

    Raises:
        CannotStart: a port is taken.
    """

    def __init__(self, config: Config, count: int, targets: Path | None) -> None:
        self._host = config.metrics_host
        self._targets = targets
        first = config.metrics_port
        with contextlib.ExitStack() as reserved:
            self._sockets = [
                reserved.enter_context(reserve(self._host, first + number if first else 0))
                for number in range(0 if first is None else count)
            ]
            self._reserved = reserved.pop_all()

    def of(self, number: int) -> socket.socket | None:
        """Return the socket of one process; None = there are no ports."""
        return self._sockets[number] if self._sockets else None

    def write_targets(self, numbers: Iterable[int]) -> None:
        """Write the ports of the processes that should run: Prometheus shows one that died as down, and no others.

        Raises:
            CannotStart: the file cannot be written.
        """
        path = self._targets
        if path is None:
            return
        host = socket.gethostname() if self._host in _EVERY_ADDRESS else self._host
        ports = [self._sockets[number].getsockname()[1] for number in numbers if self._sockets]
        text = msgspec.json.encode([{"targets": [f"{host}:{port}" for port in ports], "labels": {}}])
        try:
            part = path.with_name(f"{path.name}.{os.getpid()}")
            part.write_bytes(text + b"\n")
            part.replace(path)  # so Prometheus never reads half a file
        except OSError as error:
            raise CannotStart(f"metrics targets {path}: {error.strerror}") from None

    def close(self) -> None:
        """Close the ports and delete the file."""
        if self._targets is not None:
            self._targets.unlink(missing_ok=True)
        self._reserved.close()
