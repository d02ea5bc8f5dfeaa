"""The page of the audit trail: who did what, each act as a sentence."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

from msgspec import Struct

from evsched.client.past_acts import ActFilter, read_acts, read_deployment_acts
from evsched.console.newer_rows import NewerActs, after, newer_of
from evsched.console.page import View, Visit
from evsched.console.search import quoted
from evsched.console.views.past import ROWS, PastQuery, before, chosen_queues, read_past_form, spoken_span
from evsched.display import format_duration
from evsched.errors import StoreError
from evsched.store.acts import AuditedAct
from evsched.store.audit_trail import AuditTrail, DeploymentTrail
from evsched.store.server import clock

_FIELDS: Final = ("queue", "who", "act", "id", "since", "until")

_SKIP_MOST: Final = 1000
"""Acts of one moment that a page passes over."""

_FEW: Final = 20
"""Queues and shards whose trails are read for the last act on a job."""

_NAMED: Final = 3
"""Ids that a sentence names."""

_ACTS: Final = {
    "pause": "paused",
    "resume": "resumed",
    "limit": "limited",
    "cancel": "cancelled",
    "reschedule": "rescheduled",
    "edit": "edited",
    "signal": "sent a signal to",
    "revive": "revived",
    "drop": "dropped",
    "again": "ran again",
    "trigger": "triggered",
    "backfill": "ran for past times",
    "remove": "removed",
    "prune": "removed, since no app declares it,",
    "mend": "repaired",
    "move": "moved to other shards",
    "quiet": "asked to fetch no more:",
    "stop": "asked to stop:",
    "make-token": "made a token for",
    "remove-token": "deleted the token of",
}
"""The names of acts, and how they begin a sentence."""

_CHANGED: Final = {"args": "arguments by position", "kwargs": "arguments by name"}
"""How a sentence names what an edit changed, if not by its own name."""

_SOURCES: Final = {
    "cli": "command line",
    "api": "HTTP interface",
    "python": "Python",
    "console": "console",
    "mcp": "language model",
}


class Piece(Struct, frozen=True):
    """A part of a sentence: text, which may be a link or code, or a moment."""

    text: str = ""
    link: str = ""
    moment: float | None = None
    code: bool = False


class ActRow(Struct, frozen=True):
    """An act on the page."""

    act: AuditedAct
    source: str
    did: list[Piece]
    why: str


async def _audit(visit: Visit) -> dict[str, Any]:
    query, client = PastQuery(visit, "/audit", _FIELDS), visit.client
    given, (moment, skip) = query.given, before(visit)
    now = await client.send(clock())
    form = await read_past_form(visit, query, now)
    queues, since, until = form.queues, form.since, form.until
    ending = min(math.inf if until is None else until, moment)
    skip = min(skip, _SKIP_MOST) if moment < math.inf else 0
    wanted = ActFilter(
        since, None if math.isinf(ending) else ending, given["who"] or None, given["act"] or None, given["id"] or None
    )
    most = ROWS + skip + 1
    reading = {queue: read_acts(queue, client.stores(queue), wanted, most) for queue in queues}
    if not (given["queue"] or form.problem):
        reading["acts on no queue"] = read_deployment_acts(wanted, most)
    read = await asyncio.gather(*map(client.run, reading.values()), return_exceptions=True)
    found, unread = list[AuditedAct](), dict[str, str]()
    for queue, part in zip(reading, read, strict=True):
        if isinstance(part, StoreError):
            unread[queue] = str(part)
        elif isinstance(part, BaseException):
            raise part
        else:
            found += part
    found.sort(key=lambda act: -act.at)
    newest = max(now, found[0].at if found else now)
    shown = found[skip : skip + ROWS]
    older = None
    if len(found) > skip + ROWS:
        last = shown[-1].at
        older = query.link(before=repr(last), skip=sum(act.at == last for act in found[: skip + ROWS]))
    return {
        "given": given,
        "problem": form.problem,
        "link": query.link,
        "rows": [ActRow(act, _SOURCES.get(act.source, act.source), did(visit, act), _why(act)) for act in shown],
        "sentence": _sentence(given, shown, cut=older is not None or moment < math.inf),
        "first": math.isinf(moment),
        "older": older,
        "acts": list(_ACTS),
        "seen": _seen(visit, given["act"], found),
        "operators": [who for who, _ in Counter(act.who for act in shown).most_common(8)],
        "known": form.known,
        "unread": unread,
        "command": query.command("audit"),
        "now": now,
        "data": shown,
        "newer": "",
        "live": visit.url("/live/audit", **given, after=repr(newest))
        if math.isinf(ending) and not form.problem
        else "",
    }


def _seen(visit: Visit, given: str, found: Sequence[AuditedAct]) -> set[str]:
    """Return the names of the acts that are in the trail, as far as the pages of this console have read it."""
    seen: set[str] = visit.console.memory.setdefault("acts seen", set[str]())
    seen.update(act.act for act in found)
    return {*seen, given}


async def _newer(visit: Visit) -> dict[str, Any]:
    query, client = PastQuery(visit, "/audit", _FIELDS), visit.client
    given, key = query.given, (visit.get("after"), *query.given.values())
    wanted = ActFilter(who=given["who"] or None, act=given["act"] or None, id=given["id"] or None)
    newer = newer_of(visit, "acts", key, lambda: NewerActs(wanted, after(visit) or time.time()))
    queues, _ = await chosen_queues(visit)
    trails: list[AuditTrail] = [store for queue in queues for store in client.stores(queue)]
    await newer.look(client, trails if given["queue"] else [*trails, DeploymentTrail()])
    return {"newer": newer.words, "link": query.link}


async def last_act(visit: Visit, queues: Sequence[str], job_id: str) -> ActRow | None:
    """Return the last act on a job that is gone, if it was in the last days, and the queues are few enough to ask."""
    client = visit.client
    if sum(len(client.stores(queue)) for queue in queues) > _FEW:
        return None
    wanted = ActFilter(timedelta(days=7), id=job_id)
    read = await asyncio.gather(
        *(client.run(read_acts(queue, client.stores(queue), wanted, 1)) for queue in queues), return_exceptions=True
    )
    acts = [act for part in read if not isinstance(part, BaseException) for act in part]
    act = max(acts, key=lambda one: one.at, default=None)
    return None if act is None else ActRow(act, _SOURCES.get(act.source, act.source), did(visit, act), _why(act))


def _sentence(given: Mapping[str, str], shown: Sequence[AuditedAct], *, cut: bool) -> str:
    """Return the answer: "12 acts by 4 operators in the last 24h"."""
    which = f" on {given['id']}" if given["id"] else ""
    where = f" in {given['queue']}" if given["queue"] else ""
    if not shown:
        return f"No act of an operator{which}{where}{spoken_span(given)}"
    who = {act.who for act in shown}
    by = next(iter(who)) if len(who) == 1 else f"{len(who)} operators"
    count = f"{len(shown)} {'act' if len(shown) == 1 else 'acts'}"
    return f"{f'The last {count}' if cut else count}{which}{',' if cut else ''} by {by}{where}{spoken_span(given)}"


def _why(act: AuditedAct) -> str:
    why = act.what.get("why")
    return why if isinstance(why, str) else ""


def did(visit: Visit, act: AuditedAct) -> list[Piece]:
    """Return the act as a sentence without its subject."""
    what, verb = act.what, Piece(_ACTS.get(act.act, act.act))
    if act.act == "limit":
        return [verb, Piece(act.queue, visit.url("/queue", name=act.queue)), Piece(_limits(what.get("limits")))]
    if act.act in ("make-token", "remove-token"):
        role = [Piece(f"as {what['role']}")] if isinstance(what.get("role"), str) else []
        return [verb, Piece(str(what.get("user"))), *role]
    found = [verb]
    recurrence, worker, batch = what.get("recurrence"), what.get("worker"), what.get("batch")
    if isinstance(recurrence, str):
        found.append(Piece(recurrence, visit.url("/recurrence", queue=act.queue, name=recurrence)))
    elif isinstance(worker, str):
        found.append(Piece(worker, visit.url("/workers"), code=True))
    elif isinstance(batch, str):
        found.append(Piece(f"batch {batch}", visit.url("/batch", queue=act.queue, id=batch)))
    elif act.act in ("pause", "resume"):
        found.append(Piece(act.queue, visit.url("/queue", name=act.queue)))
    if isinstance(what.get("filter"), dict):
        found += _filter(cast("dict[str, Any]", what["filter"]))
    if act.act == "again" and isinstance(what.get("job"), str):
        found += [Piece(what["job"], visit.url("/history", id=what["job"]), code=True), Piece("as")]
    if "filter" not in what and not (isinstance(recurrence, str) and act.act in ("pause", "resume", "remove")):
        found += [Piece(job, visit.url("/job", queue=act.queue, id=job), code=True) for job in act.ids[:_NAMED]]
        if act.ids and (act.count or 0) > _NAMED:
            found.append(Piece(f"and {(act.count or 0) - _NAMED:,} more"))
    changed = what.get("changed")
    if isinstance(changed, list):
        names = (_CHANGED.get(str(name), str(name)) for name in cast("list[Any]", changed))
        found.append(Piece(f"({', '.join(names)})"))
    return [*found, *_times(act.act, what)]


def _limits(limits: Any) -> str:
    if not isinstance(limits, dict) or not limits:
        return ""
    return ": " + ", ".join(_limit(str(name), value) for name, value in cast("dict[Any, Any]", limits).items())


def _limit(name: str, value: Any) -> str:
    kind, _, group = name.partition(":")
    shown = "none" if value is None else f"{value:,g}" if isinstance(value, int | float) else f"{value}"
    return f"{kind} {shown}" + (f" for group {group}" if group else "")


def _filter(matching: Mapping[str, Any]) -> list[Piece]:
    """Return a filter as the search box has it; its times as moments."""
    words = list[str]()
    for name, value in matching.items():
        if name == "arguments":
            words += ["arg:…"] * (len(cast("list[Any]", value)) if isinstance(value, list) else 0)
        elif name not in ("after", "before"):
            values = cast("list[Any]", value) if isinstance(value, list) else [value]
            words += [f"{name.removesuffix('s') if name == 'tags' else name}:{quoted(str(one))}" for one in values]
    found = [Piece(" ".join(words), code=True)] if words else [Piece("all")]
    for name, word in (("after", "from"), ("before", "that existed by")):
        if isinstance(matching.get(name), int | float):
            found += [Piece(word), Piece(moment=float(matching[name]))]
    return found


def _times(name: str, what: Mapping[str, Any]) -> list[Piece]:
    found = list[Piece]()
    if isinstance(what.get("until"), int | float):
        found += [Piece("until"), Piece(moment=float(what["until"]))]
    if isinstance(what.get("due"), int | float):
        found += [Piece("to"), Piece(moment=float(what["due"]))]
    elif name == "reschedule" and "due" in what:
        found.append(Piece("to never"))  # JSON has no infinity
    if isinstance(delay := what.get("delay"), int | float):
        found.append(Piece(f"to {format_duration(float(delay))} later" if delay > 0 else "to now"))
    return found


VIEWS = (View("/audit", "audit", _audit, every=2.0, follow=_newer),)
