"""The recurrences and limits that a worker's app declares in its code: written to Redis, unless a newer deploy did so.

Workers of two deploys run side by side while one replaces the other, and any of them may start again at any moment. So
what an app declares has a revision. The newest that was registered is in force, and each script refuses an older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evsched import events
from evsched.errors import ConfigError, StoreRefused
from evsched.execution.program import Program
from evsched.recurrence.calendars import names_of
from evsched.recurrence.recurrence import Declared, read_recurrence, window_names
from evsched.recurrence.revision import describe_revision
from evsched.runtime.runtime import Runtime
from evsched.store.queue import Announced
from evsched.store.recurrence_calls import Registered
from evsched.store.store import Store

_WRONG_TYPE: Final = "wrongtype"
"""The kind of a refusal that concerns one recurrence, since `register` has checked the keys of the queue."""


class Declarations:
    """Declares an app's recurrences and limits for one worker.

    `before`: what the worker process before this one had announced, by queue. If it had the same content, its revision
    holds, although Redis has lost it.
    """

    def __init__(self, runtime: Runtime, program: Program, before: Mapping[str, Announced] | None = None) -> None:
        self._runtime = runtime
        self._program = program
        self._contents: dict[str, str] = {}
        """By queue, the digest of what the app declares."""
        self._before = before or {}
        self._known: dict[str, float] = {}
        """By queue, the revision that this worker has registered: Redis may lose it."""
        self._told = set[tuple[str, float]]()
        """The queues and newer revisions that were reported."""

    def declared(self, queue: str) -> tuple[str, str]:
        """Return the app, and the digest of what it declares in a queue."""
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
            self._tell(queue, found)
        elif not await self._write_all(store, found):
            await self.write(store)  # a newer revision was registered meanwhile

    def _tell(self, queue: str, found: Registered) -> None:
        if (queue, found.newest) not in self._told:
            self._told.add((queue, found.newest))
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
        try:
            done = await self._runtime.sender.send(store.declare(one, self._program.owner, revision))
            if done != "older":
                await self._check_names(store, one)
        except StoreRefused as error:
            if error.kind != _WRONG_TYPE:
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
