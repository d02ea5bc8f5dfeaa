"""The page of the history: a search among the ends of jobs, and the counts of a week."""

from __future__ import annotations

import asyncio
import math
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from evsched.client.history import HOUR, OUTCOMES, HistoryFilter, TaskCounts, counts_of
from evsched.client.sweep import past_moment
from evsched.client.time_texts import parse_past
from evsched.console.ends_search import EndsSearch, KeptSearches, PastPage
from evsched.console.hour_counts import WEEK, hour_counts
from evsched.console.ledger_search import LedgerUnread, search_ledger
from evsched.console.newer_rows import NewerEnds, after, mark_of, newer_of
from evsched.console.page import MeteredClient, View, Visit
from evsched.console.past_charts import Weeks, hours_of, of_ends, of_hours
from evsched.console.words import PageClock
from evsched.errors import ConfigError, StoreError
from evsched.keys import check_queue
from evsched.store.history_calls import EndCount, PastJob
from evsched.store.server import clock
from evsched.store.store import Store

T = TypeVar("T")

ROWS: Final = 50
"""Rows of a page, here and in the audit trail."""

_FIELDS: Final = ("task", "group", "tag", "error", "id", "queue", "since", "until", "outcome", "ledger", "counts")
"""Parameters of the page's address.

They are the options of `evsched history`, whether the ledger is searched, and whether all counts are shown.
"""

_UNCOUNTED: Final = ("group", "tag", "error", "id")
"""Those by which hours are not counted."""

_COUNTING: Final = 0.05
"""Seconds for which the page waits for the counts of hours; the rest is counted for the next one."""

_MANY: Final = 20
_SAME: Final = 15.0
"""Adding up the weeks of more than `_MANY` queues takes some 0.1 s, so the sums of all readers are that old at most."""

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
    recurrence: str
    """The recurrence whose run it was, if the record is gone; empty = none that still exists."""


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

    def command(self, words: str, fields: Sequence[str] = ()) -> str:
        """Return the command that does the same. `fields`: the ones that are its options; none = all.

        It searches the ledger if a variable has its address.
        """
        given = {
            name: self.given[name]
            for name in fields or self.given
            if self.given[name] and name not in ("ledger", "counts")
        }
        options = (f" --{name} {shlex.quote(value)}" for name, value in given.items())
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


class PastForm(Struct, frozen=True):
    """The query of such a form. `problem`: why it cannot be read; then it is about no queue."""

    queues: list[str]
    known: list[str]
    """All queues."""
    since: float | None = None
    until: float | None = None
    problem: str = ""


async def read_past_form(visit: Visit, query: PastQuery, now: float) -> PastForm:
    try:
        queues, known = await chosen_queues(visit)
        since, until = (
            None if past is None else past_moment(name, past, now)
            for name, past in ((name, query.past(name)) for name in ("since", "until"))
        )
        if since is not None and until is not None and since > until:
            raise ConfigError("the span ends before it begins: exchange Since and Until")
        return PastForm(queues, known, since, until)
    except ConfigError as error:
        return PastForm([], await visit.console.queues(visit.client), problem=str(error))


async def _history(visit: Visit) -> dict[str, Any]:
    query, client = PastQuery(visit, "/history", _FIELDS), visit.client
    given, matching = query.given, _filter(query.given)
    moment, skip = before(visit)
    now = await client.send(clock())
    form = await read_past_form(visit, query, now)
    queues, known, since, until = form.queues, form.known, form.since, form.until
    stores = [store for queue in queues for store in client.stores(queue)]
    span = -math.inf if since is None else since, min(math.inf if until is None else until, moment)
    skip = skip if moment < math.inf else 0
    kept_searches: KeptSearches = visit.console.memory.setdefault("history searches", KeptSearches())
    asked = given, visit.get("before"), skip
    search, ledger, why = kept_searches.find(visit.get("on"), asked), None, ""
    if search is None:
        if given["ledger"] and not form.problem:
            try:
                ledger = await search_ledger(visit, queues if given["queue"] else (), matching, span, skip, now)
            except LedgerUnread as error:
                why = str(error)
        search = EndsSearch(stores, replace(matching, outcome=None), given["outcome"], span, ledger)
    ends = await search.look(client, skip, ROWS)
    reach = None if given["ledger"] else await _reach(client, stores)
    full = len(ends.rows) == ROWS
    on = "" if full or ends.back_to is None or given["ledger"] else kept_searches.keep(search, asked)
    kept = await asyncio.gather(*(client.send(client.store(job.queue).traces(job.id)[0]) for job in ends.rows))
    gone = [job for job, there in zip(ends.rows, kept, strict=True) if not there]
    recurrences = await _recurrences(client, gone)
    first, counted = math.isinf(moment), not (form.problem or any(given[name] for name in _UNCOUNTED))
    week, unread = await _week(visit, queues, now) if counted else (WeekSums({}), {})
    chart, zone = None, visit.console.pages.clock.zone
    hours = hours_of(since, until, now) if first and counted and not (unread or given["ledger"]) else None
    if hours is not None:
        which = given["task"], given["outcome"], hours, bool(given["since"] or given["until"])
        chart = week.sum(which, lambda weeks: of_hours(weeks, *which, now, zone))
    return {
        "given": given,
        "problem": form.problem,
        "link": query.link,
        "rows": [
            _row(client.shards.whole, job, there, "" if there else recurrences.get((job.queue, _rule_of(job)), ""))
            for job, there in zip(ends.rows, kept, strict=True)
        ],
        "ends": ends,
        "first": first,
        "sentence": _sentence(given, ends, visit.console.pages.clock, reach, since),
        "outcomes": OUTCOMES,
        "full": full,
        "older": ends.older
        and (
            query.link(before=visit.get("before"), skip=skip or None, on=on)
            if on
            else query.link(before=repr(ends.older[0]), skip=ends.older[1])
        ),
        "goes_on": bool(on) and not (given["id"] and ends.rows),
        "known": known,
        "unread": {**ends.unread, **unread},
        "ledger": visit.console.config.ledger_url is not None,
        "unsearched": why,
        "command": query.command("history"),
        "counting": query.command("history counts --since 7d", ("task", "queue")) if counted else "",
        "now": now,
        "data": {"jobs": ends.rows, "counts": ends.counts, "back_to": ends.back_to},
        "newer": "",
        "live": _live(visit, given, ends, now) if first and not (given["until"] or form.problem) else "",
        "chart": chart or of_ends(ends.times, zone),
        "uncounted": len(queues) - len(week.weeks) if counted else 0,
        "counted": counted,
        "counted_since": _counted_since(week.weeks, int(now // HOUR)),
        **week.sum(given["task"], lambda weeks: _table(weeks, given["task"])),
    }


async def _reach(client: MeteredClient, stores: Sequence[Store]) -> float | None:
    """Return since when Redis has all ends of these queues; None if it has no end, or there are many queues."""
    if len(stores) > _MANY:
        return None
    oldest = await asyncio.gather(*(client.send(store.complete_since()) for store in stores), return_exceptions=True)
    return max((one for one in oldest if isinstance(one, float)), default=None)


def _filter(given: Mapping[str, str]) -> HistoryFilter:
    names: dict[str, Any] = {name: given[name] or None for name in ("task", "group", "tag", "error", "id", "outcome")}
    return HistoryFilter(**names)


# Newer ends.


def _live(visit: Visit, given: Mapping[str, str], ends: PastPage, now: float) -> str:
    """Return the address of the stream that counts the ends that are newer than the page."""
    mark, newest = mark_of(ends.newest), ends.times[0][0] if ends.times else now
    newer_of(visit, "ends", (mark, *given.values()), lambda: NewerEnds(_filter(given), newest, ends.newest))
    return visit.url("/live/history", **given, seen=mark, after=repr(newest))


async def _newer(visit: Visit) -> dict[str, Any]:
    query = PastQuery(visit, "/history", _FIELDS)
    key = visit.get("seen"), *query.given.values()
    newer = newer_of(visit, "ends", key, lambda: NewerEnds(_filter(query.given), after(visit)))
    queues, _ = await chosen_queues(visit)
    await newer.look(visit.client, [store for queue in queues for store in visit.client.stores(queue)])
    return {"newer": newer.words, "link": query.link}


_RUN: Final = re.compile(r"(.+)@\d+(\.\d+)?", re.DOTALL)
"""The id of a run of a recurrence."""


def _rule_of(job: PastJob) -> str:
    """Return the name of the recurrence whose run a job seems to be; empty if its id is another."""
    found = _RUN.fullmatch(job.id)
    return found[1] if found else ""


async def _recurrences(client: MeteredClient, jobs: Sequence[PastJob]) -> dict[tuple[str, str], str]:
    """Return the names of the recurrences whose runs some jobs were, by queue and name, if they still exist."""
    asked = dict.fromkeys((job.queue, name) for job in jobs if (name := _rule_of(job)))
    found = await asyncio.gather(
        *(client.send(client.store(client.shards.whole(queue)).next_planned(name)) for queue, name in asked)
    )
    return {one: one[1] for one, at in zip(asked, found, strict=True) if at is not None}


def _row(whole: Callable[[str], str], job: PastJob, kept: bool, recurrence: str) -> EndRow:
    return EndRow(
        job=job,
        queue=whole(job.queue),
        state=(_STATES.get(job.outcome, "wait"), job.outcome or "ended"),
        late=None if job.due is None or job.started is None else max(0.0, job.started - job.due),
        ran=None if job.started is None else max(0.0, job.ended - job.started),
        kept=kept,
        recurrence=recurrence,
    )


def _sentence(
    given: Mapping[str, str], ends: PastPage, clock: PageClock, reach: float | None, since: float | None
) -> tuple[str, str]:
    """Return the answer, and the rest of it: "7 jobs tagged patient:42 ended in the last 24h", "5 done, 2 dead".

    While a search is not over, the answer is about the ends that were read up to then. `reach`: since when all ends are
    known. `since`: since when they were asked for.
    """
    words = {"id": "with the id", "task": "of", "group": "of group", "tag": "tagged", "error": "that raised"}
    which = "".join(f" {words[name]} {given[name]}" for name in words if given[name])
    where = f" in {given['queue']}" if given["queue"] else ""
    counts = ", ".join(f"{ends.counts[name]:,} {name}" for name in OUTCOMES if ends.counts.get(name))
    count = f"{ends.found:,} {'job' if ends.found == 1 else 'jobs'}" if ends.found else "No job"
    if ends.back_to is None:
        limit = f"Known only since {clock.text(reach)}: " if reach is not None and reach > (since or -math.inf) else ""
        if limit and count == "No job":
            count = "no job"
        return f"{limit}{count}{which} ended{where}{spoken_span(given)}", counts
    until = f" until {given['until']}" if given["until"] else ""
    return f"{count}{which} ended{where} since {clock.text(ends.back_to)}{until}", counts


# Counts.


class WeekSums:
    """The counts of the week by queue, and their sums: to add them up for many queues takes 0.1 s."""

    def __init__(self, weeks: Weeks) -> None:
        self.weeks = weeks
        self._sums = dict[Any, Any]()

    def sum(self, key: object, add: Callable[[Weeks], T]) -> T:
        """Return a sum of them. `key`: which one."""
        if key not in self._sums:
            self._sums[key] = add(self.weeks)
        return self._sums[key]


async def _week(visit: Visit, queues: Sequence[str], now: float) -> tuple[WeekSums, dict[str, str]]:
    """Return the counts of the week, and why they cannot be read."""
    memory, key = visit.console.memory, ("week", *queues)
    at, kept = memory.get("week", (0.0, {}))
    if kept.get("key") == key and time.monotonic() - at < _SAME:
        return kept["sums"], {}
    try:
        found = WeekSums(await hour_counts(visit).week(visit.client, queues, int(now // HOUR), _COUNTING))
    except StoreError as error:
        return WeekSums({}), {"the counts": str(error)}
    if len(queues) > _MANY and len(found.weeks) == len(queues):
        memory["week"] = time.monotonic(), {"key": key, "sums": found}
    return found, {}


def _table(weeks: Weeks, task: str) -> dict[str, Any]:
    """Return the rows of the table, and how many there are more."""
    table = [row for queue in sorted(weeks) for row in _counted(queue, weeks[queue]) if task in ("", row.task)]
    table.sort(key=lambda row: -row.ended)
    shown = table[:_TABLE]
    return {"table": shown, "more": len(table) - len(shown)}


def _counted_since(weeks: Weeks, newest: int) -> float | None:
    """Return when the first hour began that has counts; None = a week ago. `newest`: the present hour."""
    first = min((at for week in weeks.values() for at, part in enumerate(week) if part), default=0)
    return (newest - WEEK + 1 + first) * HOUR if first else None


def _counted(queue: str, hours: Sequence[Sequence[EndCount]]) -> list[TaskCounts]:
    """Return the counts of a week by task."""
    tasks = dict[str, list[EndCount]]()
    for one in (one for part in hours for one in part):
        tasks.setdefault(one.task, []).append(one)
    return [counts_of(queue, task, counted) for task, counted in tasks.items()]


VIEWS = (View("/history", "history", _history, every=2.0, follow=_newer),)
