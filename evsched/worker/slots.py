"""The slots: the room for jobs in a worker process, which its queues share by their weights.

Each queue is charged the seconds that its jobs are in slots, divided by its weight, and a free slot goes to the queue
with the lowest charge among the queues that have work: weighted fair queueing, with slots for bandwidth (Demers,
Keshav, Shenker 1989). So with any number of slots, and however long the jobs of one queue are, no queue waits for
longer than its turn. A queue that had no work has saved nothing up: it begins where the others are. When no queue has
work, all begin again at zero.

`Demand` decides how many jobs a consumer asks for next, within its share of the slots and its `BeginLimit`.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Final, Literal

from evsched.execution.beginning import BeginLimit
from evsched.execution.executor import Executor

_FIRST: Final = 0.1
"""Seconds that a queue's jobs are assumed to last until the first has ended."""

_SMOOTHING: Final = 0.1
"""The weight of the newest job's length in the mean."""

_BLOCK: Final = 64
_BRIEF: Final = 0.05
"""A queue whose jobs last for less than `_BRIEF` seconds is dealt half of the slots at once, and `_BLOCK` at least.
Then one script starts many of its jobs, and the slots are free again for the other queues soon."""


class QueueShare:
    """One queue's part in the slots. `wake()` is called when it may look for one again."""

    def __init__(self, slots: Slots, weight: float, wake: Callable[[], None]) -> None:
        self.slots = slots
        self.weight = weight
        self.wake = wake
        self.in_use = 0
        """Slots that its jobs are in, or that are reserved for them."""
        self.charged = 0.0
        """Slot seconds of its ended jobs, divided by its weight."""
        self.mean = _FIRST
        """Seconds that one of its jobs lasts."""
        self.wants = False
        """It has work for more slots."""

    @property
    def active(self) -> bool:
        """Whether it has work."""
        return self.wants or self.in_use > 0

    def tag(self, more: int = 0) -> float:
        """Return its charge with `more` slots, when all its jobs in slots have ended."""
        return self.charged + (self.in_use + more) * self.mean / self.weight

    def want(self, wants: bool) -> None:
        """Say whether there is work for more slots."""
        if wants and not self.active:
            self.slots.begin(self)
        passes = self.wants and not wants
        if wants != self.wants:
            self.wants = wants
            self.slots.changed()
        if passes:
            self.slots.give_back(0)

    @property
    def block(self) -> int:
        """How many slots it is dealt at once."""
        return max(_BLOCK, self.slots.total // 2) if self.mean < _BRIEF else 1

    @property
    def may_wait(self) -> bool:
        """Whether to wait for a job: a slot is free; or other queues hold them all, and only a job gives it a turn."""
        return self.slots.free > 0 or self.slots.shared

    @property
    def is_in_turn(self) -> bool:
        """Whether it has slots, or turns, that other queues could use."""
        return self.active and self.slots.shared

    def reserve(self, most: int) -> int:
        """Take the free slots that are this queue's by its turn, `most` at the most; return how many."""
        return self._take(min(self.slots.turns_of(self), most))

    def reserve_one(self) -> bool:
        """Take a free slot out of turn, if there is one: for a job that has been moved here already."""
        if self.slots.free <= 0:
            return False
        if not self.active:
            self.slots.begin(self)
        self._take(1)
        return True

    def release(self, count: int) -> None:
        """Give back slots that were not used."""
        if count:
            self.in_use -= count
            self.slots.give_back(count)

    def end(self, seconds: float) -> None:
        """Give back the slot of a job that was in it for `seconds`."""
        self.charged += seconds / self.weight
        self.mean += _SMOOTHING * (seconds - self.mean)
        self.release(1)

    def _take(self, count: int) -> int:
        self.in_use += count
        self.slots.taken(self, count)
        return count


class Slots:
    """All slots of a worker: how many there are and how many are free, and the shares of its queues."""

    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self.seats = 0
        """Seats that the worker has, each for one job that may be handed over to it."""
        self.asked = 0
        """Slots that are reserved for the replies to questions. Most will be free again."""
        self._shares: list[QueueShare] = []
        self._turns: dict[QueueShare, int] | None = None
        """How the free slots are dealt; None = they are to be dealt again."""
        self._woken = False
        """The shares were woken, and none has looked for a slot since."""

    @property
    def shared(self) -> bool:
        """Whether several queues share them."""
        return len(self._shares) > 1

    @property
    def part(self) -> int:
        """An equal part of the free slots for each share, rounded up."""
        return -(-self.free // len(self._shares))

    def take_seat(self) -> bool:
        """Take a seat, if there are more slots for jobs than seats; return whether it was.

        So a job is handed over to a worker without a free slot only if another queue took the slot meanwhile.
        """
        taken = self.seats < self.free + self.asked
        self.seats += taken
        return taken

    def join(self, weight: float, wake: Callable[[], None]) -> QueueShare:
        """Add a queue; return its share."""
        share = QueueShare(self, weight, wake)
        self._shares.append(share)
        self.changed()
        return share

    def begin(self, share: QueueShare) -> None:
        """Note that a share that had no work has some: it begins where the others are."""
        self.changed()
        tags = [other.tag() for other in self._shares if other.active]
        if tags:
            share.charged = max(share.charged, min(tags))
        else:
            for one in self._shares:
                one.charged = 0.0

    def turns_of(self, share: QueueShare) -> int:
        """Return how many of the free slots are this share's, if all shares that want some take theirs."""
        self._woken = False
        if self.free <= 0:
            return 0
        if self._turns is None:
            self._turns = self._deal()
        if share in self._turns:
            return self._turns[share]
        return self._deal(share)[share]

    def _deal(self, *also: QueueShare) -> dict[QueueShare, int]:
        """Deal the free slots to the shares that want some and to `also`, each slot to the one charged least."""
        takers = dict.fromkeys((*also, *(share for share in self._shares if share.wants)), 0)
        if len(takers) == 1:
            return dict.fromkeys(takers, self.free)
        nearest = [(share.tag(1), n, share) for n, share in enumerate(takers)]
        heapq.heapify(nearest)
        left = self.free if takers else 0
        while left:
            _, n, first = nearest[0]
            dealt = min(first.block, left)
            takers[first] += dealt
            left -= dealt
            heapq.heapreplace(nearest, (first.tag(takers[first] + 1), n, first))
        return takers

    def changed(self) -> None:
        """Deal again at the next question: the charge of a share, or whether it wants slots, has changed."""
        self._turns = None

    def taken(self, share: QueueShare, count: int) -> None:
        """Count slots as taken. The turns of the other shares stay as they are, if these were its own."""
        self.free -= count
        self._woken = False
        if self._turns is not None and self._turns.get(share, 0) >= count:
            self._turns[share] -= count
        else:
            self._turns = None

    def give_back(self, count: int) -> None:
        """Count slots as free, and wake the shares that want some, or that could not wait without one."""
        were_none = self.free <= 0
        self.free += count
        self._turns = None
        if self.free > 0 and self.shared and not self._woken:
            self._woken = True
            for share in self._shares:
                if share.wants or were_none:
                    share.wake()


WIDEST: Final = 999
"""Jobs that a worker may hold in one queue: `start` moves no more at once."""

_WORTH_A_CALL: Final = 64
"""Jobs for which a call is worth its own cost: a start that has slots for fewer takes all of them."""

FetchPause = Literal["no process", "lone run", "busy loop", "quiet", "stopping"]
"""Why a consumer fetches nothing, however many slots are free: all processes of the pool are busy, a suspect runs alone
in this worker, handlers keep its event loop busy, or the worker was asked to fetch no more, or to stop."""


class Demand:
    """A consumer's demand for jobs, within its share of the slots."""

    def __init__(self, share: QueueShare, executor: Executor) -> None:
        self.share = share
        self._executor = executor
        self._half = max(share.slots.total // 2, _WORTH_A_CALL)
        """How many jobs one start may fetch: under load, half of the slots run while Redis fills the other half."""
        self.more = True
        """Ready may hold more: ask without blocking. At the start it may."""
        self.closed = False
        """No more jobs are fetched. Set from any thread."""
        self.quiet = False
        """The worker goes on without fetching. Only if it is closed."""
        self._waits = False
        """No process of the pool was free: nothing is fetched until one is."""
        self.begin_limit = BeginLimit()

    def reserve(self, limit: int, fetched: int = 0, *, notified: bool = False) -> int:
        """Take free slots that are this queue's, for `limit` jobs at the most; return how many.

        `fetched` jobs have a slot already, and begin together with the others. `notified`: one job is ready, or
        more. Other queues could not use a slot that is taken until the reply comes, so this one takes its part of them,
        or a block if jobs are brief.
        """
        wants = self.more and self.closed_by is None
        self.share.want(wants)
        if not wants:
            return 0
        room = max(0, self.begin_limit.room(time.monotonic()) - fetched)
        if notified:
            limit = min(limit, max(self.share.slots.part, self.share.block))
        return self.share.reserve(min(room, self._half, limit))

    @property
    def not_fetching(self) -> FetchPause | None:
        """Why nothing is fetched now, however many slots are free; None = jobs are fetched when there is a slot."""
        slow = self.more and self.begin_limit.is_slow(time.monotonic())
        return self.closed_by or ("busy loop" if slow else None)

    @property
    def closed_by(self) -> FetchPause | None:
        """Why nothing is fetched, even if jobs would begin at once."""
        if self.closed:
            return "quiet" if self.quiet else "stopping"
        if self._waits:
            return "no process"
        return "lone run" if self._executor.lock.closed else None

    def asks_again(self) -> bool:
        """Return whether to ask at once for more jobs.

        If not, the consumer is woken when it may have a slot, or when the jobs that it was handed have begun.
        """
        if self.more:
            return self.share.wants and self.share.slots.turns_of(self.share) > 0 and not self.begin_limit.waits
        self.share.want(False)
        return False

    @property
    def waits(self) -> bool:
        """Whether to wait until a job is ready."""
        return not self.more and not self.closed and self.share.may_wait

    def narrow(self) -> None:
        """Fetch no more than can begin: jobs came back that found no process of the pool free."""
        self.begin_limit.lower(max(1, self._executor.free_processes))
        self._waits = self._executor.free_processes == 0
        self.more = True

    def begun(self, count: int, seconds: float) -> bool:
        """Note how long it took until `count` jobs, which were handed out together, had begun.

        Return whether to ask for jobs now, since that was put off until these had begun.
        """
        put_off = self.begin_limit.waits
        self.begin_limit.begun(count, seconds, time.monotonic())
        return put_off and self.more

    def freed(self) -> bool:
        """Note that a process of the pool is free; return whether to ask for jobs."""
        self._waits = False
        return self.more
