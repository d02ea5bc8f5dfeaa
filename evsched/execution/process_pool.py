"""Tasks on processes: for work that keeps a processor busy. A timeout or a cancellation ends the process for real.

anyio keeps the pool. What crosses to the process is the handler's name and its arguments, pickled; what comes back is
JSON or text, so that no exception and no result of a user's class has to be rebuilt here. The processes end with the
worker, and not before it: signals that are meant for the worker may reach them too.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar, TypeVarTuple

import anyio
import anyio.to_process
from anyio import to_process
from msgspec import Struct

from evsched.errors import EvschedError
from evsched.execution import exit_codes, pool_process, progress_socket, shadows
from evsched.execution.failure import failure_of, message, release
from evsched.execution.progress_socket import ProgressSender, SocketAddress
from evsched.execution.results import encode_result
from evsched.jobs.current_job import CurrentJob, Progress, set_current_job
from evsched.jobs.job import decode
from evsched.jobs.retry import kinds_of
from evsched.jobs.steering import GiveUp, RetryLater, Snooze

Args = TypeVarTuple("Args")
R = TypeVar("R")


class HandlerFailed(EvschedError):
    """The handler raised in its process; the message says what and where."""

    def __init__(self, reason: str, traceback: str = "", kinds: frozenset[str] = frozenset(), error: str = "") -> None:
        super().__init__(reason)
        self.traceback = traceback
        self.error = error
        """The class of what was raised."""
        self.kinds = kinds
        """What `retry.kinds_of` returned for what was raised."""


class HandlerMissing(EvschedError):
    """A process cannot import the module of a task, or finds no such function in it. The handler has not begun."""


class Missing(Struct, frozen=True):
    """What a process returns instead of raising HandlerMissing."""

    reason: str
    pid: int
    """Of the process that returns this."""


class ProcessDied(HandlerFailed):
    """The process that ran the handler died."""


async def run(
    handler: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    job: CurrentJob,
) -> Any:
    """Call a handler in a process of the pool. Cancelling ends the process.

    Raises:
        RetryLater, Snooze, GiveUp: the handler did.
        HandlerFailed: it raised something else, or its process died.
        HandlerMissing: the process does not find it.
    """
    known = {
        name: getattr(job, name) for name in ("id", "queue", "task", "attempt", "due", "planned", "lateness", "meta")
    }
    kind, value, more = await call(job.tell, _call, handler.__module__, handler.__qualname__, args, kwargs, known)
    if kind == "done":
        return decode(value)
    if kind == "retry":
        raise RetryLater(more, value)
    if kind == "snooze":
        raise Snooze(value, more[0], until=more[1])
    if kind == "give up":
        raise GiveUp(value)
    raise HandlerFailed(value, *more)


async def ready(module: str, name: str = "") -> None:
    """Prepare a process that has that module imported, so that the next call begins at once.

    Raises:
        HandlerMissing: a fresh process cannot import the module, or finds no `name` in it.
    """
    problem = "it does not start"
    for _ in range(2):  # the first may have been a process that died while it was idle
        try:
            missing = await _in_process(_import, os.getpid(), module, name)
        except anyio.BrokenWorkerProcess as error:
            problem = message(error) or f"it ends while it imports {module!r}"
        except OSError as error:
            problem = message(error) or "it ends as soon as it starts"
        except asyncio.CancelledError:
            raise
        # Whatever its import of this module raises, sys.exit() too.
        except BaseException as error:  # noqa: BLE001
            problem = f"{type(error).__name__}: {message(error)}"
            await _end_process(_newest_idle())
        else:
            return await _raise_missing(missing)
    raise HandlerMissing(_cannot_run(problem))


def _cannot_run(problem: str) -> str:
    return f"a fresh process cannot run it: {problem}{shadows.hint()}"


def _import(worker: int, module: str, name: str) -> Missing | None:
    pool_process.belong_to(worker)
    try:
        find_handler(module, name)
    except HandlerMissing as error:
        return Missing(str(error), os.getpid())
    return None


def find_handler(module: str, name: str) -> Any:
    """Return what a module has under a dotted name, or the module itself for ''.

    Raises:
        HandlerMissing: it does not import, or has no such name.
    """
    try:
        found = importlib.import_module(module)
    # Whatever a user's module does while it is imported, sys.exit() too: no handler has begun.
    except BaseException as error:  # noqa: BLE001
        why = f"{type(error).__name__}: {message(error)}"
        raise HandlerMissing(f"a fresh process cannot import module {module!r}: {why}{shadows.hint()}") from None
    try:
        return reduce(getattr, name.split(".") if name else (), found)
    except AttributeError:
        raise HandlerMissing(f"module {module!r}, as a fresh process imports it, has no {name!r}") from None


async def _raise_missing(missing: Missing | None) -> None:
    """Raise what a process returned, and end it: the modules that it imported may be older than the code on disk."""
    if missing is None:
        return
    await _end_process(missing.pid)
    raise HandlerMissing(missing.reason)


def _newest_idle() -> int:
    """Return the id of the process that was returned to the pool last."""
    return to_process._process_pool_idle_workers.get()[-1][0].pid  # pyright: ignore[reportPrivateUsage]


async def _end_process(pid: int) -> None:
    idle, workers = to_process._process_pool_idle_workers.get(), to_process._process_pool_workers.get()  # pyright: ignore[reportPrivateUsage]
    for entry in [entry for entry in idle if entry[0].pid == pid]:
        idle.remove(entry)
        workers.discard(entry[0])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await entry[0].aclose()


async def _in_process(function: Callable[[*Args], R], *args: *Args) -> R:
    """Call a function in a process of the pool, or in a new one. Cancelling ends the process."""
    exit_codes.leave_to_asyncio()
    # Who calls bounds how many there are; anyio keeps those that are idle for some minutes.
    return await anyio.to_process.run_sync(function, *args, cancellable=True, limiter=anyio.CapacityLimiter(1))


async def call(on_progress: Callable[[Progress], object], function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of a module in a process that does nothing else meanwhile. Cancelling ends the process.

    The function's first argument is a function that takes its progress. `on_progress` gets the newest from time to
    time, and the last one in any case.

    Raises:
        ProcessDied: it did.
        HandlerMissing: the function raised it, or the process died before the function began.
    """
    try:
        with progress_socket.receive(on_progress) as address:
            value, last = await _in_process(_call_and_report, os.getpid(), address, function, args)
    except anyio.BrokenWorkerProcess as error:
        if before := message(error):
            raise HandlerMissing(_cannot_run(before)) from None
        raise ProcessDied("its process died (it crashed, ended itself or was killed)") from None
    except (ImportError, OSError) as error:  # `_call_and_report` raises neither, so it has not begun
        raise HandlerMissing(_cannot_run(f"{type(error).__name__}: {message(error)}")) from None
    if last is not None:
        on_progress(last)
    if isinstance(value, Missing):
        await _raise_missing(value)
    return value


def _call(
    tell: Callable[[Progress], None],
    module: str,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
    known: dict[str, Any],
) -> tuple[str, Any, Any]:
    """Call the handler; runs in the process. The name stands for a task there, whose function is `handler`."""
    found = find_handler(module, name)
    try:
        set_current_job(CurrentJob(**known, report=tell))
        return "done", encode_result(getattr(found, "handler", found)(*args, **kwargs)), None
    # Nothing else in this process could report what the handler raised.
    except BaseException as error:  # noqa: BLE001
        ended = _ended(error, module)
        release(error)
        return ended


def _ended(error: BaseException, module: str) -> tuple[str, Any, Any]:
    if isinstance(error, RetryLater):
        return "retry", message(error), error.delay
    if isinstance(error, Snooze):
        return "snooze", error.delay, (error.reason, error.until)
    if isinstance(error, GiveUp):
        return "give up", message(error), None
    failure = failure_of(error, module)
    return "failed", failure.reason, (failure.traceback, kinds_of(error), failure.error)


def _call_and_report(
    worker: int, address: SocketAddress, function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Any, Progress | None]:
    pool_process.belong_to(worker)
    sender = ProgressSender(address)
    try:
        return function(sender.report, *args), sender.end()
    except HandlerMissing as error:
        return Missing(str(error), os.getpid()), None
    # Such as what a task of its own raised: anyio would raise it in the worker, and end that.
    except BaseException as error:  # noqa: BLE001
        raise ProcessDied(f"its process ended by {type(error).__name__}: {message(error)}") from None
