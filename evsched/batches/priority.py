"""Another priority for the jobs of a batch that wait: some at a time, so that Redis serves others meanwhile."""

from __future__ import annotations

from typing import Final

from evsched.batches.member import CODES, with_codes
from evsched.client import spread
from evsched.client.edit import Changes, check_changes, edit
from evsched.client.operations import Operation
from evsched.client.spread import MakeStore
from evsched.config import PAYLOAD_CAP
from evsched.errors import JobChanged, JobMissing, JobRunning
from evsched.shards import Shards
from evsched.store.batch_calls import BatchRecord
from evsched.store.store import Store

_SLICE: Final = 100
"""Jobs of one step."""


class Reprioritizing:
    """Gives jobs of a batch another priority; None = the default. `make` returns the calls of a queue.

    Raises:
        ConfigError: it is not a priority.
    """

    def __init__(self, home: Store, make: MakeStore, shards: Shards, record: BatchRecord, priority: int | None) -> None:
        self._changes = Changes(priority=priority)
        check_changes(self._changes)
        self._home, self._make, self._shards, self._record = home, make, shards, record
        self._first = 0
        self.changed = 0
        """Jobs that had another one."""
        self.examined = 0
        self.total = record.open

    def step(self) -> Operation[bool]:
        """Change the next jobs; return whether there may be more."""
        record = self._record
        found = yield from with_codes(self._home, record.id, record.ordinals, [CODES["o"]], _SLICE, self._first)
        for member in found:
            if member.batch is None:
                parts = spread.parts_of(self._shards, self._make, member.queue, member.id)
                try:
                    done = yield from spread.of_job(
                        parts, lambda store, job=member.id: edit(store, job, None, self._changes, PAYLOAD_CAP)
                    )
                    self.changed += "priority" in done.changed
                except (JobMissing, JobRunning, JobChanged):
                    pass  # it runs, or has ended, or another edits it
            self.examined += 1
        self._first = found[-1].ordinal + 1 if found else 0
        return len(found) == _SLICE
