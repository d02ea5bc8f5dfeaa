"""How many jobs a consumer asks for next, and whether it blocks for one."""

from __future__ import annotations

from typing import Final, Literal

from evsched.execution.executor import Executor
from evsched.worker.slots import Share

WIDEST: Final = 999
"""Jobs that one start may hand out."""

_WORTH_A_CALL: Final = 64
"""Jobs for which a call is worth its own cost: a start that has slots for fewer takes all of them."""

_BEGIN_WITHIN: Final = 0.01
"""Seconds in which the jobs of one start should begin. A job that becomes due meanwhile begins after them, even if its
priority is higher."""

FetchPause = Literal["no process", "lone run", "stopping"]
"""Why a consumer fetches nothing, however many slots are free: all processes of the pool are busy, a suspect runs alone
in this worker, or the worker stops."""


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
        self._width = WIDEST
        """How many to fetch at the most: fewer after some took long to begin, or found no process of the pool free."""
        self._waits = False
        """No process of the pool was free: nothing is fetched until one is."""

    def reserve(self, limit: int) -> int:
        """Take the free slots that are this queue's, `limit` at the most; return how many."""
        wants = self.more and self.not_fetching is None
        self.share.want(wants)
        return self.share.reserve(min(self._width, self._half, limit)) if wants else 0

    @property
    def not_fetching(self) -> FetchPause | None:
        """Why nothing is fetched now, however many slots are free; None = jobs are fetched when there is a slot."""
        if self.closed:
            return "stopping"
        if self._waits:
            return "no process"
        return "lone run" if self._executor.lock.closed else None

    def asks_again(self) -> bool:
        """Return whether to ask at once for more jobs.

        If not, the consumer is woken when it may have a slot.
        """
        if self.more:
            return self.share.wants and self.share.turns > 0
        self.share.want(False)
        return False

    @property
    def blocks(self) -> bool:
        """Whether to block for a job."""
        return not self.more and not self.closed and self.share.may_block

    def narrow(self) -> None:
        """Fetch no more than can begin: jobs came back that found no process of the pool free."""
        self._width = max(1, self._executor.free_processes)
        self._waits = self._executor.free_processes == 0
        self.more = True

    def begun(self, count: int, seconds: float) -> None:
        """Note how long it took until so many jobs, which were handed out together, had begun."""
        if seconds > _BEGIN_WITHIN:
            self._width = max(1, int(count * _BEGIN_WITHIN / seconds))
        else:
            self._width = min(2 * self._width, WIDEST)

    def freed(self) -> bool:
        """Note that a process of the pool is free; return whether to ask for jobs."""
        self._waits = False
        return self.more
