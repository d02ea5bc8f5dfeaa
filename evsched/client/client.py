"""The client: enqueue, cancel, look, wait, for programs with an event loop (`Client`) and without one (`SyncClient`).

What to send is built by the store's pure functions and by those of this file; the two classes only send it.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from evsched import keys
from evsched.config import PAYLOAD_CAP
from evsched.errors import ConfigError, JobDead, JobMissing, StoreDown
from evsched.jobs.job import JobStatus, OnConflict, Payload, Place, RetryFields, decode, encode
from evsched.jobs.retry import Retry
from evsched.recurrence.recurrence import Declared, read_recurrence
from evsched.recurrence.windows import WINDOW_NAME, read_window
from evsched.store.replies import New
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport.backoff import reconnect_delay
from evsched.transport.call import Call, T
from evsched.transport.senders import BatchingSender, BlockingSender, SyncSender

MANY: Final = 1000
"""Jobs in one round trip: about 3 ms of Redis's time."""

_PATIENCE: Final = 5.0
"""Seconds for which a call is repeated while Redis is away: a failover takes about that."""

_BLOCK: Final = 10.0
"""Seconds of one blocking call of a waiter, who then asks anew: so a connection that died in silence costs no more."""

_REPLY_TIMEOUT: Final = 1.5
"""Seconds after the end of a block in which its answer must have come."""


class Options(Struct, frozen=True, kw_only=True):
    """How a job is enqueued. Each is optional; None means the task's own, or Redis's now."""

    queue: str | None = None
    id: str | None = None
    due: datetime | float | None = None
    delay: timedelta | float | None = None
    priority: int | None = None
    group: str | None = None
    timeout: float | None = None
    retry: Retry | None = None
    retention: float | None = None
    expires: datetime | float | None = None
    reply: bool = False
    meta: dict[str, Any] | None = None
    window: str | None = None
    on_conflict: OnConflict | None = None


Sending = Callable[[str, str, Options, int | None], AbstractContextManager[Options]]
"""Stands around an enqueue: gets the task, the queue, the options, and the number of jobs of an `enqueue_many`; yields
the options to enqueue with."""


def random_id() -> str:
    """Return an id for a job."""
    # 96 random bits: ids of a whole fleet do not meet, and a long one would cost memory twice.
    return os.urandom(12).hex()


def unix(moment: datetime | float) -> float:
    """Return a moment in Unix seconds.

    Raises:
        ConfigError: a datetime without a zone; what is no moment at all.
    """
    if not isinstance(moment, datetime):
        return _number(moment, "is no time: give an aware datetime, or Unix seconds")
    if moment.tzinfo is None:
        raise ConfigError(f"{moment} has no time zone: give an aware datetime, such as datetime.now(UTC)")
    return moment.timestamp()


def seconds(length: timedelta | float) -> float:
    """Return a length in seconds.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(length, timedelta):
        return length.total_seconds()
    return _number(length, "is no length: give a timedelta, or seconds")


def _number(given: Any, wrong: str) -> float:
    try:
        if not isinstance(given, str):  # "5" is most often a field of a form that was not read
            return float(given)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ConfigError(f"{repr(given)[:200]} {wrong}")


def _limit(given: Any) -> float:
    return given if isinstance(given, (int, float)) else math.nan  # which no comparison holds for


def _check(options: Options) -> None:
    if options.id is not None and not keys.NAME.fullmatch(options.id):
        raise ConfigError(f"id {options.id[:200]!r}: an id is 1 to 200 of A-Z a-z 0-9 . _ : @ -")
    if options.priority is not None and options.priority not in range(10):
        raise ConfigError(f"priority {options.priority!r}: from 0 to 9, higher first")
    if options.group is not None and (not 0 < len(options.group.encode()) <= 200 or "}" in options.group):
        raise ConfigError("group: 1 to 200 bytes, without `}`")
    if options.due is not None and options.delay is not None:
        raise ConfigError("due and delay: give one of them")
    if options.window is not None and not WINDOW_NAME.fullmatch(options.window):
        read_window(options.window)
    if options.timeout is not None and not 0 < _limit(options.timeout) < math.inf:
        raise ConfigError(f"timeout is {options.timeout!r}: over 0 s, as a number")
    if options.retention is not None and not 0 <= _limit(options.retention) < math.inf:
        raise ConfigError(f"retention is {options.retention!r}: 0 s or more, as a number")
    # NaN is what no comparison holds for.
    if options.delay is not None and not seconds(options.delay) < math.inf:
        raise ConfigError(f"delay is {options.delay!r}: a number of seconds")
    for name, moment in (("due", options.due), ("expires", options.expires)):
        if moment is not None and math.isnan(unix(moment)):
            raise ConfigError(f"{name} is nan: Unix seconds")
    if options.on_conflict is not None and options.on_conflict not in get_args(OnConflict):
        near = difflib.get_close_matches(str(options.on_conflict)[:200], get_args(OnConflict), n=1)
        hint = f", did you mean {near[0]!r}?" if near else ": 'replace' or 'keep'"
        raise ConfigError(f"on_conflict is {repr(options.on_conflict)[:200]}{hint}")


def new_job(
    task: str, args: Sequence[Any], kwargs: dict[str, Any], options: Options, payload_cap: int = PAYLOAD_CAP
) -> New:
    """Build a job from a task's name, its arguments and options.

    Raises:
        ConfigError: an option that cannot be; arguments that are no JSON, or too much.
    """
    _check(options)
    retry = options.retry
    payload = Payload(
        task=task,
        args=list(args),
        kwargs=kwargs,
        timeout=options.timeout,
        retry=None if retry is None else RetryFields(**msgspec.structs.asdict(retry)),
        retention=options.retention,
        expires=None if options.expires is None else unix(options.expires),
        reply=options.reply,
        meta=options.meta or {},
        window=options.window,
    )
    try:
        text = encode(payload)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"task {task}: its arguments must be JSON: {error}") from None
    if len(text) > payload_cap:
        raise ConfigError(
            f"task {task}: the payload has {len(text)} bytes, more than {payload_cap}: store the data elsewhere and"
            " pass a reference, or set EVSCHED_PAYLOAD_CAP for dispatchers and for who enqueues"
        )
    delay = options.delay
    return New(
        id=options.id or random_id(),
        payload=text,
        priority=options.priority,
        group=options.group,
        due=None if options.due is None else unix(options.due),
        delay=seconds(delay or 0.0),
    )


def _enqueue_calls(store: Store, jobs: Sequence[New], on_conflict: OnConflict | None) -> list[Call[list[float]]]:
    slices = [jobs[at : at + MANY] for at in range(0, len(jobs), MANY)]
    if on_conflict == "replace":
        return [store.replace(some) for some in slices]
    return [store.enqueue(some, keep=on_conflict == "keep") for some in slices]


def _result(job_id: str, outcome: str, result: Any, reason: str | None) -> Any:
    if outcome == "done":
        return result
    raise JobDead(f"{job_id} was {outcome}" if outcome == "cancelled" else f"{job_id} is {outcome}: {reason}")


def _read_reply(job_id: str, reply: bytes) -> Any:
    told = decode(reply)
    return _result(job_id, told["outcome"], told["result"], told.get("reason"))


def _ended(job_id: str, ended: tuple[str, bytes, str]) -> Any:
    outcome, result, reason = ended
    return _result(job_id, outcome, decode(result) if result else None, reason)


def _timeout(job_id: str, timeout: float) -> TimeoutError:
    return TimeoutError(f"{job_id} did not end within {timeout:g} s")


def _due(due: datetime | float | None) -> float | None:
    return None if due is None else unix(due)


class Client:
    """For programs with an event loop. Connects on first use; may be shared by any number of tasks.

    Every method raises StoreDown when Redis stays away for 5 s, and StoreRefused when it refuses.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._sender = BatchingSender(url)

    def store(self, queue: str) -> Store:
        """Return the calls of a queue."""
        return Store(queue)

    async def send(self, call: Call[T]) -> T:
        """Send a call of the store, again while Redis is away: the scripts may run twice."""
        until, failures = time.monotonic() + _PATIENCE, 0
        while True:
            try:
                return await self._sender.send(call)
            except StoreDown:
                failures += 1
                wait = reconnect_delay(failures)
                if time.monotonic() + wait > until:
                    raise
                await asyncio.sleep(wait)

    async def enqueue(self, queue: str, jobs: Sequence[New], on_conflict: OnConflict | None = None) -> list[float]:
        """Put jobs on a queue's schedule, 1,000 in one round trip; return their dues.

        Raises:
            JobExists: a job of one of the ids has not ended; then none of its thousand was written. After Redis was
                away in the middle of the call, it may be the very job that was to be enqueued.
        """
        calls = _enqueue_calls(self.store(queue), jobs, on_conflict)
        return [due for call in calls for due in await self.send(call)]

    async def declare(self, queue: str, recurrence: Declared) -> Literal["made", "changed", "same"]:
        """Make a recurrence, or change the one of its name; return which.

        Raises:
            ConfigError: its rule, zone or window is none.
        """
        read_recurrence(recurrence)
        return await self.send(self.store(queue).declare(recurrence))

    async def remove(self, queue: str, name: str) -> None:
        """Delete a recurrence, with what it has ahead on the schedule.

        Raises:
            JobMissing: there is none of that name.
        """
        await self.send(self.store(queue).remove(name))

    async def status(self, queue: str, job_id: str) -> JobStatus | None:
        """Return where a job is and what its record says; None when there is none of that id."""
        return await self.send(self.store(queue).look(job_id))

    async def cancel(self, queue: str, job_id: str) -> Place:
        """Take a job that waits away, or have its worker stop it; return the place where it was.

        Raises:
            JobMissing
        """
        return await self.send(self.store(queue).cancel(job_id))

    async def reschedule(self, queue: str, job_id: str, due: datetime | float | None) -> float:
        """Give a job that waits another due, None = now; return it.

        Raises:
            JobMissing, JobRunning
        """
        return await self.send(self.store(queue).reschedule(job_id, _due(due)))

    async def result(self, queue: str, job_id: str, timeout: float) -> Any:
        """Wait until a job has ended, and return its result. It never polls: Redis answers when the job ends.

        Raises:
            JobDead: it was given up, with the reason, or cancelled.
            JobMissing: there is none, or it ended longer ago than its retention.
            TimeoutError: it did not end in time.
        """
        store, until = self.store(queue), time.monotonic() + timeout
        blocking = BlockingSender(self._url, reply_timeout=_REPLY_TIMEOUT)
        try:
            while True:
                try:
                    ended = await self.send(store.ask(job_id))
                except JobMissing:
                    reply = await self.send(store.replied(job_id))
                    if reply is None:
                        raise
                    return _read_reply(job_id, reply)
                if ended[0]:
                    return _ended(job_id, ended)
                left = until - time.monotonic()
                if left <= 0:
                    raise _timeout(job_id, timeout)
                block = min(left, _BLOCK)
                try:
                    reply = await blocking.send(store.wait_reply(job_id, block), block)
                except StoreDown:
                    await asyncio.sleep(reconnect_delay(1))
                    continue
                if reply is not None:
                    return _read_reply(job_id, reply)
        finally:
            await blocking.close()

    async def close(self) -> None:
        """Close the connection. A later call opens a new one."""
        await self._sender.close()


class SyncClient:
    """For programs without an event loop, one thread at a time. Raises as `Client` does."""

    def __init__(self, url: str) -> None:
        self._sender = SyncSender(url)

    def store(self, queue: str) -> Store:
        """Return the calls of a queue."""
        return Store(queue)

    def send(self, call: Call[T], block: float = 0.0) -> T:
        """Send a call of the store, again while Redis is away: the scripts may run twice."""
        until, failures = time.monotonic() + _PATIENCE, 0
        while True:
            try:
                return self._sender.send(call, block)
            except StoreDown:
                failures += 1
                wait = reconnect_delay(failures)
                if time.monotonic() + wait > until:
                    raise
                time.sleep(wait)

    def enqueue(self, queue: str, jobs: Sequence[New], on_conflict: OnConflict | None = None) -> list[float]:
        """Put jobs on a queue's schedule, as `Client.enqueue`."""
        calls = _enqueue_calls(self.store(queue), jobs, on_conflict)
        return [due for call in calls for due in self.send(call)]

    def declare(self, queue: str, recurrence: Declared) -> Literal["made", "changed", "same"]:
        """Make a recurrence, or change one, as `Client.declare`."""
        read_recurrence(recurrence)
        return self.send(self.store(queue).declare(recurrence))

    def remove(self, queue: str, name: str) -> None:
        """Delete a recurrence, as `Client.remove`."""
        self.send(self.store(queue).remove(name))

    def status(self, queue: str, job_id: str) -> JobStatus | None:
        """Return where a job is, as `Client.status`."""
        return self.send(self.store(queue).look(job_id))

    def cancel(self, queue: str, job_id: str) -> Place:
        """Take a job that waits away, or have it stopped, as `Client.cancel`."""
        return self.send(self.store(queue).cancel(job_id))

    def reschedule(self, queue: str, job_id: str, due: datetime | float | None) -> float:
        """Give a job that waits another due, as `Client.reschedule`."""
        return self.send(self.store(queue).reschedule(job_id, _due(due)))

    def result(self, queue: str, job_id: str, timeout: float) -> Any:
        """Wait until a job has ended, and return its result, as `Client.result`."""
        store, until = self.store(queue), time.monotonic() + timeout
        while True:
            try:
                ended = self.send(store.ask(job_id))
            except JobMissing:
                reply = self.send(store.replied(job_id))
                if reply is None:
                    raise
                return _read_reply(job_id, reply)
            if ended[0]:
                return _ended(job_id, ended)
            left = until - time.monotonic()
            if left <= 0:
                raise _timeout(job_id, timeout)
            reply = self.send(store.wait_reply(job_id, min(left, _BLOCK)), min(left, _BLOCK))
            if reply is not None:
                return _read_reply(job_id, reply)

    def now(self) -> float:
        """Return Redis's clock, in Unix seconds."""
        return self.send(clock())

    def close(self) -> None:
        """Close the connection. A later call opens a new one."""
        self._sender.close()
