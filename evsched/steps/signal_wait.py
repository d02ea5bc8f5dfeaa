"""`wait_for`: ends the run until a signal comes to the job from a person or another system."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import msgspec

from evsched.display import format_duration
from evsched.jobs.current_job import CurrentJob
from evsched.jobs.job import decode
from evsched.jobs.kept import SIGNAL, KeptAnswer, WaitFor
from evsched.jobs.steering import GiveUp, Waiting
from evsched.steps.memory import ask, ask_sync, run_of

_RAISE: Final = object()


class SignalTimeout(GiveUp, TimeoutError):
    """No signal came in time. If the handler does not catch it, the job goes to dead: no attempt could change it."""


class SignalWaiter:
    """The type of `wait_for`."""

    async def __call__(self, signal: str, timeout: timedelta | float | None = None, *, default: Any = _RAISE) -> Any:
        """Return the value of a signal to this job, which `app.signal`, `evsched signal` or the HTTP API sends.

        If it has not come yet, the run ends here, and costs no attempt. The handler begins again when the signal comes
        or the time is over, and arrives here again: put all work before it in steps. `timeout`: a timedelta or seconds,
        from the first time that a run of the job comes here; None = without an end. `default`: returned after that.

        Raises:
            SignalTimeout: the time is over, and no default was given.
            Waiting: the signal has not come; it ends the run, so do not catch it.
            GiveUp: the name was used before, or is not valid.
            Snooze, RunStopped, LookupError: as `step`.
        """
        job, question = _prepare(signal, timeout)
        return _value(job, question, await ask(job, question), default)

    def sync(self, signal: str, timeout: timedelta | float | None = None, *, default: Any = _RAISE) -> Any:
        """Wait as `await wait_for(...)`, in a plain handler: in a thread, or in a process."""
        job, question = _prepare(signal, timeout)
        return _value(job, question, ask_sync(job, question), default)


def _prepare(signal: str, timeout: timedelta | float | None) -> tuple[CurrentJob, WaitFor]:
    job = run_of("wait_for", signal)
    if not SIGNAL.fullmatch(signal):
        raise GiveUp(f"wait_for {signal!r}: the name of a signal is 1 to 100 of A-Z a-z 0-9 . _ : @ -")
    length = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if length is not None and not 0 <= float(length) <= 1e10:  # nor NaN
        raise GiveUp(f"wait_for {signal!r}: the timeout is {timeout!r}, not 0 to 1e10 seconds")
    return job, WaitFor(signal, None if length is None else float(length))


def _value(job: CurrentJob, question: WaitFor, answer: KeptAnswer, default: Any) -> Any:
    if answer.how == "come":
        try:
            return decode(answer.value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            why = f"its value is not JSON that can be read: {error}; another program has written it"
            raise GiveUp(f"the signal {question.signal}: {why}") from None
    if answer.how == "waits":
        raise Waiting(question.signal, float(answer.value))
    if default is not _RAISE:
        return default
    length = "" if question.timeout is None else f" within {format_duration(question.timeout)}"
    raise SignalTimeout(f"the signal {question.signal} did not come{length}: send it, or revive the job to wait again")


wait_for: Final = SignalWaiter()
