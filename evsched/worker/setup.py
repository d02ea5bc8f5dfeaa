"""The writes to Redis for each queue of a worker, before jobs are fetched from it.

A worker starts when `QueueSetup` has set up one queue at least. A queue is added to the set of all queues, the
recurrences and limits that the app declares are written (`Declarations`), and the worker's lease begins. If that fails
for a queue, because Redis refuses it or its node of a cluster is down, it is tried again while the others are served.
The set may be on another node, so a queue is served without it. While Redis's memory is full it refuses none of this
but the set, and a worker starts without that: its jobs free memory. If a heartbeat finds that Redis has lost the
declarations, they are written again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from evsched import events, process_events, shard_map
from evsched.errors import WRONG_TYPE, ConfigError, StoreError, StoreRefused
from evsched.execution.program import Program
from evsched.jobs.redaction import EVERY, write_names
from evsched.jobs.retry import write_policy
from evsched.jobs.sealed import seal_fixed
from evsched.jobs.tasks import Task
from evsched.recurrence.calendars import names_of
from evsched.recurrence.recurrence import Declared, describe_revision, read_recurrence, window_names
from evsched.runtime.loops import Runtime, background, first_of
from evsched.runtime.reconnect import Reconnects
from evsched.store import server
from evsched.store.queue import Announced
from evsched.store.recurrence_calls import Registered
from evsched.store.store import Store
from evsched.transport.call import Call


class Declarations:
    """Declares an app's recurrences and limits for one worker, unless a newer deploy did so.

    Workers of two deploys run side by side while one replaces the other, and any of them may start again at any moment.
    So the declarations of an app have a revision. The newest that was registered is in force, and each script refuses
    an older one.

    `before`: the announcements of the worker process before this one, by queue. If its content was the same, its
    revision holds, although Redis has lost it.
    """

    def __init__(self, runtime: Runtime, program: Program, before: Mapping[str, Announced] | None = None) -> None:
        self._runtime = runtime
        self._program = program
        self._contents: dict[str, str] = {}
        """By queue, the digest of the app's declarations."""
        self._before = before or {}
        self._known: dict[str, float] = {}
        """By queue, the revision that this worker has registered: Redis may lose it."""
        self._reported = set[tuple[str, float]]()
        """The queues and newer revisions that were reported."""

    def declared(self, queue: str) -> tuple[str, str]:
        """Return the app, and the digest of its declarations in a queue."""
        if queue not in self._contents:
            self._contents[queue] = self._program.content_in(queue)
        return self._program.owner, self._contents[queue]

    def known(self, queue: str) -> float | None:
        """Return the revision that this worker has registered in a queue, or the one before it; None = neither has."""
        before = self._before.get(queue, Announced())
        same = (before.owner, before.content) == self.declared(queue)
        return self._known.get(queue, before.revision if same else None)

    async def write(self, store: Store) -> None:
        """Make the app's recurrences and limits in Redis those of its code, unless a newer revision is in force.

        Those of other apps are left alone.

        Raises:
            StoreDown, StoreRefused
        """
        queue = store.queue
        given, known = self._program.revision, self.known(queue)
        found = await self._runtime.sender.send(store.register(*self.declared(queue), given=given, known=known))
        self._known[queue] = found.revision
        if found.revision < found.newest:
            self._report_newer(queue, found)
        elif not await self._write_all(store, found):
            await self.write(store)  # a newer revision was registered meanwhile

    def _report_newer(self, queue: str, found: Registered) -> None:
        if (queue, found.newest) not in self._reported:
            self._reported.add((queue, found.newest))
            revision, newest = describe_revision(found.revision), describe_revision(found.newest)
            app = self._program.owner
            self._runtime.emit(events.RevisionOutdated(queue=queue, app=app, revision=revision, newest=newest))

    async def _write_all(self, store: Store, found: Registered) -> bool:
        """Declare these limits and recurrences, and no others; return False if a newer revision was registered by then.

        The limits first: no job should pass before they hold.
        """
        if not await self._set_limits(store, found.revision):
            return False
        own = self._program.recurrences_in(store.queue)
        for one in own:
            if not await self._declare(store, one, found.revision):
                return False
        for name in sorted(set(found.declared).difference(one.name for one in own)):
            done = await self._runtime.sender.send(store.retire(name, self._program.owner, found.revision))
            if done == "older":
                return False
            if done == "retired":
                self._runtime.emit(events.RecurrenceDeclared(queue=store.queue, name=name, done=done))
        return True

    async def _set_limits(self, store: Store, revision: float) -> bool:
        limits = self._program.limits_in(store.queue)
        found = await self._runtime.sender.send(store.declare_limits(self._program.owner, revision, limits))
        for field, value in (found or {}).items():
            self._runtime.emit(events.LimitDeclared(queue=store.queue, limit=field, value=value or "none"))
        return found is not None

    async def _declare(self, store: Store, one: Declared, revision: float) -> bool:
        if self._program.codec is not None:
            one = replace(one, payload=seal_fixed(self._program.codec, one.payload))
        try:
            done = await self._runtime.sender.send(store.declare(one, self._program.owner, revision))
            if done != "older":
                await self._check_names(store, one)
        except StoreRefused as error:
            if error.kind != WRONG_TYPE:  # of one recurrence: `register` has checked the keys of the queue
                raise
            self._runtime.emit(events.RecurrenceBroken(queue=store.queue, name=one.name, reason=str(error)))
            return True
        if done in ("made", "changed"):
            self._runtime.emit(events.RecurrenceDeclared(queue=store.queue, name=one.name, done=done))
        return done != "older"

    async def _check_names(self, store: Store, one: Declared) -> None:
        """Report a recurrence whose calendar or window does not exist. It is declared, and recurs when they are set."""
        calendars, windows = names_of(one.skip), window_names(one.window, one.payload)
        send = self._runtime.sender.send
        try:
            read_recurrence(
                one,
                await send(store.calendars(calendars)) if calendars else {},
                await send(store.some_windows(windows)) if windows else {},
            )
        except ConfigError as error:
            self._runtime.emit(events.RecurrenceBroken(queue=store.queue, name=one.name, reason=str(error)))


def _declared(task: Task) -> tuple[str, ...]:
    """Return the redacted parameters of a task, for readers that do not know its signature."""
    several = {task.signature.var_positional, task.signature.var_named} - {""}
    return (*task.redact, EVERY) if several & {*task.redact} else task.redact


class QueueSetup:
    """Sets up queues for one worker, and waits while Redis is down."""

    def __init__(
        self, runtime: Runtime, program: Program, worker: str, before: Mapping[str, Announced] | None = None
    ) -> None:
        self._runtime = runtime
        self._declarations = Declarations(runtime, program, before)
        self._worker = worker
        self._policies = {name: write_policy(task.retry, task.signature.order) for name, task in program.tasks.items()}
        self._redactions = {name: write_names(_declared(task)) for name, task in program.tasks.items() if task.redact}
        self._digest = program.digest
        self._reconnects = Reconnects("worker", runtime.emit)
        self._done = set[str]()
        self._undeclared = set[str]()
        """The queues whose declarations Redis has lost."""
        self._lost = asyncio.Event()

    def is_done(self, queue: str) -> bool:
        """Return whether jobs may be fetched from a queue."""
        return queue in self._done

    def problem(self, queue: str) -> str | None:
        """Return why a queue is not set up; None = it is, or has not been tried."""
        return None if self.is_done(queue) else self._reconnects.of(queue).reason

    async def until_one(self, queues: Sequence[str]) -> None:
        """Try each of these queues, and go on until one of them at least is set up. None waits for another."""
        waits = await asyncio.gather(*map(self._set_up, queues))
        if all(waits):
            async with background(*map(self.until_done, queues, waits)) as trying:
                (await first_of(trying)).result()

    async def until_done(self, queue: str, wait: float = 0.0) -> None:
        """Try a queue until it is set up, for the first time after `wait` seconds."""
        while not self.is_done(queue):
            await asyncio.sleep(wait)
            wait = await self._set_up(queue)

    async def _set_up(self, queue: str) -> float:
        """Try to set up a queue; return 0, or the seconds after which to try again."""
        if self.is_done(queue):
            return 0.0
        store, times, announced = Store(queue), self._runtime.times, self._announced(queue)
        begin = store.heartbeat(self._worker, times.idle_lease, busy=times.lease, fresh=True, announced=announced)
        wait = await self._write(store, begin)
        if not wait:
            self._done.add(queue)
        return wait

    async def _write(self, store: Store, *last: Call[Any]) -> float:
        """Announce the queue, write the app's declarations, and send the last call; return as `_set_up` does."""
        reconnect = self._reconnects.of(store.queue)
        try:
            await self._announce(store)
            await self._declarations.write(store)
            await self._describe_tasks(store)
            await self._runtime.sender.send_all(last)
        except StoreError as error:
            return reconnect.failed(error)
        reconnect.passed()
        return 0.0

    async def _announce(self, store: Store) -> None:
        """Let dispatchers find the queue: at once by a message, or later in the set of all queues.

        Raises:
            StoreDown, StoreRefused
        """
        await self._runtime.sender.send(store.wake())
        await self._try(server.add_queues([store.queue]), server.set_may_wait)

    async def _describe_tasks(self, store: Store) -> None:
        """Write the tasks' retry policies, parameters and redacted arguments, for clients that do not have their code.

        Also write the names of the tasks, for workers that do not know one of them. Both come after the declarations:
        if `forget` deletes the policies, it deletes the revision too, and a heartbeat tells that this was lost.

        Raises:
            StoreDown, StoreRefused
        """
        if self._policies:
            await self._try(store.set_policies(self._policies), server.may_wait)
            if self._redactions:
                await self._try(store.set_redactions(self._redactions), server.may_wait)
            if others := sorted(self._policies.keys() - self._redactions.keys()):
                await self._try(store.unset_redactions(others), server.may_wait)
            await self._try(store.set_program(self._digest, sorted(self._policies)), server.may_wait)

    def announced(self, queue: str) -> Announced:
        """Return the announcement of the app, which is empty until the queue is set up. For any thread."""
        return self._announced(queue) if queue in self._done else Announced()

    def _announced(self, queue: str) -> Announced:
        return Announced(*self._declarations.declared(queue), self._digest, self._declarations.known(queue))

    def declare_again(self, queue: str) -> None:
        """Have `keep` write the declarations of a queue again."""
        self._undeclared.add(queue)
        self._lost.set()

    async def keep(self) -> None:
        """Write lost data again, until cancelled.

        The queues that are set up are kept in the set of all queues. Dispatchers do the same for the queues that they
        know, so this is for queues that no dispatcher serves. Redis neither writes nor replicates an SADD that
        changes nothing.
        """
        wait = self._runtime.times.seldom
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._lost.wait()
            self._lost.clear()
            if self._done:
                with contextlib.suppress(StoreError):  # the other loops report it
                    await self._try(server.add_queues(sorted(self._done)), server.set_may_wait)
            if self._undeclared:
                await shard_map.learn(self._runtime)  # Redis may have lost the lease too
            with contextlib.suppress(StoreError):
                await self._restore_shards()
            wait = self._runtime.times.seldom
            for queue in sorted(self._undeclared):
                if again := await self._write(Store(queue)):
                    wait = min(wait, again)
                else:
                    self._undeclared.discard(queue)

    async def _restore_shards(self) -> None:
        shards = self._runtime.shards
        for whole in {shards.whole(queue) for queue in self._undeclared}:
            if count := shards.counts.get(whole, 0):
                await self._try(server.restore_shards(whole, count), server.set_may_wait)

    async def _try(self, call: Call[Any], may_wait: Callable[[StoreError], bool]) -> None:
        """Send a call that a worker can do without."""
        try:
            await self._runtime.sender.send(call)
        except StoreError as error:
            if not may_wait(error):
                raise
            self._runtime.emit(process_events.RedisFailed(kind=error.kind))
