"""The pages about batches: the list of all, and one with how far it is, its failures and its jobs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from evsched.batches.member import OUTCOMES, Member, with_codes
from evsched.client.sweep import describe
from evsched.console.batch_lists import BatchLists, FirstFailures
from evsched.console.graph_layout import BOX_HEIGHT, BOX_WIDTH
from evsched.console.page import View, Visit
from evsched.console.views.graph import STATES as STATES_OF_NODES
from evsched.console.views.graph import find_node, read_graph
from evsched.console.views.jobs import short_reason
from evsched.console.words import count
from evsched.errors import JobMissing
from evsched.keys import NAME, check_queue
from evsched.store.batch_calls import BatchRecord
from evsched.store.operator_calls import Match

_ROWS: Final = 50
"""Batches, or jobs of a batch, on a page."""

_FAILURES: Final = 10

_KEPT: Final = 20.0
"""Seconds for which the first failures are shown again, as long as the counts are the same."""

_SEEN: Final = 2.5
"""The width of a part that can be seen, of 100."""

STATES: Final = ("open", "running", "done", "failed", "cancelled")

_MEMBER_STATES: Final = {
    "open": ("wait", "not ended"),
    "scheduled": ("wait", "on the schedule"),
    "done": ("ok", "done"),
    "dead": ("bad", "dead"),
    "cancelled": ("wait", "cancelled"),
    "expired": ("bad", "expired"),
    "missing": ("wait", "never enqueued"),
    "stopped": ("warn", "stopped: one before it failed"),
    "waiting": ("wait", "waits for others"),
}


def state_of(record: BatchRecord) -> tuple[str, str]:
    """Return the class that draws the state of a batch, and its word."""
    if record.finished is None and record.stop is not None:
        return "warn", "stopping"
    if record.paused is not None and record.finished is None:
        return "warn", "paused"
    if record.state == "failed" and record.stop == "expired":
        return "bad", "expired"
    drawn = {"open": "wait", "running": "run", "done": "ok", "failed": "bad", "cancelled": "wait"}
    return drawn[record.state], record.state


class BarPart(Struct, frozen=True):
    """A part of the bar: the class that draws it, where it begins, and how wide it is, of 100."""

    drawn: str
    x: float
    width: float


def bar_of(record: BatchRecord) -> list[BarPart]:
    """Return the parts of the bar of a batch. One with few jobs is wide enough to be seen, so the widest gives way."""
    halted = record.cancelled + record.stopped
    counts = {"f-ok": record.done, "f-bad": record.dead + record.expired, "f-soft": halted, "": record.open}
    widths = {drawn: max(_SEEN, 100 * jobs / record.total) for drawn, jobs in counts.items() if jobs}
    if widths:
        widths[max(widths, key=widths.__getitem__)] -= sum(widths.values()) - 100
    parts, x = list[BarPart](), 0.0
    for drawn, width in widths.items():
        if drawn:
            parts.append(BarPart(drawn, round(x, 2), round(width, 2)))
        x += width
    return parts


def bar_words(record: BatchRecord) -> str:
    """Say what the bar shows."""
    found = [(record.done, "done"), (record.dead, "dead"), (record.expired, "expired"), (record.cancelled, "cancelled")]
    found += [(record.stopped, "stopped"), (record.open, "not ended")]
    return ", ".join(f"{count(jobs)} {word}" for jobs, word in found if jobs) + f" of {count(record.total)}"


def tags_of(record: BatchRecord) -> list[str]:
    try:
        return msgspec.json.decode(record.tags or "[]", type=list[str])
    except (msgspec.MsgspecError, RecursionError):
        return []


class ListedBatch(Struct, frozen=True):
    """A batch of the list."""

    record: BatchRecord
    state: tuple[str, str]
    bar: list[BarPart]
    words: str
    tags: list[str]


def lists_of(visit: Visit) -> BatchLists:
    """Return the batches that all pages of a console share."""
    return visit.console.memory.setdefault("batches", BatchLists())


def _page_of(text: str, rows: int) -> int:
    last = max(0, (rows - 1) // _ROWS)
    return min(int(text), last) if text.isdecimal() and len(text) < 6 else 0


async def _batches(visit: Visit) -> dict[str, Any]:
    client, known = visit.client, await visit.console.queues(visit.client)
    only, state, lists = visit.get("queue"), visit.get("state"), lists_of(visit)
    queues = [check_queue(only)] if only else known
    found = await lists.look(client, queues)
    found.sort(key=lambda one: (-one.created, one.id))
    wanted = [one for one in found if state in ("", one.state)]
    page = _page_of(visit.get("page"), len(wanted))
    shown = wanted[page * _ROWS : (page + 1) * _ROWS]
    unread, states = lists.unread(queues), Counter(one.state for one in found)
    return {
        "rows": [ListedBatch(one, state_of(one), bar_of(one), bar_words(one), tags_of(one)) for one in shown],
        "all": len(found),
        "matching": len(wanted),
        "page": page,
        "pages": max(0, (len(wanted) - 1) // _ROWS) + 1,
        "first": page * _ROWS,
        "states": {name: states[name] for name in STATES},
        "by_queue": Counter(one.queue for one in found).most_common(12),
        "queue": only,
        "state": state,
        "unlisted": lists.unlisted(queues),
        "pending": sum(not problem for _, problem in unread),
        "refused": [(where, problem) for where, problem in unread if problem],
        "now": time.time(),
        "command": f"evsched batches --queue {only or (found[0].queue if found else 'default')}",
    }


class ListedMember(Struct, frozen=True):
    """A job of a batch, or a batch in it."""

    member: Member
    state: tuple[str, str]
    task: str = ""
    reason: str = ""
    at: float | None = None
    """When it is due, or ended."""


async def _look(visit: Visit) -> BatchRecord:
    """Read the batch of a page.

    Raises:
        JobMissing: there is none.
    """
    queue, batch = check_queue(visit.get("queue")), visit.get("id")
    found = await visit.client.send(visit.client.store(queue).batch(batch)) if NAME.fullmatch(batch) else None
    if found is None:
        raise JobMissing(
            f"There is no batch {batch:.200} in queue {queue}: it never existed, or its retention is over."
        )
    return found


async def _describe(visit: Visit, found: Sequence[Member], place: str) -> dict[int, Match]:
    """Return the descriptions of the members that are in a place, by their ordinals."""
    by_shard, known = dict[str, list[Member]](), dict[int, Match]()
    for member in found:
        if member.batch is None:
            by_shard.setdefault(visit.client.shards.home(member.queue, member.id), []).append(member)
    for shard, some in by_shard.items():
        jobs = [(member.id, None) for member in some]
        matches = await visit.client.run(describe(visit.client.store(shard), place, jobs))
        known |= {
            member.ordinal: match for member, match in zip(some, matches, strict=True) if match.created is not None
        }
    return known


async def _failures(visit: Visit, record: BatchRecord) -> list[tuple[Member, Match | None]]:
    """Return the first failures, as they were read some seconds ago if the counts are the same."""
    counts, lists = (record.dead, record.expired, record.round, record.ordinals), lists_of(visit)
    if not record.dead + record.expired:
        return []
    key = record.queue, record.id
    kept = lists.failures.get(key)
    if kept is not None and kept.counts == counts and time.monotonic() - kept.at < _KEPT:
        return kept.rows
    codes = [OUTCOMES.index("dead"), OUTCOMES.index("expired")]
    store = visit.client.store(record.queue)
    found = await visit.client.run(with_codes(store, record.id, record.ordinals, codes, _FAILURES))
    dead = await _describe(visit, [one for one in found if one.outcome == "dead"], "dead")
    rows = [(one, dead.get(one.ordinal)) for one in found]
    lists.keep_failures(key, FirstFailures(counts, time.monotonic(), rows))
    return rows


def _sentence(record: BatchRecord) -> str:
    """Say how far a batch is."""
    if not record.total:
        return "It has no jobs" if record.finished is not None else "It has no jobs yet"
    done, verb = (record.done, "done") if record.finished is not None else (record.total - record.open, "ended")
    be = {"done": ("is", "are"), "ended": ("has", "have")}[verb]
    return f"{count(done)} of {count(record.total)} {'job ' + be[0] if record.total == 1 else 'jobs ' + be[1]} {verb}"


async def _follow(visit: Visit) -> dict[str, Any]:
    """Return what an open page shows: how far the batch is, its graph, and its first failures."""
    return await _read(visit, await _look(visit), opening=False)


async def _read(visit: Visit, record: BatchRecord, *, opening: bool) -> dict[str, Any]:
    client = visit.client
    expires = None
    if record.finished is None:
        expires = await client.send(client.store(record.queue).batch_expires(record.id))
    pace = lists_of(visit).pace(record)
    parent = (record.parent or "").split("/")
    calls = [
        (call, f"{record.id}.{call.outcome}.{record.round}"[-200:] if record.state == call.outcome else "")
        for call in record.callbacks
    ]
    return {
        "record": record,
        "state": state_of(record),
        "sentence": _sentence(record),
        "pace": "" if record.finished is not None or not record.total else pace.words(record.open),
        "bar": bar_of(record),
        "words": bar_words(record),
        "tags": tags_of(record),
        "parent": (parent[0], parent[1]) if len(parent) == 3 else None,
        "callbacks": calls,
        "expires": expires,
        "graph": await read_graph(visit, record, opening=opening),
        "node_states": STATES_OF_NODES,
        "box_size": (BOX_WIDTH, BOX_HEIGHT),
        "failures": [
            (one, job, "" if job is None else short_reason(job)) for one, job in await _failures(visit, record)
        ],
        "now": time.time(),
    }


async def _batch(visit: Visit) -> dict[str, Any]:
    try:
        record = await _look(visit)
    except JobMissing:
        if (node := await find_node(visit)) is None:
            raise
        return {"redirect": node}
    found = await _read(visit, record, opening=True)
    show = visit.get("show") if visit.get("show") in _MEMBER_STATES else ""
    start = int(visit.get("from")) if visit.get("from").isdecimal() and len(visit.get("from")) < 9 else 0
    is_listed = record.ordinals > record.nodes  # the nodes of a graph have a list of their own
    rows, later = await _members(visit, record, show, max(start, record.nodes)) if is_listed else ([], None)
    counts = {"": record.total, "open": record.open}
    counts |= {name: getattr(record, name) for name in ("done", "dead", "cancelled", "expired")}
    return found | {
        "members": rows,
        "show": show,
        "from_start": start <= record.nodes,
        "later": later,
        "counts": counts,
        "member_words": {name: word for name, (_, word) in _MEMBER_STATES.items()},
        "ask": visit.get("ask") if record.finished is None or visit.get("ask") == "revive" else "",
        "zone": visit.zone,
        "command": f"evsched batches show {record.id} --queue {record.queue}",
    }


async def _members(visit: Visit, record: BatchRecord, show: str, start: int) -> tuple[list[ListedMember], int | None]:
    """Return jobs of a batch from an ordinal on, and the ordinal from which the next page begins."""
    wanted = [OUTCOMES.index(show)] if show in OUTCOMES else [at for at, one in enumerate(OUTCOMES) if one != "missing"]
    store = visit.client.store(record.queue)
    found = await visit.client.run(with_codes(store, record.id, record.ordinals, wanted, _ROWS + 1, start))
    shown, known = found[:_ROWS], dict[int, Match]()
    waiting = [one for one in shown if one.outcome == "open"]
    scheduled = await _describe(visit, waiting, "schedule")
    known |= await _describe(visit, [one for one in waiting if one.ordinal not in scheduled], "ready")
    known |= scheduled
    known |= await _describe(visit, [one for one in shown if one.outcome == "dead"], "dead")
    ended = [one for one in shown if one.outcome in ("done", "cancelled", "expired")]
    known |= await _describe(visit, ended, "finished")
    rows = list[ListedMember]()
    for one in shown:
        word, match = "scheduled" if one.ordinal in scheduled else one.outcome, known.get(one.ordinal)
        if match is None:
            rows.append(ListedMember(one, _MEMBER_STATES[word]))
        else:
            rows.append(ListedMember(one, _MEMBER_STATES[word], match.task or "", short_reason(match), match.at))
    return rows, found[_ROWS].ordinal if len(found) > _ROWS else None


VIEWS = (
    View("/batches", "batches", _batches, every=2.0),
    View("/batch", "batch", _batch, part="batches", every=1.0, follow=_follow),
)
