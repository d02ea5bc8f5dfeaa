"""The recurring loop: it puts the occurrences of recurrences on the schedule, ahead of their time.

A recurrence is a record, not a chain of jobs. Its score is the next planned time that goes on the schedule. One script
schedules that occurrence and moves the score on, provided that the score is still the one that was read. So any number
of dispatchers may do this, and no occurrence is lost when one of them dies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from evsched import events
from evsched.dispatcher.queue_rounds import QueueRounds
from evsched.dispatcher.timing import RedisClock
from evsched.errors import WRONG_TYPE, ConfigError, StoreRefused
from evsched.recurrence.calendars import just_before
from evsched.recurrence.recurrence import Plan, read_declared, read_recurrence, window_names
from evsched.runtime.loops import Runtime
from evsched.store.dispatcher_calls import Agenda
from evsched.store.store import Store
from evsched.transport.call import Call

AHEAD: Final = 15.0
"""Seconds by which occurrences are scheduled ahead. To schedule ten thousand of the same minute takes about 2 s."""

_SLICE: Final = 25
"""Recurrences that one step reads: about 3 ms of this process's time, and 1 ms of Redis's."""

_REWIND_SLICE: Final = 250
"""Recurrences that one call of `rewind` reads: under 1 ms."""

_UNREADABLE: Final = (ConfigError, ValueError, ArithmeticError, OSError)
"""Raised for a record that is not valid; all but ConfigError: by numbers that are too large for a date."""

_CalendarsAndWindows = tuple[dict[str, str], dict[str, str]]
"""The existing calendars and windows that some recurrences name."""


class Recurring:
    """Looks at the recurrences of the queues that `served()` returns, and schedules their occurrences in slices.

    So due jobs wait only some milliseconds for the occurrences.
    """

    key = "recurrences"

    def __init__(self, runtime: Runtime, clock: RedisClock, served: Callable[[], list[str]]) -> None:
        self._runtime = runtime
        self._clock = clock
        self._rounds = QueueRounds(
            "recurring", runtime, served, runtime.times.seldom, lambda seen: seen.recurs, self._visit
        )
        self.pulse = self._rounds.pulse
        self._rewound = set[str]()
        """The queues whose recurrences were checked for being too far ahead, since `look`."""
        self._unreadable: dict[str, set[str]] = {}
        """For each queue, the recurrences without a readable record that were reported."""

    def look_at(self, queue: str) -> None:
        """Look at a queue's recurrences now: they have changed."""
        self._rounds.visit_by(queue, 0.0)

    def look_for(self, queue: str) -> None:
        """Look whether a new queue has recurrences."""
        self._rounds.add(queue)

    def look(self) -> None:
        """Look at all queues: events may have been missed, or Redis's clock was set."""
        self._rewound.clear()
        self._rounds.restart()

    async def run(self) -> None:
        """Look at recurrences until cancelled."""
        await self._rounds.run()

    async def _visit(self, queue: str) -> float:
        """Look at the recurrences of a queue; return the seconds until the next look.

        Raises:
            StoreDown, StoreRefused
        """
        if queue not in self._rewound:
            self._rewound.add(queue)  # before the call, because `look` may be called during it
            try:
                await self._rewind(queue)
            except BaseException:
                self._rewound.discard(queue)
                raise
        rest = await self.step(queue)
        return rest if rest == float("inf") else min(rest, self._runtime.times.seldom)

    async def _rewind(self, queue: str) -> None:
        """Move back the recurrences that were moved on while Redis's clock was ahead, once the clock is set back.

        Without this they would make no jobs until the clock reaches that time again. A clock that was ahead by less
        than 15 s is ignored, because a correct clock schedules that far ahead too: no planned time is scheduled twice.

        Raises:
            StoreDown, StoreRefused
        """
        store, offset, looked = Store(queue), 0, _REWIND_SLICE
        while looked == _REWIND_SLICE:
            looked, names = await self._runtime.sender.send(store.rewind(AHEAD, offset, _REWIND_SLICE))
            offset += looked - len(names)
            if names:
                self._runtime.emit(events.Rewound(queue=queue, names=names))

    async def step(self, queue: str) -> float:
        """Schedule the occurrences of a slice of recurrences; return the seconds until the next step, 0 = now.

        Raises:
            StoreDown, StoreRefused: recurrences that were not moved on stay as they are.
        """
        store = Store(queue)
        sent = time.monotonic()
        agenda = await self._runtime.sender.send(store.agenda(AHEAD, _SLICE))
        self._clock.read(agenda.now, sent)
        named = await self._named(store, agenda)
        if agenda.over:
            await self._end_pauses(store, agenda, named)
            return 0.0
        if agenda.newly_paused:
            await self._report_paused(store)
        nearest = float("inf") if agenda.beyond is None else agenda.beyond
        plans, calls = list[tuple[str, Plan]](), list[Call[list[str] | None]]()
        self._report_unreadable(queue, {name for name, _, fields in agenda.rows if not fields})
        for name, seen, fields in agenda.rows:
            if not fields:
                continue  # its score stays, so it continues when its record exists again
            try:
                plan = read_recurrence(read_declared(name, fields), *named).plan(float(seen), agenda.now, AHEAD)
                reason = ""
            except _UNREADABLE as error:
                plan, reason = Plan([], None, 0), str(error)
                self._runtime.emit(events.RecurrenceBroken(queue=queue, name=name, reason=reason))
            plans.append((name, plan))
            calls.append(
                store.at(agenda.now).recur(name, seen, plan.put, next_=plan.next, missed=plan.missed, reason=reason)
            )
        put = list[str]()
        for (name, plan), ids in zip(plans, await self._runtime.sender.send_all(calls), strict=True):
            if ids is None:
                nearest = agenda.now  # another dispatcher was quicker: read it again
                continue
            put += ids
            nearest = min(nearest, float("inf") if plan.next is None else plan.next)
            if plan.missed:
                self._runtime.emit(events.Missed(queue=queue, name=name, count=plan.missed))
        if put:
            self._runtime.emit(events.Recurred(queue=queue, ids=put))
        if agenda.rows:
            await asyncio.sleep(0)  # due jobs come first
        rest = nearest - agenda.now - AHEAD
        return max(rest if agenda.pause_ends is None else min(rest, agenda.pause_ends - agenda.now), 0.0)

    async def _named(self, store: Store, agenda: Agenda) -> _CalendarsAndWindows:
        """Read the calendars and windows that the recurrences name."""
        calendars, records = agenda.calendars, [fields for *_, fields in (*agenda.rows, *agenda.over)]
        windows = sorted({name for one in records for name in window_names(one.get("window"), one.get("payload", b""))})
        return (
            await self._read(store.calendars(calendars)) if calendars else {},
            await self._read(store.some_windows(windows)) if windows else {},
        )

    async def _read(self, call: Call[dict[str, str]]) -> dict[str, str]:
        try:
            return await self._runtime.sender.send(call)
        except StoreRefused as error:
            if error.kind != WRONG_TYPE:
                raise
            return {}  # only these recurrences are affected, and are reported

    async def _end_pauses(self, store: Store, agenda: Agenda, named: _CalendarsAndWindows) -> None:
        """Have the recurrences recur again whose pause is over, from the end of the pause on."""
        calls = list[Call[bool]]()
        for name, seen, fields in agenda.over:
            try:
                recurrence = read_recurrence(read_declared(name, fields), *named)
                next_ = next(recurrence.walk(just_before(float(seen))), None)
            except _UNREADABLE:
                next_ = 0.0  # the next step reports it
            calls.append(store.unpause(name, seen, next_))
        done = await self._runtime.sender.send_all(calls)
        for (name, _, _), over in zip(agenda.over, done, strict=True):
            if over:
                self._runtime.emit(events.PauseOver(queue=store.queue, name=name))

    async def _report_paused(self, store: Store) -> None:
        """Report recurrences that were paused because of failures. Only one of several dispatchers gets each name."""
        for name in await self._runtime.sender.send(store.take_newly_paused(_SLICE)):
            fields = await self._runtime.sender.send(store.recurrence(name))
            if "paused" in fields:  # nobody has resumed it meanwhile
                why = fields.get("paused_why", b"failures").decode(errors="replace")
                self._runtime.emit(events.RecurrencePaused(queue=store.queue, name=name, why=why))

    def _report_unreadable(self, queue: str, names: set[str]) -> None:
        """Report once each recurrence whose record does not exist or has another type; the others go on."""
        for name in names - self._unreadable.get(queue, set()):
            reason = "it has no record, or its key is not a hash: DEL the key and declare it again, or remove it"
            self._runtime.emit(events.RecurrenceBroken(queue=queue, name=name, reason=reason))
        self._unreadable[queue] = names
