"""The commands about what there is: queues, workers."""

from __future__ import annotations

from evsched import keys, server
from evsched.cli import output
from evsched.cli.root import Json, Queues, Url, client
from evsched.client import SyncClient
from evsched.store import Store


def find_queues(redis: SyncClient, named: list[str] | None) -> list[str]:
    """Return the queues that are named, else all that there are, by one SCAN."""
    if named:
        return named
    found, cursor = set[str](), 0
    while True:
        cursor, slice_ = redis.send(server.scan(cursor))
        found.update(parsed[0] for key in slice_ if (parsed := keys.parse(key)))
        if cursor == 0:
            return sorted(found)


def queues(*, queue: Queues = None, json: Json = False, url: Url = None) -> None:
    """Count the jobs of each queue by place."""
    rows = list[dict[str, str | int | float | None]]()
    with client(url) as redis:
        for name in find_queues(redis, queue):
            census = redis.send(Store(name).census())
            rows.append(
                {
                    "queue": name,
                    **census.places,
                    "workers": census.workers,
                    "next_due": census.next_due,
                    "paused": census.paused,
                }
            )
    if json:
        output.as_json(rows)
        return
    shown = [[output.moment(v) if k in ("next_due", "paused") else v for k, v in row.items()] for row in rows]  # type: ignore[arg-type]
    columns = ("queue", "schedule", "backlog", "ready", "processing", "dead", "workers", "next due", "paused since")
    output.table(columns, shown, "no queues: nothing has been scheduled yet")


def workers(*, queue: Queues = None, json: Json = False, url: Url = None) -> None:
    """List the workers, what they hold, and how long their leases have left."""
    with client(url) as redis:
        rows = [
            {"worker": lease.worker, "queue": name, "held": lease.held, "lease_left": lease.left}
            for name in find_queues(redis, queue)
            for lease in redis.send(Store(name).survey())
        ]
    if json:
        output.as_json(rows)
    else:
        shown = [(row["worker"], row["queue"], row["held"], f"{row['lease_left']:.1f} s") for row in rows]
        output.table(("worker", "queue", "holds", "lease left"), shown, "no workers")
