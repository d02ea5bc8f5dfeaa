"""The page of what fails: dead jobs and jobs that wait for a retry, grouped by task, exception and line."""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from msgspec import Struct

from evsched.console.failed_jobs import OTHERS, FailureCounts, Failures, Kind, QueueCount
from evsched.console.page import View, Visit
from evsched.console.search import quoted
from evsched.jobs.record import JobStatus
from evsched.keys import check_queue

_SHOWN: Final = 50
"""Kinds of failures of a page."""

_READ: Final = 12
"""Kinds whose newest job is read, for its traceback."""

_NAMED: Final = 5
"""Queues that a search names; of more, it searches all."""

_ORDERS: Final[dict[str, tuple[str, Callable[[Failures], float]]]] = {
    "growing": ("growing first", lambda one: one.growth),
    "last": ("last", lambda one: one.last),
    "dead": ("most dead", lambda one: one.dead),
}


class FailureRow(Struct, frozen=True):
    """Jobs that failed alike, as the page shows them."""

    title: str
    error: str
    """The whole class of the exception; empty = none was raised."""
    task: str
    location: str
    """The line of the user's code, with the last two parts of its path."""
    message: str
    """The message of the exception, or the reason, of the newest job."""
    dead: int
    retried: int
    first: float | None
    last: float | None
    hours: list[int]
    groups: list[tuple[str, int]]
    grouped: int
    """How many groups there are."""
    queues: list[str]
    search: str
    """Finds these jobs; empty if no search does."""
    exact: bool
    """Whether it finds no others."""
    traceback: tuple[str, str, str] | None
    """The newest job's: before the line of the user's code, that line, after it."""
    newest: tuple[str, str]
    """Queue and id."""


def merge(counts: Sequence[QueueCount]) -> list[Failures]:
    """Return the failures of several queues as one list."""
    found = dict[Kind, Failures]()
    for count in counts:
        for kind, one in count.shown.kinds.items():
            found.setdefault(kind, Failures(kind)).add(one)
    return [*found.values()]


def _search(one: Failures) -> str:
    """Return the search that finds the jobs; empty if no search does."""
    if one.kind == OTHERS or not one.task:
        return ""
    words = {"task": one.task}
    if one.error:
        words["error"] = one.error
    else:
        fixed = max(one.pattern.split("#"), key=len).strip()
        if not fixed:
            return ""
        words["reason"] = fixed
    if len(one.queues) <= _NAMED:
        words["queue"] = ",".join(sorted(one.queues))
    return " ".join(f"{name}:{quoted(value)}" for name, value in words.items())


def _message(one: Failures) -> str:
    """Return the reason of the newest job without what the page says besides: the attempt, the class and the line."""
    text = re.sub(r"^attempt \d+ of \d+: ", "", one.newest[4])
    if not one.error:
        return text
    text = text.removesuffix(f" ({one.location})")
    return text.removeprefix(one.error).removeprefix(one.error.rpartition(".")[2]).removeprefix(": ") or text


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


def _row(
    one: Failures, others: Counter[tuple[str, str]], over: bool, newest: JobStatus | None, now: float
) -> FailureRow:
    search = _search(one)
    return FailureRow(
        title=one.error.rpartition(".")[2] or ("other failures" if one.kind == OTHERS else "no exception"),
        error=one.error,
        task=one.task,
        location="/".join(one.location.replace("\\", "/").split("/")[-2:]),
        message=_message(one),
        dead=one.dead,
        retried=one.retried,
        first=None if one.first == inf else one.first,
        last=None if one.last == -inf else one.last,
        hours=one.by_hour(now),
        groups=one.groups.most_common(2),
        grouped=len(one.groups),
        queues=sorted(one.queues),
        search=search,
        exact=over and bool(one.error) and others[one.task, one.error] == 1,
        traceback=None if newest is None else split_traceback(newest),
        newest=one.newest[2:4],
    )


def _command(queue: str, first: Failures | None) -> str:
    """Return the command that lists the jobs of the first row, or of the queue."""
    words = ["evsched", "dead", "--limit", "100"]
    if queue or first is not None:
        words += ["--queue", queue or min(first.queues if first else (), default="default")]
    if first is not None and first.task and first.error:
        words += ["--task", first.task, "--error", first.error.rpartition(".")[2]]
    return shlex.join(words)


async def _failures(visit: Visit) -> dict[str, Any]:
    client, order = visit.client, visit.get("sort")
    known = await visit.console.queues(client)
    queues = [check_queue(visit.get("queue"))] if visit.get("queue") else known
    counted: FailureCounts = visit.console.memory.setdefault("failures", FailureCounts())
    counts = await counted.look(client, queues)
    now = max((count.shown.at for count in counts), default=0.0) or time.time()
    found = merge(counts)
    found.sort(key=lambda one: (-_ORDERS.get(order, _ORDERS["growing"])[1](one), -one.dead, -one.retried, one.kind))
    shown, others = found[:_SHOWN], Counter((one.task, one.error) for one in found)
    over = all(count.over for count in counts)
    newest = await counted.newest_of(client, shown[:_READ], over)
    return {
        "rows": [_row(one, others, over, newest.get(one.kind), now) for one in shown],
        "growing": [_row(one, others, over, None, now) for one in found if one.grows(now)][:2],
        "grow": sum(one.grows(now) for one in found),
        "kinds": len(found),
        "dead": sum(count.shown.dead for count in counts),
        "retried": sum(one.retried for one in found),
        "over": over,
        "examined": sum(count.shown.examined for count in counts),
        "total": sum(count.shown.total for count in counts),
        "unread": [(count.queue, count.problem) for count in counts if count.problem],
        "now": now,
        "oldest": min((count.shown.at for count in counts if count.shown.at), default=now),
        "as_of": time.time(),
        "queue": visit.get("queue"),
        "known": known,
        "order": order if order in _ORDERS else "growing",
        "command": _command(visit.get("queue"), found[0] if found else None),
        "orders": {name: words for name, (words, _) in _ORDERS.items()},
    }


VIEWS = (View("/failures", "failures", _failures, every=2.0),)
