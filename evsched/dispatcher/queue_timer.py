"""Decides when one queue is stepped or looked at next, and why. Pure; times are monotonic.

A step is a call of the script `dispatch`. A look reads only the nearest due, and costs Redis a thirtieth of a step. A
step is made when a job is probably due:

* at the known due time and at the opening of the gate;
* at an event that most likely brought a due job (`pace.py`). Other events are answered by looks.

For the safety cap, and after a new subscription, the loop glances at many queues in one call.

Among several dispatchers, `rivals.py` decides which one acts first.
"""

from __future__ import annotations

from evsched.dispatcher.pace import Pace
from evsched.dispatcher.rivals import Rivals
from evsched.events import Reason
from evsched.store.dispatcher_calls import Step
from evsched.store.queue import BatchLimit
from evsched.store.store import Store

_NEVER = float("inf")


class Appointment:
    """When to act next, and why. Of several requests the earliest counts."""

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
        self._not_before = 0.0
        """No step or look before this: Redis refused the last step."""
        self._ahead: float | None = None
        """Redis's clock minus the monotonic clock, by the last step; None = no step yet."""
        self.pace = Pace()
        self.rivals = Rivals()

    def next(self) -> float:
        """Return when to step or look, whichever is first."""
        return min(self.next_step.at, self.next_look.at)

    def step_by(self, at: float, reason: Reason) -> None:
        """Step at that moment, or earlier if that is planned."""
        self.next_step.bring_forward(max(at, self._not_before), reason)

    def step_now(self, reason: Reason) -> None:
        """Step at once, whatever is planned."""
        self.next_step.at, self.next_step.reason = 0.0, reason

    def look_by(self, at: float, reason: Reason) -> None:
        """Look at that moment, or earlier if that is planned."""
        self.next_look.bring_forward(max(at, self._not_before), reason)

    def changed(self, now: float) -> None:
        """Answer an event: jobs may have been put on the schedule."""
        if self.rivals.reserve:
            self.look_by(self.rivals.look_at(now), "event")
        elif self.pace.prefers_step(now):
            self.step_by(self.pace.next_step(now), "event")
        else:
            self.look_by(self.pace.next_look(now), "event")

    def poll(self, now: float) -> None:
        """Look, or step, as soon as an event would cause it: no events arrive. A reserve only looks now and then."""
        if self.rivals.reserve:
            self.next_look.at = _NEVER
            self.look_by(now + self.rivals.patience(), "event")
        else:
            self.changed(now)

    def opens(self, now: float, moment: float) -> None:
        """Step when a rate opens the gate, at `moment` of Redis's clock; 0 = now."""
        at = now if self._ahead is None else max(now, moment - self._ahead)
        self.step_by(self.pace.next_step(at + self.rivals.delay()), "event")

    def removed(self, now: float) -> None:
        """Note that jobs were removed from the schedule. A reserve then acts later: most likely the leader acts."""
        led = not self.rivals.reserve
        self.rivals.removed(now)
        if not self.rivals.reserve:
            return
        if led and self.next_step.reason == "timer":
            self.next_step.at += self.rivals.delay()
        self.next_look.at = max(self.next_look.at, self.rivals.postponed())

    def stepping(self, now: float) -> None:
        """Note that a step is being sent. Events that arrive from now on need another step."""
        self.next_step.at = self.next_look.at = _NEVER
        self.pace.stepping(now)
        self.rivals.stepping(now)

    def stepped(self, sent: float, now: float, reason: Reason, done: Step, cap: float) -> None:
        """Note what a step found, and when to step next.

        The sleep is counted from the moment at which the step was sent. The next step takes about as long to reach
        Redis, so it arrives when the job is due. If it arrives early, the script moves nothing, and returns the time
        that remains.
        """
        self._ahead, self._not_before = done.now - sent, 0.0
        found = bool(done.moved or done.buried)
        self.full = self.batch.worth_timing(len(done.moved))
        self.pace.stepped(by_event=reason == "event", found=found)
        if found:
            self.rivals.found(now)
        elif reason in ("event", "timer"):
            self.rivals.found_nothing(now, done.now + done.sleep)
        self.step_by(sent + cap, "safety")
        if done.sleep < cap:
            self._wake_at(sent + done.sleep, sent + done.opens)

    def refused(self, now: float, delay: float) -> None:
        """Note that Redis refused the step: neither step nor look for `delay` seconds.

        It counts as the queue's last step, so the next canary goes with a step of another queue.
        """
        self.pace.last_step = now
        self._not_before = self.next_step.at = now + delay

    def glanced(self, sent: float, now: float, redis_now: float, nearest: float | None, cap: float) -> bool:
        """Note what a look at many queues found of this one; return whether a job is due, so that it must be stepped.

        `redis_now`: the time in the reply. If no job is due, this serves the safety cap as a step does.
        """
        self._ahead = redis_now - sent
        due = _NEVER if nearest is None else nearest - self._ahead
        if due <= now:
            self.rivals.saw(nearest or 0.0)
            return True
        self.step_by(sent + cap, "safety")
        self._wake_at(due, _NEVER)
        return False

    def looking(self, now: float) -> Reason:
        """Note that a look is being sent; return its reason."""
        self.next_look.at = _NEVER
        self.pace.looking(now)
        self.rivals.looking(now)
        return self.next_look.reason

    def looked(self, now: float, reason: Reason, nearest: float | None) -> None:
        """Note the nearest due that a look found, by Redis's clock."""
        due = _NEVER if nearest is None else nearest - (self._ahead or 0.0)
        self.pace.looked(found=due <= now)
        if self.rivals.overdue(now, due):
            self.rivals.saw(nearest or 0.0)
            self.step_by(now, reason)
        else:
            self.rivals.trust()
            self._wake_at(due, _NEVER)

    def _wake_at(self, due: float, opens: float) -> None:
        """Wake when a job is due, and when the gate opens."""
        if not self.rivals.reserve:
            self.step_by(min(due, opens), "timer")
        else:
            self.step_by(opens + self.rivals.delay(), "timer")
            if due < opens:
                self.look_by(self.rivals.look_at(due), "timer")
