"""evsched: an event-driven job scheduler on Redis.

A job is always in exactly one place, and the place is its state. Every move between places is one verb: one Lua file,
one method of the store, one event, one metric label.

     client ── enqueue ─▶ schedule ◀─────────────── retry ─────────────┐
                          │  ▲  ▲ reschedule                            │
                 dispatch │  │  └── revive ────── dead ◀─── bury ────┐  │
                          ▼  │                                       │  │
                       backlog ═ gate ═▶ ready ── fetch ─▶ processing ─┴──┴─ complete ─▶ finished
                                           ▲                    │
                                           └───── requeue ──────┘

Loops decide when a job moves, the store moves it, handlers do the work; nothing else uses Redis. See docs/design.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from evsched import keys
from evsched.errors import (
    BadArguments,
    BadResult,
    ConfigError,
    EvschedError,
    InUse,
    JobChanged,
    JobDead,
    JobError,
    JobExists,
    JobLate,
    JobMissing,
    JobRunning,
    StoreDown,
    StoreError,
    StoreRefused,
    UnknownTask,
)

if TYPE_CHECKING:
    from evsched.app import App
    from evsched.batches.batch import Batch
    from evsched.batches.batch_options import EndedBatch
    from evsched.batches.member import Member
    from evsched.batches.node import GraphNode
    from evsched.client.history import HistoryFilter, TaskCounts
    from evsched.client.job_handle import Job, SyncJob
    from evsched.client.option_values import Unique
    from evsched.client.sweep import Filter, Swept
    from evsched.client.target_tasks import HttpResponse
    from evsched.client.task_handle import AsyncTask, PlainTask, TaskCall, TaskHandle
    from evsched.graphs.graph import EnqueuedGraph, Graph
    from evsched.jobs.arguments import Arguments
    from evsched.jobs.current_job import CurrentJob, JobLogFilter, current_job
    from evsched.jobs.record import JobRun, JobStatus
    from evsched.jobs.retry import Retry
    from evsched.jobs.steering import GiveUp, RetryLater, Snooze
    from evsched.jobs.tasks import EndedJob
    from evsched.recurrence.recurrence import Declared
    from evsched.store.acts import AuditedAct
    from evsched.store.history_calls import PastJob


__version__ = keys.RELEASE

__all__ = [
    "App",
    "Arguments",
    "AsyncTask",
    "AuditedAct",
    "BadArguments",
    "BadResult",
    "Batch",
    "ConfigError",
    "CurrentJob",
    "Declared",
    "EndedBatch",
    "EndedJob",
    "EnqueuedGraph",
    "EvschedError",
    "Filter",
    "GiveUp",
    "Graph",
    "GraphNode",
    "HistoryFilter",
    "HttpResponse",
    "InUse",
    "Job",
    "JobChanged",
    "JobDead",
    "JobError",
    "JobExists",
    "JobLate",
    "JobLogFilter",
    "JobMissing",
    "JobRun",
    "JobRunning",
    "JobStatus",
    "Member",
    "PastJob",
    "PlainTask",
    "Retry",
    "RetryLater",
    "Snooze",
    "StoreDown",
    "StoreError",
    "StoreRefused",
    "Swept",
    "SyncJob",
    "TaskCall",
    "TaskCounts",
    "TaskHandle",
    "Unique",
    "UnknownTask",
    "__version__",
    "current_job",
]

_WHERE: Final = {
    "app": ["App"],
    "batches.batch": ["Batch"],
    "batches.batch_options": ["EndedBatch"],
    "batches.member": ["Member"],
    "batches.node": ["GraphNode"],
    "client.history": ["HistoryFilter", "TaskCounts"],
    "client.job_handle": ["Job", "SyncJob"],
    "client.option_values": ["Unique"],
    "client.sweep": ["Filter", "Swept"],
    "client.target_tasks": ["HttpResponse"],
    "client.task_handle": ["AsyncTask", "PlainTask", "TaskCall", "TaskHandle"],
    "graphs.graph": ["EnqueuedGraph", "Graph"],
    "jobs.arguments": ["Arguments"],
    "jobs.current_job": ["CurrentJob", "JobLogFilter", "current_job"],
    "jobs.record": ["JobRun", "JobStatus"],
    "jobs.retry": ["Retry"],
    "jobs.steering": ["GiveUp", "RetryLater", "Snooze"],
    "jobs.tasks": ["EndedJob"],
    "recurrence.recurrence": ["Declared"],
    "store.acts": ["AuditedAct"],
    "store.history_calls": ["PastJob"],
}
"""The modules that define these names. Each is imported at its first use: all of them take half a second, and a
service must be able to handle SIGTERM before that."""


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f"evsched.{module}"), name)
            return found
    raise AttributeError(f"module 'evsched' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
