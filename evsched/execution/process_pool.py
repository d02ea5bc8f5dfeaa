"""Processes that run user code for a worker: for work that keeps a processor busy, and for jobs that may crash.

A process serves one run at a time. A run of a task with `on="process"` calls one handler in it; an isolated run
(`precautions.py`) imports the whole app there. The process gets the job's payload and converts the arguments itself. It
returns JSON or text, so no exception and no result of a user's class has to be made again here. A run that is cancelled
ends its process for real. The processes end with the worker, and not before it: signals that are meant for the worker
may reach them too.

This file has the worker's end of the link to a process, and the frames that pass over it; `services/job_process.py` is
the program that has the other end.

    worker -> process   Find, CallHandler, QuestionAnswered; of an isolated run: Isolate, Begin, Draining, Stop
    process -> worker   Reported, Begun, Asked, Noted; and one reply to each order, but none to QuestionAnswered,
                        Draining and Stop

The link is a pair of sockets without a name, so nobody else can write there, and each side reads the end of the stream
when the other one has ended. A frame is the length of a MessagePack value, and the value.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from evsched import forks
from evsched.errors import EvschedError
from evsched.execution.run import Run, StopReason
from evsched.jobs.current_job import Progress
from evsched.jobs.job import FetchedJob, Outcome, decode
from evsched.jobs.kept import KeptAnswer, Question
from evsched.jobs.steering import GiveUp, RetryLater, Snooze, Waiting

LENGTH: Final = 8
"""Bytes of the length."""


class Find(Struct, frozen=True, tag=True):
    """Import a module as the worker does, and find a handler in it; the module alone for ''."""

    module: str
    name: str
    path: list[bytes]
    """The worker's `sys.path`, as the file system has it; empty if the process has it already."""
    main: bytes | None
    """The file of the worker's main module, which may define handlers."""


class CallHandler(Struct, frozen=True, tag=True):
    """Call a handler that was found, with the arguments of a job's payload."""

    module: str
    name: str
    job: FetchedJob
    queue: str
    lateness: float


class Isolate(Struct, frozen=True, tag=True):
    """Import an app and prepare one of its jobs, as a worker does."""

    app: str
    """MODULE:APP."""
    log_level: str
    """The level of evsched's log; empty = the app configures logging itself."""
    job: FetchedJob
    queue: str
    now: float
    """By Redis's clock."""


class Begin(Struct, frozen=True, tag=True):
    """Call the handler of the isolated job that is ready."""


class Stop(Struct, frozen=True, tag=True):
    """Stop the handler of the isolated job. It has no reply, and may arrive after the run has ended."""

    reason: StopReason


class Draining(Struct, frozen=True, tag=True):
    """Tell the handler of the isolated job that the worker stops. It has no reply."""


class QuestionAnswered(Struct, frozen=True, tag=True):
    """The answer to a question of a handler."""

    number: int
    answer: KeptAnswer
    draining: bool
    """The worker stops."""


class HandlerReady(Struct, frozen=True, tag=True):
    """The handler is found, or the isolated job can begin."""


class Missing(Struct, frozen=True, tag=True):
    """The handler or the app is not found, or does not fit the job. No handler has begun."""

    reason: str


class Returned(Struct, frozen=True, tag=True):
    """The handler returned this, as JSON."""

    result: bytes


class Raised(Struct, frozen=True, tag=True):
    """The handler raised. An exception of a user's class need not be made again in the worker."""

    how: Literal["failed", "retry", "snooze", "give up"]
    """The last three: it raised RetryLater, Snooze or GiveUp."""
    reason: str
    delay: float | None = None
    until: float | None = None
    signal: str = ""
    traceback: str = ""
    error: str = ""
    """The class, see `retry.class_name`."""
    kinds: frozenset[str] = frozenset()
    """Its class and the classes that it inherits from, see `retry.kinds_of`."""


class RunEnded(Struct, frozen=True, tag=True):
    """The isolated run has ended."""

    outcome: Outcome


class Begun(Struct, frozen=True, tag=True):
    """The handler begins."""


class Reported(Struct, frozen=True, tag=True):
    """The handler has reported progress."""

    progress: Progress


class Asked(Struct, frozen=True, tag=True):
    """The handler asks what its job has kept, or keeps more."""

    number: int
    question: Question


class Noted(Struct, frozen=True, tag=True):
    """The last position of a handler, as it ends."""

    name: str
    value: bytes


Order = Find | CallHandler | Isolate | Begin | Stop | Draining | QuestionAnswered
Reply = HandlerReady | Missing | Returned | Raised | RunEnded
Answer = Reply | Reported | Begun | Asked | Noted

_encode: Final = msgspec.msgpack.Encoder().encode
read_order: Final = msgspec.msgpack.Decoder[Order](Order).decode
read_answer: Final = msgspec.msgpack.Decoder[Answer](Answer).decode


def frame(value: Order | Answer) -> bytes:
    """Return a value as a frame."""
    text = _encode(value)
    return len(text).to_bytes(LENGTH, "big") + text


_PROGRAM: Final = "from evsched.services.job_process import main; main()"
"""The code that a process executes. The module imports apps, so it is in a layer above this one."""

_IDLE_MOST: Final = 300.0
"""Seconds for which a process is kept without work: to start one takes about half a second, mostly for imports."""

_NAMED_MOST: Final = 3
"""Files that a reason names."""

_LAST_READ: Final = 1.0
"""Seconds for which the link of a process that has ended is read: a forked child may hold it open."""

_BROKEN: Final = (asyncio.IncompleteReadError, OSError, msgspec.MsgspecError)
"""Raised by reading a link when the process has ended, or when a handler has written to the link."""


class HandlerFailed(EvschedError):
    """The handler raised in its process; the message says what and where."""

    def __init__(self, reason: str, traceback: str = "", kinds: frozenset[str] = frozenset(), error: str = "") -> None:
        super().__init__(reason)
        self.traceback = traceback
        self.error = error
        """The class of the exception."""
        self.kinds = kinds
        """The result of `retry.kinds_of` for the exception."""

    @property
    def text(self) -> str:
        """The message without the class."""
        return str(self).removeprefix(f"{self.error.rpartition('.')[2]}: ")


class HandlerMissing(EvschedError):
    """A process does not find the handler of a job, or not one that fits the job. The handler has not begun."""


class ProcessDied(HandlerFailed):
    """The process of a handler died. `began`: whether the handler had begun."""

    def __init__(self, *, began: bool) -> None:
        when = "" if began else " before its handler began"
        super().__init__(f"its process died (it crashed, ended itself or was killed){when}")
        self.began = began


class Process:
    """A process that runs user code. It takes one order at a time."""

    def __init__(
        self, running: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.found = set[tuple[str, str]]()
        """Handlers that it has found, by module and name."""
        self.run: Run | None = None
        """The run that it serves. It keeps its progress, and that its handler has begun."""
        self.begun = asyncio.Event()
        """The handler of an isolated run has begun."""
        self._running = running
        self._reader = reader
        self._writer = writer
        self._free = True
        self._answering = set[asyncio.Task[None]]()

    def descriptors(self) -> Iterable[int]:
        """Return the descriptor of the link: a forked child that held it would hide the end of the worker."""
        return [self._writer.get_extra_info("socket").fileno()]

    @property
    def alive(self) -> bool:
        """Whether it runs, as the kernel says now."""
        return self._running.poll() is None and not self._reader.at_eof()

    @property
    def idle(self) -> bool:
        """Whether it can serve another run."""
        return self._free and self.alive

    def send(self, order: Order) -> None:
        """Send an order, and wait for no reply."""
        self._writer.write(frame(order))

    async def ask(self, order: Order) -> Reply:
        """Send an order and wait for its reply. If this is cancelled, the process cannot be used again.

        Raises:
            ProcessDied: the process died.
            HandlerMissing: it does not find the handler or the app, or they do not fit the job.
        """
        self._free = False
        self.send(order)
        try:
            reply = await self._next_reply()
        except _BROKEN:
            raise ProcessDied(began=self.run is not None and self.run.entered) from None
        if isinstance(reply, Missing):  # its modules may be older than the code on disk: it is not used again
            raise HandlerMissing(reply.reason)
        self._free = not isinstance(order, Isolate)  # the order that follows it frees the process
        return reply

    async def prepare(self, order: Order, dying: str = "") -> Reply:
        """Send an order that comes before a handler begins. `dying`: the reason to give if the process dies.

        Raises:
            HandlerMissing: the process does not find the handler or the app, or dies.
        """
        try:
            return await self.ask(order)
        except ProcessDied as error:
            raise HandlerMissing(f"a fresh process cannot run it: {dying or error}{hint()}") from None

    async def _next_reply(self) -> Reply:
        while isinstance(answer := await self._next_answer(), Reported | Begun | Asked | Noted):
            if self.run is None:
                continue
            match answer:
                case Begun():
                    self.run.entered = True
                    self.begun.set()
                case Reported():
                    self.run.report_progress(answer.progress)
                case Noted():
                    self.run.note_position(answer.name, answer.value)
                case Asked():
                    answering = asyncio.ensure_future(self._answer(self.run, answer))
                    self._answering.add(answering)
                    answering.add_done_callback(self._answering.discard)
        return answer

    async def _answer(self, run: Run, asked: Asked) -> None:
        answer = await asyncio.wrap_future(run.ask(asked.question))
        self.send(QuestionAnswered(asked.number, answer, run.draining))

    async def _next_answer(self) -> Answer:
        length = int.from_bytes(await self._reader.readexactly(LENGTH), "big")
        return read_answer(await self._reader.readexactly(length))

    def end(self) -> asyncio.Future[None]:
        """Kill it; return a future that is done when it has ended and its last answers are read.

        So its run knows whether its handler had begun, even if the process was killed at that moment.
        """
        self._running.kill()
        for answering in self._answering:
            answering.cancel()
        return asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        try:
            # In a thread, since the kernel may need some time to free its memory.
            await anyio.to_thread.run_sync(self._running.wait, limiter=anyio.CapacityLimiter(1))
            with contextlib.suppress(TimeoutError, *_BROKEN):
                async with asyncio.timeout(_LAST_READ):
                    await self._next_reply()
        finally:
            self._writer.transport.abort()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()


class ProcessPool:
    """The processes of a worker. Those without work are kept for some minutes. The callers bound how many there are.

    `output`: where they write; None = to the worker's stdout and stderr.
    """

    def __init__(self, output: int | None = subprocess.DEVNULL) -> None:
        self._output = output
        self._processes = set[Process]()
        self._idle = list[tuple[Process, float]]()
        """With the time since when it is idle, by the monotonic clock; the last one worked last."""

    async def find(self, module: str, name: str = "", *, fresh: bool = False) -> Process:
        """Take a process that has found a handler, or imported the module for ''. Give it back later.

        `fresh`: start one, even if another one has no work.

        Raises:
            HandlerMissing: a process does not find it.
        """
        process = (None if fresh else self._take()) or await self._start()
        try:
            if (module, name) not in process.found:
                main = getattr(sys.modules["__main__"], "__file__", None)
                path = [] if process.found else [os.fsencode(folder) for folder in sys.path]
                order = Find(module, name, path, main and os.fsencode(main))
                await process.prepare(order, f"it ends when it starts or while it imports {module!r}")
                process.found.add((module, name))
        except BaseException:
            await self.give_back(process)
            raise
        return process

    async def give_back(self, process: Process) -> None:
        """Keep a process for the next run, or end it if it is at work or cannot be used again."""
        now, idle = time.monotonic(), process.idle
        if idle:
            process.run = None
        over = [entry for entry in self._idle if entry[1] < now - _IDLE_MOST or not entry[0].alive]
        self._idle = [entry for entry in self._idle if entry not in over]
        (self._idle if idle else over).append((process, now))
        await self._end([ended for ended, _ in over])

    async def ready(self, module: str, name: str, *, fresh: bool = False) -> None:
        """Have a process that has found a handler, so that the next call begins at once. `fresh`: as in `find`.

        Raises:
            HandlerMissing: a process does not find it.
        """
        await self.give_back(await self.find(module, name, fresh=fresh))

    async def call(self, order: CallHandler, run: Run) -> Any:
        """Call the handler of a run; return its result. Cancelling ends the process.

        Raises:
            RetryLater, Snooze, GiveUp: the handler did.
            HandlerFailed: it raised something else, or its process died.
            HandlerMissing: a process does not find it, or the arguments do not fit the handler that it finds.
        """
        process = await self.find(order.module, order.name)
        process.run = run
        try:
            reply = await process.ask(order)
        finally:
            try:
                await self.give_back(process)
            except asyncio.CancelledError:  # once more, so what the process said last is not read
                run.entered = True
                raise
        if isinstance(reply, Raised):
            raise _exception(reply)
        assert isinstance(reply, Returned)
        return decode(reply.result)

    async def close(self) -> None:
        """End all processes, also those at work."""
        self._idle.clear()
        await self._end(list(self._processes))

    async def _end(self, processes: list[Process]) -> None:
        """Kill processes, and wait until they have ended. If this is cancelled, they end all the same."""
        self._processes.difference_update(processes)
        if ending := [process.end() for process in processes]:
            await asyncio.wait(ending)

    def _take(self) -> Process | None:
        for entry in reversed(self._idle):
            if entry[0].alive:
                self._idle.remove(entry)
                return entry[0]
        return None

    async def _start(self) -> Process:
        """Start a process, whose standard input is its end of the link.

        Raises:
            HandlerMissing: it does not start.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                process = Process(self._execute(theirs.fileno()), reader, writer)
            except OSError as error:
                writer.close()
                why = f"{type(error).__name__}: {error}"
                raise HandlerMissing(f"a fresh process cannot run it: {why}{hint()}") from None
        self._processes.add(process)
        forks.hold(process)
        return process

    def _execute(self, link: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-u", "-c", _PROGRAM]  # unbuffered, since it does not end by itself
        return subprocess.Popen(command, stdin=link, stdout=self._output, stderr=self._output)


def _exception(raised: Raised) -> EvschedError:
    """Return the exception of a handler as the worker's middleware and verdict see it."""
    match raised.how:
        case "retry":
            return RetryLater(raised.delay, raised.reason)
        case "snooze":
            if raised.signal and raised.until is not None:
                return Waiting(raised.signal, raised.until)
            return Snooze(raised.delay, raised.reason, until=raised.until)
        case "give up":
            return GiveUp(raised.reason)
        case "failed":
            return HandlerFailed(raised.reason, raised.traceback, raised.kinds, raised.error)


def hint() -> str:
    """Return the end of a reason that names the user's files which hide a module of Python or of a library, if any.

    They are in the current folder or in the first folder of `sys.path`. The worker itself has imported these modules
    before it looked into the folder, so it runs.
    """
    found = dict[Path, None]()
    for folder in dict.fromkeys((Path(), Path(sys.path[0] if sys.path else ""))):
        with contextlib.suppress(OSError):
            found.update(dict.fromkeys(entry for entry in sorted(folder.resolve().iterdir()) if _hides(entry)))
    if not found:
        return ""
    more = f" and {len(found) - _NAMED_MOST} more" if len(found) > _NAMED_MOST else ""
    named = ", ".join(map(str, list(found)[:_NAMED_MOST]))
    return f"; rename {named}{more}, which a new process imports in place of the module of that name"


def _hides(entry: Path) -> bool:
    if entry.suffix != ".py" and not (entry / "__init__.py").is_file():
        return False
    if entry.stem in sys.stdlib_module_names:
        return True
    others = [folder for folder in sys.path if Path(folder).resolve() != entry.parent]
    spec = PathFinder.find_spec(entry.stem, others)
    # Without an origin it is a folder of that name, which hides nothing.
    if spec is None or spec.origin is None:
        return False
    return Path(spec.origin).resolve() not in (entry, entry / "__init__.py")
