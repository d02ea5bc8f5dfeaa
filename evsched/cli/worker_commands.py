"""The commands about workers: list them, see where a job is, and ask one to fetch no more or to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

import evsched
from evsched import keys
from evsched.cli.command_client import client, client_of_job, note_unknown
from evsched.cli.options import Json, QueueOfJob, Queues, Url, acting, check_queues, settings
from evsched.cli.output import Column, as_json, listing
from evsched.cli.queue_commands import each, report
from evsched.client import worker_orders
from evsched.client.client import SyncClient
from evsched.client.operations import Operation, send
from evsched.display import format_duration
from evsched.errors import EvschedError
from evsched.keys import release_of
from evsched.store import server
from evsched.store.store import Store
from evsched.top.collector import ask_status
from evsched.top.stack import ask_stack
from evsched.worker.slots import FetchPause

app = App(name="workers", version=evsched.__version__)

Name = Annotated[str, Parameter(help="The worker, by its name in `evsched workers`. Not a parent that stands by.")]

_WORKER_COLUMNS: Final = (
    Column("worker"),
    Column("queue", 1),
    Column("release", 5),
    Column("holds", 2),
    Column("lease left", 4),
    Column("state", 3),
)


@app.default
@app.command(name="list")
def workers(*, queue: Queues = None, json: Json = False, url: Url = None) -> int:
    """List the workers: how many jobs each holds, and when it will count as dead unless it sends a heartbeat.

    state: empty, or why the worker fetches no jobs of the queue now: it is quiet (`evsched workers quiet`), it is
    stopping, no process of its pool is free, a lone run keeps the others out, or handlers keep its event loop busy.
    A parent that stands by has no worker process, and starts one when a job waits (`evsched worker --processes 0:8`).

    Exit code 1: a queue cannot be read or does not exist.

    Example: evsched workers --queue mail
    """
    rows = list[dict[str, Any]]()
    with client(url) as redis:
        read, down = each(redis, queue, _serving)
        for one in read:
            rows += [
                {"worker": worker, "queue": one.queue, "release": release_of(worker), **values}
                for worker, values in one.found or ()
            ]
        unknown = note_unknown(redis, queue or ())
        pauses = _pauses(redis, {row["queue"] for row in rows if not row["stands_by"]})
    for row in rows:
        row["not_fetching"] = pauses.get((row["worker"], row["queue"]))
    shown = (
        (
            row["worker"],
            row["queue"],
            row["release"],
            "" if row["stands_by"] else row["held"],
            format_duration(row["lease_left"]),
            "stands by" if row["stands_by"] else row["not_fetching"] or "",
        )
        for row in rows
    )
    listing(json, rows, _WORKER_COLUMNS, shown, "no workers")
    return report((one.problem for one in read), down) or unknown


def _serving(stores: Sequence[Store]) -> Operation[list[tuple[str, dict[str, Any]]]]:
    """Return the workers of a queue and the parents that stand by, with the values of their rows.

    A worker has a lease on each shard: it holds the jobs of all, and the lease that ends first is shown.
    """
    found = dict[tuple[bool, str], dict[str, Any]]()
    for store in stores:
        rows = [(lease.worker, lease.held, lease.left, False) for lease in (yield from send(store.survey())).leases]
        now = yield from send(server.clock(keys.root(store.queue)))
        rows += [(name, 0, ends - now, True) for name, ends in (yield from send(store.parents())) if ends > now]
        for name, held, left, stands_by in rows:
            row = found.setdefault((stands_by, name), {"held": 0, "lease_left": left, "stands_by": stands_by})
            row["held"] += held
            row["lease_left"] = min(left, row["lease_left"])
    return [(name, row) for (_, name), row in sorted(found.items(), key=lambda item: item[0][0])]


def _pauses(redis: SyncClient, queues: Collection[str]) -> dict[tuple[str, str], FetchPause]:
    """Ask the workers of queues which of them fetch nothing now, and why: by worker and queue."""
    statuses = asyncio.run(ask_status(redis.url, sorted(queues))) if queues else ()
    return {
        (status.worker, redis.shards.whole(status.queue)): status.not_fetching
        for status in statuses
        if status.not_fetching is not None
    }


@app.command
@acting
def quiet(worker: Name, /, *, queue: Queues = None, url: Url = None) -> None:
    """Ask a worker to fetch no more jobs. Those that it runs end, and it stays until it is stopped.

    `evsched workers` shows it as quiet, with the jobs that it still holds. It cannot be asked to fetch again: restart
    it. Use it to look at a worker, or before you stop one with long jobs.

    Exit code 1: there is no such worker, or it does not listen.

    Example: evsched workers quiet web-1-4711-0a1b2c3d-0.1.0
    """
    served = _order(worker, keys.QUIET, queue, url)
    print(f"{worker} was asked to fetch no more: it serves {', '.join(served)}")


@app.command
@acting
def stop(worker: Name, /, *, queue: Queues = None, url: Url = None) -> None:
    """Ask a worker to end, as by SIGTERM: jobs that still run after its shutdown grace go to other workers.

    Until it has ended, `evsched workers` shows it as stopping, with the jobs that it still holds. A supervisor may
    start another one: the parent of `--processes`, systemd or Kubernetes.

    Exit code 1: there is no such worker, or it does not listen.

    Example: evsched workers stop web-1-4711-0a1b2c3d-0.1.0
    """
    served = _order(worker, keys.STOP, queue, url)
    print(f"{worker} was asked to stop: it serves {', '.join(served)}")


def stack(
    job: Annotated[str, Parameter(help="The id of a running job.")],
    /,
    *,
    queue: QueueOfJob = None,
    json: Json = False,
    url: Url = None,
) -> int:
    """Show where a running job is now: the stack of its handler, as its worker sees it.

    The code of a handler that runs in a process of its own is not seen.

    Exit code 1: no worker runs the job, or a handler blocks the event loop of its worker.

    Example: evsched stack report-17
    """
    with client_of_job(url, queue, job, reads=True) as (redis, queue, job):
        parts = [store.queue for store in redis.client.stores(redis.shards.whole(queue))]
    found = asyncio.run(ask_stack(settings(url).url, parts, job))
    if found is None:
        raise EvschedError(f"no worker says where job {job} is: evsched explain {job} says whether it runs")
    if json:
        as_json(found)
        return 0
    print(f"{job} runs for {format_duration(found.seconds)} on {found.worker}, attempt {found.attempt}")
    print(found.stack.rstrip() or "Only evsched's own code is seen: its handler runs in a process, or has not begun.")
    return 0


def _order(worker: str, message: str, queue: Queues, url: Url) -> list[str]:
    check_queues(queue)
    with client(url) as redis:
        return redis.run(worker_orders.order(redis.shards, redis.client.acting(), worker, message, queue or ()))
