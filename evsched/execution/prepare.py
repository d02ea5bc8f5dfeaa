"""From the payload of a job to what can be run: the task, its arguments, and the job's own limits."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from evsched.errors import ConfigError
from evsched.jobs.job import Buried, FetchedJob, Payload, decode_payload, describe_malformed, shorten
from evsched.jobs.record import DEFAULT_RETENTION
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import Task, Tasks


class Prepared(Struct, frozen=True):
    """A job that can be run: what its payload says, and what runs it."""

    payload: Payload
    task: Task
    policy: Retry
    args: list[Any]
    kwargs: dict[str, Any]

    @property
    def retention(self) -> float:
        return max(0.0, self.task.retention if self.payload.retention is None else self.payload.retention)

    @property
    def timeout(self) -> float | None:
        return self.task.timeout if self.payload.timeout is None else self.payload.timeout


class NoTask(Struct, frozen=True):
    """A job whose task the app does not have. Another worker may have it."""

    payload: Payload

    @property
    def retention(self) -> float:
        return DEFAULT_RETENTION if self.payload.retention is None else max(0.0, self.payload.retention)


def read_payload(job: FetchedJob) -> Payload | Buried:
    """Read the payload of a job, or return why that cannot be done."""
    try:
        return decode_payload(job.payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        why = describe_malformed(job.payload, error)
        return Buried(shorten(f"the payload is no job: {why}: mend it and schedule it again"), False)


def prepare(tasks: Tasks, job: FetchedJob, payload: Payload, now: float) -> Prepared | NoTask | Buried:
    """Return what is to be run, or why it cannot or must not be. `now` by Redis's clock."""
    task = tasks.get(payload.task)
    if task is None:
        return _expired(job, payload, now) or NoTask(payload)
    try:
        policy = task.policy(payload)
        args, kwargs = task.bind(payload)
    except (msgspec.ValidationError, ConfigError, RecursionError) as error:
        return Buried(shorten(f"the arguments do not fit: {error}: mend the payload"), payload.reply)
    if payload.timeout is not None and payload.timeout <= 0:
        wrong = f"the payload's timeout is {payload.timeout:g}, must be over 0 s: mend the payload"
        return Buried(wrong, payload.reply)
    if payload.expires is not None and (expired := _expired(job, payload, now)):
        return expired
    if job.attempt > policy.attempts and (policy.attempts == 1 or not job.deaths):
        return Buried(_why_spent(job, policy.attempts), payload.reply)
    return Prepared(payload, task, policy, args, kwargs)


def _expired(job: FetchedJob, payload: Payload, now: float) -> Buried | None:
    if payload.expires is None or now <= payload.expires:
        return None
    late = now - payload.expires
    again = "" if job.attempt == 1 else f", while it waited for attempt {job.attempt}"
    return Buried(f"expired {late:.3g} s before a worker could start it{again}", payload.reply, "expired")


def _why_spent(job: FetchedJob, attempts: int) -> str:
    """Return why a job is given up that has no attempt left."""
    begun = job.attempt - 1
    if attempts == 1:
        # It is marked before it begins, so its worker may have died in between.
        return "its only attempt began, or was about to, and never ended: its worker died or hung"
    remark = doubtful(job.counted)
    if begun == attempts:
        return f"the last of its {attempts} attempts began and never ended{remark}: its worker died or hung"
    return f"{begun} attempts began{remark}, {attempts} are allowed: workers died or hung, or the limit was lowered"


def doubtful(counted: int) -> str:
    """Say how many of a job's attempts are runs that may not have begun."""
    if not counted:
        return ""
    return f" ({counted} earlier run{' is' if counted == 1 else 's are'} counted that may not have begun)"
