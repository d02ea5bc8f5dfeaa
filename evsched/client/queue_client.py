"""The part of a client about whole queues: recurrences, pauses, limits, past, workers, calendars and windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy
from datetime import date, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

from evsched import keys
from evsched.client import gate, past_acts, spread, worker_orders
from evsched.client import history as job_history
from evsched.client.gate import LimitOptions
from evsched.client.history import EVERY_END, HistoryFilter, HistoryPage, TaskCounts
from evsched.client.operations import Performer
from evsched.client.option_values import Past, unix
from evsched.client.past_acts import ActFilter
from evsched.client.spread import MakeStore
from evsched.shards import NONE, Shards
from evsched.store.acts import Act, AuditedAct, Operator, named_operator
from evsched.store.gate_limits import Limits, merged
from evsched.store.history_calls import PastJob
from evsched.store.recurrence_calls import Backfilled
from evsched.store.store import Store
from evsched.transport import address

if TYPE_CHECKING:
    from evsched.recurrence.recurrence import Declared


class QueueClient(Performer):
    """The part of `Client` that is about whole queues, and makes the calls of a queue."""

    def __init__(self, url: str, shards: Shards = NONE) -> None:
        super().__init__(url)
        self.shards = shards
        """How many shards queues have."""
        self._operator: Operator | None = None
        """Who changes something with it; None = a program."""

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

    def store(self, queue: str) -> Store:
        """Return the calls of a queue, without its shards."""
        return self._make(queue) if self._operator is None else self.acting()(queue)

    def stores(self, queue: str) -> list[Store]:
        """Return the calls of each shard of a queue and, last, of the queue itself."""
        return [*map(self.acting(), self.shards.all_of(queue))]

    async def whole(self, queue: str) -> list[Store]:
        """Return as `stores`, with the shards that Redis knows of and this process does not."""
        return await self.run(spread.whole(self.shards, self.acting(), queue))

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
            return await self.run(past_acts.read_deployment_acts(wanted, limit))
        return await self.run(past_acts.read_acts(queue, await self.whole(queue), wanted, limit))

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
