"""The slots: the room for jobs in a worker process, shared by its lanes."""

from __future__ import annotations

from collections.abc import Callable


class Slots:
    """How many are free. A lane that has none appends to `freed` what is called when there are some again."""

    def __init__(self, total: int) -> None:
        self.free = total
        self.freed: list[Callable[[], None]] = []

    def reserve(self) -> int:
        """Take all free slots, and return how many those were."""
        free = max(self.free, 0)
        self.free -= free
        return free

    def release(self, count: int) -> None:
        """Give slots back; lanes that had none go on. A negative count takes them: what BLMOVE took must run."""
        if self.free <= 0 < count and len(self.freed) > 1:
            for stir in self.freed:
                stir()
        self.free += count
