"""The calls that declare, change and read recurrences and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from evsched.store.queue import Queue, as_fields
from evsched.transport.call import Call, raw, text, texts

if TYPE_CHECKING:
    from evsched.recurrence.recurrence import Declared


class Recurrences(Queue):
    """The calls about recurrences and windows by their names; see `store.py`."""

    def declare(self, recurrence: Declared, owner: str = "") -> Call[Literal["made", "changed", "same"]]:
        """Create a recurrence, or change it; the reply says which. `owner`: the app that declares it in its code."""

        def read(reply: bytes) -> Literal["made", "changed", "same"]:
            return cast(Literal["made", "changed", "same"], text(reply))

        words = [word for pair in recurrence.fields().items() for word in pair]
        return self._verb("declare", read, recurrence.name, owner, *words)

    def remove(self, name: str) -> Call[Any]:
        """Delete a recurrence, with the occurrences that it has on the schedule.

        Raises (when sent):
            JobMissing: there is no recurrence of that name.
        """
        return self._verb("remove", raw, name)

    def hold(self, name: str, paused: bool, *, now: float | None = None) -> Call[Any]:
        """Pause a recurrence, or resume it from now on.

        Raises (when sent):
            JobMissing: there is no recurrence of that name.
        """
        return self._verb("hold", raw, self._stamp(now), name, "1" if paused else "")

    def declared(self, owner: str) -> Call[list[str]]:
        """Read the names of the recurrences that an app declares in its code."""
        return Call(("SMEMBERS", f"{self._root}declared:{owner}"), texts)

    def recurrences(self, start: int, count: int) -> Call[list[tuple[str, float]]]:
        """Read a slice of the recurrences with their next planned times, in that order."""

        def read(reply: list[bytes]) -> list[tuple[str, float]]:
            return [(text(reply[i]), float(reply[i + 1])) for i in range(0, len(reply), 2)]

        return Call(("ZRANGE", self._root + "recurrences", start, start + count - 1, "WITHSCORES"), read)

    def next_planned(self, name: str) -> Call[float | None]:
        """Read the planned time of a recurrence that goes on the schedule next; None = there is no such recurrence."""

        def read(reply: bytes | None) -> float | None:
            return None if reply is None else float(reply)

        return Call(("ZSCORE", self._root + "recurrences", name), read)

    def recurrence(self, name: str) -> Call[dict[str, bytes]]:
        """Read a recurrence's record."""
        return Call(("HGETALL", f"{self._root}recurrence:{name}"), as_fields)

    def window(self, name: str) -> Call[str | None]:
        """Read a named window."""

        def read(reply: bytes | None) -> str | None:
            return None if reply is None else text(reply)

        return Call(("HGET", f"{self._root}windows", name), read)

    def windows(self) -> Call[dict[str, str]]:
        """Read all named windows."""

        def read(reply: list[bytes]) -> dict[str, str]:
            return {name: text(value) for name, value in as_fields(reply).items()}

        return Call(("HGETALL", f"{self._root}windows"), read)

    def reopen(self, window: str, *, limit: int = 250, now: float | None = None) -> Call[tuple[int, int]]:
        """Make jobs due that wait for a named window; the reply: how many, and how many still have to be looked at.

        Call it after `set_window`, until none is left.
        """

        def counts(reply: list[Any]) -> tuple[int, int]:
            return reply[0], reply[1]

        return self._verb("reopen", counts, self._stamp(now), window, limit)

    def count_deferred(self, window: str) -> Call[int]:
        """Count the notes of jobs that wait for a named window: refused when its key is of a wrong type."""
        return Call(("ZCARD", f"{self._root}deferred:{window}"), int)

    def set_window(self, name: str, window: str | None) -> Call[int]:
        """Store a named window, None deletes it; the reply is 1 if it was added or deleted."""
        key = f"{self._root}windows"
        return Call(("HDEL", key, name) if window is None else ("HSET", key, name, window), int)
