"""How many jobs a consumer asks for next, and whether it blocks for one."""

from __future__ import annotations

import time
from typing import Final, Literal

from evsched.execution.executor import Executor
from evsched.worker.begin_limit import BeginLimit
from evsched.worker.slots import Share

WIDEST: Final = 999
"""Jobs that a worker may hold in one queue: `start` moves no more at once."""

_WORTH_A_CALL: Final = 64
"""Jobs for which a call is worth its own cost: a start that has slots for fewer takes all of them."""

FetchPause = Literal["no process", "lone run", "busy loop", "stopping"]
"""Why a consumer fetches nothing, however many slots are free: all processes of the pool are busy, a suspect runs alone
in this worker, handlers keep its event loop busy, or the worker stops."""


class Demand:
    """A consumer's demand for jobs, within its share of the slots."""

    def __init__(self, share: Share, executor: Executor) -> None:
        self.share = share
        self._executor = executor
        self._half = max(share.total // 2, _WORTH_A_CALL)
        """How many jobs one start may fetch: under load, half of the slots run while Redis fills the other half."""
        self.more = True
        """Ready may hold more: ask without blocking. At the start it may."""
        self.closed = False
        """No more jobs are fetched. Set from any thread."""
        self._waits = False
        """No process of the pool was free: nothing is fetched until one is."""
        self._begin_limit = BeginLimit()

    def reserve(self, limit: int, fetched: int = 0, *, notified: bool = False) -> int:
        """Take free slots that are this queue's, for `limit` jobs at the most; return how many.

        `fetched` jobs have a slot already, and begin together with the others. `notified`: one job is ready, or
        more. Other queues could not use a slot that is taken until the reply comes, so this one takes its part of them,
        or a block if jobs are brief.
        """
        wants = self.more and self._closed_by is None
        self.share.want(wants)
        if not wants:
            return 0
        room = max(0, self._begin_limit.room(time.monotonic()) - fetched)
        if notified:
            limit = min(limit, max(self.share.part, self.share.block))
        return self.share.reserve(min(room, self._half, limit))

    @property
    def not_fetching(self) -> FetchPause | None:
        """Why nothing is fetched now, however many slots are free; None = jobs are fetched when there is a slot."""
        slow = self.more and self._begin_limit.is_slow(time.monotonic())
        return self._closed_by or ("busy loop" if slow else None)

    @property
    def _closed_by(self) -> FetchPause | None:
        if self.closed:
            return "stopping"
        if self._waits:
            return "no process"
        return "lone run" if self._executor.lock.closed else None

    def asks_again(self) -> bool:
        """Return whether to ask at once for more jobs.

        If not, the consumer is woken when it may have a slot, or when the jobs that it was handed have begun.
        """
        if self.more:
            return self.share.wants and self.share.turns > 0 and not self._begin_limit.waits
        self.share.want(False)
        return False

    @property
    def blocks(self) -> bool:
        """Whether to block for a job."""
        return not self.more and not self.closed and self.share.may_block

    def narrow(self) -> None:
        """Fetch no more than can begin: jobs came back that found no process of the pool free."""
        self._begin_limit.lower(max(1, self._executor.free_processes))
        self._waits = self._executor.free_processes == 0
        self.more = True

    def handed_out(self) -> None:
        """Note that jobs were handed out, which are to begin together; `begun` must follow."""
        self._begin_limit.handed_out()

    def begun(self, count: int, seconds: float) -> bool:
        """Note how long it took until so many jobs, which were handed out together, had begun.

        Return whether to ask for jobs now, since that was put off until these had begun.
        """
        put_off = self._begin_limit.waits
        self._begin_limit.begun(count, seconds, time.monotonic())
        return put_off and self.more

    def freed(self) -> bool:
        """Note that a process of the pool is free; return whether to ask for jobs."""
        self._waits = False
        return self.more
