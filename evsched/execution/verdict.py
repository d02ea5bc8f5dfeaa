"""The verdict on a run: from what its handler did to its outcome.

It is pure, but for the jitter of retries. `encode_result` makes JSON of results, and refuses a value that JSON would
change silently.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evsched.execution.run import NoTask, Prepared, StopReason, doubtful
from evsched.jobs.job import (
    Aborted,
    Buried,
    Done,
    FetchedJob,
    Forwarded,
    Message,
    Outcome,
    Retried,
    Snoozed,
    encode,
    is_not_finite,
    shorten,
)
from evsched.jobs.retry import least_delay
from evsched.jobs.steering import GiveUp

RESULT_MOST: Final = 1_048_576
"""Bytes of a result or a message: Redis copies it in one go, and redis.conf refuses values over 4 MiB."""

TIMED_OUT: Final = "timeout: it ran longer than its limit"


class Failed(Struct, frozen=True):
    """How a run failed."""

    reason: str
    delay: float | None = None
    """Seconds that the handler asked for; None = as the policy says."""
    given_up: bool = False
    killed: bool = False
    """It killed the process in which it was isolated."""
    traceback: str = ""
    error: str = ""
    """The class of the handler's exception; empty = it raised none."""
    refused: str = ""
    """Why the policy allows no other attempt after this exception; empty if it does."""
    place: str | None = None
    """Where the handler was, as the end of a reason. None: its exception asks for a retry or gives up, or it did not
    fail itself; the reason then stays as it is, even after a timeout."""


def judge(
    job: FetchedJob,
    prepared: Prepared,
    result: bytes | Message | Failed | Snoozed,
    stop_reason: StopReason | None = None,
    *,
    began: bool = True,
) -> Outcome:
    """Return the outcome of a run. `result`: the handler's result, how it failed, or that it snoozes.

    `began` is False for a run that was stopped while it waited for a process or in a middleware.
    """
    if stop_reason == "cancelled":
        return aborted(prepared, began=began)
    if isinstance(result, Snoozed):
        return result
    if isinstance(result, Failed):
        if stop_reason == "timeout" and result.place is not None:
            result = replace(result, reason=TIMED_OUT + result.place, refused="", error="")
        return _judge_failure(job, prepared, result)
    if stop_reason == "timeout":
        return _judge_failure(job, prepared, Failed(TIMED_OUT))
    message = isinstance(result, Message)
    size = len(result.text if message else result)
    if size > RESULT_MOST:
        why = f"the {'message' if message else 'result'} has {size} bytes, more than {RESULT_MOST}: return a reference"
        return _judge_failure(job, prepared, Failed(why, given_up=True))
    if message:
        otherwise = _judge_failure(job, prepared, Failed(f"Redis refused the message to {result.name[:200]}"))
        return Forwarded(b"null", prepared.retention, prepared.payload.reply, result, otherwise)
    return Done(result, prepared.retention, prepared.payload.reply)


def aborted(prepared: Prepared | NoTask, *, began: bool = True) -> Aborted:
    """Return the outcome of a run whose job was cancelled."""
    return Aborted(prepared.retention, prepared.payload.reply, began)


def _judge_failure(job: FetchedJob, prepared: Prepared, failure: Failed) -> Retried | Buried:
    policy, reply = prepared.policy, prepared.payload.reply
    if failure.given_up:
        return Buried(shorten(failure.reason), reply, traceback=failure.traceback, error=failure.error)
    # A job that kills its process now most likely killed those of its doubtful runs too, so they count as attempts. The
    # run of a job with one attempt is marked before it begins, so none of its doubtful runs has begun.
    killed = failure.killed and policy.attempts > 1
    doubts = job.doubts if killed else 0
    attempt = job.attempt + doubts
    # A suspect may begin more often than its policy allows: another job may have caused the deaths.
    beyond = f"{attempt} ({policy.attempts} are allowed, but workers died that held the job)"
    count = f"{attempt} of {policy.attempts}" if attempt <= policy.attempts else beyond
    refused = f"; not run again: {failure.refused}" if failure.refused else ""
    reason = shorten(f"attempt {count}{doubtful(job.counted + doubts)}: {failure.reason}{refused}")
    if attempt >= policy.attempts or refused:
        return Buried(reason, reply, killed=killed, traceback=failure.traceback, error=failure.error)
    # A handler may ask for NaN: max() then returns its first argument, the least delay.
    wait = policy.delay(attempt) if failure.delay is None else max(least_delay(attempt), failure.delay)
    return Retried(wait, reason, killed=killed, traceback=failure.traceback, error=failure.error)


def encode_result(result: Any) -> bytes:
    """Return a result as JSON.

    Raises:
        GiveUp: JSON cannot hold it. The handler has done its work, so another attempt would do it again for nothing.
    """
    try:
        text = encode(result)
        # NaN and the infinities become null. Most results have no null, and are not looked at.
        lost = result is not None and b"null" in text and is_not_finite(result)
    # A class may raise anything while it is encoded.
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise GiveUp(f"the result is not JSON: {error}: return a value that JSON can hold") from None
    if lost:
        raise GiveUp("the result has a number that JSON cannot hold, NaN or infinite: return None or a string for it")
    return text
