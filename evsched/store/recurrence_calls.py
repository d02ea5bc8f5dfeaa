"""The calls that declare, change and read recurrences and windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from evsched.jobs.record import number
from evsched.store.queue import (
    NO_REQUEST,
    IdempotentRequest,
    Queue,
    as_bool,
    as_fields,
    as_moment,
    as_optional,
    as_revision,
    as_scores,
    as_struct,
    as_texts,
    as_tuple,
    read_redactions,
)
from evsched.transport.call import Call, T, raw, text, texts

if TYPE_CHECKING:
    from evsched.recurrence.recurrence import Declared

Change = Literal["made", "changed", "same", "older"]
"""The result of `declare`. "older": no change, since the app has registered a newer revision."""


class Registered(Struct, frozen=True):
    """The result of `register`."""

    revision: float
    newest: float
    """The newest revision of the app; if it is not this one, older revisions change nothing."""
    declared: list[str]
    """The names of the recurrences that the app declares so far."""


class Backfilled(Struct, frozen=True):
    """The result of `backfill`."""

    requested: int = 0
    """How many get a job now."""
    known: int = 0
    """How many were requested before, or have a job."""
    later: int = 0
    """How many a dispatcher is still to make."""
    left_out: int = 0
    """How many were left out, because too many wait."""
    waiting: int = 0
    """How many requested runs wait for others to end."""


class Roster(Struct, frozen=True):
    """The result of `roster`."""

    now: float
    total: int
    """How many recurrences the queue has."""
    rows: list[tuple[str, float, dict[str, bytes]]]
    """For each recurrence of the slice: its name, its next planned time, and the fields that it has."""


class RecurrenceStats(Struct, frozen=True):
    """The latest runs of a recurrence. Times in Unix seconds."""

    name: str
    due: float | None
    """When its latest run was due; None = it has had none, or is paused or retired."""
    success: float | None
    """When a run was last done; None = none was."""


def _read_stats(reply: list[bytes]) -> list[RecurrenceStats]:
    return [
        RecurrenceStats(text(reply[at]), number(reply[at + 1]), number(reply[at + 2])) for at in range(0, len(reply), 3)
    ]


class RosterPart(Struct, frozen=True):
    """The slice of the recurrences of a queue that `rosters` reads."""

    queue: str
    start: int = 0
    most: int = 1000


def _read_roster(now: bytes, listed: list[Any], fields: Sequence[str]) -> Roster:
    total, *slice_ = listed
    rows = [
        (
            text(slice_[at]),
            float(slice_[at + 1]),
            {name: value for name, value in zip(fields, slice_[at + 2], strict=False) if value is not None},
        )
        for at in range(0, len(slice_), 3)
    ]
    return Roster(float(now), total, rows)


class RecurrenceCalls(Queue):
    """The calls about recurrences and windows by their names; see `store.py`."""

    def register(
        self, owner: str, content: str, *, given: int | None = None, known: float | None = None
    ) -> Call[Registered]:
        """Give the declarations of an app a revision; from then on, older revisions of the app change nothing.

        `content`: the digest of its declarations in this queue. `given`: the revision that the app gives, None = that
        of the content, or a new one. `known`: the revision that this content had before Redis lost its data.
        """
        words = (owner, content, as_revision(given), as_revision(known))
        return self._verb("register", as_struct(Registered, float, float, texts), self._now(), *words)

    def declare(self, recurrence: Declared, owner: str = "", revision: float | None = None) -> Call[Change]:
        """Create a recurrence, or change it; the reply says which.

        `owner`: the app that declares it in its code. `revision`: what `register` replied; None = older than any.
        """

        def read(reply: bytes) -> Change:
            return cast(Change, text(reply))

        words = [word for pair in recurrence.fields().items() for word in pair]
        return self._verb("declare", read, recurrence.name, owner, as_revision(revision), *words)

    def retire(self, name: str, owner: str, revision: float | None) -> Call[Literal["retired", "gone", "older"]]:
        """Stop a recurrence that its app no longer declares, and keep its record until it is pruned.

        `revision`: what `register` replied; None = older than any.
        """

        def read(reply: bytes) -> Literal["retired", "gone", "older"]:
            return cast(Literal["retired", "gone", "older"], text(reply))

        return self._verb("retire", read, self._now(), name, owner, as_revision(revision))

    def prune(self, name: str) -> Call[bool]:
        """Delete a recurrence that is retired; the reply is False when it is not, or not any more."""
        return self._verb("prune", as_bool, name, self._act_text("prune", recurrence=name))

    def remove(self, name: str) -> Call[Any]:
        """Delete a recurrence, with the occurrences that it has on the schedule.

        Raises (when sent):
            JobMissing: there is no recurrence of that name.
        """
        return self._verb("remove", raw, name, self._act_text("remove", recurrence=name))

    def hold(self, name: str, paused: bool, *, until: float | None = None, why: str = "") -> Call[bool]:
        """Pause a recurrence, or resume it from now on; the reply is False when it does not recur since it is retired.

        `until`: Unix seconds at which the pause ends by itself; None = it does not. `why`: what `recurrences` shows.

        Raises (when sent):
            JobMissing: there is no recurrence of that name.
        """
        if paused:
            act = self._act_text("pause", recurrence=name, until=until, why=why or None)
        else:
            act = self._act_text("resume", recurrence=name)
        return self._verb("hold", as_bool, self._now(), name, "1" if paused else "", as_moment(until), why, act)

    def trigger(self, name: str, planned: str) -> Call[bool]:
        """Run a recurrence once, as soon as its overlap policy allows; the reply is False if it has to wait for that.

        `planned`: Redis's clock, as it stands in the id of the run.

        Raises (when sent):
            JobMissing: there is no recurrence of that name, or it is retired.
        """
        return self._trigger(as_bool, name, planned)

    def trigger_once(self, request: IdempotentRequest, name: str, planned: str) -> Call[tuple[str, str, bool]]:
        """As `trigger`, unless there was a request of the same key in the last 24 hours.

        Then nothing is written. The reply is that of the first request in either case: its digest, which you
        should compare, the id of the run, and False if that had to wait.

        Raises (when sent):
            JobMissing: as of `trigger`. The key is not used up.
        """

        def first(reply: bytes) -> tuple[str, str, bool]:
            asked, job_id, begun = text(reply).split(" ")
            return asked, job_id, begun == "1"

        return self._trigger(first, name, planned, request)

    def _trigger(
        self, read: Callable[[Any], T], name: str, planned: str, request: IdempotentRequest = NO_REQUEST
    ) -> Call[T]:
        act = self._act_text("trigger", recurrence=name)
        return self._verb("trigger", read, self._now(), name, planned, request.key, request.asked, act)

    def backfill(self, name: str, planned: Sequence[str]) -> Call[Backfilled]:
        """Run planned times that have passed, each once; at most 250 in a call.

        Raises (when sent):
            JobMissing: there is no recurrence of that name, or it is retired.
        """
        act = self._act_text("backfill", recurrence=name)
        return self._verb("backfill", lambda reply: Backfilled(*reply), self._now(), name, act, *planned)

    def recurrence_stats(self, *, most: int = 200) -> Call[list[RecurrenceStats]]:
        """Read when each recurrence was due and succeeded last. A queue with more recurrences is left out."""
        return self._verb("recurrence_stats", lambda reply: _read_stats(reply[0]), most, self.queue)

    def many_recurrence_stats(
        self, queues: Sequence[str], *, most: int = 200
    ) -> Call[list[list[RecurrenceStats] | None]]:
        """Read the same of many queues in one call, as `many_queue_stats`."""

        def read(reply: list[Any]) -> list[list[RecurrenceStats] | None]:
            return [None if one is None else _read_stats(one) for one in reply]

        return self._verb("recurrence_stats", read, most, *queues)

    def requests(self, name: str) -> Call[int]:
        """Count the requested runs that wait."""
        return self._call(("ZCARD", f"{self._root}requests:{name}"), int)

    def known_revisions(self, owner: str) -> Call[int]:
        """Count the revisions that an app has registered; 0 = there is no such app."""
        return self._call(("ZCARD", f"{self._root}revisions:{owner}"), int)

    def forget_revisions(self, owner: str) -> Call[int]:
        """Forget the revisions of an app: at their next heartbeats its workers register and declare again."""
        return self._call(("DEL", f"{self._root}revisions:{owner}"), int)

    def recurrences(self, start: int, count: int) -> Call[list[tuple[str, float]]]:
        """Read a slice of the recurrences with their next planned times, in that order."""
        words = ("ZRANGE", self._root + "recurrences", start, start + count - 1, "WITHSCORES")
        return self._call(words, as_scores)

    def roster(self, start: int, limit: int, fields: Sequence[str]) -> Call[Roster]:
        """Read a slice of the recurrences, in the order of their next planned times, with some fields of each."""

        def read(reply: list[Any]) -> Roster:
            return _read_roster(reply[0], reply[1][0], fields)

        return self._verb("roster", read, self._now(), " ".join(fields), limit, self.queue, start, limit)

    def rosters(self, parts: Sequence[RosterPart], fields: Sequence[str], *, limit: int) -> Call[list[Roster | None]]:
        """Read slices of the recurrences of many queues in one call, as `many_queue_stats`.

        `limit`: of recurrences in all.
        """

        def read(reply: list[Any]) -> list[Roster | None]:
            return [None if one is None else _read_roster(reply[0], one, fields) for one in reply[1]]

        words = [word for part in parts for word in (part.queue, part.start, min(part.most, limit))]
        return self._verb("roster", read, self._now(), " ".join(fields), limit, *words)

    def next_planned(self, name: str) -> Call[float | None]:
        """Read the planned time of a recurrence that goes on the schedule next; None = there is no such recurrence."""
        return self._call(("ZSCORE", self._root + "recurrences", name), as_optional(float))

    def recurrence(self, name: str) -> Call[dict[str, bytes]]:
        """Read a recurrence's record."""
        return self._call(("HGETALL", f"{self._root}recurrence:{name}"), as_fields)

    def calendars(self, names: Sequence[str]) -> Call[dict[str, str]]:
        """Read some calendars, one at least; missing ones are left out."""
        return self._some("calendars", names)

    def _some(self, key: str, names: Sequence[str]) -> Call[dict[str, str]]:
        def read(reply: list[bytes | None]) -> dict[str, str]:
            return {name: text(value) for name, value in zip(names, reply, strict=True) if value is not None}

        return self._call(("HMGET", self._root + key, *names), read)

    def all_calendars(self) -> Call[dict[str, str]]:
        return self._call(("HGETALL", f"{self._root}calendars"), as_texts)

    def set_calendar(self, name: str, days: str | None) -> Call[int]:
        """Store a calendar, None deletes it; the reply is 1 if it was added or deleted.

        Then call `replan` for the recurrences that name it.
        """
        key = f"{self._root}calendars"
        return self._call(("HDEL", key, name) if days is None else ("HSET", key, name, days), int)

    def policies(self, tasks: Sequence[str]) -> Call[dict[str, str]]:
        """Read the retry policies of tasks, one at least; missing ones are left out."""
        return self._some("tasks", tasks)

    def all_policies(self) -> Call[dict[str, str]]:
        """Read the retry policies of all tasks."""
        return self._call(("HGETALL", f"{self._root}tasks"), as_texts)

    def set_policies(self, policies: Mapping[str, str]) -> Call[int]:
        """Write retry policies of tasks, one at least, for programs that make recurrences without the tasks' code."""
        return self._call(("HSET", f"{self._root}tasks", *(word for pair in policies.items() for word in pair)), int)

    def redactions(self) -> Call[dict[str, tuple[str, ...]]]:
        """Read the redacted arguments that workers have declared, by task."""
        return self._call(("HGETALL", f"{self._root}redactions"), read_redactions)

    def set_redactions(self, redactions: Mapping[str, str]) -> Call[int]:
        """Declare redacted arguments of tasks, one task at least, as `write_names` returns them."""
        words = [word for pair in redactions.items() for word in pair]
        return self._call(("HSET", f"{self._root}redactions", *words), int)

    def unset_redactions(self, tasks: Sequence[str]) -> Call[int]:
        """Declare that tasks, one at least, have no redacted arguments."""
        return self._call(("HDEL", f"{self._root}redactions", *tasks), int)

    def replan(self, name: str) -> Call[bool]:
        """Plan a recurrence again, because its calendar was changed, or its window was set.

        The reply is False if it does not recur.
        """
        return self._verb("replan", as_bool, self._now(), name)

    def window(self, name: str) -> Call[str | None]:
        """Read a named window."""
        return self._call(("HGET", f"{self._root}windows", name), as_optional(text))

    def some_windows(self, names: Sequence[str]) -> Call[dict[str, str]]:
        """Read some named windows, one at least; missing ones are left out."""
        return self._some("windows", names)

    def windows(self) -> Call[dict[str, str]]:
        """Read all named windows."""
        return self._call(("HGETALL", f"{self._root}windows"), as_texts)

    def reopen(self, window: str, *, limit: int = 250) -> Call[tuple[int, int]]:
        """Make jobs due that wait for a named window; the reply: how many, and how many still have to be looked at.

        Call it after `set_window`, until none is left.
        """
        return self._verb("reopen", as_tuple(int, int), self._now(), window, limit)

    def count_deferred(self, window: str) -> Call[int]:
        """Count the notes of jobs that wait for a named window: refused when its key is of a wrong type."""
        return self._call(("ZCARD", f"{self._root}deferred:{window}"), int)

    def set_window(self, name: str, window: str | None) -> Call[int]:
        """Store a named window, None deletes it; the reply is 1 if it was added or deleted."""
        key = f"{self._root}windows"
        return self._call(("HDEL", key, name) if window is None else ("HSET", key, name, window), int)
