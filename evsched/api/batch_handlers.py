"""The handlers of requests about batches. The queue of the path is the home of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from evsched.api import replies, requests
from evsched.api.api_request import ApiRequest, check_same
from evsched.api.job_handlers import created, given_jobs
from evsched.api.replies import Reply, invalid
from evsched.batches.batch import Batch
from evsched.batches.batch_options import ID_MOST, SAMPLE
from evsched.batches.member import OUTCOMES, with_codes
from evsched.batches.node import read_nodes
from evsched.batches.starter import write_nodes
from evsched.client.new_job import JobOptions, check_job_options, new_job, without_later
from evsched.client.option_values import Unique
from evsched.errors import ConfigError
from evsched.graphs.plan import PlannedNode, check_name, edges_of, plan_rows
from evsched.jobs.job import decode, encode
from evsched.jobs.record import DEFAULT_RETENTION
from evsched.store.batch_calls import BatchRecord, PlanRow
from evsched.transport.call import Word

_AT_ONCE: Final = 200
"""Batches that one call reads: 2 ms."""


async def list_batches(request: ApiRequest, query: requests.BatchesQuery) -> replies.Batches:
    """List the batches whose home is the queue, the newest first."""
    limit, first, found = request.limit(query.limit), query.cursor, list[replies.BatchStatus]()
    while True:
        part = await request.client.send(request.store.batch_list(first, min(limit - len(found), _AT_ONCE)))
        found += [_status(one) for one in part.batches]
        first += part.read
        if not part.read or first >= part.total:
            return replies.Batches(found, None)
        if len(found) >= limit:
            return replies.Batches(found, first)


def _status(record: BatchRecord) -> replies.BatchStatus:
    same = {
        name: getattr(record, name) for name in replies.BatchStatus.__struct_fields__ if name not in ("tags", "parent")
    }
    try:
        tags = msgspec.json.decode(record.tags or "[]", type=list[str])
    except (msgspec.MsgspecError, RecursionError):
        tags = []
    queue, _, rest = (record.parent or "").partition("/")
    parent = replies.BatchName(queue, rest.partition("/")[0]) if rest else None
    return replies.BatchStatus(**same, tags=tags, parent=parent)


def _batch(request: ApiRequest) -> Batch:
    return Batch(request.http.path_params["batch"], request.queue, request.client)


async def open(request: ApiRequest, body: requests.OpenBatch) -> Reply[replies.BatchStatus]:  # noqa: A001 - its name
    """Open a batch: jobs can be added to it; or enqueue a graph. The same request again changes nothing."""
    batch = _batch(request)
    if len(batch.id) > ID_MOST:
        raise invalid(f"the id of a batch has at most {ID_MOST} characters")
    fields: dict[str, Word] = {"complete_on": "all"} if body.complete_on == "all" else {}
    if body.tags:
        fields["tags"] = encode(list(body.tags))
    for name in ("on_done", "on_failed", "on_progress"):
        call: requests.BatchCallback | None = getattr(body, name)
        if call is not None:
            fields[name] = encode(_template(request, call))
    rows = [] if body.nodes is None else await _rows(request, batch.id, body, body.nodes)
    opening = request.store.batch_open(
        batch.id,
        sha256(msgspec.json.encode((request.caller, body), order="sorted")).hexdigest(),
        retention=body.retention,
        expires=body.expires,
        fields=fields,
    )
    is_new = await request.client.send(opening)
    if rows:  # also of a repetition: the first request may have written only some
        await write_nodes(request.client, request.store, batch.id, rows)
        await batch.close()
    if is_new:
        return Reply(HTTPStatus.CREATED, _status(await batch.status()), request.location(f"batches/{batch.id}"))
    return Reply(HTTPStatus.OK, _status(await batch.status()))


def _template(request: ApiRequest, call: requests.BatchCallback) -> dict[str, Any]:
    """Return the job of a callback without its argument, as a keeper enqueues it."""
    queue = request.queue if call.queue is None else call.queue
    request.check_served(queue)
    given: dict[str, Any] = {name: getattr(call, name) for name in _OF_CALLBACK}
    options = JobOptions(**given)
    check_job_options(options)
    job = new_job(call.task, [SAMPLE], {}, options, request.config.payload_cap)
    payload = decode(job.payload)
    del payload["args"]
    found = {"queue": queue, "payload": payload, "priority": job.priority, "group": job.group}
    return {name: value for name, value in found.items() if value is not None}


async def _rows(
    request: ApiRequest, batch: str, body: requests.OpenBatch, given: Sequence[requests.NewNode]
) -> list[PlanRow]:
    """Return the nodes of a graph as its home takes them.

    Raises:
        Problem: there are too many, one is not valid, or its queue is not served.
        ConfigError: their order is not valid.
    """
    most, nodes = request.config.api_jobs_cap, dict[str, PlannedNode]()
    if len(given) > most:
        raise invalid(f"the request has {len(given)} nodes, more than {most}")
    for at, one in enumerate(given):
        try:
            check_name(one.name, nodes)
            node = _planned(request, one)
            nodes[one.name] = replace(node, payload=await request.client.sealed_node(node.payload))
        except ConfigError as error:
            raise invalid(f"nodes[{at}]: {error}") from None
    return plan_rows(batch, request.queue, nodes, body.expires, body.retention)


def _planned(request: ApiRequest, node: requests.NewNode) -> PlannedNode:
    """Build a node.

    Raises:
        Problem: its queue is not served.
        ConfigError: an option or an argument is not valid.
    """
    queue = request.queue if node.queue is None else node.queue
    request.check_served(queue)
    if node.over is not None and node.despite_failure:
        raise ConfigError("over and despite_failure: give one of them")
    edges = edges_of(node.name, node.after, node.take, node.over, node.kwargs)
    given: dict[str, Any] = {name: getattr(node, name) for name in _OF_NODE}
    options = JobOptions(**given)
    check_job_options(options)
    args = node.args if node.over is None else [*node.args, None]
    job = new_job(node.task, args, node.kwargs | dict.fromkeys(edges.takes), options, request.config.payload_cap)
    payload = without_later(job, len(node.args), [*edges.takes])
    limit = 0 if node.over is None else node.limit
    return PlannedNode(queue, job, payload, DEFAULT_RETENTION, edges, node.despite_failure, limit)


_OF_NODE: Final = (
    *("due", "delay", "expires", "priority", "group", "timeout", "retry", "retention"),
    *("meta", "tags", "redact", "window"),
)
_OF_CALLBACK: Final = tuple({*requests.BatchCallback.__struct_fields__} - {"task", "queue"})


async def look(request: ApiRequest) -> replies.BatchStatus:
    """Return the state and the counts of a batch."""
    return _status(await _batch(request).status())


async def list_jobs(request: ApiRequest, query: requests.MembersQuery) -> replies.Members:
    """List the jobs of a batch in the order in which they were added, and how each has ended."""
    batch, limit = _batch(request), request.limit(query.limit)
    total = (await batch.status()).ordinals
    wanted = [at for at, name in enumerate(OUTCOMES) if query.outcome in (None, name) and name != "missing"]
    walk = with_codes(request.store, batch.id, total, wanted, limit + 1, query.cursor)
    found = await request.client.run(walk)
    rows = [replies.BatchMember(one.id, one.queue, one.outcome, one.ordinal) for one in found[:limit]]
    for at, one in enumerate(found[:limit]):
        if one.batch is not None:
            rows[at] = replace(rows[at], id=one.batch, batch=True)
    return replies.Members(rows, found[limit].ordinal if len(found) > limit else None)


async def list_nodes(request: ApiRequest, query: requests.NodesQuery) -> replies.GraphNodes:
    """List the nodes of a graph, the ordinals of those before each, and how each has ended; none if it is no graph."""
    batch, first = _batch(request), query.cursor
    nodes = (await batch.status()).nodes
    end = min(nodes, first + request.limit(query.limit))
    found = await request.client.run(read_nodes(request.store, batch.id, first, end))
    return replies.GraphNodes(found, end if end < nodes else None)


async def add(request: ApiRequest, body: requests.BatchJobs) -> Reply[replies.ScheduledJobs]:
    """Add jobs to a batch: all or none; of a queue with shards, all or none of each shard."""
    batch, queue = _batch(request), request.queue if body.queue is None else body.queue
    request.check_served(queue)
    unique = None if body.unique is None else Unique(within=body.unique.within)
    jobs, once = given_jobs(request, body.jobs, unique, many=True), request.once(f"batches/{batch.id}/jobs", body)
    named = any(one.id is not None for one in body.jobs) or unique is not None
    if named or once is not None:
        request.shards.check()  # a second job of the id, or of the request, may be in a shard
    if once is not None:
        # A repetition must find the first request, in the same shards.
        ids = [
            job.id if named and (unique or one.id) else f"{once.key}.{at}"
            for at, (job, one) in enumerate(zip(jobs, body.jobs, strict=True))
        ]
        jobs = [replace(job, id=job_id) for job, job_id in zip(jobs, ids, strict=True)]
    put = await batch.put(
        queue,
        jobs,
        body.on_conflict,
        is_named=named or once is not None,
        within=None if unique is None else unique.seconds,
        once=once,
    )
    if once is not None:
        check_same(once, put.asked)
    scheduled = [replies.Scheduled(job_id, queue, due) for job_id, due in put.jobs]
    return Reply(created(body.on_conflict), replies.ScheduledJobs(scheduled))


async def close(request: ApiRequest) -> replies.BatchStatus:
    """Close a batch: it ends when its jobs have ended, and only they may add others."""
    batch = _batch(request)
    await batch.close()
    return _status(await batch.status())


async def pause(request: ApiRequest, body: requests.Pause) -> replies.BatchStatus:
    """Pause a batch, until a moment or until it is resumed: running jobs go on, and no other job of it starts."""
    batch = _batch(request)
    await batch.pause(until=body.until, why=body.why)
    return _status(await batch.status())


async def resume(request: ApiRequest) -> replies.BatchStatus:
    """Resume a batch, and the batches in it."""
    batch = _batch(request)
    await batch.resume()
    return _status(await batch.status())


async def cancel(request: ApiRequest) -> Reply[replies.BatchStatus]:
    """Cancel a batch, and those of its jobs that have not ended: no callback runs."""
    batch = _batch(request)
    await batch.cancel()
    found = _status(await batch.status())
    return Reply(HTTPStatus.OK if found.finished is not None else HTTPStatus.ACCEPTED, found)
