"""The loop that dispatches: it steps each queue when its timer says so, and sleeps until the next one.

    wake-up (event, timer, safety cap, reconnect) ──▶ step: dispatch.lua ──▶ how long to sleep

Each step returns how long to sleep, and events only shorten that sleep. `timing.py` decides when a queue is stepped or
looked at.

There may be a hundred thousand queues, most of them empty. So the loop glances at many queues in one call to check
them: new ones, all after a gap in the events, and each once in a safety cap. Only those with a due job are stepped. An
empty queue is *at rest* (`RestingQueues`).

Checks never hold up due jobs: a round trip has a few of them beside the queues whose jobs are due.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Final

from evsched import events, keys
from evsched.dispatcher.queue_finder import QueueFinder, RestingQueues
from evsched.dispatcher.timing import Proof, QueueTimer, RedisClock
from evsched.errors import MOVING, StoreError
from evsched.events import Reason
from evsched.runtime.loops import Runtime, Timetable, Wakeup
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.store import server
from evsched.store.dispatcher_calls import GLANCE_MOST, Seen, Step
from evsched.store.store import Store

_TOGETHER: Final = 50
"""Queues that are stepped in one round trip: about 5 ms of Redis's time, if each has a few jobs due."""

_CHECKED: Final = 10
"""Queues that are stepped besides in a round trip, because a check was wanted or found a due job: about 1 ms of Redis's
time, and 3 ms of this process's, which a queue whose job is due may have to wait."""

_LOOKS: Final = 100
"""Queues that are looked at in one round trip: about 3 ms of this process's time."""

_NEW_MOST: Final = 100
"""New queues that are checked in one round trip: about 3 ms of this process's time, if all have a job."""

_NEAR_MOST: Final = 1000
"""Queues whose safety caps end together, at most: to find them takes 3 ms of this process's time."""

_NEAR: Final = 0.25
"""Queues are checked together if their safety caps end within this part of a safety cap."""

_NEVER: Final = float("inf")


class DispatchLoop:
    """Steps and looks at the queues that are served. `found` is called for each queue that is served from now on."""

    def __init__(
        self,
        runtime: Runtime,
        redis_clock: RedisClock,
        proof: Proof,
        finder: QueueFinder,
        found: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self._redis_clock = redis_clock
        self._proof = proof
        self._finder = finder
        self._found = found
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("dispatcher", runtime.emit)
        self.pulse = self._reconnect.pulse
        self._refused = Reconnects("dispatcher", runtime.emit)
        self._polls = False
        """The queues are polled, because the watcher does not receive events in a flood of them."""
        config = runtime.config
        # Never empty: on an empty Redis, the idle queue carries the proof of the subscription.
        named = bool(config.queues)
        self._lasting = config.queues or (runtime.part.idle_queue,)
        """The queues that are never at rest."""
        self._timers = {queue: QueueTimer(queue, config.batch, known=named) for queue in self._lasting}
        self._steps = Timetable[str]()
        self._looks = Timetable[str]()
        self._unchecked: dict[str, Reason] = dict.fromkeys(self._lasting, "reconnect")
        """The queues to check, and why. An "event" names a queue without a timer."""
        self._to_step: dict[str, Reason] = {}
        """The queues that a check found to be due."""
        self._resting = RestingQueues(runtime, finder.forget)

    @property
    def queues(self) -> list[str]:
        """The queues that are served, without those at rest."""
        return list(self._timers)

    @property
    def count(self) -> int:
        """How many queues there are, with those at rest."""
        return len(self._timers) + len(self._resting) + len(self._unchecked)

    def problem(self) -> str | None:
        """Return why no queue is dispatched; None = at least one is."""
        return self._reconnect.reason or self._refused.problem()

    def serve(self, queue: str) -> None:
        """Serve a queue from now on, if it is not served yet."""
        timer = self._timers.get(queue)
        if timer is None and queue not in self._resting:
            self._check(queue, "reconnect")
        elif timer is not None:
            self._know(timer)

    def timer(self, queue: str) -> QueueTimer:
        """Return the timer of a queue; one that had none is served from now on."""
        timer = self._timers.get(queue)
        if timer is None:
            self._resting.discard(queue)
            timer = self._timers[queue] = QueueTimer(queue, self._runtime.config.batch)
        self._know(timer)
        return timer

    def _know(self, timer: QueueTimer) -> None:
        if not timer.known:
            timer.known = True
            self._found(timer.store.queue)

    def _check(self, queue: str, reason: Reason) -> None:
        """Check a queue soon."""
        if self._unchecked.get(queue, "event") == "event":  # a queue that is known stays known
            self._unchecked[queue] = reason
        self._wakeup.ring()

    def changed(self, queue: str) -> None:
        """Look or step soon: jobs were put on the schedule."""
        timer = self._timer_or_check(queue)
        if timer is not None and not self._polls:
            timer.changed(time.monotonic())
            self._plan(timer)

    def removed(self, queue: str) -> None:
        """Note that jobs were removed from the schedule."""
        if (timer := self._timers.get(queue)) is not None:
            timer.removed(time.monotonic())

    def opens(self, queue: str, moment: float) -> None:
        """Step when the gate opens."""
        if (timer := self._timer_or_check(queue)) is not None:
            timer.opens(time.monotonic(), moment)
            self._plan(timer)

    def _timer_or_check(self, queue: str) -> QueueTimer | None:
        """Return the timer of a queue with an event; None = it has none, and is checked soon."""
        timer = self._timers.get(queue)
        if timer is None:
            self._check(queue, "reconnect" if queue in self._resting else "event")
        else:
            self._know(timer)
        return timer

    def look(self) -> None:
        """Check every queue, because events may have been missed. All later ones arrive."""
        self._polls = False
        self.check_all("reconnect")

    def proved(self) -> None:
        """Plan the next canary: the last one has come, perhaps after the reply to the step that carried it."""
        self._wakeup.ring()

    def poll(self) -> None:
        """Look at every queue again and again, because no events arrive, until `look` is called.

        This includes the queues at rest: with many queues, a flood is never large enough to poll them.
        """
        self._polls = True
        now = time.monotonic()
        for queue in list(self._resting):
            self.timer(queue)
        for timer in self._timers.values():
            timer.changed(now)
            self._plan(timer)
        self._wakeup.ring()

    def check_all(self, reason: Reason) -> None:
        """Check every queue at once."""
        self._unchecked |= dict.fromkeys(self._timers, reason)
        self._resting.look_soon()
        self._wakeup.ring()

    def _plan(self, timer: QueueTimer) -> None:
        """Plan the next step and look of a queue by its timer, and wake up if that is sooner than before."""
        queue = timer.store.queue
        sooner = timer.next() < min(self._steps.at(queue), self._looks.at(queue))
        self._steps.plan(queue, timer.next_step.at)
        self._looks.plan(queue, timer.next_look.at)
        if sooner:
            self._wakeup.ring()

    async def run(self) -> None:
        """Dispatch until cancelled."""
        while True:
            now = time.monotonic()
            if self._proof.at() <= now:
                # The queue that was stepped longest ago carries the canary, so the step counts for its safety cap too.
                oldest = min(self._timers.values(), key=lambda timer: timer.last_step)
                self._to_step.setdefault(oldest.store.queue, "safety")
            if looks := self._take_looks(now):
                await self._look(looks)
            now = time.monotonic()
            if self._to_step or self._unchecked or min(self._steps.next(), self._resting.next()) <= now:
                async with self._reconnect:
                    await self._round(now)
            step = 0.0 if self._to_step or self._unchecked else self._steps.next()
            look = min(self._proof.at(), self._looks.next(), self._resting.next())
            self.pulse.expect(max(0.0, min(step, look) - time.monotonic()))
            await self._wakeup.sleep(step, roughly=look)

    async def _round(self, now: float) -> None:
        """Step the queues that are due, and do a part of the checks, in one round trip.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        due = self._take_due(now)
        if len(self._unchecked) <= _CHECKED and all(
            reason != "safety" or (queue in self._lasting and len(self._unchecked) == 1)
            for queue, reason in self._unchecked.items()
        ):  # a step costs a round trip less than a glance at a queue whose job is due
            self._to_step |= self._unchecked
            self._unchecked = {}
        for queue in list(islice(self._to_step, _CHECKED)):
            # The idle queue carries canaries without being known.
            timer, reason = self._timers.get(queue) or self.timer(queue), self._to_step.pop(queue)
            if timer not in due:
                timer.step_now(reason)
                due.append(timer)
        resting = self._resting.next() <= now
        if len(due) == 1 and not self._unchecked and not resting:  # the usual case, without an asyncio task of its own
            await self._pass(due[0])
            return
        passes = [self._pass(timer) for timer in due]
        if self._unchecked:
            known = next(iter(self._unchecked)) in self._timers
            passes.append(self._glance(GLANCE_MOST if known else _NEW_MOST))
        if resting:
            passes.append(self._look_at_rest())
        for failure in await asyncio.gather(*passes, return_exceptions=True):
            if failure is not None:
                raise failure

    def _take_due(self, now: float) -> list[QueueTimer]:
        """Take up to `_TOGETHER` queues whose jobs are due; those whose safety cap has ended are checked instead."""
        due = list[QueueTimer]()
        while len(due) < _TOGETHER and (queue := self._steps.take(now)) is not None:
            timer = self._timers[queue]
            if timer.next_step.reason != "safety":
                due.append(timer)
            elif self._check_those_near(timer, now) == _NEAR_MOST:
                break
        return due

    def _take_looks(self, now: float) -> list[QueueTimer]:
        """Take up to `_LOOKS` queues to look at. A queue that is due for a step needs no look."""
        looks = list[QueueTimer]()
        while len(looks) < _LOOKS and (queue := self._looks.take(now)) is not None:
            timer = self._timers[queue]
            if timer.next_step.at > now:
                looks.append(timer)
        return looks

    def _check_those_near(self, first: QueueTimer, now: float) -> int:
        """Check a queue whose safety cap has ended, and others whose caps end soon; return how many were considered."""
        found, until = [first], now + _NEAR * self._runtime.times.safety_cap
        while len(found) < _NEAR_MOST and (queue := self._steps.take(until)) is not None:
            found.append(self._timers[queue])
        for timer in found:
            if timer.next_step.reason == "safety":
                self._unchecked.setdefault(timer.store.queue, "safety")
                timer.next_step.at = _NEVER
            else:
                self._steps.plan(timer.store.queue, timer.next_step.at)
        return len(found)

    async def settle(self) -> None:
        """Glance at all queues that are to be checked, so that those without anything are at rest.

        Raises:
            StoreDown, StoreRefused
        """
        while self._unchecked:
            await self._glance(GLANCE_MOST)

    async def _glance(self, most: int) -> None:
        """Check some queues in one call: those with a due job are stepped soon, and those without anything rest.

        Raises:
            StoreDown, StoreRefused: they will be checked again.
        """
        taken: dict[str, Reason] = {queue: self._unchecked.pop(queue) for queue in list(islice(self._unchecked, most))}
        if not taken:  # `settle`, called for the finder, has taken them before this task began
            return
        sent, first = time.monotonic(), next(iter(taken))
        try:
            found = await self._runtime.sender.send(Store(first).glance(list(taken)))
        except BaseException as error:
            self._unchecked = taken | self._unchecked
            if not (isinstance(error, StoreError) and error.kind == MOVING):
                raise
            # The slot of this queue moves in a cluster, which concerns it alone: its step meets the same error.
            self._to_step[first] = self._unchecked.pop(first)
            return
        self._redis_clock.read(found.now, sent)
        for queue, reason in taken.items():
            seen = found.seen.get(queue)
            if seen is None and self._may_rest(queue):
                self._rest(queue, reason)
            elif seen is not None or queue in self._timers:
                timer = self._timers[queue] if seen is None else self.timer(queue)
                self._checked(timer, reason, sent, found.now, seen)

    def _checked(self, timer: QueueTimer, reason: Reason, sent: float, now: float, seen: Seen | None) -> None:
        """Use the result of a glance at a queue, at `now` by Redis's clock."""
        nearest = None if seen is None else seen.nearest
        due = timer.glanced(sent, time.monotonic(), now, nearest, self._runtime.times.safety_cap)
        if due or (seen is not None and seen.gated):
            self._to_step[timer.store.queue] = reason
        elif self._polls:
            timer.changed(sent)
        self._plan(timer)

    def _may_rest(self, queue: str) -> bool:
        """Whether a queue in which nothing was seen may be at rest. If an event came meanwhile, it may not."""
        timer = self._timers.get(queue)
        quiet = timer is None or (timer.next_step.reason == "safety" and timer.next_look.at == _NEVER)
        return quiet and not (self._polls or queue in self._unchecked or queue in self._lasting)

    def _rest(self, queue: str, reason: Reason) -> None:
        """Put a queue at rest. One that only an event has named is forgotten: its next event finds it again."""
        if self._timers.pop(queue, None) is None and reason == "event":
            return
        self._steps.drop(queue)
        self._looks.drop(queue)
        self._refused.forget(queue)
        self._finder.rests(queue)
        self._resting.add(queue)

    async def _look_at_rest(self) -> None:
        """Look at some queues at rest, and check them if one is not empty any more.

        Raises:
            StoreDown, StoreRefused: the next call looks at the same queues.
        """
        for queue in await self._resting.look():
            self._check(queue, "safety")

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
        finally:
            self._plan(timer)

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
                    timer.changed(sent)
            self._plan(timer)

    async def step(self, timer: QueueTimer) -> None:
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
            done = await self._dispatch(timer, self._proof.name if prove else "")
        except BaseException:
            timer.step_by(at, reason)
            if prove:
                self._proof.unsent()
            raise
        self._redis_clock.read(done.now, sent)
        timer.stepped(sent, reason, done, self._runtime.times.safety_cap)
        if self._polls:
            timer.changed(sent)
        self._emit(timer.store.queue, reason, done)

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
