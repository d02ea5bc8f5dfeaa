"""The process that runs user code for a worker, which starts it and gives it orders (`execution/process_pool.py`).

It calls one handler, or it runs one job as a worker does, for which it imports the app. To a handler, such an isolated
run is a run like any other: its output is the worker's, and it is stopped in the same ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import cache, reduce
from itertools import count
from types import ModuleType
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from evsched import forks
from evsched.app import find_app
from evsched.errors import CannotStart, ConfigError
from evsched.execution import parent_death, process_pool
from evsched.execution.failure import Failure, failure_of, message, plain, release, where
from evsched.execution.handlers import Handlers
from evsched.execution.process_pool import HandlerMissing, hint
from evsched.execution.run import Delivery, Failed, Prepared, Run, aborted, encode_result, judge
from evsched.jobs.arguments import Signature, read_signature
from evsched.jobs.current_job import CurrentJob, Progress, set_current_job
from evsched.jobs.job import Buried, Outcome, Requeued, decode_payload
from evsched.jobs.kept import KeptAnswer, Question
from evsched.jobs.retry import kinds_of
from evsched.jobs.steering import GiveUp, RetryLater, Snooze
from evsched.telemetry import log

_INTERVAL: Final = 0.1
"""Seconds from a report of progress until it is sent: the worker writes to Redis four times a second."""


class WorkerLink:
    """The link to the worker. Reading it ends the process when the worker has ended."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._numbers = count()
        self._asked = dict[int, Future[KeptAnswer]]()
        self.has_reader = False
        """The event loop reads the link; otherwise the thread that asks a question does."""

    def descriptors(self) -> Iterable[int]:
        """Return its descriptor: a forked child that held it would hide the end of this process."""
        return [self._socket.fileno()]

    def send(self, answer: process_pool.Answer) -> None:
        """Send a frame. For any thread."""
        with self._sending:
            self._socket.sendall(process_pool.frame(answer))

    def receive(self) -> process_pool.Order:
        """Wait for the next order."""
        return process_pool.read_order(self._read(int.from_bytes(self._read(process_pool.LENGTH), "big")))

    def ask(self, run: Run, question: Question) -> Future[KeptAnswer]:
        """Ask the worker a question of a run. For any thread."""
        with self._asking:
            number = next(self._numbers)
            answer = self._asked[number] = Future[KeptAnswer]()
            self.send(process_pool.Asked(number, question))
            while not (self.has_reader or answer.done()):
                self._take(self.receive(), run)
        return answer

    def _take(self, order: process_pool.Order, run: Run) -> None:
        """Take an order that is for a handler that runs."""
        match order:
            case process_pool.QuestionAnswered():
                if order.draining:
                    run.drain()
                asked = self._asked.pop(order.number, None)
                if asked is not None and asked.set_running_or_notify_cancel():  # False: its handler was cancelled
                    asked.set_result(order.answer)
            case process_pool.Draining():
                run.drain()
            case process_pool.Stop():
                run.stop(order.reason)
            case _:
                pass

    async def wait_to_begin(self, run: Run) -> None:
        """Report that an isolated job is ready, and wait until it may begin. The run is stopped when it must be."""
        loop, may_begin = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def receive() -> None:
            order = self.receive()  # its rest has arrived too: these orders are short
            if isinstance(order, process_pool.Begin):
                may_begin.set_result(None)
            else:
                self._take(order, run)

        self.has_reader = True
        loop.add_reader(self._socket, receive)
        self.send(process_pool.HandlerReady())
        await may_begin

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += (piece := self._socket.recv(size - len(data)))
            if not piece:
                os._exit(0)  # whatever a handler's threads and tasks do
        return bytes(data)


class ProgressReports:
    """The progress of one run: the newest report is sent, ten times a second at most, and the last one in any case.

    So a handler may report as often as it likes, and a worker that is busy delays only the thread that sends.
    """

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._newest: Progress | None = None
        self._timer: threading.Timer | None = None
        self._sending = threading.Lock()
        self._over = False

    def add(self, progress: Progress) -> None:
        """Send a report soon, unless a newer one comes first. Does nothing after `end`."""
        self._newest = progress
        if self._timer is None and not self._over:
            # A thread, so that the last report before a handler computes for an hour is sent too.
            timer = self._timer = threading.Timer(_INTERVAL, self._send)
            timer.daemon = True
            timer.start()

    def end(self) -> None:
        """Send the last report, and no more after it: it would count for the next run."""
        self._send(over=True)

    def _send(self, *, over: bool = False) -> None:
        self._timer = None  # before the newest report is read, so that a newer one sets another timer
        with self._sending, contextlib.suppress(OSError):  # the worker has ended
            if self._newest is not None and not self._over:
                self._link.send(process_pool.Reported(self._newest))
            self._over = self._over or over


def _carry_out(link: WorkerLink, order: process_pool.Order) -> process_pool.Reply | None:
    """Carry out an order; return the reply, if it has one.

    Raises:
        HandlerMissing: the handler or the app is not found, or does not fit the job.
    """
    match order:
        case process_pool.Find():
            _import(order)
            if order.name:
                _handler(order.module, order.name)
            return process_pool.HandlerReady()
        case process_pool.CallHandler():
            return _call(link, order)
        case process_pool.Isolate():
            return process_pool.RunEnded(_run_isolated(link, order))
        case _:
            return None  # it arrived after the run had ended


def _import(order: process_pool.Find) -> None:
    if order.path:
        sys.path[:] = map(os.fsdecode, order.path)
    try:
        if order.module == "__main__" and order.main is not None and "__mp_main__" not in sys.modules:
            # Under the name that multiprocessing uses, so that it does not run as a program.
            main = ModuleType("__mp_main__")
            main.__dict__.update(runpy.run_path(os.fsdecode(order.main), run_name="__mp_main__"))
            sys.modules["__main__"] = sys.modules["__mp_main__"] = main
        importlib.import_module(order.module)
    # Whatever a user's module does while it is imported, sys.exit() too: no handler has begun.
    except BaseException as error:  # noqa: BLE001
        why = f"{type(error).__name__}: {message(error)}{where(error, order.module)}{hint()}"
        raise HandlerMissing(f"a fresh process cannot import module {order.module!r}: {why}") from None


@cache
def _handler(module: str, name: str) -> tuple[Callable[..., Any], Signature]:
    """Return a handler of a module that is imported, and its signature."""
    try:
        found = reduce(getattr, name.split("."), sys.modules[module])
    except AttributeError:
        raise HandlerMissing(f"module {module!r}, as a fresh process imports it, has no {name!r}") from None
    handler: Any = getattr(found, "handler", found)  # the name stands for a task there, whose function this is
    return handler, read_signature(name, handler)


def _call(link: WorkerLink, order: process_pool.CallHandler) -> process_pool.Reply:
    job, reports = order.job, ProgressReports(link)
    handler, signature = _handler(order.module, order.name)
    try:
        payload = decode_payload(job.readable)
        args, kwargs = signature.bind(payload.args, payload.kwargs, payload.redact)
    except (msgspec.ValidationError, RecursionError) as error:
        # The worker found that they fit the code that it runs.
        raise HandlerMissing(f"the code on disk cannot run it: the arguments do not fit: {error}") from None
    known = job.id, order.queue, payload.task, job.attempt, job.due, job.planned, order.lateness, payload.meta
    run = Run(job, Delivery(order.queue, 0.0, 0.0, keeper=link))
    run.current = CurrentJob(*known, report=reports.add, tags=payload.tags, redact=payload.redact, keeper=run)
    set_current_job(run.current)
    link.send(process_pool.Begun())
    try:
        return process_pool.Returned(encode_result(handler(*args, **kwargs)))
    # Nothing else in this process could report what the handler raised.
    except BaseException as error:  # noqa: BLE001
        raised = _raised(error, order.module)
        release(error)
        return raised
    finally:
        forks.end_child()
        reports.end()
        _note_positions(link, run)


def _note_positions(link: WorkerLink, run: Run) -> None:
    for name, value in (run.positions or {}).items():
        link.send(process_pool.Noted(name, value))


def _raised(error: BaseException, module: str) -> process_pool.Raised:
    """Return the handler's exception as a reply."""
    match error:
        case RetryLater():
            return process_pool.Raised("retry", message(error), error.delay)
        case Snooze():
            return process_pool.Raised("snooze", plain(error.reason), error.delay, error.until, error.signal)
        case GiveUp():
            return process_pool.Raised("give up", message(error))
        case _:
            failure = failure_of(error, module)
            return process_pool.Raised(
                "failed", plain(failure.reason), None, None, "", failure.traceback, failure.error, kinds_of(error)
            )


def _run_isolated(link: WorkerLink, order: process_pool.Isolate) -> Outcome:
    received, reports = time.monotonic(), ProgressReports(link)
    if order.log_level:
        log.configure(order.log_level)
    report = lambda: reports.add(cast(Progress, run.progress))  # noqa: E731 - it is called later
    delivery = Delivery(order.queue, order.now, received, report, keeper=link)
    run = Run(order.job, delivery)
    try:
        return asyncio.run(_find_and_call(order.app, run, link))
    except HandlerMissing:
        raise
    # Such as KeyboardInterrupt of a task that the handler created.
    except BaseException as error:  # noqa: BLE001
        reason = f"its process ended by {type(error).__name__}: {message(error)}"
        if run.prepared is None:
            raise HandlerMissing(f"a fresh process cannot run it: {reason}") from None
        return judge(run.job, run.prepared, Failed(reason, killed=True))
    finally:
        link.has_reader = False
        reports.end()
        _note_positions(link, run)


async def _find_and_call(app: str, run: Run, link: WorkerLink) -> Outcome:
    try:
        program = find_app(app).program
    except (CannotStart, ConfigError) as error:
        raise HandlerMissing(f"a fresh process cannot import the app: {error}") from None
    prepared = run.prepare(program.tasks)
    if isinstance(prepared, Buried) and prepared.outcome == "expired":
        return replace(prepared, began=False)
    if not isinstance(prepared, Prepared):
        # The worker found the job valid with the code that it runs, so the code on disk is different.
        why = prepared.reason if isinstance(prepared, Buried) else f"it has no task {run.task[:200]!r}"
        raise HandlerMissing(f"the code on disk cannot run it: {why}")
    try:
        handlers = Handlers(program, threads=1)
        async with program.lifespan() as handlers.state:
            await link.wait_to_begin(run)
            run.on_begin = lambda _: link.send(process_pool.Begun())
            run.work = asyncio.ensure_future(_call_in_loop(handlers, run, prepared))
            await asyncio.wait([run.work])
            # One that was stopped before its first step has set none.
            return run.outcome or (aborted(prepared, began=False) if run.stop_reason == "cancelled" else Requeued())
    # The lifespan failed in this process, although not in the worker. So this run fails, and the worker continues.
    except Exception as error:  # noqa: BLE001
        failure = Failure(str(error)) if isinstance(error, ConfigError) else failure_of(error, app.partition(":")[0])
        return judge(run.job, prepared, Failed(failure.reason, traceback=failure.traceback, error=failure.error))


async def _call_in_loop(handlers: Handlers, run: Run, prepared: Prepared) -> None:
    """Call the handler in a task of its own, as a worker does: a timeout or a cancellation cancels nothing else."""
    handlers.make_current(run, prepared)
    run.outcome = judge(run.job, prepared, await handlers.call(run, prepared), run.stop_reason)


def _ignore(number: int, frame: object) -> None:
    pass


def main() -> None:
    """Serve a worker, over the link that is the standard input.

    The worker alone ends this process: Ctrl-C and many supervisors signal all processes of a group at once.
    """
    # Under a number that no output has, even if the worker has closed its own; and that nothing inherits.
    link = WorkerLink(socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)))
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    parent_death.end_with(*link.descriptors())
    for number in (signal.SIGINT, signal.SIGTERM):
        # Ignored by a function: a program that the handler starts would inherit SIG_IGN.
        signal.signal(number, _ignore)
    forks.hold(link)
    forks.separate_children()
    while True:
        order = link.receive()
        try:
            reply = _carry_out(link, order)
        except (HandlerMissing, ConfigError) as error:  # the last: the annotations of a handler cannot be read
            reply = process_pool.Missing(message(error))
        if reply is not None:
            link.send(reply)
