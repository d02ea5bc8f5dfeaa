"""The page of the history: a search among the ends of jobs, and the counts of a week."""

from __future__ import annotations

import asyncio
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from evsched.client.history import HOUR, OUTCOMES, HistoryFilter, TaskCounts, counts_of
from evsched.client.sweep import past_moment
from evsched.client.time_texts import parse_past
from evsched.console.ends_search import PastPage, search_ends
from evsched.console.hour_counts import hour_counts
from evsched.console.page import View, Visit
from evsched.errors import StoreError
from evsched.keys import check_queue
from evsched.store.history_calls import EndCount, PastJob
from evsched.store.server import clock

ROWS: Final = 50
"""Rows of a page, here and in the audit trail."""

_FIELDS: Final = ("task", "group", "tag", "error", "id", "queue", "since", "until", "outcome")
"""Parameters of the page's address: the options of `evsched history`."""

_COUNTING: Final = 0.05
"""Seconds for which the page waits for the counts of hours; the rest is counted for the next one."""

_MANY: Final = 20
_SAME: Final = 15.0
"""Adding up the weeks of more than `_MANY` queues takes some 0.1 s, so the sums of all readers are that old at most."""

_DAY: Final = 24
"""Hours that are drawn."""

_TABLE: Final = 200
"""Rows of the table of counts: those with the most jobs."""

_STATES: Final = {"done": "ok", "dead": "bad", "expired": "bad", "cancelled": "wait"}
"""The class that draws an outcome."""


class EndRow(Struct, frozen=True):
    """An end of a job on the page."""

    job: PastJob
    queue: str
    """The whole queue, if it ended in a shard."""
    state: tuple[str, str]
    late: float | None
    ran: float | None
    kept: bool
    """Whether there is a record of a job of this id."""


class PastQuery:
    """The query of a page that lists the past: its fields, and its address with some of them changed."""

    def __init__(self, visit: Visit, path: str, fields: Sequence[str]) -> None:
        self._visit, self._path = visit, path
        self.given = {name: visit.get(name) for name in fields}

    def link(self, **changed: str | int | None) -> str:
        return self._visit.url(self._path, **{**self.given, **changed})

    def past(self, name: str) -> float | timedelta | None:
        """Return a time of the query; None if it is not given.

        Raises:
            ConfigError: it is not a time.
        """
        text = self.given[name]
        return parse_past(text, self._visit.console.config.console_zone) if text else None

    def command(self, words: str) -> str:
        """Return the command that does the same."""
        options = (f" --{name} {shlex.quote(value)}" for name, value in self.given.items() if value)
        return f"evsched {words}{''.join(options)}"


def before(visit: Visit) -> tuple[float, int]:
    """Return where a page begins: its newest moment, and how many rows of it the page before has shown."""
    try:
        moment, skip = float(visit.get("before") or math.inf), int(visit.get("skip") or 0)
    except ValueError:
        return math.inf, 0
    return (math.inf if math.isnan(moment) else moment), max(skip, 0)


def spoken_span(given: Mapping[str, str]) -> str:
    """Return the times of a query in words: " in the last 2h", " since 14:00 until 16:00"."""
    since, until = given["since"], given["until"]
    last = bool(since) and not until and since[-1] in "smhd" and ":" not in since
    return (f" in the last {since}" if last else f" since {since}" if since else "") + (
        f" until {until}" if until else ""
    )


async def chosen_queues(visit: Visit) -> tuple[list[str], list[str]]:
    """Return the queues that a page is about, and all of them.

    Raises:
        ConfigError: the name of one is not valid.
    """
    known = await visit.console.queues(visit.client)
    named = visit.get("queue")
    return ([check_queue(name.strip()) for name in named.split(",")] if named else known), known


async def _history(visit: Visit) -> dict[str, Any]:
    query, client = PastQuery(visit, "/history", _FIELDS), visit.client
    given = query.given
    names: dict[str, Any] = {name: given[name] or None for name in ("task", "group", "tag", "error", "id", "outcome")}
    matching = HistoryFilter(**names)
    moment, skip = before(visit)
    queues, known = await chosen_queues(visit)
    now = await client.send(clock())
    since, until = (
        None if past is None else past_moment(name, past, now)
        for name, past in ((name, query.past(name)) for name in ("since", "until"))
    )
    stores = [store for queue in queues for store in client.stores(queue)]
    span = -math.inf if since is None else since, min(math.inf if until is None else until, moment)
    ends = await search_ends(
        client,
        stores,
        replace(matching, outcome=None),
        given["outcome"],
        span,
        skip=skip if moment < math.inf else 0,
        limit=ROWS,
    )
    kept = await asyncio.gather(*(client.send(client.store(job.queue).traces(job.id)[0]) for job in ends.rows))
    counts, unread = await _counts(visit, queues, now)
    return {
        "given": given,
        "link": query.link,
        "rows": [_row(client.shards.whole, job, there) for job, there in zip(ends.rows, kept, strict=True)],
        "ends": ends,
        "first": math.isinf(moment),
        "sentence": _sentence(given, ends),
        "outcomes": OUTCOMES,
        "older": ends.older and query.link(before=repr(ends.older[0]), skip=ends.older[1]),
        "known": known,
        "queues": queues,
        "unread": {**ends.unread, **unread},
        "command": query.command("history"),
        "now": now,
        "data": {"jobs": ends.rows, "counts": ends.counts, "back_to": ends.back_to},
        **counts,
    }


def _row(whole: Callable[[str], str], job: PastJob, kept: bool) -> EndRow:
    return EndRow(
        job=job,
        queue=whole(job.queue),
        state=(_STATES.get(job.outcome, "wait"), job.outcome or "ended"),
        late=None if job.due is None or job.started is None else max(0.0, job.started - job.due),
        ran=None if job.started is None else max(0.0, job.ended - job.started),
        kept=kept,
    )


def _sentence(given: Mapping[str, str], ends: PastPage) -> tuple[str, str]:
    """Return the answer, and the rest of it: "7 jobs tagged patient:42 ended in the last 24h", "5 done, 2 dead"."""
    words = {"id": "with the id", "task": "of", "group": "of group", "tag": "tagged", "error": "that raised"}
    which = "".join(f" {words[name]} {given[name]}" for name in words if given[name])
    where = f" in {given['queue']}" if given["queue"] else ""
    counts = ", ".join(f"{ends.counts[name]:,} {name}" for name in OUTCOMES if ends.counts.get(name))
    count = f"{ends.found:,} {'job' if ends.found == 1 else 'jobs'}" if ends.found else "No job"
    least = "At least " if ends.back_to is not None and ends.found else ""
    return f"{least}{count}{which} ended{where}{spoken_span(given)}", counts


# Counts.


async def _counts(visit: Visit, queues: Sequence[str], now: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the charts and of the table, and why the counts cannot be read."""
    memory, key = visit.console.memory, ("week", *queues)
    at, kept = memory.get("week", (0.0, {}))
    if kept.get("key") == key and time.monotonic() - at < _SAME:
        return kept["values"], {}
    try:
        weeks = await hour_counts(visit).week(visit.client, queues, int(now // HOUR), _COUNTING)
    except StoreError as error:
        return _charted({}, queues, now, visit.console.pages.clock.zone), {"the counts": str(error)}
    values = _charted(weeks, queues, now, visit.console.pages.clock.zone)
    if len(queues) > _MANY and not values["uncounted"]:
        memory["week"] = time.monotonic(), {"key": key, "values": values}
    return values, {}


def _charted(
    weeks: Mapping[str, list[list[EndCount]]], queues: Sequence[str], now: float, zone: tzinfo
) -> dict[str, Any]:
    last = [part[-_DAY:] for part in weeks.values()]
    hours = [[one for part in last for one in part[at]] for at in range(_DAY)]
    table = [row for queue in sorted(weeks) for row in _counted(queue, weeks[queue])]
    table.sort(key=lambda row: -row.ended)
    shown = table[:_TABLE]
    return {
        "ended": [sum(one.jobs for one in part) for part in hours],
        "dead": [sum(one.jobs for one in part if one.outcome == "dead") for part in hours],
        "marks": [
            datetime.fromtimestamp((now // HOUR - back) * HOUR, zone).strftime("%H:%M") for back in (23, 18, 12, 6, 0)
        ],
        "table": shown,
        "more": len(table) - len(shown),
        "uncounted": len(queues) - len(weeks),
    }


def _counted(queue: str, hours: Sequence[Sequence[EndCount]]) -> list[TaskCounts]:
    """Return the counts of a week by task."""
    tasks = dict[str, list[EndCount]]()
    for one in (one for part in hours for one in part):
        tasks.setdefault(one.task, []).append(one)
    return [counts_of(queue, task, counted) for task, counted in tasks.items()]


VIEWS = (View("/history", "history", _history),)
