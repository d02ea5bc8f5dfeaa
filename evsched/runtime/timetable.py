"""A timetable: when something is next to be done for each of many items, without a walk over all of them. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_NEVER = float("inf")


class Timetable(Generic[T]):
    """The moment of each item that has one. To plan, and to take the next item, costs O(log n)."""

    def __init__(self) -> None:
        self._moments: dict[T, float] = {}
        self._listed: dict[T, float] = {}
        """The moment of each item's valid entry in the heap. Other entries of the item are skipped."""
        self._heap: list[tuple[float, int, T]] = []
        self._number = count()
        """Decides between entries of one moment: the one that was added first comes first."""

    def __contains__(self, item: T) -> bool:
        return item in self._moments

    def at(self, item: T) -> float:
        """Return the moment of an item; inf = it has none."""
        return self._moments.get(item, _NEVER)

    def plan(self, item: T, at: float) -> None:
        """Set the moment of an item, instead of an earlier or a later one; inf = never."""
        if at == _NEVER:
            self.drop(item)
            return
        self._moments[item] = at
        # If the moment moves to a later time, the entry stays: `next` corrects it when it comes first.
        if at < self._listed.get(item, _NEVER):
            self._listed[item] = at
            heapq.heappush(self._heap, (at, next(self._number), item))

    def bring_forward(self, item: T, at: float) -> bool:
        """Set the moment of an item, unless it has an earlier one; return whether it was set."""
        sooner = at < self.at(item)
        if sooner:
            self.plan(item, at)
        return sooner

    def drop(self, item: T) -> None:
        """Remove an item, if it is there."""
        self._moments.pop(item, None)

    def next(self) -> float:
        """Return the earliest moment; inf = there is none."""
        heap, moments, listed = self._heap, self._moments, self._listed
        while heap:
            at, _, item = heap[0]
            if listed.get(item) == at:
                moment = moments.get(item)
                if moment == at:
                    return at
                del listed[item]
                heapq.heappop(heap)
                if moment is not None:
                    self.plan(item, moment)
            else:
                heapq.heappop(heap)
        return _NEVER

    def take(self, until: float) -> T | None:
        """Remove and return the item whose moment is the earliest, if that is at most `until`."""
        if self.next() > until:
            return None
        item = heapq.heappop(self._heap)[2]
        del self._moments[item], self._listed[item]
        return item
