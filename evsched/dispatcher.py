"""The dispatcher: moves due jobs on, and sleeps exactly until the next one is due or the schedule changes.

It never polls. What makes it right is the sleep that each step answers; a keyspace event only shortens it. Dispatchers
are equals: any number may run, since a step is one atomic script.

    wake (event, timer, safety cap, reconnect) ──▶ step: dispatch.lua ──▶ how long to sleep
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from typing import Final

from evsched import events, keys, server
from evsched.alarm import Alarm
from evsched.answers import Step
from evsched.clock import RedisClock
from evsched.config import DEFAULT_QUEUE, Config
from evsched.errors import NO_ENTRY, StoreRefused
from evsched.events import Emit, Reason
from evsched.loops import run_loops
from evsched.outage import Outage, Outages
from evsched.pulse import Pulse
from evsched.recurring import Recurring
from evsched.sender import Commands
from evsched.store import Store
from evsched.watcher import FLOOD_GAP, Watcher

_GAP: Final = 0.001
"""Seconds between two steps that events ask for: a producer that schedules without pause must not keep Redis busy
with our looking."""


class Schedule:
    """What a dispatcher knows of one queue's schedule: when to step next, and why."""

    def __init__(self, queue: str) -> None:
        self.store = Store(queue)
        self.at = 0.0
        """By the monotonic clock; 0 = at once."""
        self.reason: Reason = "reconnect"
        self.stepped = 0.0
        """By the monotonic clock: the last step."""
        self.not_before = 0.0
        """Redis refused the last step: until then it is not tried again, whatever is heard."""

    def step_by(self, at: float, reason: Reason) -> None:
        """Step at that moment, if not before."""
        at = max(at, self.not_before)
        if at < self.at:
            self.at, self.reason = at, reason


class Dispatcher:
    """Dispatches the queues that `config` names, or all that there are."""

    def __init__(self, config: Config, commands: Commands, emit: Emit) -> None:
        self._id = secrets.token_hex(8)
        self._config = config
        self._commands = commands
        self._emit = emit
        self._alarm = Alarm()
        self._outage = Outage("dispatcher", emit)
        self._refused = Outages("dispatcher", emit)
        self._watcher = Watcher(config, commands, self._id, emit, self._heard, self._recurs, self._look_at_all)
        self._clock = RedisClock(emit, lambda: self._look_at_all("timer"))
        self._recurring = Recurring(config, commands, emit, self._clock, lambda: self.queues)
        # There is always one: a dispatcher on an empty Redis proves its subscription on it.
        self._schedules = {queue: Schedule(queue) for queue in config.queues or (DEFAULT_QUEUE,)}

    @property
    def queues(self) -> list[str]:
        """The queues that it dispatches."""
        return list(self._schedules)

    @property
    def pulses(self) -> list[Pulse]:
        """The pulses of its loops."""
        return [self._outage.pulse, self._watcher.pulse, self._recurring.pulse]

    def wrong(self) -> str | None:
        """Return why it dispatches nothing: what its last steps met, of each queue; None = it does."""
        return self._outage.reason or self._refused.wrong()

    async def run(self) -> None:
        """Dispatch until cancelled.

        Raises:
            LoopEnded
        """
        await run_loops(
            {"subscription": self._watcher.run(), "recurring": self._recurring.run(), "dispatcher": self._loop()}
        )

    async def find_queues(self) -> None:
        """Find the queues that are there, with one SCAN; those that come later are found by their first event.

        A processing list whose worker has no lease is given one, so that the janitor judges it as any other.

        Raises:
            StoreDown, StoreRefused
        """
        cursor, lists = 0, set[tuple[str, str]]()
        while True:
            cursor, found = await self._commands.send(server.scan(cursor))
            for queue, worker in filter(None, map(keys.parse, found)):
                if not self._config.queues or queue in self._config.queues:
                    self._find(queue)
                    if worker is not None:
                        lists.add((queue, worker))
            if cursor == 0:
                break
        for queue in {queue for queue, _ in lists}:
            place = Store(queue)
            leased = {lease.worker for lease in await self._commands.send(place.survey())}
            for worker in sorted(name for of, name in lists if of == queue and name not in leased):
                await self._commands.send(place.beat(worker, self._config.lease, fresh=True))

    def _find(self, queue: str) -> Schedule:
        schedule = self._schedules.get(queue)
        if schedule is None:
            schedule = self._schedules[queue] = Schedule(queue)
            self._emit(events.QueueFound(queue))
            self._alarm.ring()
        return schedule

    def _heard(self, queue: str) -> None:
        schedule = self._find(queue)
        now = time.monotonic()
        schedule.step_by(max(now, schedule.stepped + _GAP), "event")
        if schedule.at <= now + _GAP:
            self._alarm.ring()

    def _recurs(self, queue: str) -> None:
        self._find(queue)
        self._recurring.heard(queue)

    def _look_at_all(self, reason: Reason = "reconnect") -> None:
        self._recurring.look()
        for schedule in self._schedules.values():
            schedule.at, schedule.reason = 0.0, reason
        self._alarm.ring()

    async def _loop(self) -> None:
        while True:
            now = time.monotonic()
            if self._watcher.proof_at() <= now:
                # Proof and safety net are one command: the queue that was not looked at for longest.
                min(self._schedules.values(), key=lambda schedule: schedule.stepped).step_by(now, "safety")
            for schedule in [schedule for schedule in self._schedules.values() if schedule.at <= now]:
                async with self._outage:
                    await self._pass(schedule)
            until = min(self._watcher.proof_at(), *(s.at for s in self._schedules.values()))
            self._outage.pulse.expect(max(0.0, until - time.monotonic()))
            await self._alarm.sleep(until)

    async def _pass(self, schedule: Schedule) -> None:
        """Step a queue; one that Redis refuses is tried again later, and holds no other up.

        Raises:
            StoreDown, StoreRefused: it is not of this queue.
        """
        refused = self._refused.of(schedule.store.queue)
        try:
            await self.step(schedule)
            schedule.not_before = 0.0
            refused.passed()
        except StoreRefused as error:
            if error.kind in NO_ENTRY:
                raise
            now = time.monotonic()
            schedule.stepped = now  # it is another queue's turn to prove the subscription
            schedule.not_before = schedule.at = now + refused.failed(error)

    async def step(self, schedule: Schedule) -> Step:
        """Dispatch one batch of a queue, and set when to step it next.

        Raises:
            StoreDown, StoreRefused: nothing is changed.
        """
        prove = self._watcher.proof_at() <= time.monotonic()
        at, reason = schedule.at, schedule.reason
        schedule.at = float("inf")  # an event that comes while Redis answers sets it anew
        if prove:
            self._watcher.expect()  # before it is sent: what is heard may come before the reply
        sent = time.monotonic()
        try:
            done = await self._commands.send(
                schedule.store.dispatch(
                    limit=self._config.batch, cap=self._config.payload_cap, canary=self._id if prove else ""
                )
            )
        except BaseException:
            schedule.step_by(at, reason)
            raise
        schedule.stepped = sent
        self._clock.heard(done.now, sent)
        # From when it was sent: the next call takes as long to reach Redis, so it arrives just when the job is due.
        # Should it come early all the same, the script moves nothing and answers the rest.
        cap = self._config.safety_cap
        schedule.step_by(sent + min(done.sleep, cap), "timer" if done.sleep < cap else "safety")
        if self._watcher.flooded:
            schedule.step_by(sent + FLOOD_GAP, "event")
        self._tell(schedule.store.queue, reason, done)
        return done

    def _tell(self, queue: str, reason: Reason, done: Step) -> None:
        self._emit(events.Woken(queue, reason, len(done.moved) + len(done.buried)))
        if done.moved:
            self._emit(events.Dispatched(queue, [done.now - due for due in done.moved]))
        for name, count in Counter(done.missed).items():
            self._emit(events.Missed(queue, name, count))
        for job_id, why in done.buried:
            self._emit(events.Buried(queue, job_id, "?", 0, why, "dead"))
