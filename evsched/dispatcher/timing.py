"""When a queue is stepped or looked at next, and why.

`RedisClock` finds jumps of the clock by which due times are computed, and `Proof` shows that the events arrive which
shorten the sleeps.

`QueueTimer` decides this for one queue. It is pure, and its times are monotonic.

A *step* is a call of the script `dispatch`. A *look* reads the earliest due time with a plain ZRANGE, which costs Redis
a thirtieth of a step.

* When a job is due or the gate opens, the answer is a step, at exactly that moment.
* An event is answered at once after a silence, else 3 ms after the last step or look, or 1 ms after a step that found
  due jobs. It is answered by a look, and by a step if the look finds a due job. After two events in a row that brought
  due jobs, it is answered by a step.
* If another dispatcher is quicker, this one becomes a *reserve* for the queue: it lets the other one, the leader, act
  first, then looks, and steps only if a job is overdue. Then it leads.

Looks and reserves are both necessary, as was measured. With steps alone, a flood of 2,000 far jobs a second causes 310
calls of scripts a second instead of 45, and twice the CPU time; the target is 100 calls. Without reserves, four
dispatchers make 4.8 steps for each job instead of 1.2, and a job starts 0.6 ms later, because it waits in Redis for
steps that find nothing.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from typing import Final

from evsched import events, process_events
from evsched.events import Emit, Reason
from evsched.runtime.loops import Pulse, Runtime
from evsched.store.dispatcher_calls import Step
from evsched.store.queue import BatchLimit
from evsched.store.store import Store

GAP: Final = 0.003
"""Seconds from a step or look to the next one that answers an event. In a flood of far jobs, a due job may be late by
this much, and a dispatcher makes 300 looks a second."""

FOUND_GAP: Final = 0.001
"""The same after a step that found due jobs. With 3 ms, jobs that a client schedules for now, 500 a second, were 1.8 ms
later, and the dispatcher used twice the CPU time: to wait for an exact moment, it does not sleep."""

_FRUITFUL: Final = 2
"""Events in a row that brought due jobs, after which the next event is answered by a step."""

_IN_VAIN: Final = 2
"""Jobs in a row that another dispatcher was quicker to move, after which a dispatcher is a reserve."""

_RECENT: Final = 0.01
"""If a step does not find the job it was made for, and jobs were removed from the schedule in this many seconds before
it, another dispatcher was quicker. If the removal is older, a user cancelled the job."""

_BEHIND: Final = (0.004, 0.008)
"""Seconds by which a reserve lets the leader act first, least and most: longer than a round trip on a busy machine. A
job that is overdue by less than the least is left to the leader."""

_RESERVE_GAP: Final = (0.05, 0.1)
"""Seconds from a look of a reserve that found no job overdue to its next look. If the leader dies, the next job is late
by this much at most. At random, so that the queues of a dead leader fall to several reserves."""

_SAME: Final = 0.001
"""Seconds by which a due time that was computed from two replies may differ."""

_NEVER: Final = float("inf")


class Appointment:
    """When to act next, and why. The earliest of several requests counts."""

    def __init__(self, at: float, reason: Reason) -> None:
        self.at = at
        self.reason: Reason = reason

    def bring_forward(self, at: float, reason: Reason) -> None:
        """Act at that moment, or earlier if that is planned."""
        if at < self.at:
            self.at, self.reason = at, reason


class QueueTimer:
    """When one queue is stepped and looked at.

    The loop calls `stepping` before a step and `stepped` after it, `looking` before a look and `looked` after it.
    """

    def __init__(self, queue: str, most: int = 250, *, known: bool = False) -> None:
        self.store = Store(queue)
        self.known = known
        """The queue was found, or the settings name it. The default queue is served before that."""
        self.batch = BatchLimit(most)
        """How many jobs a step may move."""
        self.full = False
        """The last step moved many jobs, so it is measured how long the next one keeps Redis busy."""
        self.next_step = Appointment(_NEVER, "reconnect")
        self.next_look = Appointment(_NEVER, "event")
        self.last_step = 0.0
        self.leads = True
        """No other dispatcher is quicker; False = this is a reserve."""
        self._acted = 0.0
        """When the last step or look was sent."""
        self._gap = GAP
        """Seconds from then to the next answer to an event."""
        self._fruitful = 0
        """Steps in a row that answered events and found due jobs."""
        self._expected = _NEVER
        """The due time of the earliest job, as last read, by Redis's clock."""
        self._seen = False
        """The last look saw that this job is due."""
        self._removed = 0.0
        """When jobs were last removed from the schedule, also by this dispatcher."""
        self._in_vain = 0
        """Jobs in a row that another dispatcher was quicker to move."""
        self._not_before = 0.0
        """No step or look before this: Redis refused the last step."""
        self._ahead: float | None = None
        """Redis's clock minus the monotonic clock, by the last step; None = no step yet."""

    def next(self) -> float:
        """Return when to step or look, whichever is first."""
        return min(self.next_step.at, self.next_look.at)

    def step_by(self, at: float, reason: Reason) -> None:
        self.next_step.bring_forward(max(at, self._not_before), reason)

    def step_now(self, reason: Reason) -> None:
        """Step at once, whatever is planned."""
        self.next_step.at, self.next_step.reason = 0.0, reason

    def look_by(self, at: float, reason: Reason) -> None:
        self.next_look.bring_forward(max(at, self._not_before), reason)

    def changed(self, now: float) -> None:
        """Answer an event, or the lack of events: jobs may have been put on the schedule."""
        act = self.step_by if self.leads and self._fruitful >= _FRUITFUL else self.look_by
        act(self._throttled(now), "event")

    def removed(self, now: float) -> None:
        """Note that jobs were removed from the schedule."""
        self._removed = now

    def opens(self, now: float, moment: float) -> None:
        """Step when a rate opens the gate, at `moment` of Redis's clock; 0 = now."""
        self.step_by(self._throttled(now if self._ahead is None else max(now, moment - self._ahead)), "event")

    def _throttled(self, moment: float) -> float:
        """Return when to answer something that happens at `moment`."""
        behind = 0.0 if self.leads else random.uniform(*_BEHIND)  # noqa: S311 - no secret
        return max(moment + behind, self._acted + self._gap)

    def stepping(self, now: float) -> None:
        """Note that a step is being sent. Events that arrive from now on need another step."""
        self.next_step.at = self.next_look.at = _NEVER
        self.last_step, self._acted, self._gap = now, now, GAP

    def stepped(self, sent: float, reason: Reason, done: Step, cap: float) -> None:
        """Note the result of a step, and plan the next one.

        The sleep is counted from the moment at which the step was sent. The next step takes about as long to reach
        Redis, so it arrives when the job is due. If it arrives early, the script moves nothing, and returns the time
        that remains.
        """
        self._ahead, self._not_before = done.now - sent, 0.0
        self.full = self.batch.worth_timing(len(done.moved))
        found, nearest = bool(done.moved or done.buried or done.missed), done.now + done.sleep
        if found:
            self.leads, self._in_vain, self._gap = True, 0, FOUND_GAP
        elif nearest > self._expected + _SAME and (self._seen or sent - self._removed < _RECENT):
            self._in_vain += 1
            self.leads = self.leads and self._in_vain < _IN_VAIN
        if reason == "event":
            self._fruitful = self._fruitful + 1 if found else 0
        self._expected, self._seen = nearest if done.sleep < done.opens else _NEVER, False
        self.step_by(sent + cap, "safety")
        if done.sleep < cap:
            self._wake_at(sent + done.sleep, sent + done.opens)

    def refused(self, now: float, delay: float) -> None:
        """Note that Redis refused the step: neither step nor look for `delay` seconds.

        It counts as the queue's last step, so the next canary goes with a step of another queue.
        """
        self.last_step = now
        self._not_before = self.next_step.at = now + delay

    def glanced(self, sent: float, now: float, redis_now: float, nearest: float | None, cap: float) -> bool:
        """Note the result of a glance at many queues for this one; return whether a job is due and needs a step.

        `redis_now`: the time in the reply. If no job is due, this serves the safety cap as a step does.
        """
        self._ahead = redis_now - sent
        due = self._expect(nearest, now)
        if due <= now:
            return True
        self.step_by(sent + cap, "safety")
        self._wake_at(due, _NEVER)
        return False

    def looking(self, now: float) -> Reason:
        """Note that a look is being sent; return its reason."""
        self.next_look.at = _NEVER
        self._acted = now
        return self.next_look.reason

    def looked(self, now: float, reason: Reason, nearest: float | None) -> None:
        """Note the nearest due that a look found, by Redis's clock."""
        due = self._expect(nearest, now)
        if due > now:
            self._fruitful = 0
        if now - due >= (0.0 if self.leads else _BEHIND[0]):
            self.step_by(now, reason)
        else:
            self._gap = GAP if self.leads else random.uniform(*_RESERVE_GAP)  # noqa: S311 - no secret
            self._wake_at(due, _NEVER)

    def _expect(self, nearest: float | None, now: float) -> float:
        """Remember the earliest due time, and return it by the monotonic clock."""
        self._expected = _NEVER if nearest is None else nearest
        due = self._expected - (self._ahead or 0.0)
        self._seen = due <= now
        return due

    def _wake_at(self, due: float, opens: float) -> None:
        """Wake when a job is due, and when the gate opens."""
        if self.leads:
            self.step_by(min(due, opens), "timer")
        else:
            self.step_by(self._throttled(opens), "timer")
            if due < opens:
                self.look_by(self._throttled(due), "timer")


_JUMP: Final = 1.0
"""Seconds. Smaller jumps are corrections by NTP, and do not make a job noticeably early or late."""


class RedisClock:
    """Detects that Redis's clock was set, by this host's monotonic clock; then it calls `jumped()`.

    Redis's clock decides when a job is due, so after a jump all times that were computed from it are wrong. A wall
    clock cannot detect the jump, because it may have been set too.
    """

    def __init__(self, emit: Emit, jumped: Callable[[], None]) -> None:
        self._emit = emit
        self._jumped = jumped
        self._lead: tuple[float, float] | None = None
        """Bounds of Redis's clock minus the monotonic clock, by the last reply."""

    def read(self, now: float, sent: float) -> None:
        """Compare the time `now` in a reply with the last one. `sent`: when the call was sent, by the monotonic clock.

        Redis read its clock between `sent` and this moment, so a slow reply does not count as a jump. Neither does
        drift, because each reply is compared with the one before it only.
        """
        least, most = now - time.monotonic(), now - sent
        before, self._lead = self._lead, (least, most)
        if before is None:
            return
        jump = least - before[1] if least > before[1] else min(most - before[0], 0.0)
        if abs(jump) >= _JUMP:
            self._emit(events.ClockJumped(seconds=jump))
            self._jumped()


_SOONER: Final = 0.99
"""The part of the probe interval after which a canary is sent: idle workers hear it just before they would test their
connections themselves. So one command in 13 s proves the connections of an idle fleet."""


class Proof:
    """Proves that the subscription works, by canaries.

    A `dispatch` carries a canary: it changes a key of its own, then publishes a message. If no message arrives, the
    connection is half open. If the message arrives without the keyspace event, Redis sends no events.

    The dispatch loop sends the canaries, and the watcher reports the messages that it receives.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.name = secrets.token_hex(8)
        """Names the canaries of this dispatcher."""
        self._silent: Callable[[], None] | None = None
        """Called if a canary's message does not arrive in time; None = there is no subscription."""
        self._pulse: Pulse | None = None
        self._new = True
        """The subscription has not been proved yet: the next step carries a canary, even if messages have arrived."""
        self._last = 0.0
        """When anything was last received, by the monotonic clock."""
        self._timer: asyncio.TimerHandle | None = None
        self.event_came = False
        """The event of the canary that is under way has arrived."""
        self._proven: bool | None = None
        self.mend = ""
        """The remedy, for the log, if Redis sends no events."""

    @property
    def failed(self) -> bool:
        """The last canary's event did not arrive: Redis sends no keyspace events."""
        return self._proven is False

    def begin(self, pulse: Pulse, silent: Callable[[], None]) -> None:
        """Ask for a proof at once, because the subscription is new.

        `pulse`: that of the loop that reads its messages. `silent()` is called if a canary's message does not arrive.
        """
        self._new, self._pulse, self._silent = True, pulse, silent

    def end(self) -> None:
        """Ask for no more proofs, because the subscription has ended."""
        self._pulse = self._silent = None
        self._cancel()

    def at(self) -> float:
        """Return when the next canary is wanted, by the monotonic clock; inf = no canary is wanted.

        It is wanted after a silence, and at once if the subscription is new.
        """
        if self._silent is None or self._timer is not None:
            return float("inf")
        return 0.0 if self._new else self._last + _SOONER * self._runtime.times.probe_interval

    def expect(self) -> None:
        """Note that a canary is being sent: it must arrive within the reply timeout."""
        if self._silent is not None and self._timer is None:
            self._new = False
            self._timer = asyncio.get_running_loop().call_later(self._runtime.times.reply_timeout, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        if self._silent is not None:
            self._silent()

    def unsent(self) -> None:
        """Note that the call that carried a canary failed: its absence proves nothing. Another one is sent later."""
        self._cancel()
        self.received()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def received(self) -> None:
        """Note that a message was received: the connection works."""
        self._last = time.monotonic()
        self.await_message()

    def await_message(self) -> None:
        """Tell the pulse when the next message arrives at the latest: that of the canary that follows a silence."""
        if self._pulse is not None:
            times = self._runtime.times
            self._pulse.expect(times.probe_interval + times.reply_timeout)

    def message_came(self) -> None:
        """End the proof: the event must have arrived before this message."""
        self._cancel()
        came, self.event_came = self.event_came, False
        if came != self._proven:
            self._proven = came
            self._runtime.emit(
                process_events.NotificationsProven() if came else process_events.NotificationsMissing(mend=self.mend)
            )
