"""A batch as a program sees it: open it, add jobs, close it; look at it later, wait for its end, cancel it."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from evsched import keys
from evsched.batches import pausing
from evsched.batches.batch_options import ID_MOST, BatchOptions, read_options
from evsched.batches.member import CODES, OUTCOMES, Member, with_codes
from evsched.batches.node import GraphNode, read_nodes
from evsched.batches.results import ResultGone, open_results, read_results, result_of_node
from evsched.client.client import Client
from evsched.client.job_handle import Job
from evsched.client.new_job import JobOptions
from evsched.client.operations import MANY, Sleep, Wait
from evsched.client.option_values import finite_seconds
from evsched.client.task_handle import Enqueuer, check_task
from evsched.errors import ConfigError, JobExists, JobLate, JobMissing, StoreDown
from evsched.jobs import option_checks as check
from evsched.jobs.arguments import Arguments
from evsched.jobs.job import OnConflict
from evsched.store.batch_calls import BatchRecord
from evsched.store.batch_pauses import BatchPause, InnerBatch
from evsched.store.client_calls import Accepted, New
from evsched.store.queue import IdempotentRequest
from evsched.store.store import Store
from evsched.transport.redis_errors import reconnect_delay

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_LOOKED_AT: Final = 10
"""Jobs that are looked at to see by which of two calls they were written."""

_BLOCK: Final = 10.0
"""Seconds of one blocking call."""


class _Put(Struct, frozen=True):
    """How some jobs are written."""

    queue: str
    shard: str
    is_named: bool
    on_conflict: OnConflict | None
    within: float | None
    once: IdempotentRequest | None

    async def send(self, client: Client, jobs: list[New], address: str) -> Accepted:
        """Write jobs, as the members that an address names."""
        store, conflict, jobs = client.store(self.shard), self.on_conflict, [*await client.sealed(jobs)]
        if self.once is not None:
            return await client.send(
                store.enqueue_once(self.once, jobs, on_conflict=conflict, within=self.within, batch=address)
            )
        call = store.enqueue(jobs, keep=conflict == "keep", within=self.within, batch=address)
        return Accepted("", [*zip((job.id for job in jobs), await client.send(call), strict=True)])


class Batch:
    """A batch: a handle that asks nothing of Redis until it is used."""

    def __init__(self, batch: str, queue: str, client: Client, member: str = "") -> None:
        self.id = batch
        self.queue = keys.check_queue(queue)
        """Its home: the queue whose keys it is among. Its jobs may be in any queues."""
        self._client = client
        self._member = member
        """The ordinal and turn of the member whose run adds jobs."""
        self._written: list[str] = []
        """The tokens of reservations whose jobs are enqueued, and that are not confirmed yet."""
        self._is_open = False
        """Whether it is confirmed later, with the next jobs or when it is closed."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, queue={self.queue!r})"

    @property
    def _store(self) -> Store:
        return self._client.store(self.queue)

    @property
    def _queues(self) -> pausing.ShardFinder:
        return pausing.ShardFinder(self._client.store, self._client.shards)

    async def add(self, task: Enqueuer[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job of a task, or of `task.using(...)`, as a member of the batch.

        Raises as `enqueue`, and:
            JobLate: the batch has ended, or was cancelled.
            JobMissing: there is no such batch.
        """
        check_task(task)
        (job,) = await task.hand_over([Arguments(args, kwargs, ())], self._put, self.id)
        return job

    async def add_many(self, task: Enqueuer[P, R], calls: Iterable[tuple[Any, ...] | Arguments[P]], /) -> list[Job[R]]:
        """Enqueue many jobs of a task as members, 400 in two round trips; `calls` as for `enqueue_many`."""
        check_task(task)
        return await task.hand_over(calls, self._put, self.id)

    async def _put(self, queue: str, jobs: list[New], options: JobOptions) -> list[str]:
        unique = options.get("unique")
        is_named = options.get("id") is not None or unique is not None
        within = None if unique is None else unique.seconds
        put = await self.put(queue, jobs, options.get("on_conflict"), is_named=is_named, within=within)
        return [job_id for job_id, _ in put.jobs]

    async def put(
        self,
        queue: str,
        jobs: list[New],
        on_conflict: OnConflict | None = None,
        *,
        is_named: bool,
        within: float | None = None,
        once: IdempotentRequest | None = None,
    ) -> Accepted:
        """Write jobs as members: reserve their ordinals at the home, enqueue them, confirm. Raises as `add`.

        `is_named`: the ids of the jobs stay. `once`: of a request that was sent for the first time, or whose jobs are
        written already; its jobs have ids that are always the same. Return what the first request asked for, and the
        ids and dues of its jobs.
        """
        if on_conflict == "replace":
            raise ConfigError('on_conflict: a job of a batch replaces no other: use "keep", or leave it out')
        shards = self._client.shards
        if shards.counts.get(queue) and not is_named:  # the id says which shard, so it must be known first
            jobs = [replace(job, id=f"{self.id}.{os.urandom(8).hex()}") for job in jobs]
            is_named = True
        by_shard = dict[str, list[int]]()
        for at, job in enumerate(jobs):
            by_shard.setdefault(shards.home(queue, job.id), []).append(at)
        found, asked = dict[int, tuple[str, float]](), "" if once is None else once.asked
        for shard, places in by_shard.items():
            for first in range(0, len(places), MANY):
                some = places[first : first + MANY]
                call = _Put(queue, shard, is_named, on_conflict, within, once)
                put = await self._put_some(call, [jobs[at] for at in some])
                found.update(zip(some, put.jobs, strict=False))
                asked = asked if once is None or put.asked == once.asked else put.asked
        if not self._is_open:
            await self._confirm_all()
        return Accepted(asked, [found[at] for at in sorted(found)])

    async def _put_some(self, put: _Put, jobs: list[New]) -> Accepted:
        if put.once is not None and (first := await self._first_of(put, jobs)) is not None:
            return first
        ids = [job.id for job in jobs] if put.is_named else []
        token = token_hex(8)
        found = await self._client.send(
            self._store.batch_add(
                self.id, token, len(jobs), put.queue, ids=ids, member=self._member, confirms=self._next_written()
            )
        )
        if found.first is None:
            raise JobLate(f"batch {self.id} of queue {self.queue} {found.refusal}")
        if not put.is_named:
            jobs = [replace(job, id=f"{self.id}.{found.first + at}") for at, job in enumerate(jobs)]
        if found.paused:
            paused = BatchPause(found.now, found.paused, is_paused=True)
            await self._client.run(pausing.tell(self._store, self._queues, self.id, paused, [put.queue]))
        address = found.address(self.queue, self.id)
        if put.on_conflict == "keep":  # the record that is kept may be of an earlier batch of this id
            address += f"/{await self._client.send(self._store.batch_life(self.id))}"
        try:
            accepted = await put.send(self._client, jobs, address)
        except JobExists:
            # None was written, so that a keeper need not find out.
            await self._give_back(found.first, len(jobs), token)
            raise
        if put.once is None or await self._has(put.shard, accepted, range(found.first, found.first + len(jobs))):
            self._written.append(token)
        # Else a request of the same key was done at the same time: a keeper finds out which ordinals have no job.
        return accepted

    async def _has(self, shard: str, accepted: Accepted, ordinals: range) -> bool:
        """Return whether one of the first jobs has one of the ordinals."""
        for job_id, _ in accepted.jobs[:_LOOKED_AT]:
            found = await self._client.send(self._client.store(shard).member_of(job_id))
            home, batch, ordinal, *_ = [*(found or b"").decode(errors="replace").split("/"), "", "", ""]
            if (home, batch) == (self.queue, self.id) and ordinal.isdecimal() and int(ordinal) in ordinals:
                return True
        return False

    async def _first_of(self, put: _Put, jobs: list[New]) -> Accepted | None:
        """Return how the request was answered the first time; None if this is the first."""
        try:
            # A reservation that is over, so that nothing is written.
            return await replace(put, on_conflict=None).send(self._client, jobs, f"{self.queue}/{self.id}/0/0.0")
        except JobLate:
            return None
        except JobExists:
            if put.on_conflict is None:
                raise
            return None

    async def _give_back(self, first: int, count: int, token: str) -> None:
        """Give a reservation back for which no job was written."""
        missing = bytes([CODES["m"]]) * count
        await self._client.send(self._store.batch_count([(self.id, first, missing)]))
        self._written.append(token)

    def _next_written(self) -> str:
        return self._written.pop() if self._written else ""

    async def _confirm_all(self) -> None:
        while self._written:
            await self._client.send(self._store.batch_add(self.id, "confirm", 0, confirms=self._next_written()))

    async def close(self) -> None:
        """Close the batch: it ends when its jobs have ended. After that, only its own jobs may add others.

        Raises:
            JobMissing: there is no such batch.
        """
        await self._confirm_all()
        await self._client.send(self._store.batch_close(self.id))

    async def cancel(self) -> None:
        """Cancel the batch and those of its jobs that have not ended: none starts from then on, and no callback runs.

        Nothing if it is done or was cancelled. One that has failed is not open again, whatever becomes of its jobs.

        Raises:
            JobMissing: there is no such batch.
        """
        await self._client.run(pausing.cancel(self._store, self._queues, self.id))
        await self._confirm_all()

    async def pause(self, *, until: datetime | float | None = None, why: str = "") -> float:
        """Pause the batch: running jobs go on, and no other starts; return since when it is paused, in Unix seconds.

        `until`: when it is resumed by itself; None = with `resume`. `why`: a sentence for people who look at it later.
        If it is paused already, both are replaced. Batches in it are paused with it.

        Raises:
            ConfigError: the moment has passed, or the reason is too long.
            JobLate: the batch has ended.
            JobMissing: there is no such batch.
        """
        found = await self._client.run(pausing.pause(self._store, self._queues, self.id, until, why))
        return found.now if found.since is None else found.since

    async def resume(self) -> float | None:
        """Resume the batch, and the batches in it; return since when it was paused, None if it was not.

        Raises:
            JobMissing: there is no such batch.
        """
        return (await self._client.run(pausing.resume(self._store, self._queues, self.id))).since

    async def set_priority(self, priority: int | None) -> int:
        """Give another priority, 0 to 9, None = the default, to those jobs of the batch that wait; return how many.

        Jobs that are added meanwhile, or later, have their own.

        Raises:
            ConfigError: it is not a priority.
            JobMissing: there is no such batch.
        """
        from evsched.batches.priority import Reprioritizing  # few programs need it

        work = Reprioritizing(self._store, self._client.store, self._client.shards, await self.status(), priority)
        while await self._client.run(work.step()):
            pass
        return work.changed

    async def status(self) -> BatchRecord:
        """Return its state and counts.

        Raises:
            JobMissing: there is no such batch.
        """
        found = await self._client.send(self._store.batch(self.id))
        if found is None:
            raise JobMissing(f"{self.id} is not a batch of queue {self.queue}, or its retention is over")
        return found

    async def failures(self, limit: int = 10) -> list[Member]:
        """Return the first of its jobs that are dead or expired."""
        return await self._members(("dead", "expired"), limit)

    async def members(self, limit: int = 1000) -> list[Member]:
        """Return the first of its jobs, and how they have ended."""
        return await self._members(("waiting", "open", "done", "dead", "cancelled", "expired", "stopped"), limit)

    async def nodes(self, first: int = 0, limit: int = 1000) -> list[GraphNode]:
        """Return nodes of a graph from an ordinal on, each behind the nodes that it waits for.

        Raises:
            JobMissing: there is no such batch.
        """
        last = min((await self.status()).nodes, first + limit)
        return await self._client.run(read_nodes(self._store, self.id, first, last))

    async def node(self, name: str) -> GraphNode:
        """Return the node of that name.

        Raises:
            JobMissing: there is none.
        """
        nodes = await self.nodes(limit=(await self.status()).nodes)
        found = next((node for node in nodes if node.name == name), None)
        if found is None:
            raise JobMissing(f"batch {self.id} of queue {self.queue} has no node {name!r:.100}")
        return found

    async def result(self, node: str, *, timeout: timedelta | float | None = None) -> Any:
        """Wait until a node of the graph has ended, and return its result; other nodes may run on.

        Raises:
            JobDead: the node is not done; the message says why.
            JobMissing: there is no such node, or its record is not kept any more.
            TimeoutError: it did not end in time.
        """
        at = (await self.node(node)).ordinal

        async def ended() -> bool | None:
            return await self._client.send(self._store.batch_ask(self.id, at)) or None

        await self._until(ended, timeout, f"node {node} of {self.id}", at)
        (found,) = await self.nodes(at, 1)
        return await result_of_node(self._client, self._store, self.id, found)

    async def results(self, limit: int = 1000) -> list[Any]:
        """Return the results of the first of its jobs that are done, as long as their records are kept."""
        found = await self._members(("done",), limit)
        jobs = [(member.queue, member.id) for member in found if member.batch is None]
        values = await read_results(self._client, jobs)
        kept = {job: value for (_, job), value in zip(jobs, values, strict=True) if not isinstance(value, ResultGone)}
        return await open_results(self._client, [*kept], [*kept.values()])

    async def _members(self, outcomes: Sequence[str], limit: int) -> list[Member]:
        status = await self.status()
        codes = [code for code, outcome in enumerate(OUTCOMES) if outcome in outcomes]
        return await self._client.run(with_codes(self._store, self.id, status.ordinals, codes, limit))

    async def wait(self, timeout: timedelta | float | None = None) -> BatchRecord:
        """Wait until the batch has ended, and return it. `timeout`: the longest wait; None = without a limit.

        Raises:
            JobMissing: there is no such batch.
            TimeoutError: it did not end in time.
        """

        async def ended() -> BatchRecord | None:
            status = await self.status()
            return status if status.finished is not None else None

        return await self._until(ended, timeout, f"batch {self.id}")

    async def _until(
        self,
        ended: Callable[[], Awaitable[T | None]],
        timeout: timedelta | float | None,
        what: str,
        node: int | None = None,
    ) -> T:
        """Wait until the batch, or a node of it, has ended, and `ended` returns something."""
        until = float("inf") if timeout is None else time.monotonic() + finite_seconds("timeout", timeout)
        while (found := await ended()) is None:
            block = min(until - time.monotonic(), _BLOCK)
            if block <= 0:
                raise TimeoutError(f"{what} did not end in time")
            try:
                await self._client.wait_for(Wait(self._store.wait_for_batch(self.id, block, node), block))
            except StoreDown:
                await self._client.perform(Sleep(reconnect_delay(1)))
        return found

    def batch(self, id: str | None = None, *, queue: str | None = None, **options: Any) -> NewBatch:  # noqa: A002
        """Return a batch in this one, which counts as one of its jobs. Arguments as of `App.batch`."""
        return NewBatch(id, queue or self.queue, self._client, cast("BatchOptions", options), parent=self)

    async def adopt(self, child: str, queue: str) -> tuple[str, str]:
        """Reserve an ordinal for a batch; return the address of the member, and the token to confirm."""
        token = token_hex(8)
        found = await self._client.send(
            self._store.batch_add(
                self.id, token, 1, queue, ids=[f"/{child}"], member=self._member, confirms=self._next_written()
            )
        )
        if found.first is None:
            raise JobLate(f"batch {self.id} of queue {self.queue} {found.refusal}")
        return f"{self.queue}/{self.id}/{found.first}", token

    async def adopted(self, token: str) -> None:
        """Confirm the reservation for a batch that is open."""
        self._written.append(token)
        await self._confirm_soon()

    async def share_pause(self, inner: InnerBatch) -> None:
        """Pause a batch that was opened in this one, if this one is paused. It was listed before."""
        paused = await self._client.run(pausing.present(self._store, self.id))
        if paused.is_paused:
            await self._client.run(pausing.follow(self._client.store(inner.queue), inner, paused))

    async def refused(self, address: str, token: str) -> None:
        """Give the reservation back for a batch whose id is taken."""
        await self._give_back(int(address.rpartition("/")[2]), 1, token)
        await self._confirm_soon()

    async def _confirm_soon(self) -> None:
        if not self._is_open:
            await self._confirm_all()


class NewBatch(Batch):
    """A batch that is to be opened: as a context manager, which closes it at the end, or by `open`.

    If the block raises an exception, the batch is cancelled.

    Raises:
        ConfigError, BadArguments: an option is not valid.
    """

    def __init__(
        self,
        id: str | None,  # noqa: A002 - as of a job
        queue: str,
        client: Client,
        options: BatchOptions,
        parent: Batch | None = None,
    ) -> None:
        name = os.urandom(10).hex() if id is None else id
        check.identifier("id", name)
        if len(name) > ID_MOST:
            raise ConfigError(f"id: a batch's id has at most {ID_MOST} characters")
        super().__init__(name, queue, client)
        self._parent = parent
        self._fields, self._expires, self._retention = read_options(options)

    async def open(self) -> Batch:
        """Open the batch, and return it; `close` it after its last job.

        Raises:
            JobExists: there is a batch of that id, and its retention is not over.
        """
        address, token = "", ""
        if self._parent is not None:
            address, token = await self._parent.adopt(self.id, self.queue)
        call = self._store.batch_open(
            self.id,
            token_hex(8),
            retention=self._retention,
            expires=self._expires,
            parent=address,
            fields=self._fields,
        )
        try:
            await self._client.send(call)
        except JobExists:
            if self._parent is not None:
                await self._parent.refused(address, token)
            raise
        if self._parent is not None:
            await self._parent.adopted(token)
            await self._parent.share_pause(InnerBatch(self.queue, self.id, address))
        return self

    async def __aenter__(self) -> Self:
        await self.open()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        if kind is None:
            await self.close()
        else:
            await self.cancel()


async def batch_of_job(client: Client, queue: str, job_id: str) -> Batch | None:
    """Return the batch that a job is a member of; None if it is in none."""
    shard = client.store(client.shards.home(queue, job_id))
    found = await client.send(shard.member_of(job_id))
    if found is None:  # it may be in another shard
        for other in await client.whole(queue):
            found = found or await client.send(other.member_of(job_id))
    home, _, rest = (found or b"").decode(errors="replace").partition("/")
    name, _, member = rest.partition("/")
    if not (keys.NAME.fullmatch(home) and keys.NAME.fullmatch(name)):
        return None
    return Batch(name, home, client, member)
