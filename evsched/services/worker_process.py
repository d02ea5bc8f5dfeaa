"""One worker process: how its parent starts and ends it, what it passes to it, and its reports.

The process gets descriptors and counts in environment variables. It reports over a socket, a line of JSON for each
report. Its code may be newer than its parent's. So fields are only ever added, and the parent ignores a report that it
does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from evsched.config import Config
from evsched.errors import StoreError
from evsched.events import Emit, Event, ReadyDrained, ReadyLeft, Started, WorkerStarted
from evsched.execution.parent_death import tied
from evsched.process_events import ChildEnded, ChildNotStarted, ChildStarted
from evsched.runtime.loops import background, first_of
from evsched.store.queue import Announced

if TYPE_CHECKING:  # the parent of worker processes does not need it
    from evsched.worker.worker import Worker


class WorkerReady(Struct, frozen=True, tag="ready"):
    """The worker has its leases, and begins to fetch jobs."""

    worker: str
    queues: list[str]
    url: str
    """The Redis that it is connected to, which its app may choose."""
    announced: dict[str, Announced] = {}
    """By queue, the declarations of its app that it has written to Redis."""

    def __repr__(self) -> str:
        return f"WorkerReady(worker={self.worker!r}, queues={self.queues!r})"  # the URL may contain a password


class Fetching(Struct, frozen=True, tag="fetching"):
    """Redis has answered its first fetch from each queue, so all jobs that were ready then have a worker."""


class Behind(Struct, frozen=True, tag="behind"):
    """More jobs are ready than it can run."""


class Idle(Struct, frozen=True, tag="idle"):
    """It holds no job, and has had none for a while."""


ChildReport = WorkerReady | Fetching | Behind | Idle

_DECODER: Final = msgspec.json.Decoder(ChildReport)


def report_line(report: ChildReport) -> bytes:
    return msgspec.json.encode(report) + b"\n"


def read_report(line: bytes) -> ChildReport | None:
    """Read a line; None = the report is not known here."""
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, ValueError):
        return None


LINK: Final = "_EVSCHED_LINK_FD"
"""The end of the link to the parent: the process reports on it, and stops when the other end is closed."""

_INHERITANCE: Final = "_EVSCHED_INHERITANCE"


class Inheritance(Struct, frozen=True, omit_defaults=True):
    """The things that a worker process gets from its parent besides the link, as JSON in the environment."""

    metrics: int | None = None
    """The descriptor of the socket that reserves the metrics port."""
    metrics_taken: int | None = None
    """That of a socket whose other end is closed when another process no longer answers on the port; None = none does.
    """
    put_back: dict[str, int] = {}
    """How many jobs of the processes that ran here before the parent put back, by queue."""
    announced: dict[str, Announced] = {}
    """The declarations that the parent's last worker process had written to Redis, by queue."""


def inheritance() -> Inheritance:
    """Return what the parent passed to this process. Processes that this one starts do not see it."""
    return msgspec.json.decode(os.environ.pop(_INHERITANCE, "{}"), type=Inheritance)


def inherited_link() -> socket.socket | None:
    """Return the link to the parent; None = there is no parent."""
    number = os.environ.pop(LINK, None)
    return inherited_socket(None if number is None else int(number))


def inherited_socket(number: int | None) -> socket.socket | None:
    """Return a socket that the parent passed to this process, if it did. It is not passed on further."""
    if number is None:
        return None
    passed = socket.socket(fileno=number)
    passed.set_inheritable(False)
    return passed


def tied_to_parent() -> AbstractContextManager[None]:
    """End this process if its parent ends, even while it hangs. For the start, before the link is watched."""
    number = os.environ.get(LINK)
    return nullcontext() if number is None else tied(int(number))


NOT_STARTED: Final = 127
"""Stands for the exit code of a process that the system could not start, as in a shell."""

OnReport = Callable[[ChildReport], None]
"""Called with each report of the process."""


class Launch(Struct, frozen=True):
    """How the worker processes of a parent are started."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """Added to the parent's own."""
    folder: str | None
    """Where they run; None = in the parent's working directory."""


def working_directory() -> str | None:
    """Return the name of the working directory as the shell or the unit file gave it; None if it is not known.

    If the name is a symbolic link that a deployment changes, processes that start later run in the new directory.
    """
    name = os.environ.get("PWD", "")
    with contextlib.suppress(OSError):
        if Path(name).is_absolute() and Path(name).samefile("."):
            return name
    return None


class WorkerProcess:
    """The worker process with this number. `run` starts it; after its end, `run` may start it again.

    `predecessor`: done when the process that this one replaces has ended for good. Both have the same metrics port, and
    until then the predecessor answers on it: its last counts would be lost otherwise.
    """

    def __init__(
        self,
        number: int,
        launch: Launch,
        port: socket.socket | None,
        predecessor: asyncio.Future[int] | None = None,
    ) -> None:
        self.number = number
        self.unwanted = asyncio.Event()
        """The process should not run (any more)."""
        self.unwanted.set()
        self.ready: WorkerReady | None = None
        """Its report that it is ready; None = it is not ready yet."""
        self.became_ready = asyncio.Event()
        """It was ready at least once."""
        self.fetching = asyncio.Event()
        """It fetches jobs."""
        self.settled = asyncio.Event()
        """The last start is decided: the process has begun to fetch jobs, or has ended."""
        self.terminated = False
        """It was asked to end."""
        self.put_back = Counter[str]()
        """How many jobs of its earlier runs were put back, by queue. The next run counts them."""
        self._launch = launch
        self._port = port
        self._predecessor = predecessor
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The id of the process; 0 = it was never started."""
        return self._process.pid if self._process else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def wanted(self) -> bool:
        return not self.unwanted.is_set()

    async def until_it_fetches(self) -> None:
        """Wait until it fetches jobs, or should not run any more; it may be started several times before."""
        async with background(self.fetching.wait(), self.unwanted.wait()) as waiting:
            await first_of(waiting)

    async def run(self, emit: Emit, on_report: OnReport, last: WorkerReady | None = None) -> int:
        """Start the process and wait for its end; return its exit code, NOT_STARTED if it could not be started.

        `last`: the `WorkerReady` of the parent's last process.
        """
        self.ready, self.terminated = None, False
        self.fetching.clear()
        with contextlib.ExitStack() as passed:
            ours, theirs = socket.socketpair()
            passed.enter_context(theirs)
            port, taken = self._port, self._until_predecessor_ends()
            if taken is not None:
                passed.enter_context(taken)
            inheritance = Inheritance(
                metrics=port and port.fileno(),
                metrics_taken=taken and taken.fileno(),
                put_back=dict(self.put_back),
                announced={} if last is None else last.announced,
            )
            self.put_back.clear()
            environment = {
                **os.environ,
                **self._launch.environment,
                LINK: str(theirs.fileno()),
                _INHERITANCE: msgspec.json.encode(inheritance).decode(),
            }
            # A child that is asked to end while Python starts gets the signal when it can handle it, in __main__.py. It
            # inherits the mask: asyncio starts the process before it first waits.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
            try:
                # A group of its own: so Ctrl-C on the terminal reaches the parent alone, which passes it on once.
                process = self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "evsched", *self._launch.command),
                    pass_fds=[one.fileno() for one in (theirs, port, taken) if one is not None],
                    env=environment,
                    cwd=self._launch.folder,
                    process_group=0,
                )
            except OSError as error:
                ours.close()
                emit(ChildNotStarted(number=self.number, reason=str(error)))
                return NOT_STARTED
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
        emit(ChildStarted(number=self.number, pid=process.pid))
        if not self.wanted:
            self.terminate()
        # The end of the link is not the end of the process: a process that it started may hold the link for longer.
        async with background(_receive(ours, on_report)):
            code = await process.wait()
        emit(ChildEnded(number=self.number, pid=process.pid, code=code))
        return code

    def _until_predecessor_ends(self) -> socket.socket | None:
        """Return a socket whose other end is closed when the predecessor ends; None = it has the port no more."""
        if self._port is None or self._predecessor is None or self._predecessor.done():
            return None
        taken, theirs = socket.socketpair()
        self._predecessor.add_done_callback(lambda _: taken.close())
        return theirs

    def terminate(self) -> None:
        """Ask the process to end."""
        self.terminated = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once. For any thread."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        # asyncio's own methods may take the exit code of a process that has just ended, and then report 255.
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


async def _receive(link: socket.socket, on_report: OnReport) -> None:
    reader, writer = await asyncio.open_connection(sock=link)
    try:
        while line := await reader.readline():
            if (report := read_report(line)) is not None:
                on_report(report)
    except (OSError, ValueError):  # ValueError: the line is longer than any report
        pass
    finally:
        writer.close()


_BEHIND_AFTER: Final = 1.0
"""Seconds for which jobs must stay in ready before the worker reports that it is behind: a burst passes sooner."""

_IDLE_LEAST: Final = 0.1
"""Seconds between two reports that the worker is idle, at least: the setting may be 0."""


class ChildLink:
    """Reports to the parent of this worker process, the supervisor, which decides how many processes run.

    Subscribe `on_event` to the events of the process. When the parent ends, its end of the link closes, and `Shutdown`
    stops the process.

    The worker is idle when no job has started for the setting `scale_down_after`, counted from when Redis answered its
    first fetch: that may take long, and a job may wait meanwhile.
    """

    def __init__(self, link: socket.socket, config: Config, worker: Worker) -> None:
        self._link = link
        self._config = config
        self._worker = worker
        self._unanswered = set[str]()
        """Queues from which the first fetch is not answered yet."""
        self._behind = set[str]()
        """Queues in which the last fetch left ready jobs."""
        self._checking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._behind_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        link.setblocking(False)

    def on_event(self, event: Event) -> None:
        """Report to the parent, or set a timer to report later."""
        if isinstance(event, WorkerStarted):
            announced = {queue: self._worker.announced(queue) for queue in event.queues}
            self._unanswered.update(event.queues)
            self._report(WorkerReady(event.worker, event.queues, self._config.url, announced))
        elif isinstance(event, ReadyLeft):
            self._note_answer(event.queue)
            self._behind.add(event.queue)
            if self._behind_timer is None:
                self._behind_timer = self._loop.call_later(_BEHIND_AFTER, self._check_backlog)
        elif isinstance(event, ReadyDrained):
            self._note_answer(event.queue)
            self._behind.discard(event.queue)
            if self._behind_timer is not None and not self._behind:
                self._behind_timer.cancel()
                self._behind_timer = None
        elif isinstance(event, Started):
            self._wait_for_idleness()

    def close(self) -> None:
        """Stop reporting."""
        for one in (self._idle_timer, self._behind_timer, self._checking):
            if one is not None:
                one.cancel()

    def _note_answer(self, queue: str) -> None:
        if queue in self._unanswered:
            self._unanswered.discard(queue)
            self._wait_for_idleness()
            if not self._unanswered:
                self._report(Fetching())

    def _check_backlog(self) -> None:
        self._behind_timer = self._loop.call_later(_BEHIND_AFTER, self._check_backlog)
        self._checking = self._loop.create_task(self._report_behind())

    async def _report_behind(self) -> None:
        # A worker without free slots last fetched some time ago. Other workers may have fetched the jobs meanwhile.
        with contextlib.suppress(StoreError):
            if await self._worker.jobs_wait():
                self._report(Behind())

    def _wait_for_idleness(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        after = max(_IDLE_LEAST, self._config.scale_down_after)
        self._idle_timer = self._loop.call_later(after, self._report_idle)

    def _report_idle(self) -> None:
        if not self._worker.busy():
            self._report(Idle())
        self._wait_for_idleness()

    def _report(self, report: ChildReport) -> None:
        with contextlib.suppress(OSError):  # the parent has ended
            self._link.send(report_line(report))
