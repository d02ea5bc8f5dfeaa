"""The first page: findings, then the queues."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

from msgspec import Struct

from evsched.client import sweep
from evsched.client.history import HOUR, counts_of
from evsched.console.doctor_pass import doctor_pass
from evsched.console.hour_counts import hour_counts
from evsched.console.page import MeteredClient, View, Visit
from evsched.console.words import length
from evsched.diagnostics.finding import Finding
from evsched.errors import StoreError, StoreRefused
from evsched.store import server
from evsched.store.history_calls import EndCount
from evsched.store.many_queues import read_queue_stats
from evsched.store.operator_calls import QueueStats, merged

_LATE: Final = 1.0
"""Seconds: a queue whose first job has waited longer is late."""

_HOURS: Final = 24

_MINUTE: Final = 60.0

_SHORTEST: Final = 3.0
"""Seconds that a rate is taken over, at least."""

_FAILING: Final = 0.05
_FEW: Final = 5
"""A queue is failing if this part of its recent ends are deaths, and that many at least."""

_EXPLAINED: Final = 3
"""Queues, and shards of each, whose last deaths are read."""

_LAST: Final = 20
"""Deaths that are read of each."""

_EXPLAINED_FOR: Final = 30.0
"""Seconds after which they are read again."""

_CHARTED: Final = 20
"""Queues whose last day is shown: the most urgent ones."""


class QueueLine(Struct, frozen=True):
    """A queue on the page. `state`: its class and its word, see console.css."""

    name: str
    state: tuple[str, str]
    stats: QueueStats
    shards: int
    ended: list[int]
    """Ended in each of the last 24 hours, the present one last."""
    dead: list[int]
    """How many of them went to dead."""
    rate: float | None
    """Jobs that end in a minute; None = not known yet."""
    late_p50: float | None
    late_p99: float | None


async def read_stats(client: MeteredClient, queues: Sequence[str]) -> dict[str, QueueStats | StoreError]:
    """Return the counts of queues with their shards, or why they cannot be read."""
    parts = {queue: [store.queue for store in client.stores(queue)] for queue in queues}
    read = await read_queue_stats(client.send, client.find_node, [name for some in parts.values() for name in some])
    found = dict[str, QueueStats | StoreError]()
    for queue, names in parts.items():
        stats = [one for name in names if not isinstance(one := read[name], StoreError)]
        errors = [one for name in names if isinstance(one := read[name], StoreError)]
        found[queue] = errors[0] if errors else merged(stats)
    return found


def recent(hours: Sequence[Sequence[EndCount]], now: float) -> list[EndCount]:
    """Return the counts of the present hour, the last one of `hours`; in its first quarter also the one before."""
    return [*hours[-1], *(hours[-2] if now % HOUR < HOUR / 4 else ())]


def state_of(stats: QueueStats, ends: Sequence[EndCount] = ()) -> tuple[str, str]:
    """Return the state of a queue: the class that draws it, and the word. `ends`: the recent ones.

    It is the same while jobs come and go.
    """
    waiting = stats.due + stats.places["backlog"] + stats.places["ready"]
    if stats.paused is not None:
        return "hold", "paused"
    if waiting and not stats.workers and not stats.parents:
        return "bad", "no worker"
    if waiting and stats.oldest > _LATE:
        return "bad", "late"
    died = sum(one.jobs for one in ends if one.outcome == "dead")
    if died >= _FEW and died >= _FAILING * sum(one.jobs for one in ends):
        return "bad", "failing"
    return ("ok", "on time") if stats.workers or stats.parents or stats.places["processing"] else ("wait", "idle")


def _row(visit: Visit, name: str, stats: QueueStats, hours: Sequence[Sequence[EndCount]]) -> QueueLine:
    hour = int(stats.now // HOUR)
    ends = recent(hours, stats.now)
    late = counts_of(name, "", ends)
    rates: EndRates = visit.console.memory.setdefault("rates", EndRates())
    return QueueLine(
        name=name,
        rate=rates.note(name, hour, stats.now, sum(one.jobs for one in hours[-1])),
        state=state_of(stats, ends),
        stats=stats,
        shards=len(visit.client.stores(name)) - 1,
        ended=[sum(one.jobs for one in counts) for counts in hours],
        dead=[sum(one.jobs for one in counts if one.outcome == "dead") for counts in hours],
        late_p50=late.late_p50,
        late_p99=late.late_p99,
    )


class EndRates:
    """How many jobs end in a minute, from the counts that readings of open pages have seen in the last minute."""

    def __init__(self) -> None:
        self._seen = dict[str, deque[tuple[float, int]]]()

    def note(self, queue: str, hour: int, now: float, ended: int) -> float | None:
        """Note how many jobs have ended in this hour, and return the rate; None if it is not known yet."""
        seen = self._seen.setdefault(f"{queue} {hour}", deque())
        if not seen:
            self._seen.pop(f"{queue} {hour - 1}", None)
        seen.append((now, ended))
        while len(seen) > 2 and seen[1][0] < now - _MINUTE:
            seen.popleft()
        (first, before), length = seen[0], now - seen[0][0]
        return None if length < _SHORTEST or first < now - 2 * _MINUTE else (ended - before) / length * _MINUTE


_URGENCY: Final = {"no worker": 0, "late": 1, "failing": 2, "paused": 3}
"""The states that come first; the others are in the order of their names."""


def _urgency(name: str, state: tuple[str, str]) -> tuple[int, str]:
    return _URGENCY.get(state[1], len(_URGENCY)), name


_LEVELS: Final = ("fault", "warning", "info")
"""The levels of findings, the worst first."""


async def _now(visit: Visit) -> dict[str, Any]:
    names = await visit.console.queues(visit.client)
    read = await read_stats(visit.client, names)
    known = {name: stats for name, stats in read.items() if not isinstance(stats, StoreError)}
    first = sorted(known, key=lambda name: _urgency(name, state_of(known[name])))
    now = max((stats.now for stats in known.values()), default=time.time())
    ends = await hour_counts(visit).read_last(visit.client, first[:_CHARTED], int(now // HOUR), _HOURS)
    rows = [_row(visit, name, known[name], hours) for name, hours in ends.items()]
    rows.sort(key=lambda row: _urgency(row.name, row.state))
    failed: FailedLast = visit.console.memory.setdefault("failed last", FailedLast())
    await failed.look(visit.client, rows)
    examined = doctor_pass(visit)
    examined.refresh(visit.client, names)
    dispatchers, hours = await _dispatchers(visit, names), range(_HOURS)
    ended = [sum(row.ended[at] for row in rows) for at in hours]
    dead = [sum(row.dead[at] for row in rows) for at in hours]
    clock = visit.console.pages.clock

    def until(moment: float | None) -> str:
        return f" until {clock.text(moment)}" if moment else ""

    findings = [*_alone(dispatchers), *_findings(rows, until, failed.words), *examined.found]
    return {
        "rows": rows,
        "more": [(name, state_of(known[name]), known[name]) for name in first[_CHARTED:]],
        "unread": [name for name in names if name not in known],
        "findings": sorted(findings, key=lambda one: _LEVELS.index(one.level)),
        "ended": ended,
        "dead": dead,
        "now": now,
    }


async def _dispatchers(visit: Visit, queues: Sequence[str]) -> int | None:
    """Return how many dispatchers are connected to the Redis of the first queue; None if this user may not ask."""
    try:
        return await visit.client.send(server.dispatchers(next(iter(queues), None)))
    except StoreRefused:
        return None


def _alone(dispatchers: int | None) -> list[Finding]:
    if dispatchers != 0:
        return []
    what = "No dispatcher is connected, so no job that becomes due starts."
    return [Finding("no-dispatcher", "fault", what, "Redis", "evsched dispatcher")]


def _jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count:,} jobs are"


def _planned(count: int) -> str:
    return "1 job is scheduled" if count == 1 else f"{count:,} jobs are scheduled"


class FailedLast:
    """The cause that most of the last deaths of a queue share. It is read again after a while."""

    def __init__(self) -> None:
        self.words = dict[str, str]()
        """The error of most of them, and the task that raised it."""
        self._read = dict[str, float]()

    async def look(self, client: MeteredClient, rows: Sequence[QueueLine]) -> None:
        """Read the last jobs of the queues in which the most have died."""
        failing = sorted((row for row in rows if row.dead[-1] + row.dead[-2]), key=lambda row: -row.dead[-1])
        now = time.monotonic()
        for row in failing[:_EXPLAINED]:
            if now - self._read.get(row.name, -inf) < _EXPLAINED_FOR:
                continue
            self._read[row.name] = now
            causes = Counter[str]()
            for store in client.stores(row.name)[:_EXPLAINED]:
                jobs = await client.send(store.front("dead", _LAST, last=True))
                for job in await client.run(sweep.describe(store, "dead", jobs)):
                    error = (job.error or "").rpartition(".")[2]
                    causes[f"{error or 'no exception'}{f' in {job.task}' if job.task else ''}"] += 1
            for cause, count in causes.most_common(1):
                self.words[row.name] = f" Of the last {causes.total()}, {count}: {cause:.200}."


def _findings(
    rows: Sequence[QueueLine], until: Callable[[float | None], str], causes: Mapping[str, str]
) -> list[Finding]:
    """Return what the counts show, as sentences with their remedy.

    `until`: the words about the end of a pause. `causes`: sentences about why jobs died, by queue.
    """
    found = list[Finding]()
    for row in rows:
        stats, where = row.stats, f"queue {row.name}"
        waiting = stats.due + stats.places["backlog"] + stats.places["ready"]
        if row.state[1] == "no worker":
            what = f"{row.name}: {_jobs(waiting)} due, and no worker serves the queue."
            found.append(Finding("no-worker", "fault", what, where, f"evsched worker MODULE:APP --queue {row.name}"))
        elif row.state[1] == "late":
            what = f"{row.name} is late: {_jobs(waiting)} due, and the first has waited for {length(stats.oldest)}."
            found.append(
                Finding("late", "fault", what, where, "Start more workers, or look at what holds the jobs back.")
            )
        elif row.state[1] == "paused":
            why = f": {stats.paused_why}" if stats.paused_why else ""
            nobody = ", and no worker serves it" if waiting and not (stats.workers or stats.parents) else ""
            what = f"{row.name} is paused{until(stats.paused_until)}{nobody}{why}."
            what += f" {_jobs(waiting)} due and waiting." if waiting else ""
            found.append(Finding("paused", "info", what, where, ""))
        elif row.state[1] == "idle" and stats.places["schedule"]:
            what = f"{row.name}: {_planned(stats.places['schedule'])} for later, and no worker serves the queue."
            mend = f"evsched worker MODULE:APP --queue {row.name}"
            found.append(Finding("no-worker", "warning", what, where, mend))
        if row.dead[-1] + row.dead[-2]:
            died = "1 job died" if row.dead[-1] == 1 else f"{row.dead[-1]:,} jobs died"
            what = f"{row.name}: {died} in this hour, {row.dead[-2]:,} in the one before.{causes.get(row.name, '')}"
            found.append(
                Finding("dead", "warning", what, where, "Look at why, and revive them when the cause is removed.")
            )
    return found


VIEWS = (View("/", "now", _now, every=1.0),)
