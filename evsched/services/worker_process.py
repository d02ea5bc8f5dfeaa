"""One worker process: how its parent starts and ends it, its inheritance, and its reports.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from evsched.config import Config
from evsched.errors import CannotStart
from evsched.events import Emit
from evsched.execution.parent_death import tied
from evsched.process_events import ChildEnded, ChildNotStarted, ChildStarted
from evsched.runtime.loops import background, first_of
from evsched.store.queue import Announced
from evsched.telemetry.http_server import reserve


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

METRICS: Final = "_EVSCHED_METRICS_FD"
"""The socket that reserves the metrics port."""

METRICS_TAKEN: Final = "_EVSCHED_METRICS_TAKEN_FD"
"""A socket whose other end is closed when another process no longer answers on the metrics port; absent = none does."""

PUT_BACK: Final = "_EVSCHED_PUT_BACK"
"""How many jobs of the processes that ran here before the parent put back, by queue, as JSON; absent = none."""

ANNOUNCED: Final = "_EVSCHED_ANNOUNCED"
"""The declarations that the parent's last worker process had written to Redis, by queue, as JSON; absent = none."""


def tied_to_parent() -> AbstractContextManager[None]:
    """End this process if its parent ends, even while it hangs. For the start, before the link is watched."""
    number = os.environ.get(LINK)
    return nullcontext() if number is None else tied(int(number))


def inherited(name: str) -> socket.socket | None:
    """Return a socket that the parent passed to this process; None = it passed none. It is not passed on further."""
    number = os.environ.pop(name, None)
    if number is None:
        return None
    passed = socket.socket(fileno=int(number))
    passed.set_inheritable(False)
    return passed


def put_back() -> dict[str, int]:
    """Return how many jobs the parent put back, by queue. Processes that this one starts do not see it."""
    text = os.environ.pop(PUT_BACK, None)
    return {} if text is None else msgspec.json.decode(text, type=dict[str, int])


def announced() -> dict[str, Announced]:
    """Return the declarations that the parent's last worker process had written to Redis, by queue."""
    text = os.environ.pop(ANNOUNCED, None)
    return {} if text is None else msgspec.json.decode(text, type=dict[str, Announced])


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
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as passed:
            passed.enter_context(theirs)
            environment = {**os.environ, **self._launch.environment, LINK: str(theirs.fileno())}
            environment |= self._pass_port(passed)
            if last is not None:
                environment[ANNOUNCED] = msgspec.json.encode(last.announced).decode()
            if self.put_back:
                environment[PUT_BACK] = msgspec.json.encode(self.put_back).decode()
                self.put_back.clear()
            inherited = [int(value) for name, value in environment.items() if name in (LINK, METRICS, METRICS_TAKEN)]
            # A child that is asked to end while Python starts gets the signal when it can handle it, in __main__.py. It
            # inherits the mask: asyncio starts the process before it first waits.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
            try:
                # A group of its own: so Ctrl-C on the terminal reaches the parent alone, which passes it on once.
                process = self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "evsched", *self._launch.command),
                    pass_fds=inherited,
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
        receiving = asyncio.ensure_future(_receive(ours, on_report))
        code = await process.wait()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        emit(ChildEnded(number=self.number, pid=process.pid, code=code))
        return code

    def _pass_port(self, passed: contextlib.ExitStack) -> dict[str, str]:
        """Return the variables that name the sockets of the metrics port."""
        if self._port is None:
            return {}
        named = {METRICS: str(self._port.fileno())}
        if self._predecessor is not None and not self._predecessor.done():
            taken, theirs = socket.socketpair()
            passed.enter_context(theirs)
            self._predecessor.add_done_callback(lambda _: taken.close())
            named[METRICS_TAKEN] = str(theirs.fileno())
        return named

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
        self._sockets = list[socket.socket]()
        first = config.metrics_port
        try:
            for number in range(0 if first is None else count):
                self._sockets.append(reserve(self._host, first + number if first else 0))
        except CannotStart:
            self._close_sockets()
            raise

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
        self._close_sockets()

    def _close_sockets(self) -> None:
        for port in self._sockets:
            port.close()
