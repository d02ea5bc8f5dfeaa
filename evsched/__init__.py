"""evsched: an event-driven job scheduler on Redis.

A job is always in exactly one place, and the place is its state. Every move is one verb: one Lua file, one method of
the store, one event, one metric label.

     client ── enqueue ─▶ schedule ◀─────────────── retry ─────────────┐
                          │  ▲  ▲ reschedule                            │
                 dispatch │  │  └── revive ────── dead ◀─── bury ────┐  │
                          ▼  │                                       │  │
                       backlog ═ gate ═▶ ready ── take ──▶ processing ─┴──┴─ complete ─▶ finished
                                           ▲                    │
                                           └───── requeue ──────┘

Loops decide when, the store moves, handlers work; nothing else touches Redis. docs/design.md tells it whole.
"""

from __future__ import annotations

from evsched.app import App, Job, SyncJob, TaskHandle
from evsched.backoff import Retry
from evsched.current import CurrentJob, GiveUp, RetryLater, current_job
from evsched.errors import (
    ConfigError,
    EvschedError,
    JobDead,
    JobError,
    JobExists,
    JobMissing,
    JobRunning,
    LeaseLost,
    StoreDown,
    StoreError,
    StoreRefused,
    UnknownTask,
)
from evsched.job import JobStatus

__version__ = "0.1.0"

__all__ = [
    "App",
    "ConfigError",
    "CurrentJob",
    "EvschedError",
    "GiveUp",
    "Job",
    "JobDead",
    "JobError",
    "JobExists",
    "JobMissing",
    "JobRunning",
    "JobStatus",
    "LeaseLost",
    "Retry",
    "RetryLater",
    "StoreDown",
    "StoreError",
    "StoreRefused",
    "SyncJob",
    "TaskHandle",
    "UnknownTask",
    "__version__",
    "current_job",
]
