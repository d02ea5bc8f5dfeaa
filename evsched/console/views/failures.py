"""The page of what fails: dead jobs and jobs that wait for a retry, by error, task or group, and by when they died."""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from math import inf
from typing import Any, Final, cast

from msgspec import Struct

from evsched.console.failed_jobs import FailureCounts, QueueCount
from evsched.console.failure_sums import OTHERS, By, DeathSpan, Failures, Kind, last_day, short_location
from evsched.console.page import View, Visit
from evsched.console.past_charts import even_axis, marks
from evsched.console.search import PickedSpan, offered_spans, written, written_words
from evsched.jobs.record import JobStatus
from evsched.keys import check_queue
from evsched.recurrence.cron import find_zone

_SHOWN: Final = 50
"""Rows of a page."""

_KEPT: Final = ("queue", "sort", "by")
"""Parameters of the page that another span leaves as they are."""

_READ: Final = 12
"""Rows whose newest job is read, for its traceback."""

_NAMED: Final = 5
"""Queues that a search names; of more, it searches all."""

_ORDERS: Final[dict[str, tuple[str, Callable[[Failures], float]]]] = {
    "growing": ("more than usual first", lambda one: one.growth),
    "last": ("newest first", lambda one: one.last),
    "dead": ("most first", lambda one: one.dead),
}

_BY: Final[dict[By, tuple[str, str]]] = {
    "error": ("error", "kinds"),
    "task": ("task", "tasks"),
    "group": ("group", "groups"),
}
"""The words of the link that groups by it, and how a sentence counts the rows."""


class FailureRow(Struct, frozen=True):
    """Jobs that are counted together, as the page shows them."""

    title: str
    error: str
    """The whole class of the exception; empty = none was raised, or there are several."""
    task: str
    """The task, if the jobs have one error."""
    location: str
    """The line of the user's code, with the last two parts of its path."""
    message: str
    """The message of the exception, or the reason, of the newest job."""
    dead: int
    retried: int
    first: float | None
    last: float | None
    bars: list[int]
    groups: list[tuple[str, int]]
    grouped: int
    """How many groups there are."""
    errors: list[tuple[str, str, int]]
    """The most frequent errors, if there are several: the error, the task, and how many."""
    more: int
    """How many other errors there are."""
    queues: list[str]
    search: str
    """Finds these jobs; empty if no search does."""
    exact: bool
    """Whether it finds no others."""
    traceback: tuple[str, str, str] | None
    """The newest job's: before the line of the user's code, that line, after it."""
    newest: tuple[str, str]
    """Queue and id."""


def merge(counts: Sequence[QueueCount], by: By, span: DeathSpan) -> list[Failures]:
    """Return the sums of several queues as one list."""
    found = dict[Kind, Failures]()
    for count in counts:
        for one in count.shown.jobs.summed(count.queue, by, span, count.shown.at):
            found.setdefault(one.key, Failures(one.key, span.bars)).add(one)
    return [*found.values()]


def _search(one: Failures, by: By, span: dict[str, str]) -> str:
    """Return the search that finds the jobs; empty if no search does."""
    task, error, _, rest = one.key
    words = {"task": task}
    if by == "group":
        words = {"group": rest}
    elif by == "error" and error:
        words["error"] = error
    elif by == "error":
        words["reason"] = max(rest.split("#"), key=len).strip()
    if one.key == OTHERS or not all(words.values()):
        return ""
    if len(one.queues) <= _NAMED:
        words["queue"] = ",".join(sorted(one.queues))
    return written_words({**words, **span}.items())


def _message(one: Failures, newest: JobStatus | None) -> str:
    """Return the reason of the newest job without what the page says besides: the attempt, the class and the line."""
    _, error, location, _ = one.key
    text = re.sub(r"^attempt \d+ of \d+: ", "", one.newest[4] or (newest and newest.reason) or "")
    if not error:
        return text
    at = text.rfind(" (")
    if at >= 0 and text.endswith(")") and short_location(text[at + 2 : -1]) == location:
        text = text[:at]
    return text.removeprefix(error).removeprefix(error.rpartition(".")[2]).removeprefix(": ") or text


def split_traceback(status: JobStatus) -> tuple[str, str, str] | None:
    """Return a traceback in three parts: the middle one is the line of the user's code that raised."""
    text = status.traceback
    if not text:
        return None
    at = re.fullmatch(r"(.+):(\d+) in (.+)", status.location or "")
    start = -1 if at is None else text.rfind(f'  File "{at[1]}", line {at[2]}, in ')
    if start < 0:
        return text, "", ""
    ends = [
        found for found in (text.find("\n  File ", start), text.find("\n", text.find("\n", start) + 1)) if found > 0
    ]
    end = min(ends, default=len(text))
    return text[:start], text[start:end], text[end:]


class _Drawn(Struct, frozen=True):
    """How the rows of a page are drawn."""

    by: By
    span: dict[str, str]
    """The qualifiers of the span."""
    others: Counter[tuple[str, str]]
    """How many rows each task and error has."""
    over: bool
    """Whether all jobs were counted."""

    def row(self, one: Failures, newest: JobStatus | None) -> FailureRow:
        task, error, location, rest = one.key
        titles = {"error": _title(one.key), "task": task or "no task", "group": rest or "no group"}
        errors = [] if self.by == "error" else sorted(one.kinds.items(), key=lambda of: (-of[1], of[0]))[:3]
        return FailureRow(
            title=titles[self.by],
            error=error,
            task=task if self.by == "error" else "",
            location=location,
            message=_message(one, newest) if self.by == "error" else "",
            dead=one.dead,
            retried=one.retried,
            first=None if one.first == inf else one.first,
            last=None if one.last == -inf else one.last,
            bars=one.bars,
            groups=[] if self.by == "group" else one.groups.most_common(2),
            grouped=0 if self.by == "group" else len(one.groups),
            errors=[(_title(kind), kind[0], count) for kind, count in errors],
            more=max(0, len(one.kinds) - 3) if errors else 0,
            queues=sorted(one.queues),
            search=_search(one, self.by, self.span),
            exact=self.over and (self.by != "error" or (bool(error) and self.others[task, error] == 1)),
            traceback=None if newest is None else split_traceback(newest),
            newest=one.newest[2:4],
        )


def _title(kind: Kind) -> str:
    return "other failures" if kind == OTHERS else kind[1].rpartition(".")[2] or "no exception"


def _command(queue: str, first: Failures | None, by: By, span: dict[str, str]) -> str:
    """Return the command that lists the jobs of the first row, or of the queue."""
    words = ["evsched", "dead", "--limit", "100"]
    if queue or first is not None:
        words += ["--queue", queue or min(first.queues if first else (), default="default")]
    if first is not None:
        task, error, _, rest = first.key
        given = {"group": rest} if by == "group" else {"task": task, "error": error.rpartition(".")[2]}
        if by == "task" or all(given.values()):
            words += [word for name, value in given.items() if value for word in (f"--{name}", value)]
    return shlex.join([*words, *(word for name, value in span.items() for word in (f"--{name}", value))])


def _span(picked: PickedSpan, now: float, zone: tzinfo) -> DeathSpan:
    if picked.since is None and picked.until is None:
        return last_day(now)
    since = -inf if picked.since is None else picked.since
    until = inf if picked.until is None else picked.until
    end = min(until, max(now, since + 1)) if picked.name == "" else since + _LENGTHS[picked.name]
    start = picked.since if picked.since is not None else end - 86400
    axis = even_axis(start, max(end, start + _SHORTEST), zone)
    return DeathSpan(axis.start, axis.bar, axis.all_bars, axis.parts, since, until)


class DeathBar(Struct, frozen=True):
    """A bar of the chart of all deaths, as a link to the deaths of its part of the span."""

    at: int
    """Its place, from the left."""
    jobs: int
    name: str
    """When it begins and ends."""
    words: dict[str, str | None]
    """The parameters of the page of these deaths."""


class DeathChart(Struct, frozen=True):
    """The chart of all deaths of a span."""

    counts: list[int]
    bar: float
    """Seconds of a bar."""
    links: list[DeathBar]
    """The bars that have jobs; none if they are too short to be picked."""
    marks: list[str]


def _named(since: float, until: float, zone: tzinfo) -> str:
    """Return the times of a bar: 27 Nov 02:00 to 02:30."""
    first, last = (datetime.fromtimestamp(at, zone) for at in (since, until))
    shape = "%H:%M" if until - since >= 60 else "%H:%M:%S"
    return f"{first.day} {first:%b} {first.strftime(shape)} to {last.strftime(shape)}"


def _chart(found: Sequence[Failures], span: DeathSpan, zone: tzinfo) -> DeathChart:
    counts = [sum(bars) for bars in zip(*(one.bars for one in found), strict=True)] or [0] * span.bars
    links = list[DeathBar]()
    for at, jobs in enumerate(counts):
        since, until = (span.start + span.bar * edge for edge in (at, at + 1))
        words: dict[str, str | None] = {"from": written(since, zone), "to": written(until, zone), "span": None}
        if jobs and span.bar >= _PICKED:
            links.append(DeathBar(at, jobs, _named(since, until, zone), words))
    step = span.bar * span.bars / span.parts
    return DeathChart(counts, span.bar, links, marks(span.start, step, span.parts, zone))


_SHORTEST: Final = 60.0
"""Seconds of a chart, at least."""

_PICKED: Final = 1.0
"""Seconds of a bar that can be picked, at least."""

_LENGTHS: Final = {"1h": 3600, "noon": 43200, "today": 86400, "24h": 86400, "7d": 604800}
"""Seconds of the chart of a span that a link has picked."""

_SPOKEN: Final = {
    "1h": "in the last hour",
    "noon": "since noon",
    "today": "today",
    "24h": "in 24 hours",
    "7d": "in 7 days",
}
"""How a sentence calls a span that a link has picked."""


def _counted(counts: Sequence[QueueCount]) -> dict[str, Any]:
    """Return how far the counts are."""
    begun = [count.shown.at for count in counts if count.shown.at]
    return {
        "over": all(count.over for count in counts),
        "examined": sum(count.shown.examined for count in counts),
        "total": sum(count.shown.total for count in counts),
        "unread": [(count.queue, count.problem) for count in counts if count.problem],
        "now": max(begin for begin in begun) if begun else time.time(),
        "oldest": min(begun) if begun else time.time(),
        "dead": sum(count.dead for count in counts),
        "as_of": time.time(),
    }


def _chosen(visit: Visit, known: Sequence[str]) -> dict[str, Any]:
    """Return what the links and the form of the page have chosen, and offer."""
    zone = visit.console.config.console_zone
    picked = visit.picked_span()
    by = cast(By, visit.get("by")) if visit.get("by") in _BY else "error"
    in_span = picked.since is not None or picked.until is not None
    orders = [name for name in _ORDERS if name != "growing" or (by == "error" and not in_span)]
    given = {name: visit.get(name) for name in (*_KEPT, "span", "from", "to")}
    words = picked.words(find_zone(zone))
    all_of_span = {**words, **({"queue": given["queue"]} if given["queue"] else {})}
    return {
        "queue": given["queue"],
        "known": known,
        "by": by,
        "bys": {name: word for name, (word, _) in _BY.items()},
        "order": next(
            (name for name in orders if name == given["sort"]), orders[0] if len(orders) == len(_ORDERS) else "dead"
        ),
        "orders": {name: _ORDERS[name][0] for name in orders},
        "picked": picked,
        "spans": offered_spans(zone),
        "typed": visit.get("when") or picked.typed(find_zone(zone)),
        "spoken": _SPOKEN.get(picked.name, ""),
        "in_span": in_span,
        "span_words": words,
        "all_of_span": written_words(all_of_span.items()),
        "given": {name: value for name, value in given.items() if value},
    }


async def _failures(visit: Visit) -> dict[str, Any]:
    client = visit.client
    if visit.get("when") and not (picked := visit.picked_span()).problem:
        ends = {name: "" if at is None else written(at, find_zone(visit.zone)) for name, at in picked.ends.items()}
        return {"redirect": visit.url("/failures", **{name: visit.get(name) for name in _KEPT}, **ends)}
    known = await visit.console.queues(client)
    queues = [check_queue(visit.get("queue"))] if visit.get("queue") else known
    counted: FailureCounts = visit.console.memory.setdefault("failures", FailureCounts())
    counts = await counted.look(client, queues)
    values = {**_counted(counts), **_chosen(visit, known)}
    by, order, in_span, words = values["by"], values["order"], values["in_span"], values["span_words"]
    zone = find_zone(visit.zone)
    span = _span(values["picked"], values["now"], zone)
    found = merge(counts, by, span)
    found.sort(key=lambda one: (-_ORDERS[order][1](one), -one.dead, -one.retried, one.key))
    shown = found[:_SHOWN]
    drawn = _Drawn(by, words, Counter((one.key[0], one.key[1]) for one in found), values["over"])
    view = repr((by, values["picked"].name or words, values["queue"]))
    newest = await counted.newest_of(client, view, shown[:_READ], values["over"])
    grow = [one for one in found if one.grows()] if by == "error" and not in_span else []
    return {
        **values,
        "rows": [drawn.row(one, newest.get(one.key)) for one in shown],
        "growing": [drawn.row(one, None) for one in grow[:2]],
        "grow": len(grow),
        "kinds": len(found),
        "counted_as": _BY[by][1] if len(found) != 1 else _BY[by][1].removesuffix("s"),
        "counted": sum(one.dead for one in found),
        "retried": sum(one.retried for one in found),
        "chart": _chart(found, span, zone),
        "command": _command(values["queue"], found[0] if found else None, by, words),
    }


VIEWS = (View("/failures", "failures", _failures, every=2.0),)
