"""The page of a queue: how many jobs are where, what holds them back, its groups and their limits, its pause."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from msgspec import Struct

from evsched.client import spread
from evsched.client.history import HOUR, quantile
from evsched.console.hour_counts import hour_counts
from evsched.console.page import View, Visit
from evsched.console.views.now import state_of
from evsched.errors import ConfigError
from evsched.keys import check_queue
from evsched.store.gate_limits import Limits

_HOURS: Final = 24
_GROUPS: Final = 50


class GroupRow(Struct, frozen=True):
    """A group that has limits of its own, or that waits because of a limit."""

    name: str
    held: bool
    """Whether its own limits hold jobs back."""
    in_flight: int | None
    """None: nothing limits it, so nothing counts."""
    limits: dict[str, float]
    declared: dict[str, str]
    """The app that declares a limit, by the limit's name."""


class TaskRow(Struct, frozen=True):
    """How the jobs of a task ended in the last 24 hours."""

    name: str
    ended: int
    dead: int
    run_p50: float | None
    run_p99: float | None


def _groups(limits: Limits, held: set[str], in_flight: dict[str, int]) -> list[GroupRow]:
    counted = {name[1:]: count for name, count in in_flight.items() if name.startswith("#") and name != "#"}
    names = sorted({*limits.groups, *held, *counted}, key=lambda name: (name not in held, -counted.get(name, 0), name))
    return [
        GroupRow(
            name,
            name in held,
            counted.get(name, 0) if limits.groups.get(name) or limits.groups.get("*") else counted.get(name),
            limits.groups.get(name, {}),
            {
                field.partition(":")[0]: one.app
                for field, one in limits.declared.items()
                if field.partition(":")[2] == name
            },
        )
        for name in names[:_GROUPS]
    ]


async def _queue(visit: Visit) -> dict[str, Any]:
    queue, client = check_queue(visit.get("name")), visit.client
    await visit.console.queues(client)
    stores = client.stores(queue)
    stats = await client.run(spread.queue_stats(stores))
    if (
        not any(stats.places.values())
        and not stats.workers
        and await client.run(spread.never_used(client.shards, client.store, queue))
    ):
        raise ConfigError(f"queue {queue} has no jobs, no workers and no recurrences: its name may be misspelt")
    limits, held, in_flight = await asyncio.gather(
        client.limits(queue),
        asyncio.gather(*(client.send(store.throttled()) for store in stores)),
        asyncio.gather(*(client.send(store.in_flight()) for store in stores)),
    )
    counts = dict[str, int]()
    for part in in_flight:
        for name, count in part.items():
            counts[name] = counts.get(name, 0) + count
    hour, counted = int(stats.now // HOUR), hour_counts(visit)
    hours = await asyncio.gather(*(counted.read(client, queue, hour - back, hour) for back in reversed(range(_HOURS))))
    tasks = dict[str, dict[str, Any]]()
    for one in (one for part in hours for one in part):
        row = tasks.setdefault(one.task, {"ended": 0, "dead": 0, "run": {}})
        row["ended"] += one.jobs
        row["dead"] += one.jobs if one.outcome == "dead" else 0
        if one.run is not None:
            row["run"][one.run] = row["run"].get(one.run, 0) + one.jobs
    return {
        "queue": queue,
        "state": state_of(stats),
        "stats": stats,
        "shards": len(stores) - 1,
        "limits": limits,
        "groups": _groups(limits, {name for part in held for name in part}, counts),
        "tasks": [
            TaskRow(
                name or "(no task)", row["ended"], row["dead"], quantile(row["run"], 0.5), quantile(row["run"], 0.99)
            )
            for name, row in sorted(tasks.items(), key=lambda one: -one[1]["ended"])
        ],
        "ended": [sum(one.jobs for one in part) for part in hours],
        "dead": [sum(one.jobs for one in part if one.outcome == "dead") for part in hours],
        "late": [_late(part) for part in hours],
    }


def _late(counts: Any) -> float:
    sizes = dict[int, int]()
    for one in counts:
        if one.late is not None:
            sizes[one.late] = sizes.get(one.late, 0) + one.jobs
    return quantile(sizes, 0.99) or 0.0


VIEWS = (View("/queue", "queue", _queue, part="now", every=1.0),)
