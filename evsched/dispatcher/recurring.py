"""The recurring loop: puts the occurrences of recurrences on the schedule, ahead of their time.

A recurrence is a record, not a chain. It stands at the planned time that goes on the schedule next, and one script puts
that there and moves it on, if it still stands where this loop saw it: so any number of dispatchers may do this, and
none is missed when one dies. Being ahead, it costs the jobs that are due no lateness: it works in slices of a few
milliseconds, and gives way between them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from evsched import events
from evsched.dispatcher.redis_clock import RedisClock
from evsched.errors import NO_ENTRY, ConfigError, StoreRefused
from evsched.recurrence.recurrence import Plan, read_declared, read_recurrence
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.runtime.runtime import Runtime
from evsched.runtime.wakeup import Wakeup
from evsched.store.store import Store
from evsched.transport.call import Call

AHEAD: Final = 15.0
"""Seconds for which occurrences lie on the schedule before their time: ten thousand of one minute need some two."""

_SLICE: Final = 25
"""Recurrences of one step: about 3 ms of ours, and 1 of Redis's."""

_LOOK: Final = 250
"""Recurrences that one script looks at for what a clock that was ahead has moved on: under 1 ms."""

_CAP: Final = 300.0
"""Seconds after which the loop looks at all queues though nothing has been heard."""


class Recurring:
    """Moves on the recurrences of the queues that `queues()` names."""

    def __init__(self, runtime: Runtime, clock: RedisClock, queues: Callable[[], list[str]]) -> None:
        self._runtime = runtime
        self._clock = clock
        self._queues = queues
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("recurring", runtime.emit)
        self._refused = Reconnects("recurring", runtime.emit)
        self._at: dict[str, float] = {}
        """When to look at a queue, by the monotonic clock; one that is not in it was not looked at since `look`."""
        self._unread: dict[str, set[str]] = {}
        """Recurrences of each queue of which it was told that they have no record."""
        self._behind = set[str]()
        """Queues whose rewinding was refused: it is due still."""

    def heard(self, queue: str) -> None:
        """Look at a queue's recurrences now: they have changed."""
        if queue in self._at:  # else it is looked at anew altogether
            self._at[queue] = 0.0
        self._wakeup.ring()

    def look(self) -> None:
        """Look at all queues: something may have been missed, or Redis's clock was set."""
        self._at.clear()
        self._wakeup.ring()

    @property
    def pulse(self) -> Pulse:
        """The pulse of its loop."""
        return self._reconnect.pulse

    async def run(self) -> None:
        """Move recurrences on until cancelled."""
        while True:
            for queue in self._queues():
                if self._at.get(queue, 0.0) > time.monotonic():
                    continue
                fresh = queue not in self._at
                self._at[queue] = float("inf")  # what is heard meanwhile sets it anew
                async with self._reconnect:
                    self._look_by(queue, time.monotonic() + await self._pass(queue, fresh))
                if self._reconnect.failures:
                    self._at.pop(queue, None)
            until = min(self._at.get(queue, 0.0) for queue in self._queues())  # there is always one
            self.pulse.expect(max(0.0, until - time.monotonic()))
            await self._wakeup.sleep(until)

    async def _pass(self, queue: str, fresh: bool) -> float:
        """Look at one queue; one that Redis refuses is looked at again later, and holds no other up.

        `fresh`: it was not looked at since `look`, so what stands too far ahead is looked for as well.

        Raises:
            StoreDown, StoreRefused: it is not of this queue.
        """
        refused = self._refused.of(queue)
        try:
            if fresh or queue in self._behind:
                self._behind.add(queue)
                await self.rewind(queue)
                self._behind.discard(queue)
            rest = await self.step(queue)
        except StoreRefused as error:
            if error.kind in NO_ENTRY:
                raise
            return refused.failed(error)
        refused.passed()
        return rest

    def _look_by(self, queue: str, at: float) -> None:
        if queue in self._at:  # else all are to be looked at now
            self._at[queue] = min(self._at[queue], at)

    async def rewind(self, queue: str) -> None:
        """Let those recur from now on that a clock moved on which was set back since.

        They would stand still until it comes there again. Less than 15 s back is waited out, so that no planned time
        comes twice: so far ahead the right clock puts them, too.

        Raises:
            StoreDown, StoreRefused
        """
        store, offset, looked = Store(queue), 0, _LOOK
        while looked == _LOOK:
            looked, names = await self._runtime.sender.send(store.rewind(AHEAD, offset, _LOOK))
            offset += looked - len(names)
            if names:
                self._runtime.emit(events.Rewound(queue=queue, names=names))

    async def step(self, queue: str) -> float:
        """Move a slice of a queue's recurrences on; return the seconds until there is more to do, 0 = now.

        Raises:
            StoreDown, StoreRefused: what was not moved on stays where it stands.
        """
        store = Store(queue)
        sent = time.monotonic()
        agenda = await self._runtime.sender.send(store.agenda(AHEAD, _SLICE))
        self._clock.heard(agenda.now, sent)
        nearest = float("inf") if agenda.beyond is None else agenda.beyond
        plans, calls = list[tuple[str, Plan]](), list[Call[list[str] | None]]()
        self._tell_unread(queue, {name for name, _, fields in agenda.rows if not fields})
        for name, seen, fields in agenda.rows:
            if not fields:
                continue  # it stands where it is, until it is there again
            plan, reason = self._plan(queue, name, float(seen), agenda.now, fields)
            plans.append((name, plan))
            calls.append(
                store.recur(name, seen, plan.put, next_=plan.next, missed=plan.missed, reason=reason, now=agenda.now)
            )
        put = list[str]()
        for (name, plan), ids in zip(plans, await self._runtime.sender.send_all(calls), strict=True):
            if ids is None:
                nearest = agenda.now  # another dispatcher was quicker: see where it stands now
                continue
            put += ids
            nearest = min(nearest, float("inf") if plan.next is None else plan.next)
            if plan.missed:
                self._runtime.emit(events.Missed(queue=queue, name=name, count=plan.missed))
        if put:
            self._runtime.emit(events.Recurred(queue=queue, ids=put))
        if agenda.rows:
            await asyncio.sleep(0)
        return min(max(nearest - agenda.now - AHEAD, 0.0), _CAP)

    def _tell_unread(self, queue: str, names: set[str]) -> None:
        """Tell once of recurrences that have no record, or one of another type; the others go on."""
        for name in names - self._unread.get(queue, set()):
            reason = "its record is gone, or its key is no hash: DEL the key and declare it again, or remove it"
            self._runtime.emit(events.RecurrenceBroken(queue=queue, name=name, reason=reason))
        self._unread[queue] = names

    def _plan(self, queue: str, name: str, stands: float, now: float, fields: dict[str, bytes]) -> tuple[Plan, str]:
        """Return what is to be done, and why nothing can be."""
        try:
            return read_recurrence(read_declared(name, fields)).plan(stands, now, AHEAD), ""
        except (ConfigError, ValueError, ArithmeticError, OSError) as error:  # the latter: no date is that far
            self._runtime.emit(events.RecurrenceBroken(queue=queue, name=name, reason=str(error)))
            return Plan([], None, 0), str(error)
