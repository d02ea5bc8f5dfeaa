"""The tree of errors. The class docstring is the default message.

EvschedError
├── ConfigError        what was set, named or installed is wrong: mend it and start again
│   ├── CannotStart    what is set may be right; what it needs is not there
│   └── BadArguments   a task cannot be called so; a TypeError as well
├── LoopEnded          a loop of a process has ended, and so the process does: a bug
├── UnknownTask        a task name that this app does not register
├── JobError           this one job
│   ├── JobExists
│   ├── JobMissing
│   ├── JobRunning
│   └── JobDead        `result()` of a job that was given up, or cancelled
└── StoreError         Redis
    ├── StoreDown      wait, then try again
    └── StoreRefused   a bug, or the wrong Redis
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


class LoopEnded(EvschedError):
    """A loop of this process has ended."""


class UnknownTask(EvschedError):
    """No task of that name is registered."""


class JobError(EvschedError):
    """The job cannot do that."""


class JobExists(JobError):
    """A job of that id has not ended yet."""


class JobMissing(JobError):
    """There is no such job, or it has ended and its retention too."""


class JobRunning(JobError):
    """A worker holds the job."""


class JobDead(JobError):
    """The job was given up."""


class StoreError(EvschedError):
    """Redis did not do it."""

    def __init__(self, *told: str, kind: str = "other") -> None:
        super().__init__(*told)
        self.kind = kind
        """What failed, of a few words: connection, timeout, refused, or an error code of Redis such as oom."""


class StoreDown(StoreError):
    """Redis cannot be reached, or cannot serve now."""


class StoreRefused(StoreError):
    """Redis refused the command."""


NO_ENTRY: Final = ("noauth", "wrongpass", "database")
"""The kinds of a StoreRefused that are of the connection: every command meets them."""
