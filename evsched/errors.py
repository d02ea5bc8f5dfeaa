"""The tree of errors. The docstring of a class is its default message.

EvschedError
├── ConfigError        something that was set, named or installed is wrong: correct it and start again
│   ├── CannotStart    something that the process needs is missing, although the settings may be right
│   └── BadArguments   a task cannot be called with these arguments; a TypeError as well
├── LoopEnded          a loop of a process has ended, which ends the process: a bug
├── UnknownTask        the app has no task of that name
├── CannotOpen         what a codec has sealed cannot be opened: its key is missing, or it was changed
├── JobError           about one job
│   ├── JobExists      a job of that id has not ended
│   ├── JobMissing     there is no such job (any more)
│   ├── JobRunning     a worker runs it
│   ├── JobChanged     it is not as you have seen it: edited, replaced, rescheduled or dead since
│   ├── JobLate        it came too late to be a member of its batch
│   ├── RunGone        its run is not this worker's any more
│   ├── JobDead        `result()` of a job that was given up, or cancelled
│   └── BadResult      `result()` of a job whose result is not what its task returns
└── StoreError         about Redis
    ├── StoreDown      Redis cannot be reached: wait, then try again
    │   ├── ShardsUnread   so the number of shards of a queue is not known, and nothing was done
    │   └── ShardsDown     so shards of a queue were not changed: the message says which, and what to do
    └── StoreRefused   Redis refuses: a bug, a missing right, or the wrong Redis
"""

from __future__ import annotations

from typing import Final


class EvschedError(Exception):
    """Something in evsched failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ConfigError(EvschedError):
    """The configuration is wrong."""


class CannotStart(ConfigError):
    """Something that the process needs is not there: Redis, the app's module, a free port."""


class BadArguments(ConfigError, TypeError):
    """The arguments do not fit the task."""


class InUse(EvschedError):
    """Recurrences refer to it, so it cannot be removed."""


class LoopEnded(EvschedError):
    """A loop of this process has ended."""


class UnknownTask(EvschedError):
    """No task of that name is registered."""


class CannotOpen(EvschedError):
    """A sealed value cannot be opened."""

    def __init__(self, message: str | None = None, *, later: bool = False) -> None:
        super().__init__(message)
        self.later = later
        """Whether it may be possible later: the store of the app has failed."""


class JobError(EvschedError):
    """The job cannot do that."""


class JobExists(JobError):
    """A job of that id has not ended yet."""


class JobMissing(JobError):
    """There is no such job: it never existed, was cancelled while it waited, or ended and its retention is over."""


class JobRunning(JobError):
    """A worker holds the job."""


class JobChanged(JobError):
    """The job has changed since it was read: it was edited, replaced or rescheduled, or has died."""


class JobLate(JobError):
    """The job comes too late to be a member of its batch."""


class RunGone(JobError):
    """The run is not this worker's any more."""


class JobDead(JobError):
    """The job was given up."""


class BadResult(JobError):
    """The job is done, but its result is not of the type that its task returns."""


WRONG_TYPE: Final = "wrongtype"
"""The kind of a refusal because a key has the wrong type."""

FULL: Final = "oom"
"""The kind of a StoreDown that says that Redis's memory is full. It serves, but refuses what needs memory."""


class StoreError(EvschedError):
    """Redis did not execute a command."""

    def __init__(
        self, *message: str, kind: str = "other", node: tuple[str, int] | None = None, unsure: bool = False
    ) -> None:
        super().__init__(*message)
        self.kind = kind
        """The kind of failure, for metrics: connection, timeout, refused, or an error code of Redis such as oom."""
        self.node = node
        """Host and port of the primary of a cluster that does not answer, if it is that."""
        self.unsure = unsure
        """Whether the command was sent and not answered, so it may have been done all the same."""


class StoreDown(StoreError):
    """Redis cannot be reached, or cannot serve now."""


class ShardsUnread(StoreDown):
    """The numbers of shards cannot be read, so nothing was done."""


class ShardsDown(StoreDown):
    """A primary does not answer, so some shards of the queue were not changed."""


class StoreRefused(StoreError):
    """Redis refused the command."""


MOVING: Final = "moving"
"""The kind of a StoreDown that concerns one queue alone: its slot moves to another node of the cluster."""

NO_ENTRY: Final = ("noauth", "wrongpass", "database")
"""The kinds of a StoreRefused that concern the whole connection: every command on it fails."""
