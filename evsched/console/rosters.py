"""The recurrences of queues and their last runs, as the pages of a console share them.

A call reads 250 recurrences, of one queue or of many. Their last runs come from the history of the queue: the newest
entries each time, and older ones little by little, as far back as the history is read for this.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final

from msgspec import Struct

from evsched.console.glances import QueueGlances
from evsched.console.page import MeteredClient
from evsched.console.rule_words import rule_words
from evsched.console.turns import Turns, step_each
from evsched.display import format_duration
from evsched.errors import StoreError, StoreRefused
from evsched.jobs.record import number, whole
from evsched.recurrence.calendars import names_of
from evsched.recurrence.look_ahead import counted_from, next_time, read_standing
from evsched.recurrence.recurrence import Declared
from evsched.store.history_calls import PastJob
from evsched.store.many_queues import read_rosters
from evsched.store.recurrence_calls import Roster, RosterPart

_SLICE: Final = 250
"""Recurrences that a call reads: 3 ms."""

_LOOK: Final = 0.12
_LOOK_BACK: Final = 0.05
"""Seconds for which one reading of a page reads recurrences, and the history."""

_AGAIN: Final = 5.0
"""Seconds after which a queue is read again."""

_ENTRIES: Final = 100
"""Entries of the history that a call reads."""

_PAGES: Final = 50
"""Calls that read the history of a queue back, at most."""

RUNS: Final = 20
"""Runs of a recurrence that are kept."""

_OVERDUE: Final = 10.0
"""Seconds after its planned time by which a dispatcher has moved a recurrence on."""

_DECLARED: Final = tuple(name for name in Declared.__struct_fields__ if name not in ("name", "payload"))
FIELDS: Final = (
    *(*_DECLARED, "made", "ahead", "current", "last_id", "owner", "retired", "reason"),
    *("paused", "paused_until", "paused_why", "runs", "done", "failed", "failing", "missed"),
    *("last_outcome", "last_finished"),
)
"""The fields of a record that lists need. Payloads may be long."""

URGENT: Final = (("bad", "cannot run"), ("bad", "late"), ("warn", "paused"), ("bad", "failing"), ("hold", "paused"))
"""The states that need a look, the most urgent first: the class that draws it, and its word. `warn`: after failures."""

Key = tuple[str, str, str]
"""The same for recurrences that run at the same times: rule, zone, and if it is spread; or queue, name and `ALONE`."""

ALONE: Final = "alone"
"""It shares its times with none: it has a window, an end or the like."""


class RosterRow(Struct, frozen=True):
    """A recurrence, as lists show it. Times in Unix seconds."""

    queue: str
    name: str
    score: float
    fields: dict[str, bytes]
    now: float
    """When it was read."""
    next: float | None
    """The next planned time; None if it is paused, over or stopped, or counts from the end of a run."""
    state: tuple[str, str]
    """The class that draws it, and its word."""
    reason: str
    """Why it makes no jobs."""
    words: str
    """Its rule in words."""
    key: Key

    def text(self, field: str) -> str:
        return text_of(self.fields, field)

    def count(self, field: str) -> int:
        return whole(self.fields.get(field))

    @property
    def zone(self) -> str:
        return self.text("zone") or "UTC"

    @property
    def zoned(self) -> bool:
        """Whether its times depend on its zone: those of an interval do not."""
        return not self.text("rule").strip().startswith("every") or bool(self.text("skip"))

    @property
    def paused_until(self) -> float | None:
        return number(self.fields.get("paused_until"))


def text_of(fields: dict[str, bytes], field: str) -> str:
    return fields.get(field, b"").decode(errors="backslashreplace")


def as_row(queue: str, name: str, score: float, fields: dict[str, bytes], now: float) -> RosterRow:
    """Return a recurrence. Occurrences that were cancelled on the schedule are taken for planned."""
    under_way = bool(counted_from(fields))
    next_ = next_time(read_standing(score, fields, under_way), now)
    if "paused" in fields or "retired" in fields:
        next_ = None
    reason = text_of(fields, "reason") if fields else "it has no record"
    state = _state(score, fields, now, next_, reason, under_way)
    return RosterRow(queue, name, score, fields, now, next_, state, reason, words_of(fields), _key(queue, name, fields))


def _key(queue: str, name: str, fields: dict[str, bytes]) -> Key:
    if any(fields.get(field) for field in ("skip", "window", "count", "after", "start", "end", "paused_until")):
        return queue, name, ALONE
    return text_of(fields, "rule"), text_of(fields, "zone") or "UTC", "spread" if fields.get("spread") else ""


def _state(
    score: float, fields: dict[str, bytes], now: float, next_: float | None, reason: str, under_way: bool
) -> tuple[str, str]:
    if "retired" in fields and score == inf:
        return "wait", "stopped"
    if "paused" in fields:
        return "warn" if whole(fields.get("failing")) else "hold", "paused"
    if reason:
        return "bad", "cannot run"
    if next_ is not None and next_ < now - _OVERDUE:
        return "bad", "late"
    if whole(fields.get("failing")):
        return "bad", "failing"
    if next_ is None and score > 0:
        return ("ok", "after its run") if under_way and score < inf else ("wait", "over")
    return "ok", "on time"


def words_of(fields: dict[str, bytes]) -> str:
    """Return in words when a recurrence makes jobs."""
    words = [rule_words(text_of(fields, "rule"))]
    if text_of(fields, "after") == "end":
        words.append("counted from the end of each run")
    spread = number(fields.get("spread"))
    if spread:
        words.append(f"spread over {format_duration(spread)}")
    if names := names_of(fields.get("skip")):
        words.append(f"not on the days of {', '.join(names)}")
    if window := text_of(fields, "window"):
        words.append(f"within {window}")
    return ", ".join(words)


class _QueueRoster:
    """The recurrences of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.ended = -inf
        self.rows = list[RosterRow]()
        self.problem = ""
        """Why Redis refused to read them."""
        self._going = dict[str, RosterRow]()

    def is_due(self) -> bool:
        return bool(self._going) or time.monotonic() - self.ended > _AGAIN

    def is_begun(self) -> bool:
        return bool(self._going)

    def next(self) -> RosterPart:
        """Return the slice to read next."""
        return RosterPart(self.queue, len(self._going))

    def refuse(self, error: StoreError) -> None:
        """Note why Redis refuses to read the queue."""
        self._going, self.problem, self.ended = {}, str(error), time.monotonic()

    def take(self, part: Roster) -> None:
        """Note the recurrences of the slice that was next."""
        self.problem = ""
        known = len(self._going)
        self._going |= {name: as_row(self.queue, name, at, fields, part.now) for name, at, fields in part.rows}
        if len(self._going) >= part.total or len(self._going) == known:  # they may change places meanwhile
            self.rows, self._going = [*self._going.values()], {}
            self.ended = time.monotonic()
        elif self.ended == -inf:
            self.rows = [*self._going.values()]


async def _read(client: MeteredClient, rosters: Sequence[_QueueRoster], calls: int) -> int:
    """Read the next slice of as many queues as one call can."""
    before, parts = client.commands, {one.queue: one for one in rosters}
    asked = [one.next() for one in rosters]
    read = await read_rosters(client.send, client.find_node, asked, FIELDS, limit=_SLICE)
    for queue, part in read.items():
        parts[queue].refuse(part) if isinstance(part, StoreError) else parts[queue].take(part)
    return client.commands - before


class _QueueRuns:
    """The last runs of the recurrences of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.ended = -inf
        self.runs = dict[str, deque[PastJob]]()
        """By the name of the recurrence, the newest first."""
        self._pages = 0
        self._before: str | None = "+"
        """From which the history is read on, back in time; None = it is read."""

    def is_due(self) -> bool:
        return self._before is not None or time.monotonic() - self.ended > _AGAIN

    def is_begun(self) -> bool:
        return self._before not in (None, "+")

    async def step(self, client: MeteredClient) -> None:
        newest = time.monotonic() - self.ended > _AGAIN
        try:
            page = await client.send(
                client.store(self.queue).ended("+" if newest else self._before or "+", count=_ENTRIES)
            )
        except StoreRefused:
            self._before, self.ended = None, time.monotonic()
            return
        for job in (job for entry in page.entries for job in entry.jobs):
            name, at, _ = job.id.rpartition("@")
            if at:
                self._note(name, job)
        if newest:
            self.ended = time.monotonic()
        if not newest or self._before == "+":
            self._pages += 1
            self._before = page.before if self._pages < _PAGES else None

    def _note(self, name: str, job: PastJob) -> None:
        runs = self.runs.setdefault(name, deque(maxlen=RUNS))
        if any(one.id == job.id and one.ended == job.ended for one in runs):
            return
        if not runs or job.ended >= runs[0].ended:
            runs.appendleft(job)
        elif len(runs) < RUNS:
            runs.append(job)


class Rosters:
    """All recurrences that a console knows, which all viewers share."""

    def __init__(self) -> None:
        self._rosters = dict[str, _QueueRoster]()
        self._runs = dict[str, _QueueRuns]()
        self._turns, self._run_turns = Turns(_read), Turns(step_each)
        self.glances = QueueGlances()

    async def look(self, client: MeteredClient, queues: Sequence[str]) -> list[RosterRow]:
        """Read for a short time, and return the recurrences of some queues."""
        await self.glances.look(client, queues)
        recurring = self.glances.recurring(queues)
        rosters = [self._rosters.setdefault(queue, _QueueRoster(queue)) for queue in recurring]
        await self._turns.look(client, rosters, _LOOK)
        return [row for one in rosters for row in one.rows]

    def unread(self, queues: Sequence[str]) -> list[tuple[str, str]]:
        """Return the queues that were not read to their end yet, or that Redis refused to read; and why."""
        return [
            (one.queue, one.problem)
            for queue in self.glances.recurring(queues)
            if (one := self._rosters.get(queue)) is not None and (one.problem or one.ended == -inf)
        ]

    async def look_back(self, client: MeteredClient, queues: Sequence[str]) -> None:
        """Read the history for a short time."""
        await self._run_turns.look(
            client, [self._runs.setdefault(queue, _QueueRuns(queue)) for queue in queues], _LOOK_BACK
        )

    def runs_of(self, queue: str, name: str) -> list[PastJob]:
        """Return the last runs of a recurrence that are known, the newest first."""
        found = self._runs.get(queue)
        return [*found.runs.get(name, ())] if found is not None else []
