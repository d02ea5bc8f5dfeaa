"""The first page: findings, then the queues."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from evsched.client.history import HOUR, counts_of
from evsched.console.doctor_pass import doctor_pass
from evsched.console.hour_counts import hour_counts
from evsched.console.page import MeteredClient, View, Visit
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


def state_of(stats: QueueStats) -> tuple[str, str]:
    """Return the state of a queue: the class that draws it, and the word."""
    waiting = stats.due + stats.places["backlog"] + stats.places["ready"]
    if stats.paused is not None:
        return "hold", "paused"
    if waiting and not stats.workers and not stats.parents:
        return "bad", "no worker"
    if waiting and stats.oldest > _LATE:
        return "bad", "late"
    if stats.places["processing"]:
        return "run", "running"
    return ("ok", "on time") if stats.workers or stats.parents else ("wait", "idle")


def _row(visit: Visit, name: str, stats: QueueStats, hours: Sequence[Sequence[EndCount]]) -> QueueLine:
    hour = int(stats.now // HOUR)
    late = counts_of(name, "", [*hours[-1], *(hours[-2] if stats.now % HOUR < HOUR / 4 else ())])
    rates: EndRates = visit.console.memory.setdefault("rates", EndRates())
    return QueueLine(
        name=name,
        rate=rates.note(name, hour, stats.now, sum(one.jobs for one in hours[-1])),
        state=state_of(stats),
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


_URGENCY: Final = {"no worker": 0, "late": 1, "paused": 2}
"""The states that come first. All others change by the second, so such queues are in the order of their names."""


async def _now(visit: Visit) -> dict[str, Any]:
    names = await visit.console.queues(visit.client)
    read = await read_stats(visit.client, names)
    known = {name: stats for name, stats in read.items() if not isinstance(stats, StoreError)}
    first = sorted(known, key=lambda name: (_URGENCY.get(state_of(known[name])[1], len(_URGENCY)), name))
    now = max((stats.now for stats in known.values()), default=time.time())
    ends = await hour_counts(visit).read_last(visit.client, first[:_CHARTED], int(now // HOUR), _HOURS)
    rows = [_row(visit, name, known[name], hours) for name, hours in ends.items()]
    examined = doctor_pass(visit)
    examined.refresh(visit.client, names)
    dispatchers, hours = await _dispatchers(visit, names), range(_HOURS)
    ended = [sum(row.ended[at] for row in rows) for at in hours]
    dead = [sum(row.dead[at] for row in rows) for at in hours]
    clock = visit.console.pages.clock

    def until(moment: float | None) -> str:
        return f" until {clock.text(moment)}" if moment else ""

    return {
        "rows": rows,
        "dispatchers": dispatchers,
        "workers": max((stats.workers for stats in known.values()), default=0),
        "more": [(name, state_of(known[name]), known[name]) for name in first[_CHARTED:]],
        "unread": [name for name in names if name not in known],
        "findings": [*_alone(dispatchers), *_findings(rows, until), *examined.found],
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


def _findings(rows: Sequence[QueueLine], until: Callable[[float | None], str]) -> list[Finding]:
    """Return what the counts show, as sentences with their remedy. `until`: the words about the end of a pause."""
    found = list[Finding]()
    for row in rows:
        stats, where = row.stats, f"queue {row.name}"
        waiting = stats.due + stats.places["backlog"] + stats.places["ready"]
        if row.state[1] == "no worker":
            what = f"{row.name}: {_jobs(waiting)} due, and no worker serves the queue."
            found.append(Finding("no-worker", "fault", what, where, f"evsched worker MODULE:APP --queue {row.name}"))
        elif row.state[1] == "late":
            what = f"{row.name} is late: {_jobs(waiting)} due, and the first has waited for {stats.oldest:,.1f} s."
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
            what = f"{row.name}: {row.dead[-1] + row.dead[-2]:,} jobs died in this hour and the one before."
            found.append(
                Finding("dead", "warning", what, where, "Look at why, and revive them when the cause is removed.")
            )
    return found


VIEWS = (View("/", "now", _now, every=1.0),)
