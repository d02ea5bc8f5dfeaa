"""The loop that dispatches: it steps each queue when its timer says so, and sleeps until the next one.

It never polls. Each step returns how long to sleep, and events only shorten that sleep. `queue_timer.py` decides when a
queue is stepped or looked at.

    wake-up (event, timer, safety cap, reconnect) ──▶ step: dispatch.lua ──▶ how long to sleep
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from evsched import events, keys
from evsched.dispatcher.proof import Proof
from evsched.dispatcher.queue_timer import QueueTimer
from evsched.dispatcher.redis_clock import RedisClock
from evsched.errors import StoreError
from evsched.events import Reason
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.runtime.runtime import Runtime
from evsched.runtime.wakeup import Wakeup
from evsched.store import server
from evsched.store.dispatchers import Step

_TOGETHER: Final = 50
"""Queues that are stepped in one round trip: about 5 ms of Redis's time, if each has a few jobs due."""


class DispatchLoop:
    """Steps and looks at the queues that are served. `dispatcher` names the canaries of this dispatcher."""

    def __init__(
        self, runtime: Runtime, dispatcher: str, redis_clock: RedisClock, proof: Proof, on_new: Callable[[str], None]
    ) -> None:
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._redis_clock = redis_clock
        self._proof = proof
        self._on_new = on_new
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("dispatcher", runtime.emit)
        self._refused = Reconnects("dispatcher", runtime.emit)
        self._polls = False
        """The queues are polled, because there are so many events that the watcher does not receive them."""
        config = runtime.config
        # Never empty: on an empty Redis, the idle queue carries the proof of the subscription.
        named = bool(config.queues)
        self._timers = {
            queue: QueueTimer(queue, config.batch, known=named) for queue in config.queues or (runtime.part.idle_queue,)
        }

    @property
    def queues(self) -> list[str]:
        """The queues that are served."""
        return list(self._timers)

    @property
    def pulse(self) -> Pulse:
        """The pulse of this loop."""
        return self._reconnect.pulse

    def problem(self) -> str | None:
        """Return why no queue is dispatched; None = at least one is."""
        return self._reconnect.reason or self._refused.problem()

    def serve(self, queue: str) -> QueueTimer:
        """Return the timer of a queue. A queue that is new is served from now on."""
        timer = self._timers.get(queue)
        if timer is None:
            timer = self._timers[queue] = QueueTimer(queue, self._runtime.config.batch)
            self._wakeup.ring()
        if not timer.known:
            timer.known = True
            self._on_new(queue)
        return timer

    def changed(self, queue: str) -> None:
        """Look or step soon: jobs were put on the schedule."""
        timer = self.serve(queue)
        if self._polls:
            return
        before = timer.next()
        timer.changed(time.monotonic())
        self._ring_if_sooner(timer, before)

    def removed(self, queue: str) -> None:
        """Note that another dispatcher, or a user, removed jobs from the schedule."""
        timer = self._timers.get(queue)
        if timer is not None:
            timer.removed(time.monotonic())

    def opens(self, queue: str, moment: float) -> None:
        """Step when the gate opens."""
        timer = self.serve(queue)
        before = timer.next()
        timer.opens(time.monotonic(), moment)
        self._ring_if_sooner(timer, before)

    def look(self) -> None:
        """Step every queue, because events may have been missed. All later ones arrive."""
        self._polls = False
        self.step_all("reconnect")

    def poll(self) -> None:
        """Look at every queue again and again, because no events arrive, until `look` is called."""
        self._polls = True
        now = time.monotonic()
        for timer in self._timers.values():
            timer.poll(now)
        self._wakeup.ring()

    def step_all(self, reason: Reason) -> None:
        """Step every queue at once."""
        for timer in self._timers.values():
            timer.step_now(reason)
        self._wakeup.ring()

    def _ring_if_sooner(self, timer: QueueTimer, before: float) -> None:
        if timer.next() < before:
            self._wakeup.ring()

    async def run(self) -> None:
        """Dispatch until cancelled."""
        timers = self._timers.values()
        while True:
            now = time.monotonic()
            if self._proof.at() <= now:
                # The queue that was stepped longest ago carries the canary, so the step counts for its safety cap too.
                min(timers, key=lambda timer: timer.pace.last_step).step_by(now, "safety")
            if looks := [timer for timer in timers if timer.next_look.at <= now < timer.next_step.at]:
                await self._look(looks)
            now = time.monotonic()
            if steps := [timer for timer in timers if timer.next_step.at <= now]:
                async with self._reconnect:
                    await self._step_some(steps)
            step = min(timer.next_step.at for timer in timers)
            look = min(self._proof.at(), *(timer.next_look.at for timer in timers))
            self.pulse.expect(max(0.0, min(step, look) - time.monotonic()))
            await self._wakeup.sleep(step, roughly=look)

    async def _step_some(self, due: list[QueueTimer]) -> None:
        """Step some of the queues that are due for it, in one round trip; those last that are only looked after.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        if len(due) == 1:  # the usual case, without an asyncio task of its own
            await self._pass(due[0])
            return
        due.sort(key=lambda timer: (timer.next_step.reason == "safety", timer.next_step.at))
        passes = [self._pass(timer) for timer in due[:_TOGETHER]]
        for failure in await asyncio.gather(*passes, return_exceptions=True):
            if failure is not None:
                raise failure

    async def _pass(self, timer: QueueTimer) -> None:
        """Step a queue. If this queue alone fails, it is tried again later, and the others go on.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        reconnect = self._refused.of(timer.store.queue)
        try:
            await self.step(timer)
            reconnect.passed()
        except StoreError as error:
            timer.refused(time.monotonic(), reconnect.refused(error))

    async def _look(self, timers: list[QueueTimer]) -> None:
        """Read the nearest due of some queues in one round trip."""
        sent = time.monotonic()
        reasons: list[Reason] = [timer.looking(sent) for timer in timers]
        sending = [self._runtime.sender.send(timer.store.nearest()) for timer in timers]
        replies = await asyncio.gather(*sending, return_exceptions=True)
        now = time.monotonic()
        for timer, reason, nearest in zip(timers, reasons, replies, strict=True):
            if isinstance(nearest, StoreError):
                timer.step_by(now, reason)  # the step meets the same error, reports it and waits
            elif isinstance(nearest, BaseException):
                raise nearest
            else:
                timer.looked(now, reason, nearest)
                if self._polls:
                    timer.poll(sent)

    async def step(self, timer: QueueTimer) -> Step:
        """Dispatch one batch of a queue, and set when to step it next.

        Raises:
            StoreDown, StoreRefused: nothing is changed.
        """
        prove = self._proof.at() <= time.monotonic()
        at, reason = timer.next_step.at, timer.next_step.reason
        if prove:
            self._proof.expect()  # before the call, because the message may arrive before the reply
        sent = time.monotonic()
        timer.stepping(sent)
        try:
            done = await self._dispatch(timer, self._dispatcher if prove else "")
        except BaseException:
            timer.step_by(at, reason)
            if prove:
                self._proof.unsent()
            raise
        self._redis_clock.read(done.now, sent)
        timer.stepped(sent, time.monotonic(), reason, done, self._runtime.config.safety_cap)
        if self._polls:
            timer.poll(sent)
        self._emit(timer.store.queue, reason, done)
        return done

    async def _dispatch(self, timer: QueueTimer, canary: str) -> Step:
        """Send a step. When many jobs are due, send TIME after it, to measure how long the script kept Redis busy."""
        batch = timer.batch
        step = timer.store.dispatch(limit=batch.limit, cap=self._runtime.config.payload_cap, canary=canary)
        if not timer.full:
            return await self._runtime.sender.send(step)
        done, end = await self._runtime.sender.send_all([step, server.clock(keys.root(timer.store.queue))])
        batch.took(len(done.moved), end - done.now)
        return done

    def _emit(self, queue: str, reason: Reason, done: Step) -> None:
        emit = self._runtime.emit
        emit(events.Woken(queue=queue, reason=reason, found=len(done.moved) + len(done.buried)))
        if done.moved:
            emit(events.Dispatched(queue=queue, lateness=[done.now - due for due in done.moved]))
        for name, count in Counter(done.missed).items():
            emit(events.Missed(queue=queue, name=name, count=count))
        for job_id, why in done.buried:
            emit(events.JobBuried(queue=queue, id=job_id, reason=why))
