"""The operations of a client on Redis, written once for programs with an event loop and without one.

An operation is a generator. It yields steps: send a call, find the nodes, wait in Redis for a reply, ask the workers,
use the codec, sleep. It receives a value or an error for each step, and returns its result at the end. `Client` and
`BlockingClient` perform the steps, each in its own way; the operations decide on the calls, and on their repetition.

At the end of the file: how to find the names of all queues.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evsched import keys
from evsched.client.option_values import Past, Unique, due_and_delay, past_moment, seconds
from evsched.client.transaction import Statement
from evsched.errors import BadResult, CannotOpen, EvschedError, JobDead, JobError, JobMissing, StoreDown, StoreRefused
from evsched.jobs import option_checks as check
from evsched.jobs.job import OnConflict, decode
from evsched.jobs.redaction import is_member, redacted_member
from evsched.jobs.sealed import About, PayloadCodec, Sealed, masked, open_value, sealed_in
from evsched.store import server
from evsched.store.acts import ACTS, AuditedAct, AuditEntry, as_acts, stream_position
from evsched.store.audit_trail import AuditTrail, DeploymentTrail
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.call import Call, T, Word
from evsched.transport.redis_errors import reconnect_delay
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import START_IT, nodes_down, topology

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
    return (yield from _perform(Send(call)))


def send_many(calls: Sequence[Call[T]]) -> Operation[list[T]]:
    """Send calls that change nothing, in one round trip to each node. Raises as `send` does, if one of them fails."""
    return (yield from _perform(SendMany(tuple(calls))))


def send_and_wait(call: Call[T], wait: Call[W]) -> Operation[tuple[T, W | EvschedError]]:
    """Send a call and, on the same connection, one that waits for its write; an error of the second is returned.

    Raises as `send` does.
    """
    return (yield from _perform(Send(call, wait)))


def nodes() -> Operation[list[Host | None]]:
    """Return the nodes that have all of Redis together: send a call about all of it `at` each. Raises as `send`."""
    return (yield from _perform(Nodes()))


def node_of(key: Word) -> Operation[Host | None]:
    """Return the one of these nodes that has a key. Raises as `send`."""
    (node,) = yield from _perform(Nodes(key))
    return node


def _perform(step: Step) -> Operation[Any]:
    """Perform a step, and again while Redis is down."""
    began, failures, unsure = time.monotonic(), 0, False
    writes = isinstance(step, Send) and step.call.writes
    while True:
        try:
            if unsure and isinstance(step, Send) and step.call.again is not None:
                now = yield Send(server.clock(step.call.near))
                step = replace(step, call=step.call.again(now - (time.monotonic() - began)))
            return (yield step)
        except StoreDown as error:
            failures += 1
            unsure = unsure or (error.unsure and writes)  # at any attempt
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


def enqueue(
    store: Store, jobs: Sequence[New], on_conflict: OnConflict | None, unique: Unique | None = None
) -> Operation[list[float]]:
    """Put jobs on one schedule, 1,000 in one round trip; return their dues."""
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


class ActFilter(Struct, frozen=True):
    """Which acts of the audit trail. All conditions that are given must hold."""

    since: Past | None = None
    until: Past | None = None
    who: str | None = None
    act: str | None = None
    id: str | None = None
    """The id of a job, or the name of a recurrence or of a user, that was changed."""

    def __post_init__(self) -> None:
        for name, value in (("who", self.who), ("id", self.id)):
            if value is not None:
                check.text(name, value)
        if self.act is not None:
            check.one_of(*ACTS)("act", self.act)

    def takes(self, entry: AuditEntry) -> bool:
        """Return whether an entry is of such an act, whatever it changed."""
        return self.who in (None, entry.known.who) and self.act in (None, entry.known.act)

    def is_about(self, one: AuditEntry | AuditedAct) -> bool:
        return self.id is None or self.id in (*one.ids, one.what.get("recurrence"), one.what.get("user"))


_ENTRIES: Final = 100
"""Entries of an audit trail that a call reads: less than 1 ms of Redis's time, also if each has 4 KiB of ids."""


def redactions(stores: Sequence[Store], ids: Iterable[str]) -> Operation[dict[str, tuple[str, ...]]]:
    """Return the redacted arguments that workers have declared, by task; none if none of these ids needs them."""
    found = dict[str, tuple[str, ...]]()
    if any(map(is_member, ids)):
        for store in stores:
            try:
                found |= yield from send(store.redactions())
            except StoreRefused:
                pass  # the key is of another type
    return found


def read_acts(queue: str, stores: Sequence[Store], wanted: ActFilter, limit: int) -> Operation[list[AuditedAct]]:
    """Return what operators did to a queue and its shards, the latest first. `stores`: theirs.

    Raises:
        ConfigError: a time or the limit is not valid.
    """
    acts = yield from _read_trails(queue, stores, wanted, limit)
    declared = yield from redactions(stores, [job for act in acts for job in act.ids])
    return [replace(act, ids=[redacted_member(job, declared) for job in act.ids]) for act in acts]


def read_deployment_acts(wanted: ActFilter, limit: int) -> Operation[list[AuditedAct]]:
    """Return what operators did that is about no queue. Raises as `read_acts`."""
    return (yield from _read_trails("", [DeploymentTrail()], wanted, limit))


def _read_trails(
    queue: str, trails: Sequence[AuditTrail], wanted: ActFilter, limit: int
) -> Operation[list[AuditedAct]]:
    check.count("limit", limit)
    found, now = list[AuditEntry](), 0.0
    if isinstance(wanted.since, timedelta) or isinstance(wanted.until, timedelta):
        now = yield from send(server.clock(keys.root(trails[-1].queue)))
    since = None if wanted.since is None else past_moment("since", wanted.since, now)
    until = "+" if wanted.until is None else stream_position(past_moment("until", wanted.until, now))
    for trail in trails:
        before, left = until, limit
        while before is not None and left > 0:
            read = yield from send(trail.acts(before, since, _ENTRIES))
            part = [entry for entry in read.entries if entry is not None and wanted.takes(entry)]
            before = read.before
            left -= sum(map(wanted.is_about, part))
            found += part
    return [act for act in as_acts(queue, found) if wanted.is_about(act)][:limit]


_PAST_SLICES: Final = 1000
"""Slices of each node's keys in which queues with nothing but a past are looked for: about 0.3 s of Redis's time."""


def find_queues(slices: float = math.inf, *, past: bool = False) -> Operation[list[str]]:
    """Return the names of all queues, sorted. `slices`: how many thousand keys of each node are read at most.

    While a dispatcher runs, it keeps their set, which is read at once. Without one the keys are read as well, since a
    queue that was made by ZADD alone is in no set yet. In a cluster each node has dispatchers and keys of its own.

    `past`: also queues that have nothing but a history or an audit trail. No set has those: if a dispatcher runs, they
    are looked for among the first million keys of each node, and not at all if this Redis user may not read the keys.

    Raises:
        StoreDown, StoreRefused
    """
    found, served = set[str](), False
    try:
        found.update((yield from send(server.queue_names())))
        served = bool(found)
    except StoreRefused:
        pass  # a right is missing, or the key is of another type: the other keys say it too
    for node in (yield from nodes()):
        if not (served and (yield from _has_dispatcher(node))):
            yield from _scan(node, found, slices, past=past)
        elif past:
            yield from _scan_past(node, found)
    return sorted(found)


class Answered(NamedTuple):
    """The queues that nodes know, and the primaries of a cluster that did not answer."""

    names: list[str]
    """Those on primaries that answered."""
    lost: list[str]
    """Those on the others."""
    down: list[Host]


def find_queues_once(url: str, slices: float = math.inf, *, past: bool = False) -> Answered:
    """Find the queues of a cluster, as `ask_nodes`."""
    return asyncio.run(_ask_nodes_of(url, slices, past=past))


async def _ask_nodes_of(url: str, slices: float, *, past: bool) -> Answered:
    sender = BatchingSender(url, reply_timeout=ONCE_LIMIT)

    async def perform(step: Step) -> Any:
        assert isinstance(step, Send)
        return await sender.send(step.call)

    try:
        return await ask_nodes(url, perform, slices, past=past)
    finally:
        await sender.close()


async def ask_nodes(
    url: str, perform: Callable[[Step], Awaitable[Any]], slices: float = math.inf, *, past: bool = False
) -> Answered:
    """Find the queues of a cluster. All nodes are asked at the same time, once; `perform` sends the calls.

    `slices`, `past`: as of `find_queues`.

    Raises:
        StoreDown: no node answers.
        StoreRefused
    """
    cluster, found = topology(url), set[str]()
    assert cluster is not None

    async def read_set() -> bool:
        try:
            names = await run(once(send(server.queue_names())), perform)
        except (StoreDown, StoreRefused):
            return False
        found.update(names)
        return bool(names)

    async def ask(node: Host) -> bool:
        """Add the queues of which a node has keys; return whether it answers."""
        try:
            dispatched = await run(once(_has_dispatcher(node)), perform)
            if not (await served and dispatched):
                await run(once(_scan(node, found, slices, past=past)), perform)
            elif past:
                await run(once(_scan_past(node, found)), perform)
        except StoreDown:
            return False
        return True

    primaries = await cluster.primaries()
    served = asyncio.ensure_future(read_set())
    answers = await asyncio.gather(*map(ask, primaries))
    await served
    down = [node for node, answered in zip(primaries, answers, strict=True) if not answered]
    if len(down) == len(primaries):
        raise StoreDown(nodes_down(down), kind="connection")
    lost = [name for name in sorted(found) if down and await cluster.owner(keys.root(name)) in down]
    return Answered(sorted(found.difference(lost)), lost, down)


def _has_dispatcher(node: Host | None) -> Operation[bool]:
    try:
        return bool((yield from send(server.dispatchers().at(node))))
    except StoreRefused:
        return False  # a right is missing


def _scan_past(node: Host | None, found: set[str]) -> Operation[None]:
    try:
        yield from _scan(node, found, _PAST_SLICES, past=True)
    except StoreRefused:
        pass  # a right is missing


def _scan(node: Host | None, found: set[str], slices: float, *, past: bool) -> Operation[None]:
    """Add the queues of which a node has keys."""
    cursor = None
    while cursor != 0 and slices > 0:
        slices -= 1
        part = yield from send(server.scan(cursor or 0, past=past).at(node))
        found.update(part.queues)
        cursor = part.next
