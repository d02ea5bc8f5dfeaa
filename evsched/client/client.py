"""The clients: enqueue, cancel, look up, wait. `Client` is for programs with an event loop, `SyncClient` for others."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from copy import copy
from datetime import date, datetime, timedelta
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, cast

from evsched import keys
from evsched.client import gate, graph_nodes, operations, spread, sweep, worker_orders
from evsched.client import history as job_history
from evsched.client.gate import LimitOptions
from evsched.client.history import EVERY_END, HistoryFilter, HistoryPage, TaskCounts
from evsched.client.operations import (
    REPLY_TIMEOUT,
    ActFilter,
    AskWorkers,
    Nodes,
    Operation,
    Query,
    Send,
    SendMany,
    Sleep,
    Step,
    UseCodec,
    Wait,
)
from evsched.client.option_values import Past, Unique, unix
from evsched.client.reshard import finish_moves
from evsched.client.sealing import seal_jobs, seal_node
from evsched.client.spread import MakeStore, Parts
from evsched.client.sweep import Filter, Sweep, Swept
from evsched.client.transaction import without_loop
from evsched.config import DEFAULT_QUEUE, PAYLOAD_CAP
from evsched.errors import JobMissing, StoreDown
from evsched.jobs.job import OnConflict
from evsched.jobs.record import JobStatus, Place
from evsched.jobs.sealed import PayloadCodec
from evsched.shards import NONE, Shards
from evsched.store.acts import Act, AuditedAct, Operator, named_operator
from evsched.store.client_calls import New
from evsched.store.gate_limits import Limits, merged
from evsched.store.history_calls import PastJob
from evsched.store.operator_calls import Match
from evsched.store.recurrence_calls import Backfilled
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport import address
from evsched.transport.call import Call, T
from evsched.transport.links import finish
from evsched.transport.redis_errors import named
from evsched.transport.senders import BatchingSender, DirectSender, SyncSender

if TYPE_CHECKING:
    from evsched.client.edit import Changes, Edited
    from evsched.client.explain import Explanation
    from evsched.recurrence.recurrence import Declared


class Client:
    """For programs with an event loop. Connects on first use; any number of tasks may share it.

    Every method raises StoreDown if Redis cannot be reached for 5 s, and StoreRefused when Redis refuses.
    """

    def __init__(self, url: str, shards: Shards = NONE) -> None:
        self._url = url
        self.shards = shards
        """How many shards queues have."""
        self._sender = BatchingSender(url)
        self._operator: Operator | None = None
        """Who changes something with it; None = a program."""
        self.codec: PayloadCodec | None = None
        """Seals the jobs that it enqueues, and opens what it reads; None = it does neither."""
        self.payload_cap = PAYLOAD_CAP
        """The largest payload that may come of that, in bytes."""

    @cached_property
    def _by(self) -> str:
        return address.user(self._url)

    def as_operator(self, who: str, source: str = "python") -> Self:
        """Return this client for an operator, by name: what it changes then is in the audit trail (`audit`).

        Without it, the changes are those of a program, and are not. Both share their connections: close one of them.

        Raises:
            ConfigError: the name is not a text of 1 to 200 characters.
        """
        found = copy(self)
        found._operator = named_operator(who, source)
        return found

    def acting(self) -> MakeStore:
        """Return what makes the stores of one act: their calls have one entry in the audit trail of each queue."""
        return partial(self._make, act=None if self._operator is None else Act(self._operator))

    def _make(self, queue: str, act: Act | None = None) -> Store:
        return Store(queue, by=self._by, act=act)

    def ledger_time(self) -> float | None:
        """Return the time at which the ledger is written to, on a test's clock; None = by PostgreSQL's clock."""
        return None

    def note_rows(self, connection: Any, rows: Sequence[int | None]) -> None:
        """Do nothing. The client of a test notes here which rows the test has written, and how to look for them."""

    def without_loop(self) -> SyncClient:
        """Return a client of the same Redis for a program without an event loop."""
        return SyncClient(self._url, self.shards).with_codec(self.codec, self.payload_cap)

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

    def store(self, queue: str) -> Store:
        """Return the calls of a queue, without its shards."""
        return self.acting()(queue)

    def stores(self, queue: str) -> list[Store]:
        """Return the calls of each shard of a queue and, last, of the queue itself."""
        return [*map(self.acting(), self.shards.all_of(queue))]

    async def whole(self, queue: str) -> list[Store]:
        """Return as `stores`, with the shards that Redis knows of and this process does not."""
        return await self.run(spread.whole(self.shards, self.acting(), queue))

    def parts_of(self, queue: str, job_id: str) -> Parts:
        """Return where a job of a queue may be."""
        return spread.parts_of(self.shards, self.acting(), queue, job_id)

    async def run(self, operation: Operation[T]) -> T:
        return await operations.run(operation, self.perform)

    async def wait_for(self, wait: Wait) -> Any:
        """Wait for something that only other processes bring about. In tests there are none: see evsched.testing."""
        return await self.perform(wait)

    async def perform(self, step: Step) -> Any:
        """Perform one step."""
        if isinstance(step, Send | SendMany):
            return await self._send(step)
        if isinstance(step, Nodes):
            return [await self._sender.node_of(step.near)] if step.near is not None else await self._sender.nodes()
        if isinstance(step, Query):
            return await step.statement.by_any(step.connection)
        if isinstance(step, UseCodec):
            if self.codec is None:
                return None
            work = step.work(self.codec)
            return _in_own_loop(work) if self.codec.waits and not _has_loop() else await work
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, AskWorkers):
            from evsched.top.collector import ask_status  # only `explain` needs it

            return await ask_status(self._url, step.queue)
        # A connection of its own: a blocking call would hold up all others.
        waiting = DirectSender(self._url, reply_timeout=REPLY_TIMEOUT, near=step.call.near)
        try:
            return await waiting.send(step.call, step.block)
        finally:
            await waiting.close()

    async def _send(self, step: Send | SendMany) -> Any:
        try:
            async with asyncio.timeout(step.limit):
                if isinstance(step, SendMany):
                    return await self._sender.send_all(step.calls)
                if step.wait:
                    return await self._sender.send_and_wait(step.call, step.wait)
                return await self._sender.send(step.call)
        except TimeoutError:
            call = step.calls[0] if isinstance(step, SendMany) else step.call
            node = call.node or (None if call.near is None else await self._sender.node_of(call.near))
            problem = named(f"Redis gave no answer within {step.limit:g} s", node)
            raise StoreDown(problem, kind="timeout", node=node) from None

    async def send(self, call: Call[T]) -> T:
        """Send a call of the store, again while Redis is down: every script may run twice."""
        return await self.run(operations.send(call))

    async def enqueue(
        self, queue: str, jobs: Sequence[New], on_conflict: OnConflict | None = None, unique: Unique | None = None
    ) -> list[float]:
        """Put jobs on a queue's schedule, 1,000 in one round trip; return their dues.

        `unique`: why the jobs have the ids that they have (`unique_id`); None if they are not unique.

        Raises:
            JobExists: a job of one of the ids has not ended; then none of its thousand was written.
        """
        if self.codec is not None:
            jobs = await self.sealed(jobs)
        return await self.run(spread.enqueue(self.shards, self.store, queue, jobs, on_conflict, unique))

    async def declare(self, queue: str, recurrence: Declared) -> Literal["made", "changed", "same"]:
        """Create a recurrence, or change the one of that name; return which.

        Raises:
            ConfigError: a field of it is not valid, a calendar or window that it names does not exist, or it
                is too frequent for the retries of its task.
        """
        from evsched.client import recurrence_operations  # calendars take 10 ms to import

        return await self.run(recurrence_operations.declare(self.store(queue), recurrence))

    async def remove(self, queue: str, name: str) -> None:
        """Delete a recurrence, with the occurrences that it has on the schedule.

        Raises:
            JobMissing: there is no recurrence of that name.
        """
        await self.send(self.store(queue).remove(name))

    async def trigger(self, queue: str, name: str) -> str:
        """Run a recurrence once now, or when the runs have ended that it must not overlap with; return the job's id.

        Raises:
            ConfigError: no worker could run its payload, which another client wrote.
            JobMissing: there is no recurrence of that name, or it is stopped because the code no longer declares it.
        """
        from evsched.client import recurrence_operations

        job_id, _ = await self.run(recurrence_operations.trigger(self.store(queue), name))
        return job_id

    async def backfill(
        self, queue: str, name: str, since: datetime | float, until: datetime | float | None = None
    ) -> Backfilled:
        """Run planned times that have passed, from `since` on and before `until` (None = now), each once.

        Raises:
            JobMissing: as `trigger`.
            ConfigError: a time is not valid, or there are more than 10,000 planned times.
        """
        from evsched.client import recurrence_operations

        span = unix("since", since), math.inf if until is None else unix("until", until)
        return await self.run(recurrence_operations.backfill(self.store(queue), name, *span))

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
        payload_cap: int = PAYLOAD_CAP,
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
        return await self.run(spread.of_job(parts, lambda store: edit(store, job_id, version, changes, payload_cap)))

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

    async def pause(self, queue: str, *, until: datetime | float | None = None, why: str = "") -> float:
        """Pause a queue: running jobs finish, and no other starts; return since when it is paused, in Unix seconds.

        `until`: when the pause ends by itself; None = with `resume`. `why`: a sentence for people who look at it
        later. If the queue is paused already, both are replaced.

        Raises:
            ConfigError: the moment has passed, or the reason is too long.
        """
        since, _ = await self.run(gate.pause(await self.whole(queue), until, why))
        return since

    async def resume(self, queue: str) -> float | None:
        """Resume a queue; return since when it was paused, None if it was not."""
        return await self.run(gate.resume(await self.whole(queue)))

    async def history(
        self, queue: str, matching: HistoryFilter = EVERY_END, *, limit: int = 50, ledger: Any = None
    ) -> list[PastJob]:
        """Return the last jobs of a queue that have ended and match, at most `limit`, the newest first.

        `ledger`: a connection to the ledger's database, as for `enqueue_in`: then all that `evsched ledger history` has
        written there is searched too.
        """
        return (await self.run(job_history.search(await self.whole(queue), matching, limit, ledger=ledger))).jobs

    async def history_page(
        self,
        queue: str,
        matching: HistoryFilter = EVERY_END,
        *,
        limit: int = 50,
        cursor: str | None = None,
        most: float = math.inf,
    ) -> HistoryPage:
        """Return as `history`, of those in Redis, and a cursor for the next call, which returns older jobs.

        `most`: how many jobs are examined; a page may have fewer jobs for that, or none, and a cursor all the same.

        Raises:
            ConfigError: the cursor is not valid.
        """
        return await self.run(job_history.search(await self.whole(queue), matching, limit, cursor, most))

    async def history_counts(
        self,
        queue: str,
        *,
        since: Past = job_history.WEEK,
        until: Past | None = None,
        task: str | None = None,
        ledger: Any = None,
    ) -> list[TaskCounts]:
        """Return how many jobs of a queue ended within a span of whole hours, by task.

        `ledger`: as for `history`; without it, the span reaches back for at most eight days.
        """
        return await self.run(job_history.counts(await self.whole(queue), since, until, task, ledger))

    async def limits(self, queue: str) -> Limits:
        """Return the limits of a queue, the limits that the code declares, and its pause."""
        return merged(await self.run(gate.set_limits(await self.whole(queue), {})))

    async def limit(
        self, queue: str, *, group: str | None = None, task: str | None = None, **limits: Unpack[LimitOptions]
    ) -> Limits:
        """Set limits of a queue, or of one of its groups or tasks, over all workers and at once; return all limits.

        None removes a limit. `group` "*" is each group that has none of its own.

        Raises:
            ConfigError: a value is not valid, or cannot be divided among the shards of the queue.
        """
        fields = gate.limit_fields(group, task, cast("dict[str, timedelta | float | None]", limits))
        return merged(await self.run(gate.set_limits(await self.whole(queue), fields)))

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

    async def audit(
        self,
        queue: str | None,
        *,
        since: Past | None = None,
        until: Past | None = None,
        who: str | None = None,
        act: str | None = None,
        id: str | None = None,  # noqa: A002 - as the option of the command
        limit: int = 100,
    ) -> list[AuditedAct]:
        """Return what operators did to a queue, the latest first, at most `limit` acts.

        `queue`: None = the acts on no queue, by which tokens of the console were made and deleted. `since`, `until`:
        aware datetimes, Unix seconds or timedeltas before now, both included. `who`, `act`: the exact names. `id`: of a
        job, a recurrence or a user that was changed; of the jobs of one act, the first 4 KiB of ids are known.

        Raises:
            ConfigError: a time is not valid.
        """
        wanted = ActFilter(since, until, who, act, id)
        if queue is None:
            return await self.run(operations.read_deployment_acts(wanted, limit))
        return await self.run(operations.read_acts(queue, await self.whole(queue), wanted, limit))

    async def quiet_worker(self, worker: str, queues: Sequence[str] = ()) -> list[str]:
        """Ask a worker to fetch no more jobs, and to stay; return the queues that it serves.

        The jobs that it runs end. It fetches again only when it is started again. `queues`: where to look for it;
        none = all queues.

        Raises:
            EvschedError: no worker of this name serves one of them, or it does not listen.
        """
        return await self.run(worker_orders.order(self.shards, self.acting(), worker, keys.QUIET, queues))

    async def stop_worker(self, worker: str, queues: Sequence[str] = ()) -> list[str]:
        """Ask a worker to end as by SIGTERM; return the queues that it serves. Arguments and errors as above."""
        return await self.run(worker_orders.order(self.shards, self.acting(), worker, keys.STOP, queues))

    async def calendars(self, queue: str) -> dict[str, str]:
        """Return the calendars of a queue, by name, as text: "2026-01-01 2026-04-03..2026-04-06"."""
        return await self.send(self.store(queue).all_calendars())

    async def set_calendar(self, queue: str, name: str, days: str | Iterable[date]) -> int:
        """Create or change a calendar, at once; return how many recurrences were planned again.

        `days`: dates, or a text of dates and ranges, as `calendars` returns it.

        Raises:
            ConfigError: the name or the days are not valid, or there is no day.
        """
        from evsched.client import named_times

        return await self.run(named_times.set_calendar(self.store(queue), name, days))

    async def remove_calendar(self, queue: str, name: str) -> None:
        """Delete a calendar.

        Raises:
            InUse: a recurrence refers to it.
            JobMissing: there is no calendar of that name.
        """
        from evsched.client import named_times

        await self.run(named_times.remove_calendar(self.store(queue), name))

    async def windows(self, queue: str) -> dict[str, str]:
        """Return the named windows of a queue, by name."""
        return await self.send(self.store(queue).windows())

    async def set_window(self, queue: str, name: str, window: str) -> int:
        """Create or change a named window, at once; return how many jobs that waited for it are checked again.

        Raises:
            ConfigError: the name or the window is not valid, or it does not open within two years.
        """
        from evsched.client import named_times

        return await self.run(named_times.set_window(await self.whole(queue), name, window))

    async def remove_window(self, queue: str, name: str) -> int:
        """Delete a named window; return how many jobs that waited for it go to dead. Raises as `remove_calendar`."""
        from evsched.client import named_times

        return await self.run(named_times.remove_window(await self.whole(queue), name))

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

    async def close(self) -> None:
        """Close the connection. A later call opens a new one."""
        await self._sender.close()


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
        if isinstance(step, UseCodec) and self.codec is not None and self.codec.waits:
            return _in_own_loop(step.work(self.codec))
        if isinstance(step, UseCodec):
            return await super().perform(step)
        if isinstance(step, AskWorkers):
            from evsched.top.collector import ask_status  # only `explain` needs it

            return _in_own_loop(ask_status(self._url, step.queue))
        return self.sync_sender.send(step.call, step.block)


def _has_loop() -> bool:
    """Return whether this thread has an event loop that runs; `enqueue_in_sync` has none."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_own_loop(work: Awaitable[T]) -> T:
    """Do something that waits for an event loop, in a thread: that of the caller may have a loop that runs."""
    from concurrent.futures import ThreadPoolExecutor  # few programs need it

    async def wait() -> T:
        return await work

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, wait()).result()


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

    def with_codec(self, codec: PayloadCodec | None, payload_cap: int = PAYLOAD_CAP) -> Self:
        """Have the client seal and open by a codec, as `Client.with_codec`; return the client."""
        self.client.with_codec(codec, payload_cap)
        return self

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
