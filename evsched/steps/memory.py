"""The knowledge that a run has of the data that its job has kept; and its questions."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, Final

from msgspec import Struct

from evsched.errors import EvschedError, StoreRefused
from evsched.execution.run import encode_result
from evsched.jobs.current_job import CurrentJob, current_job
from evsched.jobs.job import encode
from evsched.jobs.kept import STEPS_MOST, Keep, KeptAnswer, Question, Recall, read_lines
from evsched.jobs.steering import GiveUp, Snooze

NAME_MOST: Final = 100
"""Characters of the name of a step or a loop."""

_LOOK: Final = 1.0
"""Seconds after which a thread that waits for an answer looks whether its run is lost."""


class RunStopped(EvschedError):
    """The run must stop: its timeout has passed, its job was cancelled, or another worker has the job."""


class Memory(Struct, eq=False):
    """The knowledge that a run has of its job's data."""

    used: set[str]
    """The names that the run has used."""
    kept: dict[str, bytes] | None = None
    """The data that earlier runs have kept, by name; None = not read yet."""


def run_of(what: str, name: str) -> CurrentJob:
    """Return the current job, for a part of its run that has a name of its own.

    Raises:
        GiveUp: the name is not valid, or the run has used it before: no other attempt can correct that.
        Snooze: the worker stops, so another one goes on from here.
        RunStopped: the run must stop.
        LookupError: the caller is not inside a run.
    """
    job = current_job()
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MOST or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance] - a user may pass anything
        raise GiveUp(f"{what} {name!r:.120}: its name must be a text of 1 to {NAME_MOST} printable characters")
    leave_if_stopping(job)
    memory, used = memory_of(job), f"{what} {name}"
    if used in memory.used:
        raise GiveUp(f"{used!r} is used twice in one run: give each its own name, such as f'page {{n}}' in a loop")
    memory.used.add(used)
    return job


def memory_of(job: CurrentJob) -> Memory:
    if job.memory is None:
        job.memory = Memory(set())
    return job.memory


def leave_if_stopping(job: CurrentJob) -> None:
    """End the run if it must stop, or its worker does.

    Raises:
        RunStopped, Snooze
    """
    if job.cancelled:  # a plain function in a thread is not interrupted
        raise RunStopped
    if job.draining:
        raise Snooze(0.0, "its worker stops, and another one goes on from here")


def name_in_record(name: str) -> str:
    return encode(name).decode()


async def ask(job: CurrentJob, question: Question) -> KeptAnswer:
    """Ask a question of the run, and wait for the answer, also while Redis is down.

    Raises:
        RunStopped: another worker has the job.
        StoreRefused: Redis refuses it.
        GiveUp: the record has no room for it.
    """
    return _read(job, question, await asyncio.wrap_future(_future(job, question)))


def ask_sync(job: CurrentJob, question: Question) -> KeptAnswer:
    """Ask a question as `ask`, in a plain function."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError("this would block the event loop: in an async handler, use await without .sync")
    future = _future(job, question)
    while True:
        try:
            return _read(job, question, future.result(_LOOK))
        except TimeoutError:
            if job.stopped == "lost":
                raise RunStopped from None


async def recall(job: CurrentJob) -> dict[str, bytes]:
    """Return the data that earlier runs of the job have kept, by name; read once in a run. Raises as `ask`."""
    memory = memory_of(job)
    if memory.kept is None:
        memory.kept = _by_name(await ask(job, Recall()))
    return memory.kept


def recall_sync(job: CurrentJob) -> dict[str, bytes]:
    """Return as `recall`, in a plain function."""
    memory = memory_of(job)
    if memory.kept is None:
        memory.kept = _by_name(ask_sync(job, Recall()))
    return memory.kept


def as_json(what: str, value: Any) -> bytes:
    """Return a value as JSON.

    Raises:
        GiveUp: JSON cannot hold it.
    """
    try:
        return encode_result(value)
    except GiveUp as error:
        raise GiveUp(f"{what}: {error}") from None


def _by_name(answer: KeptAnswer) -> dict[str, bytes]:
    return {line.name: line.rest for line in read_lines(answer.value)}


def _future(job: CurrentJob, question: Question) -> Future[KeptAnswer]:
    if job.keeper is None:
        raise StoreRefused("steps need a worker that keeps them: this job runs without one")
    return job.keeper.ask(question)


def _read(job: CurrentJob, question: Question, answer: KeptAnswer) -> KeptAnswer:
    match answer.how:
        case "lost":
            raise RunStopped(f"job {job.id}: this run has lost the job to another worker, so nothing was kept")
        case "refused":
            raise StoreRefused(answer.value.decode(errors="replace"))
        case "full" if isinstance(question, Keep):
            raise GiveUp(
                f"{question.name} has {len(question.value)} bytes, too many: the steps of a job keep {STEPS_MOST} "
                "bytes in all; store the data elsewhere and return a reference to it"
            )
        case "full":
            raise GiveUp("the job has waited for too many signals: no further wait can be kept")
        case _:
            return answer
