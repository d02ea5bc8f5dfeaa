"""The operations of a client on Redis, written once for programs with an event loop and without one.

An operation is a generator. It yields steps: send a call, find the nodes, wait in Redis for a reply, ask the workers,
use the codec, sleep. It receives a value or an error for each step, and returns its result at the end. `Client` and
`BlockingClient` perform the steps, each in its own way; the operations decide on the calls, and on their repetition.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evsched.client.option_values import Unique, due_and_delay, seconds
from evsched.client.transaction import Statement
from evsched.errors import BadResult, CannotOpen, EvschedError, JobDead, JobError, JobMissing, StoreDown
from evsched.jobs.job import OnConflict, decode
from evsched.jobs.sealed import About, PayloadCodec, Sealed, masked, open_value, sealed_in
from evsched.store import server
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.call import Call, T, Word
from evsched.transport.redis_errors import named, reconnect_delay
from evsched.transport.senders import BatchingSender, DirectSender
from evsched.transport.servers import START_IT, nodes_down

MANY: Final = 400
"""Jobs in one round trip: about 3 ms of Redis's time."""

_PATIENCE: Final = 5.0
"""Seconds for which a call is sent again while Redis is down: a failover takes about that long."""

ONCE_LIMIT: Final = 1.0
"""Seconds within which a call that is sent only once must be answered: a healthy Redis takes a hundredth of that."""

_BLOCK: Final = 10.0
"""Seconds of one blocking call. Then the waiter asks again, so a connection that died silently costs no more."""

_LOOK_FIRST: Final = 0.01
_LOOK_MOST: Final = 0.5
"""Seconds between two looks for a job that a relay has yet to schedule, at first and at most."""

REPLY_TIMEOUT: Final = 1.5
"""Seconds after the end of a blocking call within which Redis must have answered."""


class Send(Struct, frozen=True):
    """Send a call; returns its value. With `wait`, a call that waits for its write, a pair: see `send_and_wait`.

    `limit`: seconds within which it must be answered; None = the sender's own limit.
    """

    call: Call[Any]
    wait: Call[Any] | None = None
    limit: float | None = None


class SendMany(Struct, frozen=True):
    """Send calls that change nothing, in one batch for each node; returns their values. `limit`: as above."""

    calls: tuple[Call[Any], ...]
    limit: float | None = None


class Nodes(Struct, frozen=True):
    """Find the nodes that have all of Redis together; returns them, as `BatchingSender.nodes`.

    `near`: only the node that has this key.
    """

    near: Word | None = None


class Wait(Struct, frozen=True):
    """Send a call that Redis answers within `block` seconds; returns its value."""

    call: Call[Any]
    block: float


class AskWorkers(Struct, frozen=True):
    """Ask the workers of a queue for their status; returns their answers, as `ask_status`."""

    queue: str


class Query(Struct, frozen=True):
    """Read from the ledger's database, by a connection of the program; returns the first column of each row."""

    statement: Statement
    connection: Any


class UseCodec(Struct, frozen=True):
    """Have the codec of the app do something; returns its result, or None: the client has no codec."""

    work: Callable[[PayloadCodec], Awaitable[Any]]


class Sleep(Struct, frozen=True):
    """Do nothing for a number of seconds."""

    seconds: float


W = TypeVar("W")
Step = Send | SendMany | Nodes | Wait | AskWorkers | Query | UseCodec | Sleep
Operation = Generator[Step, Any, T]


async def run(operation: Operation[T], perform: Callable[[Step], Awaitable[Any]]) -> T:
    """Perform the steps of an operation, and return its result."""
    value: Any = None
    error: EvschedError | None = None
    while True:
        try:
            step = operation.send(value) if error is None else operation.throw(error)
        except StopIteration as end:
            return end.value
        try:
            value, error = await perform(step), None
        except EvschedError as failure:
            value, error = None, failure


def once(operation: Operation[T]) -> Operation[T]:
    """Perform an operation, but send each call only once and wait at most 1 s for its reply. For optional answers.

    Raises:
        StoreDown: a node did not answer; at once.
    """
    value: Any = None
    error: EvschedError | None = None
    while True:
        try:
            step = operation.send(value) if error is None else operation.throw(error)
        except StopIteration as end:
            return end.value
        if isinstance(step, Sleep) and error is not None:  # before the next attempt
            continue
        try:
            value, error = (yield replace(step, limit=ONCE_LIMIT) if isinstance(step, Send | SendMany) else step), None
        except EvschedError as failure:
            value, error = None, failure


def send(call: Call[T]) -> Operation[T]:
    """Send a call, and send it again while Redis is down, in the form for a repetition if it may have been done.

    Raises:
        StoreDown: Redis stayed away for 5 s, or refused the repetition of a call that may have been done. If it is
            `unsure`, the call may have been done all the same.
    """
    return _perform(Send(call))


def send_many(calls: Sequence[Call[T]]) -> Operation[list[T]]:
    """Send calls that change nothing, in one round trip to each node. Raises as `send` does, if one of them fails."""
    return _perform(SendMany(tuple(calls)))


def send_and_wait(call: Call[T], wait: Call[W]) -> Operation[tuple[T, W | EvschedError]]:
    """Send a call and, on the same connection, one that waits for its write; an error of the second is returned.

    Raises as `send` does.
    """
    return _perform(Send(call, wait))


def nodes() -> Operation[list[Host | None]]:
    """Return the nodes that have all of Redis together: send a call about all of it `at` each. Raises as `send`."""
    return _perform(Nodes())


def node_of(key: Word) -> Operation[Host | None]:
    """Return the one of these nodes that has a key. Raises as `send`."""
    (node,) = yield from _perform(Nodes(key))
    return node


def _perform(step: Step) -> Operation[Any]:
    """Perform a step, and again while Redis is down."""
    began, failures, unsure = time.monotonic(), 0, False
    while True:
        try:
            if unsure and isinstance(step, Send) and step.call.again is not None:
                now = yield Send(server.clock(step.call.near))
                step = replace(step, call=step.call.again(now - (time.monotonic() - began)))
            return (yield step)
        except StoreDown as error:
            failures += 1
            unsure = unsure or (error.unsure and isinstance(step, Send) and step.call.writes)  # at any attempt
            delay = reconnect_delay(failures)
            if time.monotonic() + delay > began + _PATIENCE:
                problem = str(error) if error.node is None else f"{nodes_down([error.node])}: {START_IT}, and try again"
                raise StoreDown(problem, kind=error.kind, node=error.node, unsure=unsure) from error
            yield Sleep(delay)
        except JobError as error:
            if not unsure or (isinstance(step, Send) and step.call.again is not None):
                raise
            raise StoreDown(
                f"Redis went away during the call; it was sent again and refused ({error}), so it may have been done "
                "the first time",
                kind="connection",
                unsure=True,
            ) from error


class Performer:
    """Performs the steps of operations in a program with an event loop. Connects on first use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._sender = BatchingSender(url)
        self.codec: PayloadCodec | None = None
        """Seals what it writes, and opens what it reads; None = it does neither."""

    def run(self, operation: Operation[T]) -> Coroutine[Any, Any, T]:
        return run(operation, self.perform)

    def send(self, call: Call[T]) -> Coroutine[Any, Any, T]:
        """Send a call of the store, again while Redis is down: every script may run twice."""
        return run(send(call), self.perform)

    async def wait_for(self, wait: Wait) -> Any:
        """Wait for something that only other processes bring about. In tests there are none: see evsched.testing."""
        return await self.perform(wait)

    async def perform(self, step: Step) -> Any:
        """Perform one step."""
        if isinstance(step, Send | SendMany):
            return await (self._sent(step) if step.limit is None else self._sent_within(step, step.limit))
        if isinstance(step, Nodes):
            return [await self._sender.node_of(step.near)] if step.near is not None else await self._sender.nodes()
        if isinstance(step, Query):
            return await step.statement.by_any(step.connection)
        if isinstance(step, UseCodec):
            if self.codec is None:
                return None
            work = step.work(self.codec)
            return await (self._awaited(work) if self.codec.waits else work)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, AskWorkers):
            from evsched.top.collector import ask_status  # only `explain` needs it

            return await self._awaited(ask_status(self._url, [step.queue]))
        # A connection of its own: a blocking call would hold up all others.
        waiting = DirectSender(self._url, reply_timeout=REPLY_TIMEOUT, near=step.call.near)
        try:
            return await waiting.send(step.call, step.block)
        finally:
            await waiting.close()

    def _sent(self, step: Send | SendMany) -> Awaitable[Any]:
        if isinstance(step, SendMany):
            return self._sender.send_all(step.calls)
        return self._sender.send_and_wait(step.call, step.wait) if step.wait else self._sender.send(step.call)

    async def _sent_within(self, step: Send | SendMany, limit: float) -> Any:
        try:
            async with asyncio.timeout(limit):
                return await self._sent(step)
        except TimeoutError:
            call = step.calls[0] if isinstance(step, SendMany) else step.call
            node = call.node or (None if call.near is None else await self._sender.node_of(call.near))
            problem = named(f"Redis gave no answer within {limit:g} s", node)
            raise StoreDown(problem, kind="timeout", node=node) from None

    async def _awaited(self, work: Awaitable[T]) -> T:
        """Await something else than Redis. `enqueue_in_sync` comes here without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return in_own_loop(work)
        return await work

    async def close(self) -> None:
        """Close the connection. A later call opens a new one."""
        await self._sender.close()


def in_own_loop(work: Awaitable[T]) -> T:
    """Run an awaitable in an event loop of its own, in a thread."""
    from concurrent.futures import ThreadPoolExecutor  # few programs need it

    async def wait() -> T:
        return await work

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, wait()).result()


def enqueue(
    store: Store, jobs: Sequence[New], on_conflict: OnConflict | None, unique: Unique | None = None
) -> Operation[list[float]]:
    """Put jobs on one schedule, 400 in one round trip; return their dues."""
    dues, within = list[float](), None if unique is None else unique.seconds
    for at in range(0, len(jobs), MANY):
        some = jobs[at : at + MANY]
        if on_conflict == "replace":
            call = store.replace(some, within=within)
        else:
            call = store.enqueue(some, keep=on_conflict == "keep", within=within)
        dues += yield from send(call)
    return dues


def reschedule(
    store: Store, job_id: str, due: datetime | float | None, delay: timedelta | float | None
) -> Operation[float]:
    """Give a waiting job another due; return it."""
    moment, length = due_and_delay(due, delay)
    return (yield from send(store.reschedule(job_id, moment, delay=length)))


class JobEnd(Struct, frozen=True):
    """How a job has ended: its outcome; its result, if it is done; the reason, if it is dead or expired."""

    outcome: str
    result: Any = None
    reason: str | None = None


def result(store: Store, job_id: str, timeout: timedelta | float | None, row: int | None = None) -> Operation[Any]:
    """Wait until a job has ended, and return its result. `row`: see `end`."""
    ended = yield from end(store, job_id, timeout, row)
    if ended.outcome == "done":
        return (yield from open_result(job_id, ended.result))
    how = "was cancelled" if ended.outcome == "cancelled" else f"is {ended.outcome}: {ended.reason}"
    raise JobDead(f"{job_id} {how}")


def open_result(job_id: str, value: Any) -> Operation[Any]:
    """Return the result of a job, opened if it is sealed.

    Raises:
        BadResult: this client cannot open it.
    """
    sealed = sealed_in(value)
    return value if sealed is None else (yield from _open_result(job_id, sealed))


def _open_result(job_id: str, sealed: Sealed) -> Operation[Any]:
    try:
        text = yield UseCodec(lambda codec: open_value(codec, About("result", of=job_id), sealed))
    except CannotOpen as error:
        raise BadResult(f"{job_id} is done, but its result cannot be read: {error}") from None
    if text is None:
        raise BadResult(f"{job_id} is done, but its result is sealed, {sealed}: give the app of this program a codec")
    return decode(text)


def shown_result(job_id: str, value: Any) -> Operation[Any]:
    """Return a result for a reader: opened if this client can open it, else as the text that says how it is sealed."""
    try:
        return (yield from open_result(job_id, value))
    except BadResult:
        return masked(value)


def end(store: Store, job_id: str, timeout: timedelta | float | None, row: int | None = None) -> Operation[JobEnd]:
    """Wait until a job has ended, and return how; a sealed result stays so. Nothing polls: Redis answers when it ends.

    `row`: the number of the job's row in the ledger, which a relay has yet to schedule: that is polled.
    """
    length = math.inf if timeout is None else seconds("timeout", timeout)
    until = time.monotonic() + length
    if row is not None:
        yield from _arrival(store, job_id, row, until)
    while True:
        try:
            outcome, value, reason = yield from send(store.ask(job_id))
        except JobMissing:  # it may have ended with no retention, and left its reply
            reply = yield from send(store.replied(job_id))
            if reply is None:
                raise
            return _read_reply(job_id, reply)
        if outcome:
            return JobEnd(outcome, _read_json(job_id, value) if value else None, reason or None)
        block = min(until - time.monotonic(), _BLOCK)
        if block <= 0:
            raise TimeoutError(f"{job_id} did not end within {length:g} s")
        try:
            reply = yield Wait(store.wait_reply(job_id, block), block)
        except StoreDown:
            # Ask again: the reply may have come while the connection was lost.
            yield Sleep(reconnect_delay(1))
            continue
        if reply is not None:
            return _read_reply(job_id, reply)


def _arrival(store: Store, job_id: str, row: int, until: float) -> Operation[None]:
    """Wait until Redis has the job of a row.

    Raises:
        TimeoutError: it did not have it in time, or does not have it any more.
    """
    pause = _LOOK_FIRST
    while (yield from send(store.mark(job_id))).row != str(row):
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"{job_id} did not come to Redis in time: its transaction has not committed, no relay runs, its row in "
                "evsched_job was refused and its column `reason` says why, or it has ended and its retention is over: "
                "see evsched ledger status"
            )
        yield Sleep(min(pause, left))
        pause = min(2 * pause, _LOOK_MOST)


def _read_reply(job_id: str, reply: bytes) -> JobEnd:
    match _read_json(job_id, reply):
        case {"outcome": str(outcome), "result": result, **more}:
            return JobEnd(outcome, result, cast("str | None", more.get("reason")))
        case _:
            raise BadResult(f"{job_id}: its reply list holds something that is not an outcome; another client wrote it")


def _read_json(job_id: str, text: bytes) -> Any:
    try:
        return decode(text)
    except RecursionError:
        raise BadResult(f"{job_id}: its result is nested too deeply to be read") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadResult(f"{job_id}: its result is not JSON: {error}; another client wrote it") from None
