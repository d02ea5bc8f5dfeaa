"""The loop that dispatches: it steps each queue when its schedule says so, and sleeps until the next one.

It never polls. Each step returns how long to sleep, and events only shorten that sleep. `schedule.py` decides when a
queue is stepped or looked at.

    wake-up (event, timer, safety cap, reconnect) ──▶ step: dispatch.lua ──▶ how long to sleep
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from evsched import events
from evsched.config import DEFAULT_QUEUE
from evsched.dispatcher.pace import LOOK_MOST
from evsched.dispatcher.proof import Proof
from evsched.dispatcher.redis_clock import RedisClock
from evsched.dispatcher.schedule import Schedule
from evsched.errors import StoreError, StoreRefused
from evsched.events import Reason
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.runtime.runtime import Runtime
from evsched.runtime.wakeup import Wakeup
from evsched.store.replies import Step
from evsched.store.server import clock

_FLOOD_STEP: Final = 0.05
"""Seconds between two steps of a queue in a flood, because messages about its gate do not arrive then. A rate admits
the jobs of as many seconds together, so more steps would find nothing."""


class DispatchLoop:
    """Steps and looks at the queues that are served. `dispatcher` names the canaries of this dispatcher."""

    def __init__(
        self, runtime: Runtime, dispatcher: str, clock: RedisClock, proof: Proof, on_new: Callable[[str], None]
    ) -> None:
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._clock = clock
        self._proof = proof
        self._on_new = on_new
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("dispatcher", runtime.emit)
        self._refused = Reconnects("dispatcher", runtime.emit)
        self._flooded = False
        """There are so many events that the watcher has closed its subscription: none arrive."""
        config = runtime.config
        # Never empty: on an empty Redis, the default queue carries the proof of the subscription.
        named = bool(config.queues)
        self._schedules = {
            queue: Schedule(queue, config.batch, known=named) for queue in config.queues or (DEFAULT_QUEUE,)
        }

    @property
    def queues(self) -> list[str]:
        """The queues that are served."""
        return list(self._schedules)

    @property
    def pulse(self) -> Pulse:
        """The pulse of this loop."""
        return self._reconnect.pulse

    def wrong(self) -> str | None:
        """Return why no queue is dispatched; None = at least one is."""
        return self._reconnect.reason or self._refused.wrong()

    def serve(self, queue: str) -> Schedule:
        """Return the schedule of a queue. A queue that is new is served from now on."""
        schedule = self._schedules.get(queue)
        if schedule is None:
            schedule = self._schedules[queue] = Schedule(queue, self._runtime.config.batch)
            self._wakeup.ring()
        if not schedule.known:
            schedule.known = True
            self._on_new(queue)
        return schedule

    def changed(self, queue: str) -> None:
        """Look or step soon: jobs were put on the schedule."""
        schedule = self.serve(queue)
        before = schedule.next()
        schedule.changed(time.monotonic())
        self._ring_if_sooner(schedule, before)

    def removed(self, queue: str) -> None:
        """Note that another dispatcher, or a user, removed jobs from the schedule."""
        schedule = self._schedules.get(queue)
        if schedule is not None:
            schedule.removed(time.monotonic())

    def opens(self, queue: str, moment: float) -> None:
        """Step when the gate opens."""
        schedule = self.serve(queue)
        before = schedule.next()
        schedule.opens(time.monotonic(), moment)
        self._ring_if_sooner(schedule, before)

    def look(self, *, flooded: bool) -> None:
        """Answer what the watcher reports: a new subscription, or in a `flood` that it has closed the subscription.

        After a new subscription, step every queue, because events may have been missed. In a flood, look at every queue
        now, and go on by the clock.
        """
        self._flooded = flooded
        if not flooded:
            self.step_all("reconnect")
            return
        now = time.monotonic()
        for schedule in self._schedules.values():
            schedule.look_by(now, "event")
        self._wakeup.ring()

    def step_all(self, reason: Reason) -> None:
        """Step every queue at once."""
        for schedule in self._schedules.values():
            schedule.step_now(reason)
        self._wakeup.ring()

    def _ring_if_sooner(self, schedule: Schedule, before: float) -> None:
        if schedule.next() < before:
            self._wakeup.ring()

    async def run(self) -> None:
        """Dispatch until cancelled."""
        schedules = self._schedules.values()
        while True:
            now = time.monotonic()
            if self._proof.at() <= now:
                # The canary goes with a step of the queue stepped longest ago, which thus serves the safety cap too.
                min(schedules, key=lambda schedule: schedule.pace.last_step).step_by(now, "safety")
            if looks := [schedule for schedule in schedules if schedule.next_look.at <= now < schedule.next_step.at]:
                await self._look(looks)
            for schedule in [schedule for schedule in schedules if schedule.next_step.at <= time.monotonic()]:
                async with self._reconnect:
                    await self._pass(schedule)
            until = min(self._proof.at(), *(schedule.next() for schedule in schedules))
            self.pulse.expect(max(0.0, until - time.monotonic()))
            await self._wakeup.sleep(until)

    async def _pass(self, schedule: Schedule) -> None:
        """Step a queue. If Redis refuses this queue alone, it is tried again later, and the others go on.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        reconnect = self._refused.of(schedule.store.queue)
        try:
            await self.step(schedule)
            reconnect.passed()
        except StoreRefused as error:
            schedule.refused(time.monotonic(), reconnect.refused(error))

    async def _look(self, schedules: list[Schedule]) -> None:
        """Read the nearest due of some queues in one round trip."""
        sent = time.monotonic()
        reasons: list[Reason] = [schedule.looking(sent) for schedule in schedules]
        sending = [self._runtime.sender.send(schedule.store.nearest()) for schedule in schedules]
        replies = await asyncio.gather(*sending, return_exceptions=True)
        now = time.monotonic()
        for schedule, reason, nearest in zip(schedules, reasons, replies, strict=True):
            if isinstance(nearest, StoreError):
                schedule.step_by(now, reason)  # the step meets the same error, reports it and waits
            elif isinstance(nearest, BaseException):
                raise nearest
            else:
                schedule.looked(now, reason, nearest)
                self._follow_flood(schedule, sent)

    async def step(self, schedule: Schedule) -> Step:
        """Dispatch one batch of a queue, and set when to step it next.

        Raises:
            StoreDown, StoreRefused: nothing is changed.
        """
        prove = self._proof.at() <= time.monotonic()
        at, reason = schedule.next_step.at, schedule.next_step.reason
        if prove:
            self._proof.expect()  # before the call, because the message may arrive before the reply
        sent = time.monotonic()
        schedule.stepping(sent)
        try:
            done = await self._dispatch(schedule, self._dispatcher if prove else "")
        except BaseException:
            schedule.step_by(at, reason)
            if prove:
                self._proof.unsent()
            raise
        self._clock.read(done.now, sent)
        schedule.stepped(sent, time.monotonic(), reason, done, self._runtime.config.safety_cap)
        self._follow_flood(schedule, sent)
        self._emit(schedule.store.queue, reason, done)
        return done

    async def _dispatch(self, schedule: Schedule, canary: str) -> Step:
        """Send a step. When many jobs are due, send TIME after it, to measure how long the script kept Redis busy."""
        batch = schedule.batch
        step = schedule.store.dispatch(limit=batch.limit, cap=self._runtime.config.payload_cap, canary=canary)
        if not schedule.full:
            return await self._runtime.sender.send(step)
        done, end = await self._runtime.sender.send_all([step, clock()])
        batch.took(len(done.moved), end - done.now)
        return done

    def _follow_flood(self, schedule: Schedule, sent: float) -> None:
        """In a flood, set the next look and step by the clock."""
        if self._flooded:
            schedule.look_by(sent + LOOK_MOST, "event")
            schedule.step_by(schedule.pace.last_step + _FLOOD_STEP, "event")

    def _emit(self, queue: str, reason: Reason, done: Step) -> None:
        emit = self._runtime.emit
        emit(events.Woken(queue=queue, reason=reason, found=len(done.moved) + len(done.buried)))
        if done.moved:
            emit(events.Dispatched(queue=queue, lateness=[done.now - due for due in done.moved]))
        for name, count in Counter(done.missed).items():
            emit(events.Missed(queue=queue, name=name, count=count))
        for job_id, why in done.buried:
            emit(events.JobBuried(queue=queue, id=job_id, reason=why))
