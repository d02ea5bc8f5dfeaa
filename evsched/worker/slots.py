"""The slots: the room for jobs in a worker process, which its queues share by their weights.

Each queue is charged the seconds that its jobs are in slots, divided by its weight, and a free slot goes to the queue
that was charged least among those that have work: weighted fair queueing, with slots for bandwidth (Demers, Keshav,
Shenker 1989). So with any number of slots, and however long the jobs of one queue are, no queue waits for longer than
its turn. A queue that had no work has saved nothing up: it begins where the others are. When no queue has work, all
begin again at zero.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

_FIRST: Final = 0.1
"""Seconds that a queue's jobs are assumed to last until the first has ended."""

_SMOOTHING: Final = 0.1
"""The weight of the newest job's length in the mean."""

_BLOCK: Final = 64
_BRIEF: Final = 0.05
"""A queue whose jobs last for less than so many seconds is dealt half of the slots at once, and so many at least. Then
one script starts many of its jobs, and the slots are free again for the other queues soon."""


class Share:
    """One queue's part in the slots. `wake()` is called when it may look for one again."""

    def __init__(self, slots: Slots, weight: float, wake: Callable[[], None]) -> None:
        self._slots = slots
        self.weight = weight
        self.wake = wake
        self.in_use = 0
        """Slots that its jobs are in, or that are reserved for them."""
        self.charged = 0.0
        """Slot seconds of what has ended, by weight."""
        self.mean = _FIRST
        """Seconds that one of its jobs lasts."""
        self.wants = False
        """It has work for more slots."""

    @property
    def active(self) -> bool:
        """Whether it has work."""
        return self.wants or self.in_use > 0

    def tag(self, more: int = 0) -> float:
        """Return what it is charged with `more` slots, when all that it has in slots has ended."""
        return self.charged + (self.in_use + more) * self.mean / self.weight

    def want(self, wants: bool) -> None:
        """Say whether there is work for more slots."""
        if wants and not self.active:
            self._slots.begin(self)
        passes = self.wants and not wants
        if wants != self.wants:
            self.wants = wants
            self._slots.changed()
        if passes:
            self._slots.give_back(0)

    @property
    def block(self) -> int:
        """How many slots it is dealt at once."""
        return max(_BLOCK, self.total // 2) if self.mean < _BRIEF else 1

    @property
    def part(self) -> int:
        """An equal part of the free slots, rounded up."""
        return self._slots.part

    @property
    def total(self) -> int:
        """How many slots there are in all."""
        return self._slots.total

    @property
    def free(self) -> int:
        """How many slots are free, whichever queue's turn it is."""
        return self._slots.free

    @property
    def may_block(self) -> bool:
        """Whether to block for a job: a slot is free; or other queues hold them all, and only a job gives it a turn."""
        return self._slots.free > 0 or self._slots.shared

    @property
    def is_in_turn(self) -> bool:
        """Whether it has slots, or turns, that other queues could use."""
        return self.active and self._slots.shared

    @property
    def turns(self) -> int:
        """How many of the free slots are this queue's by its turn."""
        return self._slots.turns_of(self)

    def reserve(self, most: int) -> int:
        """Take the free slots that are this queue's by its turn, `most` at the most; return how many."""
        return self._take(min(self.turns, most))

    def reserve_one(self) -> bool:
        """Take a free slot out of turn, if there is one: for a job that has been moved here already."""
        if self._slots.free <= 0:
            return False
        if not self.active:
            self._slots.begin(self)
        self._take(1)
        return True

    def release(self, count: int) -> None:
        """Give back slots that were not used."""
        if count:
            self.in_use -= count
            self._slots.give_back(count)

    def end(self, seconds: float) -> None:
        """Give back the slot of a job that was in it for so many seconds."""
        self.charged += seconds / self.weight
        self.mean += _SMOOTHING * (seconds - self.mean)
        self.release(1)

    def _take(self, count: int) -> int:
        self.in_use += count
        self._slots.taken(self, count)
        return count


class Slots:
    """All slots of a worker: how many there are and how many are free, and the shares of its queues."""

    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self._shares: list[Share] = []
        self._turns: dict[Share, int] | None = None
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

    def join(self, weight: float, wake: Callable[[], None]) -> Share:
        """Add a queue; return its share."""
        share = Share(self, weight, wake)
        self._shares.append(share)
        self.changed()
        return share

    def begin(self, share: Share) -> None:
        """Note that a share that had no work has some: it begins where the others are."""
        self.changed()
        tags = [other.tag() for other in self._shares if other.active]
        if tags:
            share.charged = max(share.charged, min(tags))
        else:
            for one in self._shares:
                one.charged = 0.0

    def turns_of(self, share: Share) -> int:
        """Return how many of the free slots are this share's, if all shares that want some take theirs."""
        self._woken = False
        if self.free <= 0:
            return 0
        if self._turns is None:
            self._turns = self._deal()
        if share in self._turns:
            return self._turns[share]
        return self._deal(share)[share]

    def _deal(self, *also: Share) -> dict[Share, int]:
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
        """Deal again at the next question: what a share is charged, or whether it wants slots, has changed."""
        self._turns = None

    def taken(self, share: Share, count: int) -> None:
        """Count slots as taken. The turns of the other shares stay as they are, if these were its own."""
        self.free -= count
        self._woken = False
        if self._turns is not None and self._turns.get(share, 0) >= count:
            self._turns[share] -= count
        else:
            self._turns = None

    def give_back(self, count: int) -> None:
        """Count slots as free, and wake the shares that want some, or that could not block without one."""
        were_none = self.free <= 0
        self.free += count
        self._turns = None
        if self.free > 0 and self.shared and not self._woken:
            self._woken = True
            for share in self._shares:
                if share.wants or were_none:
                    share.wake()
