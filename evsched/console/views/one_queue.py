"""The page of a queue: how many jobs are where, what holds them back, its groups and their limits, its pause."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from msgspec import Struct

from evsched.client import spread
from evsched.client.history import HOUR, counts_of
from evsched.console.hour_counts import hour_counts
from evsched.console.page import View, Visit
from evsched.console.views.now import recent, state_of
from evsched.errors import ConfigError
from evsched.keys import check_queue
from evsched.store.gate_limits import Limits
from evsched.store.history_calls import EndCount

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
    flying = Counter[str]()
    for part in in_flight:
        flying.update(part)
    hour, counted = int(stats.now // HOUR), hour_counts(visit)
    hours = await asyncio.gather(*(counted.read(client, queue, hour - back, hour) for back in reversed(range(_HOURS))))
    by_task = dict[str, list[EndCount]]()
    for one in (one for part in hours for one in part):
        by_task.setdefault(one.task, []).append(one)
    tasks = [counts_of(queue, task, counts) for task, counts in by_task.items()]
    return {
        "queue": queue,
        "state": state_of(stats, recent(hours, stats.now)),
        "stats": stats,
        "shards": len(stores) - 1,
        "limits": limits,
        "groups": _groups(limits, {name for part in held for name in part}, flying),
        "tasks": sorted(tasks, key=lambda task: -task.ended),
        "ended": [sum(one.jobs for one in part) for part in hours],
        "dead": [sum(one.jobs for one in part if one.outcome == "dead") for part in hours],
        "late": [counts_of(queue, "", part).late_p99 or 0.0 for part in hours],
    }


VIEWS = (View("/queue", "queue", _queue, part="now", every=1.0),)
