"""The client of programs without an event loop: as `Client`, without await."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from evsched import keys
from evsched.client import gate, operations, spread, sweep
from evsched.client.gate import LimitOptions
from evsched.client.operations import AskWorkers, Nodes, Operation, Send, Sleep, Step
from evsched.client.option_values import Unique
from evsched.client.spread import Parts
from evsched.client.sweep import Filter, Swept
from evsched.client.sweeps import sweep_all
from evsched.config import DEFAULT_QUEUE
from evsched.jobs.job import JobStatus, OnConflict, Place
from evsched.shards import NONE, Shards
from evsched.store.clients import New
from evsched.store.limits import Limits, merged
from evsched.store.matching import Match
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport import address
from evsched.transport.call import Call, T
from evsched.transport.senders import SyncSender

if TYPE_CHECKING:
    from evsched.client.explain import Explanation
    from evsched.recurrence.recurrence import Declared


class SyncClient:
    """For programs without an event loop. Any number of threads may share it. Raises as `Client` does."""

    def __init__(self, url: str, shards: Shards = NONE) -> None:
        self.url = url
        self.shards = shards
        """How many shards queues have."""
        self._sender = SyncSender(url)

    @cached_property
    def _by(self) -> str:
        return address.user(self.url)

    def store(self, queue: str) -> Store:
        """Return the calls of a queue, without its shards."""
        return Store(queue, by=self._by)

    def stores(self, queue: str) -> list[Store]:
        """Return the calls of each shard of a queue and, last, of the queue itself."""
        return [self.store(name) for name in self.shards.all_of(queue)]

    def whole(self, queue: str) -> list[Store]:
        """Return as `stores`, with the shards that Redis knows of and this process does not."""
        return self.run(spread.whole(self.shards, self.store, queue))

    def parts_of(self, queue: str, job_id: str) -> Parts:
        """Return where a job of a queue may be."""
        return spread.parts_of(self.shards, self.store, queue, job_id)

    def run(self, operation: Operation[T]) -> T:
        """Perform the steps of an operation, and return its result."""
        # `perform` never waits for an event loop, so the coroutine ends when it is started.
        coroutine = operations.run(operation, self.perform)
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("a step of SyncClient waited for an event loop")

    async def perform(self, step: Step) -> Any:
        """Perform one step, without waiting for an event loop."""
        if isinstance(step, Send):
            send = self._sender
            return send.send_and_wait(step.call, step.wait) if step.wait else send.send(step.call, limit=step.limit)
        if isinstance(step, Nodes):
            return [self._sender.node_of(step.near)] if step.near is not None else self._sender.nodes()
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)  # noqa: ASYNC251 - there is no event loop that it could block
        if isinstance(step, AskWorkers):
            import asyncio  # these are slow to import, and only `explain` needs them
            from concurrent.futures import ThreadPoolExecutor

            from evsched.top.collector import fetch_pauses

            with ThreadPoolExecutor(1) as threads:  # the thread of the caller may have an event loop
                return threads.submit(asyncio.run, fetch_pauses(self.url, step.queue)).result()
        return self._sender.send(step.call, step.block)

    def send(self, call: Call[T]) -> T:
        """Send a call of the store, as `Client.send`."""
        return self.run(operations.send(call))

    def enqueue(
        self, queue: str, jobs: Sequence[New], on_conflict: OnConflict | None = None, unique: Unique | None = None
    ) -> list[float]:
        """Put jobs on a queue's schedule, as `Client.enqueue`."""
        return self.run(spread.enqueue(self.shards, self.store, queue, jobs, on_conflict, unique))

    def declare(self, queue: str, recurrence: Declared) -> Literal["made", "changed", "same"]:
        """Create or change a recurrence, as `Client.declare`."""
        from evsched.client import recurrence_operations  # calendars take 10 ms to import

        return self.run(recurrence_operations.declare(self.store(queue), recurrence))

    def remove(self, queue: str, name: str) -> None:
        """Delete a recurrence, as `Client.remove`."""
        self.send(self.store(queue).remove(name))

    def status(self, queue: str, job_id: str) -> JobStatus | None:
        """Return where a job is and what its record says, as `Client.status`."""
        return self.run(spread.status(self.parts_of(queue, job_id), job_id))

    def explain(self, queue: str, job_id: str) -> Explanation:
        """Explain why a job has not run yet, as `Client.explain`."""
        from evsched.client.explain_job import explain_known

        return self.run(explain_known(self.shards, self.parts_of(queue, job_id), queue, job_id))

    def cancel(self, queue: str, job_id: str) -> Place:
        """Delete a waiting job, or have its worker stop it, as `Client.cancel`."""
        return self.run(spread.cancel(self.parts_of(queue, job_id), job_id)).place

    def reschedule(
        self,
        queue: str,
        job_id: str,
        due: datetime | float | None = None,
        *,
        delay: timedelta | float | None = None,
    ) -> float:
        """Give a waiting job another due, as `Client.reschedule`."""
        return self.run(
            spread.of_job(self.parts_of(queue, job_id), lambda store: operations.reschedule(store, job_id, due, delay))
        )

    def find(self, queue: str, matching: Filter, place: sweep.Waiting | None = None) -> list[Match]:
        """Return the waiting and dead jobs that match a filter, as `Client.find`."""
        return self.run(spread.find(self.whole(queue), matching, place))

    def cancel_matching(self, queue: str, matching: Filter) -> Swept:
        """Delete the waiting jobs that match a filter, as `Client.cancel_matching`."""
        return self.run(sweep_all(self.store, self.whole(queue), lambda store: sweep.cancelling(store, matching)))

    def reschedule_matching(
        self,
        queue: str,
        matching: Filter,
        due: datetime | float | None = None,
        *,
        delay: timedelta | float | None = None,
    ) -> Swept:
        """Give the waiting jobs that match a filter another due, as `Client.reschedule_matching`."""
        return self.run(
            sweep_all(self.store, self.whole(queue), lambda store: sweep.rescheduling(store, matching, due, delay))
        )

    def revive_matching(self, queue: str, matching: Filter) -> Swept:
        """Schedule the dead jobs that match a filter again, as `Client.revive_matching`."""
        return self.run(sweep_all(self.store, self.whole(queue), lambda store: sweep.reviving(store, matching)))

    def drop_matching(self, queue: str, matching: Filter) -> Swept:
        """Delete the dead jobs that match a filter, as `Client.drop_matching`."""
        return self.run(sweep_all(self.store, self.whole(queue), lambda store: sweep.dropping(store, matching)))

    def pause(self, queue: str, *, until: datetime | float | None = None, why: str = "") -> float:
        """Pause a queue, as `Client.pause`."""
        since, _ = self.run(gate.pause(self.whole(queue), until, why))
        return since

    def resume(self, queue: str) -> float | None:
        """Resume a queue, as `Client.resume`."""
        return self.run(gate.resume(self.whole(queue)))

    def limits(self, queue: str) -> Limits:
        """Return the limits of a queue, as `Client.limits`."""
        return merged(self.run(gate.set_limits(self.whole(queue), {})))

    def limit(
        self, queue: str, *, group: str | None = None, task: str | None = None, **limits: Unpack[LimitOptions]
    ) -> Limits:
        """Set limits of a queue, or of one of its groups or tasks, as `Client.limit`."""
        fields = gate.limit_fields(group, task, gate.given(limits))
        return merged(self.run(gate.set_limits(self.whole(queue), fields)))

    def revive(self, queue: str, ids: Sequence[str]) -> int:
        """Schedule dead jobs again by their ids, as `Client.revive`."""
        return self.run(spread.change_dead(partial(self.parts_of, queue), ids, Store.revive))

    def drop(self, queue: str, ids: Sequence[str]) -> int:
        """Delete dead jobs by their ids, as `Client.drop`."""
        return self.run(spread.change_dead(partial(self.parts_of, queue), ids, Store.drop))

    def calendars(self, queue: str) -> dict[str, str]:
        """Return the calendars of a queue, as `Client.calendars`."""
        return self.send(self.store(queue).all_calendars())

    def set_calendar(self, queue: str, name: str, days: str | Iterable[date]) -> int:
        """Create or change a calendar, as `Client.set_calendar`."""
        from evsched.client import named_times  # calendars take 10 ms to import

        return self.run(named_times.set_calendar(self.store(queue), name, days))

    def remove_calendar(self, queue: str, name: str) -> None:
        """Delete a calendar, as `Client.remove_calendar`."""
        from evsched.client import named_times

        self.run(named_times.remove_calendar(self.store(queue), name))

    def windows(self, queue: str) -> dict[str, str]:
        """Return the named windows of a queue, as `Client.windows`."""
        return self.send(self.store(queue).windows())

    def set_window(self, queue: str, name: str, window: str) -> int:
        """Create or change a named window, as `Client.set_window`."""
        from evsched.client import named_times

        return self.run(named_times.set_window(self.whole(queue), name, window))

    def remove_window(self, queue: str, name: str) -> int:
        """Delete a named window, as `Client.remove_window`."""
        from evsched.client import named_times

        return self.run(named_times.remove_window(self.whole(queue), name))

    def result(self, queue: str, job_id: str, timeout: timedelta | float | None) -> Any:
        """Wait until a job has ended, and return its result, as `Client.result`."""
        parts = self.parts_of(queue, job_id)
        return self.run(spread.of_job(parts, lambda store: operations.result(store, job_id, timeout)))

    def now(self, queue: str = DEFAULT_QUEUE) -> float:
        """Return the clock of the Redis that has a queue, in Unix seconds."""
        return self.send(clock(keys.root(queue)))

    def close(self) -> None:
        """Close the connections. A later call opens a new one."""
        self._sender.close()
