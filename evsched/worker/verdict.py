"""The verdict on a run that failed: another attempt, or none."""

from __future__ import annotations

from msgspec import Struct

from evsched.jobs.job import Buried, FetchedJob, Retried, shorten
from evsched.jobs.retry import Retry, least_delay


class Failed(Struct, frozen=True):
    """How a run failed. `delay`: as its handler asked; None = as the policy says."""

    reason: str
    delay: float | None = None
    given_up: bool = False
    killed: bool = False
    """It ended the process that ran it alone."""
    traceback: str = ""


def judge(job: FetchedJob, policy: Retry, failure: Failed, *, reply: bool) -> Retried | Buried:
    """Return what becomes of a job whose run failed. `reply`: somebody waits for its end."""
    if failure.given_up:
        return Buried(shorten(failure.reason), reply, traceback=failure.traceback)
    # What kills its process now killed those before too: the runs of which nobody knew whether they had begun.
    attempt = job.attempt + (job.doubts if failure.killed else 0)
    reason = shorten(f"attempt {attempt} of {policy.attempts}: {failure.reason}")
    if attempt >= policy.attempts:
        return Buried(reason, reply, killed=failure.killed, traceback=failure.traceback)
    # NaN: the least.
    wait = policy.delay(attempt) if failure.delay is None else max(least_delay(attempt), failure.delay)
    return Retried(wait, reason, killed=failure.killed, traceback=failure.traceback)
