"""The calls of the processes of a release: this one, and the previous one, whose package and scripts come from git.

A process function is the same for both as far as both do the same. `Release` has what they do differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, cast

from evsched.store.run_ends import NO_LEASE, PutBack
from evsched.store.store import Store
from evsched.store.worker_calls import Fetched, Renewed
from evsched.transport.call import Call, Script
from tests.interleavings.server import NOW
from tests.support.previous_release import import_previous

QUEUE: Final = "q"
STORE: Final = Store(QUEUE, clock=lambda: float(NOW))
HANDED_BACK: Final = "no slot was free"
"""The reason with which a live worker hands jobs back."""
LEASE: Final = 15.0
IDLE_LEASE: Final = 135.0
WATCH: Final = 15.0
"""Seconds for which the list of a dead worker is watched."""


class Release:
    """This release. A run is named by the text that `start` replied."""

    remembers = False
    """The janitor itself remembers of which workers the lists are watched; otherwise Redis does."""
    names_runs = True
    """Calls name a run, so the script refuses those of an older run; otherwise the worker reads the record before it
    repeats an end."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def runs(self, reply: Fetched) -> list[tuple[str, str]]:
        """Return the ids and runs that `start` handed out."""
        return [(job.id, job.run) for job in reply.jobs]

    def heartbeat(self, worker: str, lease: float, *, fresh: bool) -> Call[Renewed]:
        return self.store.heartbeat(worker, lease, busy=LEASE, fresh=fresh)

    def hand_back(self, worker: str, runs: Sequence[tuple[str, str]]) -> Call[PutBack]:
        """Put back jobs that a live worker has no slot for."""
        return self.store.requeue(worker, HANDED_BACK, runs=runs)

    def take_back(self, worker: str, lease: bytes) -> Call[PutBack]:
        """Put back what a dead worker holds."""
        watch = None if lease == NO_LEASE else WATCH
        return self.store.requeue(worker, "died", lease=lease, watch=watch, limit=100)


class PreviousRelease(Release):
    """The previous release. A run is named by its attempt; its worker remembers when it received it."""

    remembers = True
    names_runs = False

    def runs(self, reply: Fetched) -> list[tuple[str, str]]:
        return [(job.id, f"{job.attempt} {reply.now:.6f}") for job in reply.jobs]

    def heartbeat(self, worker: str, lease: float, *, fresh: bool) -> Call[Renewed]:
        return self.store.heartbeat(worker, lease, fresh=fresh)

    def hand_back(self, worker: str, runs: Sequence[tuple[str, str]]) -> Call[PutBack]:
        return cast(Any, self.store).requeue(worker, HANDED_BACK, ids=[job for job, _ in runs])

    def take_back(self, worker: str, lease: bytes) -> Call[PutBack]:
        return self.store.requeue(worker, "died", lease=lease, limit=100)


class _PreviousStore:
    """The previous release's store, whose calls are made into this release's, with their scripts."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._store, verb)

        def call(*args: Any, **named: Any) -> Call[Any]:
            made = method(*args, **named)
            script = made.script and Script(made.script.name, made.script.source, made.script.sha)
            return Call(made.words, made.read, script)

        return call


THIS: Final = Release(STORE)


@cache
def previous() -> PreviousRelease:
    """Return the previous release; skip the test if this checkout does not have it."""
    store = import_previous("evsched.store.store").Store(QUEUE, clock=lambda: float(NOW))
    return PreviousRelease(cast(Store, _PreviousStore(store)))
