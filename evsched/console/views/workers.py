"""The page of the workers: who runs what, on which release, and who does not answer."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from evsched import keys
from evsched.client.explain import PAUSES
from evsched.client.operations import Operation, nodes, send
from evsched.console.page import View, Visit
from evsched.errors import StoreRefused
from evsched.jobs.redaction import redacted_member
from evsched.store import server
from evsched.top.collector import Top
from evsched.top.snapshot import History, Look, WorkerRow, compose

_SAME: Final = 1.0
"""Seconds for which what one reader was answered holds for another: all readers share the collector."""

_LONGEST: Final = 30
"""Runs that the page names."""

_NAMED: Final = 200
"""Workers that the page names, those with a problem first."""

_ORDER: Final = ("no answer", "busy loop", "no process", "lone run", "quiet", "stops", "alive", "idle")


class WorkerLine(Struct, frozen=True):
    """A worker on the page. `state`: its class and its word."""

    row: WorkerRow
    state: tuple[str, str]
    note: str
    queues: list[str]
    host: str
    release: str
    older: bool = False
    """Whether another worker is of a later release."""


class Collector:
    """Asks the workers of all queues, for all readers of a console."""

    def __init__(self, url: str, queues: Sequence[str]) -> None:
        self._top = Top(url, queues)
        self._lock = asyncio.Lock()
        self._last: tuple[float, Look] | None = None

    async def look(self, visit: Visit) -> Look:
        """Return the answers of all workers: those of a moment ago, if there are any."""
        async with self._lock:
            if self._last is not None and time.monotonic() - self._last[0] < _SAME:
                return self._last[1]
            before = self._top.commands
            found = await self._top.look()
            visit.client.commands += self._top.commands - before
            self._last = time.monotonic(), found
            return found

    async def close(self) -> None:
        await self._top.close()


def collector(visit: Visit) -> Collector:
    """Return the collector that all pages of a console share."""
    memory, config = visit.console.memory, visit.console.config
    if "collector" not in memory:
        memory["collector"] = Collector(config.url, config.queues)
    return memory["collector"]


async def _workers(visit: Visit) -> dict[str, Any]:
    look, dispatchers = await asyncio.gather(collector(visit).look(visit), visit.client.run(_dispatchers()))
    page, _ = compose(look, History())
    workers = described(look, page.workers)
    runs = [(run, row.worker) for row in page.workers for run in row.runs]
    runs.sort(key=lambda one: -one[0].seconds)
    return {
        "workers": workers[:_NAMED],
        "more": max(len(workers) - _NAMED, 0),
        "hosts": len({worker.host for worker in workers}),
        "slots": sum(worker.row.slots or 0 for worker in workers),
        "busy": sum(worker.row.busy for worker in workers),
        "problems": _problems(workers),
        "parents": max((row.parents for row in page.queues), default=0),
        "unserved": [
            row.queue
            for row in page.queues
            if not row.workers and not row.parents and row.overdue + row.backlog + row.ready
        ],
        "runs": [(redacted_member(run.id), run, worker) for run, worker in runs[:_LONGEST]],
        "running": len(runs),
        "now": time.time(),
        "dispatchers": dispatchers,
        "refused": look.refused,
        "asked": visit.get("worker"),
        "data": page.workers,
    }


def _dispatchers() -> Operation[list[str] | None]:
    """Return the ids of the dispatchers that are connected, in a cluster to any node; None if a right is missing."""
    found = set[str]()
    try:
        for node in (yield from nodes()):
            found.update((yield from send(server.dispatcher_names().at(node))))
    except StoreRefused:
        return None
    return sorted(found)


def described(look: Look, rows: Sequence[WorkerRow]) -> list[WorkerLine]:
    """Return the workers, those with a problem first. One that takes and ends jobs stays where it is."""
    wholes = {part: queue for queue, parts in look.parts().items() for part in parts}
    served, left, pauses = dict[str, set[str]](), dict[str, float](), dict[str, str]()
    for part, leases in look.leases.items():
        for lease in leases:
            served.setdefault(lease.worker, set()).add(wholes.get(part, part))
            left[lease.worker] = min(lease.left, left.get(lease.worker, lease.left))
    for status in look.statuses:
        served.setdefault(status.worker, set()).add(wholes.get(status.queue, status.queue))
        if status.not_fetching is not None:
            pauses[status.worker] = status.not_fetching
    found = [_worker(row, sorted(served[row.worker]), left.get(row.worker), pauses.get(row.worker)) for row in rows]
    newest = max((_order(worker.release) for worker in found), default=())
    found = [
        WorkerLine(one.row, one.state, one.note, one.queues, one.host, one.release, _order(one.release) < newest)
        for one in found
    ]
    return sorted(
        found, key=lambda one: (min(_ORDER.index(one.state[1]), _ORDER.index("alive")), not one.older, one.row.worker)
    )


def _worker(row: WorkerRow, queues: list[str], left: float | None, pause: str | None) -> WorkerLine:
    known = keys.read_id(row.worker)
    state, note = _state(row, left, pause)
    host, _, release = known or (row.worker, 0, "")
    return WorkerLine(row, state, note, queues, host, release)


def _state(row: WorkerRow, left: float | None, pause: str | None) -> tuple[tuple[str, str], str]:
    jobs = f"{row.busy} {'job' if row.busy == 1 else 'jobs'}"
    if not row.answered:
        if left is None or left <= 0:
            return ("warn", "no answer"), f"its lease has ended: a dispatcher gives its {jobs} to others"
        then = f", then its {jobs} start elsewhere" if row.busy else ""
        return ("warn", "no answer"), f"its lease ends in {left:.0f} s unless it renews it{then}"
    if pause == "stopping":
        return ("hold", "stops"), f"{jobs} left"
    if pause == "quiet":
        return ("hold", "quiet"), f"it was asked to fetch no more; {jobs} left"
    if pause is not None:
        return ("warn", pause), f"it fetches nothing: {PAUSES[pause][0]}"  # type: ignore[index]
    return (("ok", "alive") if row.busy else ("wait", "idle")), ""


def _order(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)))


_SAID: Final = {
    "no answer": ("does not answer", "do not answer"),
    "stops": ("stops", "stop"),
    "quiet": ("is quiet", "are quiet"),
}


def _problems(workers: Sequence[WorkerLine]) -> str:
    """Return in words how many workers have which problem."""
    parts = list[str]()
    for word, (one, many) in _SAID.items():
        if count := sum(worker.state[1] == word for worker in workers):
            parts.append(f"{count} {one if count == 1 else many}")
    if paused := sum(worker.state[0] == "warn" and worker.state[1] not in _SAID for worker in workers):
        parts.append(f"{paused} {'fetches' if paused == 1 else 'fetch'} nothing")
    if older := sum(worker.older for worker in workers):
        parts.append(f"{older} {'is' if older == 1 else 'are'} of an older release")
    return ", ".join(parts)


VIEWS = (View("/workers", "workers", _workers, every=2.0),)
