"""The dispatcher: moves due jobs on, and sleeps exactly until the next one is due or the schedule changes.

It never polls. What makes it right is the sleep that each step answers; a keyspace event only shortens it. Dispatchers
are equals: any number may run, since a step is one atomic script. When to step is said in dispatcher/schedule.py.

    wake (event, timer, safety cap, reconnect) ──▶ step: dispatch.lua ──▶ how long to sleep
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from typing import Final

from evsched import events
from evsched.config import DEFAULT_QUEUE
from evsched.dispatcher.pace import LOOK_MOST
from evsched.dispatcher.queue_finder import Finder
from evsched.dispatcher.recurring import Recurring
from evsched.dispatcher.redis_clock import RedisClock
from evsched.dispatcher.schedule import Schedule
from evsched.dispatcher.watcher import Watcher
from evsched.errors import NO_ENTRY, StoreError, StoreRefused
from evsched.events import Reason
from evsched.runtime.loops import run_loops
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.runtime.runtime import Runtime
from evsched.runtime.wakeup import Wakeup
from evsched.store.replies import Step
from evsched.store.server import clock

_FLOOD_STEP: Final = 0.05
"""Seconds between two steps of a queue in a flood, since the openings of its gate are not heard: a packet of a rate."""

_FLOOD_LOOK: Final = 5.0
"""Seconds between two looks for new queues and recurrences in a flood, which interrupts the subscription more often."""


class Dispatcher:
    """Dispatches the queues that `config` names, or all that there are."""

    def __init__(self, runtime: Runtime) -> None:
        self._id = secrets.token_hex(8)
        self._runtime = runtime
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("dispatcher", runtime.emit)
        self._refused = Reconnects("dispatcher", runtime.emit)
        self._watcher = Watcher(runtime, self._id, self)
        self._clock = RedisClock(runtime.emit, self._jumped)
        self._recurring = Recurring(runtime, self._clock, lambda: self.queues)
        self._finder = Finder(runtime, self._find, lambda: self._watcher.deaf)
        self._looked = 0.0
        """When new queues and recurrences were last looked for since events may have been missed."""
        config = runtime.config
        # There is always one: a dispatcher on an empty Redis proves its subscription on it.
        self._schedules = {queue: Schedule(queue, config.batch) for queue in config.queues or (DEFAULT_QUEUE,)}

    @property
    def queues(self) -> list[str]:
        """The queues that it dispatches."""
        return list(self._schedules)

    @property
    def pulses(self) -> list[Pulse]:
        """The pulses of its loops."""
        return [self._reconnect.pulse, self._watcher.pulse, self._recurring.pulse, self._finder.pulse]

    def wrong(self) -> str | None:
        """Return why it dispatches nothing: what its last steps met, of each queue; None = it does."""
        return self._reconnect.reason or self._refused.wrong()

    async def run(self) -> None:
        """Dispatch until cancelled.

        Raises:
            LoopEnded
        """
        await run_loops(
            {
                "subscription": self._watcher.run(),
                "recurring": self._recurring.run(),
                "finder": self._finder.run(),
                "dispatcher": self._loop(),
            }
        )

    async def find_queues(self) -> None:
        """Find the queues that are known already; the others are found while it runs.

        Raises:
            StoreDown, StoreRefused
        """
        await self._finder.begin()

    def _find(self, queue: str) -> Schedule:
        schedule = self._schedules.get(queue)
        if schedule is None:
            schedule = self._schedules[queue] = Schedule(queue, self._runtime.config.batch)
            self._runtime.emit(events.QueueFound(queue=queue))
            self._finder.found(queue)
            self._recurring.heard(queue)
            self._wakeup.ring()
        return schedule

    def _ring_for(self, schedule: Schedule, before: float) -> None:
        if schedule.next() < before:
            self._wakeup.ring()

    def heard(self, queue: str) -> None:
        """Look or step soon: the schedule has changed."""
        schedule = self._find(queue)
        before = schedule.next()
        schedule.heard(time.monotonic())
        self._ring_for(schedule, before)

    def removed(self, queue: str) -> None:
        """Take note that another dispatcher, or a user, took something off the schedule."""
        schedule = self._schedules.get(queue)
        if schedule is not None:
            schedule.removed(time.monotonic())

    def opens(self, queue: str, moment: float) -> None:
        """Step when the gate opens."""
        schedule = self._find(queue)
        before = schedule.next()
        schedule.opens(time.monotonic(), moment)
        self._ring_for(schedule, before)

    def recurs(self, queue: str) -> None:
        """Look at the recurrences of a queue."""
        self._find(queue)
        self._recurring.heard(queue)

    def look(self) -> None:
        """Look at every queue, and for new ones: something may have been missed."""
        now = time.monotonic()
        if not self._watcher.flooded or self._looked < now - _FLOOD_LOOK:
            self._looked = now
            self._recurring.look()
            self._finder.look()
        for schedule in self._schedules.values():
            if self._watcher.flooded:
                schedule.look_by(now, "event")
            else:
                schedule.at, schedule.reason = 0.0, "reconnect"
        self._wakeup.ring()

    def _jumped(self) -> None:
        """Step every queue: Redis's clock jumped, so the dues that are known lie elsewhere."""
        self._recurring.look()
        for schedule in self._schedules.values():
            schedule.at, schedule.reason = 0.0, "timer"
        self._wakeup.ring()

    async def _loop(self) -> None:
        while True:
            now = time.monotonic()
            if self._watcher.proof_at() <= now:
                # Proof and safety net are one command: the queue that was not looked at for longest.
                min(self._schedules.values(), key=lambda schedule: schedule.pace.last_step).step_by(now, "safety")
            if looks := [schedule for schedule in self._schedules.values() if schedule.look_at <= now < schedule.at]:
                await self._look(looks)
            for schedule in [schedule for schedule in self._schedules.values() if schedule.at <= time.monotonic()]:
                async with self._reconnect:
                    await self._pass(schedule)
            until = min(self._watcher.proof_at(), *(s.next() for s in self._schedules.values()))
            self._reconnect.pulse.expect(max(0.0, until - time.monotonic()))
            await self._wakeup.sleep(until)

    async def _pass(self, schedule: Schedule) -> None:
        """Step a queue; one that Redis refuses is tried again later, and holds no other up.

        Raises:
            StoreDown, StoreRefused: it is not of this queue.
        """
        refused = self._refused.of(schedule.store.queue)
        try:
            await self.step(schedule)
            refused.passed()
        except StoreRefused as error:
            if error.kind in NO_ENTRY:
                raise
            schedule.refused(time.monotonic(), refused.failed(error))

    async def _look(self, schedules: list[Schedule]) -> None:
        """Read the nearest due of some queues in one round trip."""
        sent = time.monotonic()
        reasons: list[Reason] = [schedule.looking(sent) for schedule in schedules]
        sending = [self._runtime.sender.send(schedule.store.nearest()) for schedule in schedules]
        answers = await asyncio.gather(*sending, return_exceptions=True)
        now = time.monotonic()
        for schedule, why, nearest in zip(schedules, reasons, answers, strict=True):
            if isinstance(nearest, StoreError):
                schedule.step_by(now, why)  # the step meets what is wrong, and waits
            elif isinstance(nearest, BaseException):
                raise nearest
            else:
                schedule.looked(now, why, nearest)
                self._follow_flood(schedule, sent)

    async def step(self, schedule: Schedule) -> Step:
        """Dispatch one batch of a queue, and set when to step it next.

        Raises:
            StoreDown, StoreRefused: nothing is changed.
        """
        prove = self._watcher.proof_at() <= time.monotonic()
        at, reason = schedule.at, schedule.reason
        if prove:
            self._watcher.expect()  # before it is sent: what is heard may come before the reply
        sent = time.monotonic()
        schedule.stepping(sent)
        try:
            done = await self._dispatch(schedule, self._id if prove else "")
        except BaseException:
            schedule.step_by(at, reason)
            if prove:
                self._watcher.unsent()
            raise
        self._clock.heard(done.now, sent)
        schedule.stepped(sent, time.monotonic(), reason, done, self._runtime.config.safety_cap)
        self._follow_flood(schedule, sent)
        self._tell(schedule.store.queue, reason, done)
        return done

    async def _dispatch(self, schedule: Schedule, canary: str) -> Step:
        """Send a step; when many jobs are due with TIME behind it, which tells how long Redis was busy."""
        batch = schedule.batch
        step = schedule.store.dispatch(limit=batch.limit, cap=self._runtime.config.payload_cap, canary=canary)
        if not schedule.full:
            return await self._runtime.sender.send(step)
        done, end = await self._runtime.sender.send_all([step, clock()])
        batch.took(len(done.moved), end - done.now)
        return done

    def _follow_flood(self, schedule: Schedule, sent: float) -> None:
        """Look and step on by the clock while the subscription is set aside."""
        if self._watcher.flooded:
            schedule.look_by(sent + LOOK_MOST, "event")
            schedule.step_by(schedule.pace.last_step + _FLOOD_STEP, "event")

    def _tell(self, queue: str, reason: Reason, done: Step) -> None:
        self._runtime.emit(events.Woken(queue=queue, reason=reason, found=len(done.moved) + len(done.buried)))
        if done.moved:
            self._runtime.emit(events.Dispatched(queue=queue, lateness=[done.now - due for due in done.moved]))
        for name, count in Counter(done.missed).items():
            self._runtime.emit(events.Missed(queue=queue, name=name, count=count))
        for job_id, why in done.buried:
            self._runtime.emit(events.JobBuried(queue=queue, id=job_id, reason=why))
