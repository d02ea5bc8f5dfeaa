"""The commands about batches: list them, show how far one is and its first failures, pause or cancel one."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

import evsched
from evsched.batches import pausing
from evsched.batches.member import OUTCOMES, with_codes
from evsched.batches.node import GraphNode, failed_before, read_nodes, waits_for
from evsched.batches.pace import Pace
from evsched.batches.priority import Reprioritizing
from evsched.cli import output
from evsched.cli.command_client import client_of, note_if_unknown
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Queue, Url, acting, check_limit, whole
from evsched.cli.output import Column, Moment, listing
from evsched.cli.policy_commands import Until, Why, end_of_pause
from evsched.client.client import SyncClient
from evsched.client.operations import Operation, Wait
from evsched.client.time_texts import parse_future
from evsched.config import DEFAULT_QUEUE
from evsched.errors import ConfigError, JobMissing
from evsched.store.batch_calls import BatchRecord
from evsched.store.store import Store

app = App(
    name="batches",
    help="List, show, pause or cancel batches: jobs that are counted together.",
    version=evsched.__version__,
)

_FAILURES: Final = 10
"""Failed jobs that `show` lists."""

_AT_ONCE: Final = 200
"""Batches that one call reads."""

_BAR: Final = 30
"""Characters of the bar of `show`."""

_REST: Final = 1.05
"""Seconds between two readings: a rate comes from at least one."""

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
    store, found, read = Store(queue), list[BatchRecord](), 0
    with client_of(url, queue) as redis:
        while len(found) < limit:
            part = redis.send(store.batch_list(read, min(limit - len(found), _AT_ONCE)))
            found, read = found + part.batches, read + part.read
            if not part.read:
                break
        unknown = note_if_unknown(redis, queue, found)
    columns = (
        *(Column("id"), Column("state", 1), Column("jobs", 2), Column("open", 2), Column("done", 2)),
        *(Column("failed", 3), Column("cancelled", 4), Column("opened", 3), Column("finished", 5)),
    )
    rows = (
        (
            *(record.id, _state_of(record), record.total, record.open, record.done, record.dead + record.expired),
            *(record.cancelled, Moment(record.created), Moment(record.finished)),
        )
        for record in found
    )
    listing(json, [_as_json(record) for record in found], columns, rows, f"queue {queue} has no batches")
    return unknown


def _state_of(record: BatchRecord) -> str:
    lasts = record.finished is None and record.stop is None
    return "paused" if record.paused is not None and lasts else record.state


def _as_json(record: BatchRecord) -> dict[str, Any]:
    """Return a batch for JSON. A list is read without the callbacks."""
    found = msgspec.to_builtins(record) | {"open": record.open}
    return {name: value for name, value in found.items() if name not in ("callbacks", "stamp")}


@app.command
def show(
    batch: _Id,
    /,
    *,
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
    watch: Annotated[
        bool, Parameter(negative=(), help="Wait until it has ended. The exit status is 1 if it is not done then.")
    ] = False,
) -> int:
    """Show how far a batch is, how fast, the first of its jobs that have failed, and the nodes of a graph.

    Example: evsched batches show import-2030-01 --queue reports
    """
    store, pace = Store(queue), Pace()
    with client_of(url, queue) as redis:
        record = _read(redis, store, batch, pace)
        if watch:
            with output.progress_bar(f"batch {batch}") as move, output.asked_to_end() as asked:
                while record.finished is None and not asked():
                    move(record.total - record.open, record.total)
                    record = _read_on(redis, store, batch, pace)
        elif record.finished is None and sys.stdout.isatty() and not json:
            record = _read_on(redis, store, batch, pace)  # two readings have a rate
        codes = [OUTCOMES.index("dead"), OUTCOMES.index("expired")]
        failed = redis.run(with_codes(store, batch, record.ordinals, codes, _FAILURES))
        nodes = redis.run(read_nodes(store, batch, 0, record.nodes))
    found = _as_json(record)
    failures = [{"id": one.id, "queue": one.queue, "outcome": one.outcome} for one in failed]
    status = 1 if watch and record.state != "done" else 0
    if json:
        calls = [{"outcome": one.outcome, "task": one.task, "queue": one.queue} for one in record.callbacks]
        graph = {"graph": msgspec.to_builtins(nodes)} if nodes else {}
        output.as_json({**found, "callbacks": calls, "failures": failures, **graph})
        return status
    times, shown = ("created", "closed", "finished", "paused", "paused_until"), dict[str, object]()
    for name, value in found.items():
        if value is not None and value != "":
            shown[name] = Moment(value) if name in times else value
    shown["progress"] = progress_of(record)
    if record.finished is None and pace.rate:
        shown["rate"] = pace.words(record.open)
    shown |= {f"on_{one.outcome}": f"{one.task} in queue {one.queue}" for one in record.callbacks}
    output.fields(shown.items())
    for one in failures:
        print(f"{one['outcome']}: {one['id']} of queue {one['queue']}")
    for node in nodes:
        print(_node_line(node, nodes))
    return status


def _node_line(node: GraphNode, nodes: Sequence[GraphNode]) -> str:
    """Return how a node of a graph has ended, or what it waits for."""
    more = {"waiting": waits_for, "stopped": failed_before}.get(node.outcome)
    why = more(node, nodes) if more is not None and node.after else node.why or ""
    line = f"{node.outcome}: node {node.name}"
    return f"{line} {why}" if node.outcome == "waiting" else f"{line}: {why}" if why else line


def progress_of(record: BatchRecord) -> str:
    """Return a bar of the jobs that have ended, and their share. It is 100 % only if all have."""
    ended, total = record.total - record.open, max(record.total, 1)
    full = ended * _BAR // total
    return f"{'█' * full}{'░' * (_BAR - full)} {100 * ended // total} %, {ended:,} of {record.total:,} jobs"


def _read(redis: SyncClient, store: Store, batch: str, pace: Pace) -> BatchRecord:
    record = redis.send(store.batch(batch))
    if record is None:
        raise JobMissing(f"{batch} is not a batch of queue {store.queue}, or its retention is over")
    pace.note(time.monotonic(), record.total - record.open)
    return record


def _read_on(redis: SyncClient, store: Store, batch: str, pace: Pace) -> BatchRecord:
    """Read a batch once more: when it has ended, or after a second."""

    def ended() -> Operation[None]:
        yield Wait(store.wait_for_batch(batch, _REST), _REST)

    redis.run(ended())
    return _read(redis, store, batch, pace)


@app.command
@acting
def priority(
    batch: _Id,
    value: Annotated[int, Parameter(converter=whole, help="The priority, 0 to 9; higher runs first.")],
    /,
    *,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> int:
    """Give another priority to those jobs of a batch that wait. Jobs that are added later have their own.

    Example: evsched batches priority import-2030-01 9
    """
    with client_of(url, queue, changes_queue=True) as redis:
        record = _read(redis, Store(queue), batch, Pace())
        # One entry of the audit trail, and not one for each job.
        work = Reprioritizing(Store(queue), Store, redis.shards, record, value)
        if (note := redis.store(queue).note_act("edit", batch=batch, changed=["priority"])) is not None:
            redis.send(note)
        stopped = redis.work_off(work, "jobs of the batch")
    rest = " before this was stopped: the same command does the rest" if stopped else ""
    print(f"{work.changed:,} of {record.open:,} jobs that have not ended were given priority {value}{rest}")
    return 128 + stopped if stopped else 0


@app.command
@acting
def pause(batch: _Id, /, *, until: Until = None, why: Why = "", queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Pause a batch: running jobs go on, and no other job of it starts until you resume it.

    Jobs that are added meanwhile wait too, and batches in it are paused with it. If it is paused already, the end and
    the reason of the pause are replaced. If this fails, dispatchers do the rest.

    Example: evsched batches pause import-2030-01 --until 17:00 --why "the disk is full"
    """
    at = None if until is None else parse_future(until)
    with client_of(url, queue, changes_queue=True) as redis:
        ends = end_of_pause(redis, queue, at)
        try:
            found = redis.run(pausing.pause(redis.store(queue), _queues(redis), batch, ends, why))
        except ConfigError as error:
            raise UsageError(f"--{error}") from None
    end = "" if ends is None else f" until {output.moment(ends, short=True)}"
    print(f"{batch} is paused since {output.moment(found.now if found.since is None else found.since)}{end}")


@app.command
@acting
def resume(batch: _Id, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Resume a paused batch, and the batches in it.

    Example: evsched batches resume import-2030-01
    """
    with client_of(url, queue, changes_queue=True) as redis:
        found = redis.run(pausing.resume(redis.store(queue), _queues(redis), batch))
    ago = "it was not paused" if found.since is None else f"it was paused since {output.moment(found.since)}"
    print(f"{batch} is resumed: {ago}")


def _queues(redis: SyncClient) -> pausing.ShardFinder:
    return pausing.ShardFinder(Store, redis.shards)


@app.command
@acting
def cancel(batch: _Id, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Cancel a batch, and those of its jobs that have not ended: no callback runs.

    Example: evsched batches cancel import-2030-01
    """
    with client_of(url, queue, changes_queue=True) as redis:
        state = redis.run(pausing.cancel(redis.store(queue), _queues(redis), batch))
    print(f"{batch} is being cancelled" if state == "running" else f"{batch} is {state}")
