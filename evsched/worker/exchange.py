"""The exchange: one round trip that writes the outcomes of runs that have ended and starts the next jobs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from evsched import events, keys
from evsched.errors import FULL, StoreError
from evsched.execution.run import Run
from evsched.jobs.job import Forwarded
from evsched.store.batch_size import Batch
from evsched.store.run_ends import NotEnded
from evsched.store.server import clock
from evsched.store.workers import Fetched
from evsched.transport.call import Call
from evsched.transport.redis_errors import PutOff
from evsched.transport.senders import BatchingSender, DirectSender
from evsched.worker.served_queue import ServedQueue

_FINISH: Final = 1.0
"""Seconds to wait for the last exchange. If its reply is not there by then, its connection is most likely dead."""


_NO_MEMORY: Final = "Redis's memory is full, and its message needs some: raise `maxmemory`"


class Exchanged(Struct):
    """The result of an exchange."""

    sent: float
    """When it was sent, by the monotonic clock."""
    written: list[tuple[list[Run], list[str]]]
    """The runs whose end was written, by call, each with the ids that were lost."""
    unwritten: list[Run]
    refused: list[Run]
    """The runs whose message Redis refused, or takes later. Each has another outcome now, which is to be written."""
    started: Fetched | None = None
    """None: nothing was asked for, or that failed."""
    error: BaseException | None = None
    """The last failure. The runs in `unwritten`, and the start if `started` is None, have to be sent again."""


class Exchange:
    """Sends exchanges, with as many jobs in a script as Redis can handle quickly.

    `shared`: the sender on which a worker sends the exchanges of several queues, so that those of one moment travel
    together; None = a connection of its own.
    """

    def __init__(self, served: ServedQueue, shared: BatchingSender | None = None) -> None:
        self._served = served
        self._shared = shared is not None
        self._sender = shared or DirectSender(served.runtime.config.url, near=keys.root(served.queue))
        self._batch = Batch(served.runtime.config.batch)
        self._put_off = PutOff()
        self._sending = asyncio.Lock()
        """Held while an exchange is under way."""
        self.finished = False
        """No other exchange is to be begun: the worker hands back what it holds."""

    @property
    def limit(self) -> int:
        """The number of jobs that one script may end or start."""
        return self._batch.limit

    async def send(self, ended: list[Run], fetched: list[str], hold: int, *, wait: bool) -> Exchanged:
        """Write these ends, start what was fetched, and take more until `hold` are held; 0 = start nothing.

        `wait`: if ready is empty, the worker waits for a message.

        Raises nothing that Redis causes, nor a cancellation: `Exchanged.error` has it.
        """
        store, worker, config = self._served.store, self._served.worker, self._served.runtime.config
        writes = store.end_runs(worker, ended)
        calls: list[Call[Any]] = [call for call, _ in writes]
        if hold:
            cap = config.payload_cap
            calls.append(store.start(worker, fetched, hold=hold, lease=config.lease, cap=cap, wait=wait))
        result = Exchanged(time.monotonic(), [], [], [])
        if not calls:
            return result
        # Decided by the number of ends, not of free slots: `start` asks for all of those even when it gets one job.
        timed = self._batch.worth_timing(len(ended))
        async with self._sending:
            replies = await self._attempt([clock(), *calls, clock()] if timed else calls)
        if timed:
            self._note_cost(writes, replies)
            replies = replies[1:-1]
        for (_, runs), reply in zip(writes, replies, strict=False):
            self._read(result, runs, reply)
        if hold and isinstance(replies[-1], BaseException):
            result.error = replies[-1]
        elif hold:
            result.started = replies[-1]
        return result

    async def finish(self) -> None:
        """Have no other exchange begun, and wait a second at most for the one that is under way."""
        self.finished = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINISH), self._sending:
                pass

    async def close(self) -> None:
        """Cut the connection, unless it is shared."""
        if not self._shared:
            await self._sender.close()

    def _read(self, result: Exchanged, runs: list[Run], reply: Any) -> None:
        """Note in the result what became of the runs of one call."""
        if lacks_memory(runs, reply):
            self._served.runtime.emit(events.RedisFailed(kind=FULL))
            delay = self._put_off.refused()
            for run in runs:
                run.put_off(delay, _NO_MEMORY)
            result.refused += runs
            return
        if isinstance(reply, BaseException):
            result.error = reply
            result.unwritten += runs
            return
        if is_forward(runs):
            self._put_off.accepted()
        if reply.refused:
            refused = [run for run in runs if run.job.id in reply.refused]
            for run in refused:
                run.refuse(reply.refused[run.job.id])
            result.refused += refused
            runs = [run for run in runs if run not in refused]
        result.written.append((runs, reply.lost))

    async def _attempt(self, calls: list[Call[Any]]) -> list[Any]:
        try:
            return await self._sender.attempt_all(calls)
        except (StoreError, asyncio.CancelledError) as error:
            failed: Any = error
            return [failed] * len(calls)

    def _note_cost(self, writes: list[tuple[Call[NotEnded], list[Run]]], replies: list[Any]) -> None:
        """Note how long Redis was busy with a script, from its time before and after them."""
        if not (isinstance(replies[0], float) and isinstance(replies[-1], float)):
            return
        counts = [len(runs) for _, runs in writes]
        counts += [len(reply.jobs) for reply in replies[-2:-1] if isinstance(reply, Fetched)]
        self._batch.took(max(counts), (replies[-1] - replies[0]) / (len(replies) - 2))


def lacks_memory(ended: Sequence[Run], reply: object) -> bool:
    """Return whether no run of a call of `end_runs` has ended, because Redis has no memory for their messages."""
    return isinstance(reply, StoreError) and reply.kind == FULL and is_forward(ended)


def is_forward(ended: Sequence[Run]) -> bool:
    """Return whether the runs of a call of `end_runs` end with messages."""
    return len(ended) > 0 and isinstance(ended[0].outcome, Forwarded)
