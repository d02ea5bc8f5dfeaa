"""The calls of dispatchers: dispatch, recurrences, and the leases that the janitor judges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from evsched import keys
from evsched.jobs.record import number
from evsched.lease import parse_lease
from evsched.recurrence.calendars import names_of
from evsched.store.queue import Queue, as_bool, as_fields, as_optional, as_pairs, as_struct, as_tuple
from evsched.transport.call import Call, Word, raw, text, texts

if TYPE_CHECKING:
    from evsched.recurrence.recurrence import Occurrence


class Step(Struct, frozen=True):
    """The result of one `dispatch`."""

    now: float
    sleep: float
    """Seconds until the next job is due or a rate opens the gate: 0 if more is due now, inf if there is neither."""
    moved: list[float]
    """The dues of the jobs that left the schedule."""
    buried: list[tuple[str, str]]
    """(id, reason) of the jobs that went to dead."""
    missed: list[str]
    """The names of recurrences that missed occurrences, once for each occurrence."""
    opens: float
    """Seconds until a rate opens the gate; inf if it is open, or closed for another reason. At least `sleep`."""


class Seen(Struct, frozen=True):
    """A queue that needs attention, as a glance saw it."""

    nearest: float | None
    """The due time of the first job on the schedule, by Redis's clock; None = there is none."""
    gated: bool
    """Jobs wait behind the gate."""
    workers: bool
    """It has workers, or jobs that move to another shard."""
    recurs: bool
    """It has recurrences."""
    chores: bool = False
    """It has chores of batches."""
    batches: bool = False
    """It is the home of batches."""


class Glance(Struct, frozen=True):
    """The result of a glance at many queues."""

    now: float
    seen: dict[str, Seen]
    """By name: the queues that need attention."""


class Lease(Struct, frozen=True):
    """A worker's lease."""

    worker: str
    end: bytes
    """The score as Redis returned it: `requeue` compares the text."""
    left: float
    """Seconds until its end; negative if it has ended."""
    held: int
    """Jobs in the worker's list."""
    busy: float | None = None
    """The seconds of its lease while it holds jobs, as it says; None = it does not say, or nothing valid."""


class Survey(Struct, frozen=True):
    """The state of a queue that a janitor checks."""

    leases: list[Lease]
    """The one that ends first first."""
    moving: float | None
    """Seconds since a batch of jobs began to move to another shard; None = none moves."""
    beside: str | None = None
    """The first job in ready, if workers wait for a message all the same."""
    reserved: bool = False
    """A part of a limit is not to be used yet: see `Reserved`."""
    waits: bool = False
    """Jobs wait in ready or behind the gate."""
    died: list[str] = []
    """The workers that died a moment ago, and whose lists are watched."""


def _read_survey(reply: list[Any]) -> Survey:
    since, beside, reserved, waits, died, *flat = reply
    leases = [
        Lease(text(flat[i]), flat[i + 1], float(flat[i + 2]), flat[i + 3], parse_lease(flat[i + 4]))
        for i in range(0, len(flat), 5)
    ]
    moving = float(since) if since else None
    return Survey(leases, moving, text(beside) if beside else None, reserved == b"1", waits == b"1", texts(died))


_ID_MOST: Final = 1000
"""Bytes of an id that `fronts` reads."""


class Fronts(Struct, frozen=True):
    """The jobs of a queue that are to move next."""

    due: tuple[str, float] | None
    """The front of the schedule: id and due."""
    moved: tuple[bytes, ...]
    """Fields of that job's record that change when it runs. They show that an id that is scheduled again and again runs
    between two looks."""
    waiting: tuple[str, float] | None
    """The front of the backlog."""
    ready: str | None


def _read_fronts(reply: list[bytes]) -> Fronts:
    due, due_at, *moved, waiting, waiting_at, ready = reply
    return Fronts(
        (text(due), float(due_at)) if due else None,
        tuple(moved),
        (text(waiting), float(waiting_at)) if waiting else None,
        text(ready) if ready else None,
    )


class Agenda(Struct, frozen=True):
    """The recurrences that fall due now."""

    now: float
    beyond: float | None
    """The next planned time after those, in Unix seconds."""
    rows: list[tuple[str, bytes, dict[str, bytes]]]
    """(name, score as it is stored, record)."""
    pause_ends: float | None
    """When the next pause of a recurrence ends, in Unix seconds."""
    over: list[tuple[str, bytes, dict[str, bytes]]]
    """The pauses that are over: (name, end as it is stored, record)."""
    newly_paused: int = 0
    """How many recurrences were paused because of failures, and not reported yet."""

    @property
    def calendars(self) -> list[str]:
        """The names of the calendars that these recurrences skip."""
        return sorted({name for *_, fields in (*self.rows, *self.over) for name in names_of(fields.get("skip"))})


GLANCE_MOST: Final = 250
"""Queues that one glance or `forget` is about: under 2 ms of Redis's time, if all have something."""

MEMBER_MOST: Final = 1 << 20
"""Bytes of a member of the schedule, at most: MEMBER_MOST of lua/_schedule.lua."""


class DispatcherCalls(Queue):
    """The calls of a dispatcher and its janitor; see `store.py`."""

    def dispatch(self, *, limit: int, cap: int, canary: str = "") -> Call[Step]:
        """Move due jobs to the backlog and through the gate; the reply says how long to sleep.

        With a `canary`, a dispatcher's id, that dispatcher's subscription receives a message and a keyspace event.
        """

        def step(reply: list[Any]) -> Step:
            moment, sleep, moved, buried, missed, opens = reply
            return Step(
                float(moment),
                float(sleep) if sleep else float("inf"),
                [due for due in map(number, moved) if due is not None],
                as_pairs(buried),
                texts(missed),
                float(opens) if opens else float("inf"),
            )

        return self._verb("dispatch", step, self._now(), limit, cap, canary)

    def nearest(self) -> Call[float | None]:
        """Read the nearest due, None if nothing is scheduled. A member that is too long counts as due, to be buried."""

        def due(reply: list[bytes]) -> float | None:
            if not reply:
                return None
            return float(reply[1]) if len(reply[0]) <= MEMBER_MOST else 0.0

        return self._call(("ZRANGE", keys.schedule(self.queue), 0, 0, "WITHSCORES"), due)

    def glance(self, queues: Sequence[str]) -> Call[Glance]:
        """Look at many queues in one call; in a cluster, all are on the node of this one."""

        def read(reply: list[bytes]) -> Glance:
            seen = {
                text(reply[at]): Seen(number(reply[at + 1]), *(flag == b"1" for flag in reply[at + 2 : at + 7]))
                for at in range(1, len(reply), 7)
            }
            return Glance(float(reply[0]), seen)

        return self._verb("glance", read, self._now(), *queues)

    def forget(self, queues: Sequence[str]) -> Call[list[str]]:
        """Delete the announcements of former workers, for each of many queues that has nothing else.

        The reply: the names of these queues. In a cluster, all are on the node of this one.
        """
        return self._verb("forget", texts, self._now(), *queues)

    def recur(
        self,
        name: str,
        seen: bytes,
        put: Iterable[Occurrence],
        *,
        next_: float | None,
        missed: int = 0,
        reason: str = "",
    ) -> Call[list[str] | None]:
        """Put occurrences on the schedule and advance their recurrence; None if another dispatcher has advanced it."""
        words: list[Word] = [self._now(), name, seen, "+inf" if next_ is None else repr(next_), missed, reason]
        for one in put:
            words += (
                one.id,
                repr(one.planned),
                repr(one.due),
                "" if one.misfire_grace is None else repr(one.misfire_grace),
            )
        return self._verb("recur", as_optional(texts), *words)

    def unpause(self, name: str, seen: bytes, next_: float | None) -> Call[bool]:
        """End a pause whose time is over; the reply is False when it was resumed or paused again.

        `seen`: the end of the pause as it was read. `next_`: the first planned time from then on, None = none, 0 = the
        first one from now on.
        """
        return self._verb("unpause", as_bool, name, seen, "+inf" if next_ is None else repr(next_))

    def rewind(self, ahead: float, offset: int, limit: int) -> Call[tuple[int, list[str]]]:
        """Restart recurrences from now that a clock which was ahead has advanced more than `ahead` seconds too far.

        Looks at `limit` of them, after the first `offset`. The reply: how many it looked at, and which it restarted.
        """
        return self._verb("rewind", as_tuple(int, texts), self._now(), ahead, offset, limit)

    def fronts(self) -> Call[Fronts]:
        """Read the jobs that are to move next."""
        return self._verb("fronts", lambda reply: _read_fronts(reply[0]), _ID_MOST, self.queue)

    def many_fronts(self, queues: Sequence[str]) -> Call[list[Fronts | None]]:
        """Read the jobs of many queues that are to move next, in one call, as `many_queue_stats`."""

        def read(reply: list[Any]) -> list[Fronts | None]:
            return [None if one is None else _read_fronts(one) for one in reply]

        return self._verb("fronts", read, _ID_MOST, *queues)

    def survey(self) -> Call[Survey]:
        """Read all leases of the queue, whether jobs move to another shard, and whether jobs wait."""
        return self._verb("survey", lambda reply: _read_survey(reply[0]), self._now(), self.queue)

    def many_surveys(self, queues: Sequence[str]) -> Call[list[Survey | None]]:
        """Survey many queues in one call, as `many_queue_stats`."""

        def read(reply: list[Any]) -> list[Survey | None]:
            return [None if one is None else _read_survey(one) for one in reply]

        return self._verb("survey", read, self._now(), *queues)

    def agenda(self, ahead: float, limit: int) -> Call[Agenda]:
        """Read the recurrences whose next planned time is at most `ahead` seconds away, and pauses that are over."""

        def with_records(rows: list[Any]) -> list[tuple[str, bytes, dict[str, bytes]]]:
            return [(text(rows[i]), rows[i + 1], as_fields(rows[i + 2])) for i in range(0, len(rows), 3)]

        read = as_struct(Agenda, float, number, with_records, number, with_records, raw)
        return self._verb("agenda", read, self._now(), ahead, limit)

    def take_newly_paused(self, limit: int) -> Call[list[str]]:
        """Take recurrences that were paused because of failures, to report them; no other caller gets these names."""
        return self._call(("SPOP", f"{self._root}newly_paused", limit), texts)
