"""The clients: enqueue, cancel, look up, wait. `Client` is for programs with an event loop, `SyncClient` for others."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from copy import copy
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from evsched import keys
from evsched.client import graph_nodes, operations, spread, sweep
from evsched.client.operations import Nodes, Query, Send, SendMany, Sleep, Step, UseCodec, Wait, in_own_loop
from evsched.client.option_values import Unique
from evsched.client.queue_client import QueueClient
from evsched.client.reshard import finish_moves
from evsched.client.sealing import seal_jobs, seal_node
from evsched.client.spread import Parts
from evsched.client.sweep import Filter, Sweep, Swept
from evsched.client.transaction import without_loop
from evsched.config import DEFAULT_QUEUE, PAYLOAD_CAP
from evsched.errors import JobMissing
from evsched.jobs.job import OnConflict
from evsched.jobs.record import JobStatus, Place
from evsched.jobs.sealed import PayloadCodec
from evsched.shards import NONE, Shards
from evsched.store.client_calls import New
from evsched.store.operator_calls import Match
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport.call import T
from evsched.transport.links import finish
from evsched.transport.senders import SyncSender

if TYPE_CHECKING:
    from evsched.client.edit import Changes, Edited
    from evsched.client.explain import Explanation


class Client(QueueClient):
    """For programs with an event loop. Connects on first use; any number of tasks may share it.

    Every method raises StoreDown if Redis cannot be reached for 5 s, and StoreRefused when Redis refuses.
    """

    payload_cap = PAYLOAD_CAP
    """The largest payload that it writes, in bytes."""

    def ledger_time(self) -> float | None:
        """Return the time at which the ledger is written to, on a test's clock; None = by PostgreSQL's clock."""
        return None

    def note_rows(self, connection: Any, rows: Sequence[int | None]) -> None:
        """Do nothing. The client of a test notes here which rows the test has written, and how to look for them."""

    def without_loop(self) -> SyncClient:
        """Return a client of the same Redis for a program without an event loop."""
        found = SyncClient(self._url, self.shards)
        found.client.with_codec(self.codec, self.payload_cap)
        return found

    def with_codec(self, codec: PayloadCodec | None, payload_cap: int = PAYLOAD_CAP) -> Self:
        """Have the client seal and open by a codec; return the client."""
        self.codec, self.payload_cap = codec, payload_cap
        return self

    async def sealed(self, jobs: Sequence[New]) -> Sequence[New]:
        """Return jobs with their arguments sealed, if there is a codec, each for its own id.

        Raises:
            ConfigError: a payload is too large.
        """
        if self.codec is None:
            return jobs
        return await self.perform(UseCodec(lambda codec: seal_jobs(codec, jobs, self.payload_cap)))

    async def sealed_node(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the payload of a node of a graph with its arguments sealed, as `sealed`."""
        if self.codec is None:
            return payload
        return await self.perform(UseCodec(lambda codec: seal_node(codec, payload, self.payload_cap)))

    def parts_of(self, queue: str, job_id: str) -> Parts:
        """Return where a job of a queue may be."""
        return spread.parts_of(self.shards, self.acting(), queue, job_id)

    async def enqueue(
        self, queue: str, jobs: Sequence[New], on_conflict: OnConflict | None = None, unique: Unique | None = None
    ) -> list[float]:
        """Put jobs on a queue's schedule, 400 in one round trip; return their dues.

        `unique`: why the jobs have the ids that they have (`unique_id`); None if they are not unique.

        Raises:
            JobExists: a job of one of the ids has not ended; then none of those in its round trip was written.
        """
        if self.codec is not None:
            jobs = await self.sealed(jobs)
        return await self.run(spread.enqueue(self.shards, self.store, queue, jobs, on_conflict, unique))

    async def status(self, queue: str, job_id: str) -> JobStatus | None:
        """Return the place of a job and the content of its record; None if there is no job of that id."""
        return await self.run(spread.status(self.parts_of(queue, job_id), job_id))

    async def explain(self, queue: str, job_id: str) -> Explanation:
        """Explain why a job has not run yet, or the next step of the recurrence of this name, as `evsched explain`.

        It asks the workers about a ready job, which takes half a second if one of them does not answer.

        Raises:
            JobMissing: there is no such job and no such recurrence.
        """
        from evsched.client.explain import no_explanation
        from evsched.client.explain_job import explain_any  # slow to import, and few programs need it

        found = await self.run(explain_any(self.shards, self.parts_of(queue, job_id), queue, job_id))
        if found is None:
            raise JobMissing(no_explanation(job_id, queue))
        return found

    async def cancel(self, queue: str, job_id: str) -> Place:
        """Delete a waiting job, or have its worker stop it; return the place where it was.

        Raises:
            JobMissing
        """
        return (await self.run(spread.cancel(self.parts_of(queue, job_id), job_id))).place

    async def signal(self, queue: str, job_id: str, signal: str, value: Any = None) -> bool:
        """Send a signal to a job, with a JSON value; return False if one of that name had come, which stays.

        A job that waits for it (`evsched.steps.wait_for`) runs at once; otherwise it is kept until the job does. If the
        call was sent twice, because a reply was lost, False may also be about the first time.

        Raises:
            JobMissing: there is no such job, it has ended or is dead, or its wait for the signal is over.
            ConfigError: the name or the value is not valid.
        """
        return (await self.run(graph_nodes.signal(self.parts_of(queue, job_id), job_id, signal, value))) != "known"

    async def reschedule(
        self,
        queue: str,
        job_id: str,
        due: datetime | float | None = None,
        *,
        delay: timedelta | float | None = None,
    ) -> float:
        """Give a waiting job another `due`, or a `delay` from now; without either it is due now. Return the due.

        Raises:
            JobMissing, JobRunning
            ConfigError: the time is not valid.
        """
        return await self.run(
            spread.of_job(self.parts_of(queue, job_id), lambda store: operations.reschedule(store, job_id, due, delay))
        )

    async def edit(
        self,
        queue: str,
        job_id: str,
        *,
        version: str | None = None,
        **changes: Unpack[Changes],
    ) -> Edited:
        """Change the arguments, tags, priority or group of a job that waits, or is dead; return what changed.

        If it waits, the due can change too.

        `args` and `kwargs` stand for all arguments; those given as "[redacted]" keep the value that readers do not get.
        `version`: of the `JobStatus` that you have read, so that nobody's edit is overwritten; None = any. A dead job
        stays dead: `revive` it afterwards.

        Raises:
            JobMissing: no job of this id waits or is dead.
            JobRunning: a worker has it; it is never edited then.
            JobChanged: it was edited, replaced or rescheduled since; or a crowd of others edits it all the time.
            ConfigError: a value is not valid, or the payload is too large; or a dead job is given a due.
        """
        from evsched.client.edit import check_changes, edit  # it imports the targets

        check_changes(changes)
        parts = self.parts_of(queue, job_id)
        return await self.run(
            spread.of_job(parts, lambda store: edit(store, job_id, version, changes, self.payload_cap))
        )

    async def find(self, queue: str, matching: Filter, place: Place | None = None) -> list[Match]:
        """Return the waiting and dead jobs that match a filter, in no order; with a `place`, only there.

        A job that moves to another place meanwhile may be missed.

        Raises:
            ConfigError: there is no such place.
        """
        return await self.run(sweep.find(await self.whole(queue), matching, place))

    async def cancel_matching(self, queue: str, matching: Filter) -> Swept:
        """Delete the waiting jobs that match a filter. Jobs that workers hold go on.

        It takes many short calls. If it is interrupted, the jobs up to then are deleted; call it again for the rest.

        Raises:
            ConfigError: the filter has no condition.
        """
        return await self._sweep(queue, lambda stores: sweep.cancelling(stores, matching))

    async def reschedule_matching(
        self,
        queue: str,
        matching: Filter,
        due: datetime | float | None = None,
        *,
        delay: timedelta | float | None = None,
    ) -> Swept:
        """Give the waiting jobs that match a filter another due, as `reschedule`. Works and raises as the above."""
        return await self._sweep(queue, lambda stores: sweep.rescheduling(stores, matching, due, delay))

    async def revive_matching(self, queue: str, matching: Filter) -> Swept:
        """Schedule the dead jobs that match a filter again, due now, with all attempts. As the above."""
        return await self._sweep(queue, lambda stores: sweep.reviving(stores, matching))

    async def drop_matching(self, queue: str, matching: Filter) -> Swept:
        """Delete the dead jobs that match a filter. As the above."""
        return await self._sweep(queue, lambda stores: sweep.dropping(stores, matching))

    async def _sweep(self, queue: str, plan: Callable[[Sequence[Store]], Sweep]) -> Swept:
        stores = await self.whole(queue)
        work = plan(stores)
        if len(stores) > 1:
            await self.run(finish_moves(stores))
        return await self.run(work.finish())

    async def revive(self, queue: str, ids: Sequence[str]) -> int:
        """Schedule dead jobs again by their ids, due now, with all attempts; return how many.

        A node of a graph that is dead without a job is started again, if the queue is the home of the graph.

        Raises:
            JobMissing: one of them is not dead; then none was changed, or of a queue with shards, none of its shard.
            JobLate: a node without a job is of a graph that is done, was cancelled or has expired.
        """
        return await self.run(graph_nodes.revive(self._parts_of_acting(queue), ids))

    async def run_again(self, queue: str, job_id: str) -> str:
        """Enqueue a copy of a job that has ended, due now, and return its id. For a dead job, use `revive`.

        The copy is a job of its own, also if a recurrence made the first one, or a row of a ledger.

        Raises:
            JobExists: the job has not ended.
            JobMissing: its record is not kept any more.
        """
        from evsched.client.run_again import run_again

        make = self.acting()
        parts = spread.parts_of(self.shards, make, queue, job_id)
        return await self.run(
            run_again(parts, lambda copy: make(self.shards.home(queue, copy)), job_id, self.payload_cap)
        )

    async def drop(self, queue: str, ids: Sequence[str]) -> int:
        """Delete dead jobs by their ids; return how many. Raises as `revive`."""
        return await self.run(spread.change_dead(self._parts_of_acting(queue), ids, Store.drop))

    def _parts_of_acting(self, queue: str) -> Callable[[str], Parts]:
        return partial(spread.parts_of, self.shards, self.acting(), queue)

    async def result(self, queue: str, job_id: str, timeout: timedelta | float | None, row: int | None = None) -> Any:
        """Wait until a job has ended, and return its result. Nothing polls: Redis answers when the job ends.

        `row`: the number of its row in the ledger, which a relay has yet to schedule; None = it has no row.

        Raises:
            JobDead: the job was given up, with the reason, or cancelled.
            JobMissing: there is no such job, it was cancelled while it waited, or its retention is over.
            TimeoutError: it did not end within `timeout`: a timedelta, or seconds; None waits without a limit.
            ConfigError: the timeout is not a duration.
        """
        # A relay schedules the rows of the ledger in the queue itself.
        parts = self.parts_of(queue, job_id) if row is None else Parts(queue, self.store, [self.store(queue)])
        return await self.run(spread.of_job(parts, lambda store: operations.result(store, job_id, timeout, row)))


class BlockingClient(Client):
    """A client whose coroutines never wait for an event loop: they block their thread, so they end when started."""

    def __init__(self, url: str, shards: Shards = NONE) -> None:
        super().__init__(url, shards)
        self.sync_sender = SyncSender(url)

    async def perform(self, step: Step) -> Any:
        """Perform one step, without waiting for an event loop."""
        if isinstance(step, Send):
            send = self.sync_sender
            return send.send_and_wait(step.call, step.wait) if step.wait else send.send(step.call, limit=step.limit)
        if isinstance(step, SendMany):
            return self.sync_sender.send_all(step.calls, step.limit)
        if isinstance(step, Nodes):
            return [self.sync_sender.node_of(step.near)] if step.near is not None else self.sync_sender.nodes()
        if isinstance(step, Query):
            return step.statement.by(without_loop(step.connection))
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)  # noqa: ASYNC251 - there is no event loop that it could block
        if isinstance(step, Wait):
            return self.sync_sender.send(step.call, step.block)
        return await super().perform(step)

    async def _awaited(self, work: Awaitable[T]) -> T:
        """Await something in a thread: that of the caller may have an event loop, which must not run meanwhile."""
        return in_own_loop(work)


P = ParamSpec("P")
R = TypeVar("R")


def _sync(method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[SyncClient, P], R]:
    """Return the method of `SyncClient` that runs one of `Client`."""

    @wraps(method)
    def call(self: SyncClient, *args: P.args, **kwargs: P.kwargs) -> R:
        return finish(getattr(self.client, method.__name__)(*args, **kwargs))

    return call


class SyncClient:
    """For programs without an event loop. Any number of threads may share it, and it survives a fork.

    Its methods do the same as those of `Client`. `kind` makes the client that they call.
    """

    def __init__(
        self, url: str, shards: Shards = NONE, kind: Callable[[str, Shards], BlockingClient] = BlockingClient
    ) -> None:
        self.url = url
        self.client = kind(url, shards)

    @property
    def shards(self) -> Shards:
        """How many shards queues have."""
        return self.client.shards

    @shards.setter
    def shards(self, shards: Shards) -> None:
        self.client.shards = shards

    def store(self, queue: str) -> Store:
        """Return the calls of a queue, without its shards."""
        return self.client.store(queue)

    def stores(self, queue: str) -> list[Store]:
        """Return the calls of each shard of a queue and, last, of the queue itself."""
        return self.client.stores(queue)

    def parts_of(self, queue: str, job_id: str) -> Parts:
        """Return where a job of a queue may be."""
        return self.client.parts_of(queue, job_id)

    def as_operator(self, who: str, source: str = "python") -> Self:
        """Return this client for an operator, as `Client.as_operator`."""
        found = copy(self)
        found.client = self.client.as_operator(who, source)
        return found

    def now(self, queue: str = DEFAULT_QUEUE) -> float:
        """Return the clock of the Redis that has a queue, in Unix seconds."""
        return self.send(clock(keys.root(queue)))

    run = _sync(Client.run)
    send = _sync(Client.send)
    whole = _sync(Client.whole)
    enqueue = _sync(Client.enqueue)
    declare = _sync(Client.declare)
    remove = _sync(Client.remove)
    status = _sync(Client.status)
    explain = _sync(Client.explain)
    cancel = _sync(Client.cancel)
    edit = _sync(Client.edit)
    signal = _sync(Client.signal)
    reschedule = _sync(Client.reschedule)
    find = _sync(Client.find)
    cancel_matching = _sync(Client.cancel_matching)
    reschedule_matching = _sync(Client.reschedule_matching)
    revive_matching = _sync(Client.revive_matching)
    drop_matching = _sync(Client.drop_matching)
    pause = _sync(Client.pause)
    resume = _sync(Client.resume)
    history = _sync(Client.history)
    history_page = _sync(Client.history_page)
    history_counts = _sync(Client.history_counts)
    limits = _sync(Client.limits)
    limit = _sync(Client.limit)
    revive = _sync(Client.revive)
    drop = _sync(Client.drop)
    run_again = _sync(Client.run_again)
    audit = _sync(Client.audit)
    quiet_worker = _sync(Client.quiet_worker)
    stop_worker = _sync(Client.stop_worker)
    calendars = _sync(Client.calendars)
    set_calendar = _sync(Client.set_calendar)
    remove_calendar = _sync(Client.remove_calendar)
    windows = _sync(Client.windows)
    set_window = _sync(Client.set_window)
    remove_window = _sync(Client.remove_window)
    result = _sync(Client.result)

    def close(self) -> None:
        """Close the connections; those in use close after their call. A later call opens a new one."""
        self.client.sync_sender.close()
