"""The pages about jobs: a search, and an act on all that match."""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from http import HTTPStatus
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace
from starlette.exceptions import HTTPException

from evsched.client import past_acts, spread, sweep
from evsched.client.sweep import SEARCHED, WAITING, Sweep
from evsched.console.hour_counts import hour_counts
from evsched.console.job_acts import JOB_ACTS, planned
from evsched.console.page import MeteredClient, View, Visit
from evsched.console.search import QUALIFIERS, Search, in_words, offered_spans, quoted, read_search
from evsched.console.views.now import read_stats
from evsched.console.views.recurrences import rosters_of
from evsched.console.views.trail import last_act
from evsched.errors import StoreError
from evsched.jobs.record import JobStatus, Place
from evsched.jobs.redaction import NONE_DECLARED, Redactions, redacted_member
from evsched.keys import check_queue
from evsched.recurrence.cron import find_zone
from evsched.store.operator_calls import Match
from evsched.store.store import Store

_ROWS: Final = 50
"""Jobs of a page."""

_PAGES: Final = 20
"""Times that a list can be made longer: with more rows, a narrower search helps more."""

_TIME: Final = 0.2
"""Seconds for which a search looks before the page shows what it has found so far."""

_COMPLETIONS: Final = 12

_COUNTED: Final = 200
"""Queues whose places are counted beside a search."""

_KEPT: Final = 10_000
"""Jobs that a search finds at most: with more, a narrower search helps more."""

_NAMED: Final = 5
"""Recurrences that a word without a qualifier finds at most."""

_SAMPLES: Final = 10
"""Jobs that the page before an act shows."""

_COUNTED_JOBS: Final = 100_000
"""Jobs that the page before an act counts at most, and that are looked at for how their ids begin."""

_SEARCHES: Final = 50
"""Searches that can be gone on with."""

PLACE_WORDS: Final[dict[Place, tuple[str, str]]] = {
    "schedule": ("wait", "schedule"),
    "backlog": ("wait", "backlog"),
    "ready": ("wait", "ready"),
    "processing": ("run", "running"),
    "dead": ("bad", "dead"),
    "finished": ("ok", "ended"),
}
"""The class that draws a place, and its word."""


_PLACE_ORDER: Final = {place: at for at, place in enumerate(PLACE_WORDS)}

_NOT_UTF8: Final = re.compile(r"(?!\{).*\\x[0-9a-f]{2}", re.DOTALL)
"""The id, not of an inline job, as readers get it if another client has written bytes that are not UTF-8. It names no
job, because it is not what Redis has."""


def short_reason(job: Match) -> str:
    """Return the reason without its usual first words: the attempt, and the module of the class."""
    return re.sub(r"^(attempt \d+ of \d+: )?([\w.]+\.(?=[A-Z]\w*\b))?", "", job.reason or "", count=1)


class FoundJob(Struct, frozen=True):
    """A job of the list."""

    queue: str
    job: Match
    state: tuple[str, str]
    id: str
    """As it is shown: an inline job is its own id, and may have redacted values."""
    key: str | None
    """Its id for links and forms; None = it has redacted values, which do not go to a page, or no page can name it."""

    @property
    def reason(self) -> str:
        return short_reason(self.job)


class Found(Struct, frozen=True):
    """The result of a search, or of its part so far."""

    rows: list[FoundJob]
    total: int = 0
    share: float = 1.0
    """How much of them was looked at, from 0 to 1."""
    over: bool = True
    """Whether all jobs were looked at."""
    matched: int = 0
    ordered: bool = False
    """Whether the rows are the newest, or the next to run, of all that there are."""
    more: bool = False
    """Whether there are more than the rows, if they are `ordered`."""


class _Going:
    """A search that can be gone on with: it keeps its place in each queue.

    `wholes`: the queues and shards that are searched -> the queue that a person sees. `total`: about how many jobs they
    have; the sweep knows only those of the queues that it has begun.
    """

    def __init__(self, sweep: Sweep, wholes: Mapping[str, str], total: int) -> None:
        self._sweep, self._wholes, self._more = sweep, wholes, bool(wholes)
        self._total, self._share = total, 0.0
        self.full = False
        """Whether it holds as many jobs as it may, so that it ends here."""

    async def look(self, client: MeteredClient, enough: int, wanted: Search, most: float = _KEPT) -> Found:
        """Look on for a short time, until `most` have matched; return the first rows found so far."""
        until = time.monotonic() + _TIME
        while self._more and time.monotonic() < until and self._sweep.swept.matched < most:
            self._more = await client.run(self._sweep.step())
        self.full = self._sweep.swept.matched >= most
        matching = [(part, job) for part, job in self._sweep.found_in if wanted.takes(job)]
        first = nsmallest(enough, matching, key=lambda one: _order(one[1]))
        rows = [as_row(self._wholes[part], job) for part, job in first]
        self._total = max(self._total, self._sweep.total)
        self._share = max(self._share, self._sweep.examined / max(1, self._total)) if self._more else 1.0
        return Found(rows, self._total, self._share, not self._more, len(matching))


def _wholes(client: MeteredClient, queues: Sequence[str]) -> dict[str, str]:
    """Return the queues and their shards, each with the queue that a person sees."""
    return {store.queue: queue for queue in queues for store in client.stores(queue)}


def as_row(queue: str, job: Match, declared: Redactions = NONE_DECLARED) -> FoundJob:
    shown = redacted_member(job.id, declared) or "(empty)"
    state = ("warn", "to be retried") if job.place == "schedule" and job.error else PLACE_WORDS[_place(job)]
    return FoundJob(queue, job, state, shown, None if shown != job.id or _NOT_UTF8.match(shown) else job.id)


def _order(job: Match) -> tuple[int, float]:
    """Return the place of a job in a list: by its place, the newest first."""
    return _PLACE_ORDER[_place(job)], -(job.at or job.created or 0.0)


def _place(job: Match) -> Place:
    return job.place if job.place in PLACE_WORDS else "processing"


async def _by_order(
    client: MeteredClient, queues: Sequence[str], place: Literal["schedule", "dead"], limit: int
) -> Found:
    """Return the first jobs of a place without a search: the last to die, or the next to be due."""
    last, stores = place == "dead", [(queue, store) for queue in queues for store in client.stores(queue)]
    read = await asyncio.gather(*(client.send(store.front(place, limit + 1, last=last)) for _, store in stores))
    first = [(at, job, where) for where, jobs in zip(stores, read, strict=True) for job, at in jobs]
    first.sort(key=lambda one: one[0], reverse=last)
    chosen = dict[tuple[str, str], list[tuple[str, float | None]]]()
    for at, job, (queue, store) in first[:limit]:
        chosen.setdefault((queue, store.queue), []).append((job, at))
    described = await asyncio.gather(
        *(client.run(sweep.describe(client.store(part), place, jobs)) for (_, part), jobs in chosen.items())
    )
    rows = [as_row(queue, job) for (queue, _), jobs in zip(chosen, described, strict=True) for job in jobs]
    rows.sort(key=lambda row: row.job.at or 0.0, reverse=last)
    return Found(rows, len(rows), matched=len(rows), ordered=True, more=len(first) > limit)


async def _by_id(client: MeteredClient, queues: Sequence[str], wanted: Search) -> list[FoundJob]:
    """Return the jobs of the id of a search: more than one if several queues have it."""
    found = await asyncio.gather(
        *(client.run(spread.status(client.parts_of(queue, wanted.id), wanted.id)) for queue in queues)
    )
    return [as_row(queue, _match(one)) for queue, one in zip(queues, found, strict=True) if one is not None]


def _match(job: JobStatus) -> Match:
    """Return a job of a known state as a search finds it."""
    at = job.due if job.place == "schedule" else job.finished
    known = job.task, job.group, job.created, job.by, job.reason, job.error, job.tags, job.location
    return Match(job.place, job.id, at, *known)


async def _redacted(client: MeteredClient, found: Found) -> Found:
    """Return it without the values that workers redact: an inline job has them in its id."""
    rows = list[FoundJob]()
    for queue in dict.fromkeys(row.queue for row in found.rows):
        jobs = [row.job for row in found.rows if row.queue == queue]
        declared = await client.run(past_acts.redactions(client.stores(queue), [job.id for job in jobs]))
        rows += [as_row(queue, job, declared) for job in jobs]
    by_place = {(row.queue, row.job.id): row for row in rows}
    return replace(found, rows=[by_place[row.queue, row.job.id] for row in found.rows])


def _offered(places: Sequence[str]) -> list[str]:
    """Return the acts that make sense for the jobs of some places."""
    dead, waiting = "dead" in places, any(place in WAITING for place in places)
    return [*(("cancel", "reschedule") if waiting else ()), *(("revive", "drop") if dead else ())]


async def _counts(client: MeteredClient, queues: Sequence[str]) -> dict[str, int]:
    """Return how many jobs each place has; nothing for many queues, or if one cannot be read."""
    if len(queues) > _COUNTED:
        return {}
    found = await read_stats(client, queues)
    stats = [one for one in found.values() if not isinstance(one, StoreError)]
    if len(stats) < len(found):
        return {}
    return {PLACE_WORDS[place][1]: sum(one.places[place] for one in stats) for place in SEARCHED}


async def _jobs(visit: Visit) -> dict[str, Any]:
    text, client = visit.get("q"), visit.client
    wanted = read_search(text, visit.console.config.console_zone)
    known = await visit.console.queues(client)
    queues = [*wanted.queues] or known
    values: dict[str, Any] = {"search": wanted, "qualifiers": QUALIFIERS, "known": known}
    zone = visit.console.config.console_zone
    picked = visit.picked_span()
    if not picked.problem and (picked.since, picked.until) != (None, None):
        of_span = picked.words(find_zone(zone))
        return {"redirect": visit.url("/jobs", q=wanted.spanning(of_span.get("since"), of_span.get("until")))}
    typed = visit.get("when") or wanted.typed_span(zone)
    values |= {"spans": offered_spans(zone), "typed": typed, "span_problem": picked.problem}
    values |= {"any_place": "place:" + ",".join(PLACE_WORDS[place][1] for place in SEARCHED)}
    values |= {
        "acts": JOB_ACTS,
        "go_on": "",
        **_more_rows(0, False),
        "gone": False,
        "recurrences": [],
        "place": wanted.places[0] if len(wanted.places) == 1 else "",
    }
    values |= {"offered": _offered(wanted.searched), "counts": await _counts(client, queues)}
    if wanted.problem or picked.problem:
        return values | {"found": Found([])}
    of_id = await _by_id(client, queues, wanted) if wanted.id else []
    if len(of_id) == 1:
        return {"redirect": visit.url("/job", queue=of_id[0].queue, id=wanted.id)}
    page = min(int(visit.get("more")), _PAGES) if visit.get("more").isdecimal() else 0
    simple = wanted.filter.is_empty and not wanted.by and not wanted.id
    if simple and (not wanted.words or wanted.places in (("dead",), ("schedule",))):
        place = "dead" if wanted.places == ("dead",) else "schedule"
        found = await _redacted(client, await _by_order(client, queues, place, _ROWS * (page + 1)))
        values |= {"place": place, "offered": _offered([place]), **_more_rows(page, found.more)}
        return values | {"found": found}
    if of_id:
        return values | {"found": await _redacted(client, Found(of_id, len(of_id), matched=len(of_id)))}
    if wanted.id:
        values |= await _gone(visit, queues, wanted)
        wanted = replace(wanted, id="", begins=wanted.id)

    def sweep_of(stores: Sequence[Store]) -> Sweep:
        return Sweep(stores, wanted.filter, wanted.searched)

    going = _going(visit, text, queues, sweep_of, sum(_at(values["counts"], wanted.searched)))
    found = await going.look(client, _ROWS * (page + 1), wanted, _COUNTED_JOBS if wanted.begins else _KEPT)
    values["go_on"] = str(page) if not (found.over or going.full) else ""
    if wanted.begins and not values["go_on"]:  # it may hold many jobs
        visit.console.memory["searches"].pop(f"{visit.visitor.name} {text}", None)
    values |= _more_rows(page, found.matched > len(found.rows))
    return values | {"found": await _redacted(client, found)}


def _more_rows(page: int, more: bool) -> dict[str, Any]:
    """Return the page that has more rows, if there are more; or that the list ends before them."""
    return {"more_rows": str(page + 1) if more and page < _PAGES else "", "cut": more and page >= _PAGES}


def _at(counts: Mapping[str, int], places: Sequence[Place]) -> list[int]:
    """Return the counts of places."""
    return [counts.get(PLACE_WORDS[place][1], 0) for place in places]


def _going(
    visit: Visit, key: str, queues: Sequence[str], sweep_of: Callable[[Sequence[Store]], Sweep], total: int
) -> _Going:
    """Return the search of this user that the page goes on with, or a new one."""
    searches: OrderedDict[str, _Going] = visit.console.memory.setdefault("searches", OrderedDict())
    key = f"{visit.visitor.name} {key}"
    going = searches.pop(key, None) if visit.get("more") else None
    if going is None:
        wholes = _wholes(visit.client, queues)
        going = _Going(sweep_of([visit.client.store(part) for part in wholes]), wholes, total)
    searches[key] = going
    while len(searches) > _SEARCHES:
        searches.popitem(last=False)
    return going


async def _gone(visit: Visit, queues: Sequence[str], wanted: Search) -> dict[str, Any]:
    """Return where to look on for a word that is the id of no job: its queue, and recurrences with it in their names.

    The id of a run is `NAME@TIME`.
    """
    text = wanted.id.rpartition("@")[0] or wanted.id
    rows = await rosters_of(visit).look(visit.client, queues)
    found = [(row.queue, row.name) for row in rows if text.lower() in row.name.lower()]
    found.sort(key=lambda one: (one[1] != text, one[1], one[0]))
    known = [*wanted.queues, *(queue for queue, name in found if name == text and text != wanted.id)]
    return {
        "gone": True,
        "recurrences": found[:_NAMED],
        "gone_from": known[0] if len(set(known)) == 1 else "",
        "last_act": await last_act(visit, wanted.queues or queues, wanted.id),
    }


class _Sample(Struct, frozen=True):
    """One of the jobs that an act would change."""

    queue: str
    id: str
    """As it is shown."""
    key: str | None
    """Its id for links; None = it has redacted values, or the job is gone."""
    task: str = ""
    group: str = ""
    at: float | None = None
    """When it died, or is due."""
    reason: str = ""


async def _chosen_sample(client: MeteredClient, queue: str, job: str) -> _Sample:
    status, shown = await client.status(check_queue(queue), job), redacted_member(job)
    if status is None:
        return _Sample(queue, shown, None, reason="It is gone: it stays as it is.")
    at = status.finished if status.place == "dead" else status.due
    key = job if shown == job else None
    return _Sample(queue, shown, key, status.task or "", status.group or "", at, status.reason or "")


def _sample(row: FoundJob) -> _Sample:
    job = row.job
    return _Sample(row.queue, row.id, row.key, job.task or "", job.group or "", job.at, row.reason)


async def _bulk(visit: Visit) -> dict[str, Any]:
    """Say what an act would change: the page before it. It counts on while it is open."""
    name = visit.get("verb")
    if name not in JOB_ACTS:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    act, client = JOB_ACTS[name], visit.client
    chosen = [one.partition(" ")[::2] for one in visit.query.getlist("job")]
    values = {"act": act, "verb": name, "chosen": chosen, "search": None, "matched": len(chosen), "over": True}
    if chosen and not visit.get("all"):
        first = await asyncio.gather(*(_chosen_sample(client, *one) for one in chosen[:_SAMPLES]))
        return values | {"which": "the jobs that you have chosen", "first": first, "go_on": ""}
    wanted = read_search(visit.get("q"), visit.zone)
    queues = [*wanted.queues] or await visit.console.queues(client)

    def sweep_of(stores: Sequence[Store]) -> Sweep:
        return planned(act, stores, wanted).without_change()

    places = sweep_of([]).places
    total = sum(_at(await _counts(client, queues), places))
    going = _going(visit, f"{name} {wanted.text}", queues, sweep_of, total)
    found = await going.look(client, _SAMPLES, wanted, most=_COUNTED_JOBS)
    ended = found.over or found.matched >= _COUNTED_JOBS
    if ended:  # it may hold many jobs
        visit.console.memory["searches"].pop(f"{visit.visitor.name} {name} {wanted.text}", None)
    return values | {
        "search": wanted,
        "chosen": [],
        "which": in_words(wanted, visit.console.pages.clock),
        "matched": found.matched,
        "over": found.over,
        "share": found.share,
        "total": found.total,
        "go_on": "" if ended else visit.url("/bulk", verb=name, all=1, q=wanted.text, more=1),
        "first": [_sample(row) for row in (await _redacted(client, found)).rows],
    }


async def _act(visit: Visit) -> dict[str, Any]:
    """Say how far an act is, how it ended, and what it left as it was."""
    run = visit.console.acts.find(visit.get("id"))
    if run is None:
        raise HTTPException(
            HTTPStatus.NOT_FOUND,
            "This console does not know the act any more. If the console was started again meanwhile, the act ended "
            "with it. The audit trail has how many jobs were changed; the same act does the rest.",
        )
    return {"run": run}


async def complete(visit: Visit) -> list[tuple[str, str]]:
    """Return what may follow in the search box: the whole text of each search, and what it finds.

    It costs Redis nothing but what the pages have read anyway: the names of the queues, and of the tasks that ended.
    """
    before, _, word = visit.query.get("q", "").rpartition(" ")
    name, colon, begun = word.partition(":")
    known = {
        "queue": await visit.console.queues(visit.client),
        "place": ["schedule", "backlog", "ready", "running", "dead", "ended"],
        "task": sorted(hour_counts(visit).tasks),
    }
    before = f"{before} " if before else ""
    if colon:
        return [(f"{before}{name}:{quoted(one)} ", "") for one in known.get(name, ()) if begun in one][:_COMPLETIONS]
    return [(f"{before}{one}:", what) for one, what in QUALIFIERS.items() if one.startswith(name)]


VIEWS = (
    View("/jobs", "jobs", _jobs),
    View("/bulk", "bulk", _bulk, part="jobs", needs="operator"),
    View("/act", "act", _act, part="audit", every=1.0),
)
