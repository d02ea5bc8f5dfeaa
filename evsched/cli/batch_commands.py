"""The commands about batches: list them, show how far one is and its first failures, cancel one."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

import evsched
from evsched.batches.member import OUTCOMES, with_codes
from evsched.batches.node import failed_before, read_nodes, waits_for
from evsched.cli import output
from evsched.cli.command_client import client_of, note_if_unknown
from evsched.cli.options import Json, Queue, Url, acting, check_limit, whole
from evsched.cli.output import Column, Moment, listing
from evsched.config import DEFAULT_QUEUE
from evsched.errors import JobMissing
from evsched.store.batch_calls import BatchRecord
from evsched.store.store import Store

app = App(
    name="batches",
    help="List, show or cancel batches: jobs that are counted together.",
    version=evsched.__version__,
)

_FAILURES: Final = 10
"""Failed jobs that `show` lists."""

_Id = Annotated[str, Parameter(help="The batch's id.")]


@app.default
@app.command(name="list")
def list_batches(
    *,
    limit: Annotated[int, Parameter(converter=whole, help="How many batches to list at most.")] = 50,
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> int:
    """List the batches whose home is a queue, the newest first, and how many of their jobs have ended.

    Example: evsched batches --queue reports
    """
    check_limit(limit)
    store = Store(queue)
    with client_of(url, queue) as redis:
        names = redis.send(store.batch_names(0, limit - 1))
        found = [record for name in names if (record := redis.send(store.batch(name))) is not None]
        unknown = note_if_unknown(redis, queue, found)
    columns = (
        *(Column("id"), Column("state", 1), Column("jobs", 2), Column("open", 2), Column("done", 2)),
        *(Column("failed", 3), Column("cancelled", 4), Column("opened", 3), Column("finished", 5)),
    )
    rows = (
        (
            *(record.id, record.state, record.total, record.open, record.done, record.dead + record.expired),
            *(record.cancelled, Moment(record.created), Moment(record.finished)),
        )
        for record in found
    )
    listing(json, [_as_json(record) for record in found], columns, rows, f"queue {queue} has no batches")
    return unknown


def _as_json(record: BatchRecord) -> dict[str, Any]:
    return msgspec.to_builtins(record) | {"open": record.open}


@app.command
def show(batch: _Id, /, *, queue: Queue = DEFAULT_QUEUE, json: Json = False, url: Url = None) -> None:
    """Show how far a batch is, the first of its jobs that are dead or expired, and the nodes of a graph.

    Example: evsched batches show import-2030-01 --queue reports
    """
    store = Store(queue)
    with client_of(url, queue) as redis:
        record = redis.send(store.batch(batch))
        if record is None:
            raise JobMissing(f"{batch} is not a batch of queue {queue}, or its retention is over")
        codes = [OUTCOMES.index("dead"), OUTCOMES.index("expired")]
        failed = redis.run(with_codes(store, batch, record.ordinals, codes, _FAILURES))
        nodes = redis.run(read_nodes(store, batch, 0, record.nodes))
    found = _as_json(record)
    failures = [{"id": one.id, "queue": one.queue, "outcome": one.outcome} for one in failed]
    if json:
        graph = {"graph": msgspec.to_builtins(nodes)} if nodes else {}
        output.as_json({**found, "failures": failures, **graph})
        return
    times = ("created", "closed", "finished")
    output.fields(
        (name, Moment(value) if name in times else value)
        for name, value in found.items()
        if value is not None and value != ""
    )
    for one in failures:
        print(f"{one['outcome']}: {one['id']} of queue {one['queue']}")
    for node in nodes:
        more = {"waiting": waits_for, "stopped": failed_before}.get(node.outcome)
        why = more(node, nodes) if more is not None and node.after else node.why or ""
        print(
            f"{node.outcome}: node {node.name}"
            + (f" {why}" if node.outcome == "waiting" else f": {why}" if why else "")
        )


@app.command
@acting
def cancel(batch: _Id, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Cancel a batch, and those of its jobs that have not ended: no callback runs.

    Example: evsched batches cancel import-2030-01
    """
    with client_of(url, queue, changes_queue=True) as redis:
        state = redis.send(redis.store(queue).batch_close(batch, how="cancelled"))
    print(f"{batch} is being cancelled" if state == "running" else f"{batch} is {state}")
