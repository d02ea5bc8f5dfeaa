"""The pages about jobs: a search, an act on all that match, and one job."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from starlette.exceptions import HTTPException

from evsched.client import spread, sweep
from evsched.client.operations import Operation, send
from evsched.client.sweep import Sweep
from evsched.console.page import MeteredClient, View, Visit
from evsched.console.search import QUALIFIERS, Search, quoted, read_search
from evsched.console.user_acts import JOB_ACTS, planned
from evsched.errors import JobMissing
from evsched.jobs.record import Place
from evsched.jobs.redaction import redacted_member
from evsched.keys import check_queue
from evsched.store.operator_calls import Match
from evsched.store.store import Store

_ROWS: Final = 50
"""Jobs of a page."""

_PAGES: Final = 20
"""Times that a list can be made longer: with more rows, a narrower search helps more."""

_TIME: Final = 0.2
"""Seconds for which a search looks before the page shows what it has found so far."""

_SEARCHES: Final = 50
"""Searches that can be gone on with."""

_WORDS: Final[dict[Place, tuple[str, str]]] = {
    "schedule": ("wait", "schedule"),
    "backlog": ("wait", "backlog"),
    "ready": ("wait", "ready"),
    "processing": ("run", "running"),
    "dead": ("bad", "dead"),
    "finished": ("ok", "ended"),
}
"""The class that draws a place, and its word."""


class FoundJob(Struct, frozen=True):
    """A job of the list."""

    queue: str
    job: Match
    state: tuple[str, str]
    id: str
    """As it is shown: an inline job is its own id, and may have redacted values."""


class Found(Struct, frozen=True):
    """The result of a search, or of its part so far."""

    rows: list[FoundJob]
    examined: int = 0
    total: int = 0
    over: bool = True
    """Whether all jobs were looked at."""
    matched: int = 0
    ordered: bool = False
    """Whether the rows are the newest, or the next to run, of all that there are."""


class _Going:
    """A search that can be gone on with: it keeps its place in each queue."""

    def __init__(self, parts: Sequence[tuple[str, Sweep]]) -> None:
        self.parts = [*parts]
        self.left = [*parts]

    async def look(self, client: MeteredClient, enough: int, wanted: Search) -> Found:
        """Look on for a short time, or until the page is full."""
        until = time.monotonic() + _TIME
        while self.left and time.monotonic() < until and len(self._matching(wanted)) < enough:
            more = await client.run(self.left[0][1].step())
            self.left.append(self.left.pop(0))
            if not more:
                self.left.pop()
        rows = self._matching(wanted)
        rows.sort(key=lambda row: (list(_WORDS).index(_place(row.job)), -(row.job.at or row.job.created or 0.0)))
        examined, total = (sum(getattr(one, name) for _, one in self.parts) for name in ("examined", "total"))
        return Found(rows[:enough], examined, total, not self.left, len(rows))

    def _matching(self, wanted: Search) -> list[FoundJob]:
        return [as_row(queue, job) for queue, one in self.parts for job in one.found if wanted.takes(job)]


def as_row(queue: str, job: Match) -> FoundJob:
    return FoundJob(queue, job, _WORDS[_place(job)], redacted_member(job.id))


def _place(job: Match) -> Place:
    return job.place if job.place in _WORDS else "processing"  # type: ignore[return-value]


def _newest(stores: Sequence[Store], place: Place, limit: int) -> Operation[list[Match]]:
    """Return the last jobs of a sorted place, the newest death or the latest due first."""
    found = list[tuple[float, Match]]()
    for store in stores:
        jobs = yield from send(store.front("dead" if place == "dead" else "schedule", limit, last=place == "dead"))
        for match in (yield from sweep.describe(store, place, jobs)):
            found.append((match.at or 0.0, match))
    found.sort(key=lambda one: one[0], reverse=place == "dead")
    return [match for _, match in found[:limit]]


async def _by_order(client: MeteredClient, queues: Sequence[str], place: Place, limit: int) -> Found:
    """Return the first jobs of a place without a search: the last ones that died, or the next ones that are due."""
    read = await asyncio.gather(*(client.run(_newest(client.stores(queue), place, limit)) for queue in queues))
    rows = [as_row(queue, job) for queue, jobs in zip(queues, read, strict=True) for job in jobs]
    rows.sort(key=lambda row: row.job.at or 0.0, reverse=place == "dead")
    return Found(rows[:limit], len(rows), len(rows), True, len(rows), ordered=True)


async def _by_id(client: MeteredClient, queues: Sequence[str], wanted: Search) -> str | None:
    """Return the queue that has a job of the id of a search."""
    for queue in queues:
        if await client.run(spread.status(client.parts_of(queue, wanted.id), wanted.id)) is not None:
            return queue
    return None


async def _jobs(visit: Visit) -> dict[str, Any]:
    text, client = visit.get("q"), visit.client
    wanted = read_search(text)
    known = await visit.console.queues(client)
    queues = [*wanted.queues] or known
    values: dict[str, Any] = {"search": wanted, "qualifiers": QUALIFIERS, "quoted": quoted, "known": known}
    values |= {"acts": JOB_ACTS, "go_on": "", "place": wanted.places[0] if len(wanted.places) == 1 else ""}
    if wanted.problem:
        return values | {"found": Found([])}
    if wanted.id and (queue := await _by_id(client, queues, wanted)) is not None:
        return {"redirect": visit.url("/job", queue=queue, id=wanted.id)}
    simple = wanted.filter.is_empty and not wanted.by and not wanted.id
    if simple and (not wanted.places or wanted.places in (("dead",), ("schedule",))):
        place: Place = wanted.places[0] if wanted.places else "schedule"
        return values | {"found": await _by_order(client, queues, place, _ROWS), "place": place}
    searches: OrderedDict[str, _Going] = visit.console.memory.setdefault("searches", OrderedDict())
    key = f"{visit.visitor.name} {text}"
    going = searches.pop(key, None) if visit.get("more") else None
    if going is None:
        going = _Going([(queue, Sweep(client.stores(queue), wanted.filter, wanted.searched)) for queue in queues])
    page = int(visit.get("more")) if visit.get("more").isdecimal() else 0
    found = await going.look(client, _ROWS * (min(page, _PAGES) + 1), wanted)
    searches[key] = going
    while len(searches) > _SEARCHES:
        searches.popitem(last=False)
    return values | {"found": found, "go_on": "" if found.over and found.matched == len(found.rows) else str(page + 1)}


async def _bulk(visit: Visit) -> dict[str, Any]:
    """Say what an act would change: the page before it."""
    name = visit.get("verb")
    if name not in JOB_ACTS:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    act, client = JOB_ACTS[name], visit.client
    chosen = [tuple(one.split(" ", 1)) for one in visit.query.getlist("job")]
    values = {"act": act, "verb": name, "chosen": chosen, "search": None, "matched": len(chosen), "over": True}
    if chosen and not visit.get("all"):
        return values | {"examined": len(chosen), "first": [redacted_member(job) for _, job in chosen[:10]]}
    wanted = read_search(visit.get("q"))
    queues = [*wanted.queues] or await visit.console.queues(client)
    parts = [(queue, planned(act, client.stores(queue), wanted).without_change()) for queue in queues]
    found = await _Going(parts).look(client, 1_000_000, wanted)
    first = [row.id for row in found.rows[:10]]
    return values | {
        "search": wanted,
        "chosen": [],
        "matched": found.matched,
        "over": found.over,
        "examined": found.examined,
        "first": first,
    }


async def _job(visit: Visit) -> dict[str, Any]:
    queue, job, client = check_queue(visit.get("queue")), visit.query.get("id", ""), visit.client
    status = await client.status(queue, job)
    if status is None:
        raise JobMissing(
            f"There is no job {redacted_member(job):.200} in queue {queue}: it never existed, was cancelled while it "
            "waited, or ended and its retention is over. The history may have its end."
        )
    explained = await client.explain(queue, job)
    return {
        "job": replace(status, id=redacted_member(status.id)),
        "key": job,
        "queue": queue,
        "state": _WORDS[status.place],
        "explained": explained,
        "now": time.time(),
        "waits": status.place in ("schedule", "backlog", "ready"),
    }


VIEWS = (
    View("/jobs", "jobs", _jobs),
    View("/bulk", "bulk", _bulk, part="jobs", needs="operator"),
    View("/job", "job", _job, part="jobs", every=1.0),
)
