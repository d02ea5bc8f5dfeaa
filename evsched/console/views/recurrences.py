"""The pages about recurrences: the list of all, with their last runs, and one with what can be done with it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice, takewhile
from math import inf
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec
from markupsafe import Markup
from msgspec import Struct

from evsched import keys
from evsched.client import recurrence_operations
from evsched.client.recurrence_operations import find_standing, read_record, read_stored
from evsched.client.sealing import shown_payload
from evsched.console.page import MeteredClient, View, Visit
from evsched.console.rosters import URGENT, RosterRow, Rosters, as_row, text_of
from evsched.console.words import PageClock, rounded
from evsched.errors import ConfigError, JobMissing
from evsched.jobs.record import number
from evsched.jobs.redaction import redacted
from evsched.keys import check_queue
from evsched.recurrence.calendars import just_before
from evsched.recurrence.cron import find_zone
from evsched.recurrence.look_ahead import Standing, runs_ahead
from evsched.recurrence.recurrence import Recurrence, describe_revision
from evsched.store.history_calls import PastJob
from evsched.store.server import clock

_ROWS: Final = 100
"""Recurrences of a page."""

_TIMES: Final = 5
"""Next times of a recurrence."""

_SHOWN_TIMES: Final = 10
"""Planned times that the dry run of a backfill lists."""

_KEPT_FOR: Final = 30.0
"""Seconds after which a record is asked about again."""

_RECORDS: Final = 5_000
"""Runs of which is known whether they have a record."""

_YEAR: Final = 400
"""Days within which the next change of the clocks is looked for."""

_OFTEN: Final = 24
"""Runs on one day from which on a change of the clocks matters little."""

_FILTERS: Final = ("paused", "failing", "late", "cannot run")


class ListedRow(Struct, frozen=True):
    """A recurrence on the page, with its last runs."""

    row: RosterRow
    next: Markup | str
    """In the zone of the console, as all times of its pages."""
    local: str
    """The same in the zone of the rule, if that differs."""
    runs: list[str]
    """The outcomes of the last runs, the newest last: done or failed."""
    runs_words: str
    last: PastJob | None
    """The last run that is known."""


class KeptRecords:
    """Which of the last runs still have a record. A run that had one is asked about again, after a while."""

    def __init__(self) -> None:
        self._known = dict[tuple[str, str], tuple[float, bool]]()

    async def look(self, client: MeteredClient, runs: Sequence[PastJob]) -> list[bool]:
        now = time.monotonic()
        asked = [run for run in runs if self._is_asked(run, now)]
        found = await asyncio.gather(*(client.send(client.store(run.queue).traces(run.id)[0]) for run in asked))
        for run, there in zip(asked, found, strict=True):
            self._known.pop((run.queue, run.id), None)
            self._known[run.queue, run.id] = now, there
        while len(self._known) > _RECORDS:
            del self._known[next(iter(self._known))]
        return [self._known.get((run.queue, run.id), (now, False))[1] for run in runs]

    def _is_asked(self, run: PastJob, now: float) -> bool:
        at, there = self._known.get((run.queue, run.id), (-inf, True))
        return there and now - at > _KEPT_FOR


def kept_records(visit: Visit) -> KeptRecords:
    """Return what all pages of a console know about the records of runs."""
    return visit.console.memory.setdefault("kept records", KeptRecords())


def rosters_of(visit: Visit) -> Rosters:
    """Return the recurrences that all pages of a console share."""
    return visit.console.memory.setdefault("rosters", Rosters())


def _outcomes(runs: Sequence[PastJob]) -> list[str]:
    return ["done" if run.outcome == "done" else "failed" for run in reversed(runs) if run.outcome != "cancelled"]


def runs_words(outcomes: Sequence[str]) -> str:
    """Say how the last runs ended, the newest last."""
    if not outcomes:
        return "no run is known"
    total, failed = len(outcomes), outcomes.count("failed")
    last = f"last {total} runs" if total > 1 else "last run"
    if failed in (0, total):
        return f"{last}: {'all ' if total > 1 else ''}{'failed' if failed else 'done'}"
    if all(one == "failed" for one in outcomes[-failed:]):
        return f"{last}: {total - failed} done, then {failed} failed"
    return f"{last}: {total - failed} done, {failed} failed"


def _clock(visit: Visit, row: RosterRow) -> PageClock:
    """Return what writes the planned times of a recurrence: in the zone of its rule, if that matters."""
    if row.zoned and row.zone != visit.console.config.console_zone:
        with suppress(ConfigError):
            return PageClock(find_zone(row.zone))
    return visit.console.pages.clock


def _local(visit: Visit, moment: float | None, row: RosterRow) -> str:
    """Return a time in the zone of a rule, with its name; empty if that zone does not matter, or is the console's."""
    clock_of_rule = _clock(visit, row)
    if moment is None or clock_of_rule is visit.console.pages.clock:
        return ""
    return f"{clock_of_rule.text(moment)} {row.zone}"


def _wanted(row: RosterRow, state: str) -> bool:
    return not state or row.state[1] == state or (state == "failing" and row.count("failing") > 0)


def _urgency(row: RosterRow) -> int:
    """Return the place of a row: the ones that need a look come first."""
    return URGENT.index(row.state) if row.state in URGENT else len(URGENT)


def _page_of(text: str, rows: int) -> int:
    last = max(0, (rows - 1) // _ROWS)
    return min(int(text), last) if text.isdecimal() and len(text) < 6 else 0


async def _recurrences(visit: Visit) -> dict[str, Any]:
    client, known = visit.client, await visit.console.queues(visit.client)
    only, state, rosters = visit.get("queue"), visit.get("state"), rosters_of(visit)
    queues = [check_queue(only)] if only else known
    rows = await rosters.look(client, queues)
    wanted = [row for row in rows if _wanted(row, state)]
    wanted.sort(key=lambda row: (_urgency(row), row.next or inf, row.name))
    page = _page_of(visit.get("page"), len(wanted))
    shown = wanted[page * _ROWS : (page + 1) * _ROWS]
    await rosters.look_back(client, sorted({row.queue for row in shown}))
    listed = list[ListedRow]()
    for row in shown:
        runs = rosters.runs_of(row.queue, row.name)
        outcomes = _outcomes(runs)
        next_, local = visit.console.pages.clock.moment(row.next), _local(visit, row.next, row)
        listed.append(ListedRow(row, next_, local, outcomes, runs_words(outcomes), next(iter(runs), None)))
    by_queue = Counter(row.queue for row in rows)
    unread = rosters.unread(queues)
    zones = sorted({row.zone for row in rows if row.zoned})
    return {
        "rows": listed,
        "all": len(rows),
        "matching": len(wanted),
        "page": page,
        "pages": max(0, (len(wanted) - 1) // _ROWS) + 1,
        "first": page * _ROWS,
        "states": {name: sum(_wanted(row, name) for row in rows) for name in _FILTERS},
        "held": [row for row in rows if row.state == ("warn", "paused")],
        "failing": [row for row in rows if row.state[1] == "failing"],
        "broken": [row for row in rows if row.state[1] in ("cannot run", "late")],
        "missed": sum(row.count("missed") for row in rows),
        "zones": zones,
        "by_queue": by_queue.most_common(12),
        "queue": only,
        "state": state,
        "pending": sum(not problem for _, problem in unread),
        "refused": [(where, problem) for where, problem in unread if problem],
        "now": max((row.now for row in rows), default=time.time()),
        "command": f"evsched recurrences --queue {only or (by_queue.most_common(1) or [('default', 0)])[0][0]}",
    }


class NextTime(Struct, frozen=True):
    """A planned time of a recurrence. `note`: why it is not what one expects."""

    at: float
    local: str
    """In the zone of its rule, if that is not the console's."""
    due: float | None = None
    note: str = ""
    far: bool = False
    """Whether it is shown for its note, and is not one of the next."""


def _shift(day: datetime) -> float:
    """Return by how many seconds the clocks are set forward on a day; negative = back."""
    begins = day.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    before, after = begins.utcoffset(), (begins + timedelta(days=1)).utcoffset()
    return (after - before).total_seconds() if before is not None and after is not None else 0.0


def _change_note(at: float, zone: ZoneInfo) -> str:
    shift = _shift(datetime.fromtimestamp(at, zone))
    return "" if not shift else f"the clocks are set {'forward' if shift > 0 else 'back'} on this day"


def next_change(zone: ZoneInfo, now: float) -> datetime | None:
    """Return the next day on which the clocks of a zone are set."""
    day = datetime.fromtimestamp(now, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    return next((day + timedelta(days=n) for n in range(_YEAR) if _shift(day + timedelta(days=n))), None)


def _next_times(
    recurrence: Recurrence, standing: Standing, now: float, local: Callable[[float], str]
) -> list[NextTime]:
    """Return the next times, and that on the next day on which the clocks are set."""
    zone = recurrence.rule.zone
    found = list[NextTime]()
    for one in islice(
        (ahead for ahead in islice(runs_ahead(recurrence, standing, now, now), 200) if ahead.runs), _TIMES
    ):
        late = one.due is not None and one.due - one.planned > 1
        note = _change_note(one.planned, zone) if recurrence.rule.cron else ""
        found.append(NextTime(one.planned, local(one.planned), one.due if late else None, note))
    change = next_change(zone, now) if recurrence.rule.cron else None
    if change is None or (found and found[-1].at > change.timestamp()):
        return found
    begins, ends = change.timestamp(), (change + timedelta(days=1)).timestamp()
    times = recurrence.walk(just_before(begins))
    on_day = [*islice(takewhile(lambda at: at < ends, times), _OFTEN + 1)]
    if 0 < len(on_day) <= _OFTEN:
        found.append(NextTime(on_day[0], local(on_day[0]), None, _change_note(on_day[0], zone), far=True))
    return found


class Backfill(Struct, frozen=True):
    """The dry run of a backfill."""

    since: float
    until: float
    times: list[str]
    """In the zone of the console, and in that of the rule if it differs."""
    count: int
    problem: str = ""


async def _dry_run(visit: Visit, row: RosterRow, now: float) -> Backfill | None:
    """Return what a backfill would do, if the form asks for one."""
    if not visit.get("from"):
        return None
    try:
        since, until = (visit.typed_time(visit.get(name), past=True) for name in ("from", "to"))
        until = now if until is None else until
        if since is None or until <= since:
            raise ConfigError("the end is not after the start")
        store = visit.client.store(row.queue)
        found = await visit.client.run(recurrence_operations.planned_between(store, row.name, since, until))
    except ConfigError as error:
        return Backfill(0.0, 0.0, [], 0, str(error))
    text = visit.console.pages.clock.text
    times = [f"{text(at)} ({local})" if (local := _local(visit, at, row)) else text(at) for at in found[:_SHOWN_TIMES]]
    return Backfill(since, until, times, len(found))


def _declaration(fields: dict[str, bytes]) -> dict[str, str]:
    """Return the declaration by the names under which it is shown."""
    after = {"skip": "none is made up for", "once": "the newest runs once", "all": "all run"}
    overlap = {"skip": "is skipped", "wait": "waits", "allow": "runs beside it"}
    given = {
        "rule": text_of(fields, "rule"),
        "zone": text_of(fields, "zone") or "UTC",
        "missed times": after.get(text_of(fields, "misfire"), text_of(fields, "misfire")),
        "while one runs": f"the next {overlap.get(found, found)}" if (found := text_of(fields, "overlap")) else "",
        "interval": "from the end of each run" if text_of(fields, "after") == "end" else "",
        "spread": f"{text_of(fields, 'spread')} s" if text_of(fields, "spread") else "",
        "window": text_of(fields, "window") or "none",
        "calendar": text_of(fields, "skip") or "none",
        "pause after": f"{found} failures in a row" if (found := text_of(fields, "pause_after")) else "never",
        "group": text_of(fields, "group"),
        "priority": text_of(fields, "priority"),
        "runs at most": text_of(fields, "count"),
    }
    revision = number(fields.get("revision"))
    if revision is not None:
        given["revision"] = describe_revision(revision)
    return {name: value for name, value in given.items() if value}


async def _payload(visit: Visit, fields: dict[str, bytes]) -> Any:
    text = fields.get("payload", b"")
    try:
        return redacted(await visit.client.run(shown_payload(text)))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return redacted(text.decode(errors="backslashreplace"))


async def _recurrence(visit: Visit) -> dict[str, Any]:
    queue, name, client = check_queue(visit.get("queue")), visit.get("name"), visit.client
    await visit.console.queues(client)
    store, rosters = client.store(queue), rosters_of(visit)
    at = await client.send(store.next_planned(name))
    if at is None:
        raise JobMissing(f"{name:.200} is not a recurrence of queue {queue}: it may have been removed")
    fields = await client.run(read_record(store, name))
    explained = await client.explain(queue, name)
    standing, now = await client.run(find_standing(store, at, fields)), await client.send(clock(keys.root(queue)))
    row = as_row(queue, name, at, fields, now)
    times, problem = list[NextTime](), ""
    try:
        recurrence = await client.run(read_stored(store, name, fields))
        if "retired" not in fields:
            times = _next_times(recurrence, standing, now, lambda at: _local(visit, at, row))
    except ConfigError as error:
        problem = str(error)
    await rosters.look_back(client, [queue])
    runs = rosters.runs_of(queue, name)
    failed = next((run for run in runs if run.outcome != "done"), None)
    kept = await kept_records(visit).look(client, runs)
    return {
        "queue": queue,
        "recurrence": name,
        "row": row,
        "sentence": rounded(explained.sentence.partition("; resume it with")[0]),
        "paused": number(fields.get("paused")),
        "times": times,
        "problem": problem,
        "runs": [(run, *_planned(visit, run, row), there) for run, there in zip(runs, kept, strict=True)],
        "outcomes": (outcomes := _outcomes(runs)),
        "runs_words": runs_words(outcomes),
        "failed": failed if failed is not None and row.count("failing") else None,
        "current": text_of(fields, "current") if text_of(fields, "current") != text_of(fields, "last_id") else "",
        "declaration": _declaration(fields),
        "owner": text_of(fields, "owner"),
        "payload": await _payload(visit, fields),
        "backfill": await _dry_run(visit, row, now),
        "asked": (visit.get("from"), visit.get("to")),
        "example": f"{datetime.fromtimestamp(now, find_zone(visit.zone)) - timedelta(days=1):%Y-%m-%d}",
        "can_backfill": text_of(fields, "after") != "end" and "retired" not in fields,
        "now": now,
        "command": f"evsched explain {name} --queue {queue}\nevsched recurrences next {name} --queue {queue}",
    }


def _planned(visit: Visit, run: PastJob, row: RosterRow) -> tuple[float | None, str, bool]:
    """Return the planned time of a run, also in the zone of its rule, and whether it was requested.

    The time of a requested run has microseconds.
    """
    text = run.id.rpartition("@")[2]
    planned = number(text.encode())
    return planned, _local(visit, planned, row), len(text.partition(".")[2]) == 6


VIEWS = (
    View("/recurrences", "recurrences", _recurrences, every=2.0),
    View("/recurrence", "recurrence", _recurrence, part="recurrences", every=2.0),
)
