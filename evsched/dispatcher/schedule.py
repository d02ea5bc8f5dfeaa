"""What a dispatcher knows of one queue's schedule: when to step or to look next, and why. Pure; times are monotonic.

A step is the script `dispatch`. A look reads the nearest due alone, and costs Redis a thirtieth of it. A step follows
where there is reason to think that something is due:

* at the due that is known, at the opening of the gate, by the safety cap, after a new subscription;
* at an event that comes after a silence, or after events that all brought something due: this one most likely does.

Other events are answered by looks. Those are `_GAP` apart while they find something due, and up to `LOOK_MOST` when
they do not: a flood of far jobs costs 200 looks a second, and makes none that is due later than that.

Dispatchers are equals, and all wake for the same due. The one that is quicker than the others stays in front; one that
came too late becomes a reserve: it waits a random moment, then looks, and steps when the job still lies there. Then it
is in front again. So a job costs one step, however many dispatchers there are, and the death of the one in front some
milliseconds.
"""

from __future__ import annotations

import random
from typing import Final

from evsched.events import Reason
from evsched.store.batch_size import Batch
from evsched.store.replies import Step
from evsched.store.store import Store

_SILENCE: Final = 0.01
"""Seconds without a look or step after which an event is answered by a step: so these are 100 a second at the most."""

_GAP: Final = 0.001
"""Seconds between two steps or looks that something heard asks for: a producer that schedules without pause must not
keep Redis busy with our looking. Counted from when they are sent."""

LOOK_MOST: Final = 0.005
"""Seconds between two looks that find nothing: what a job that is due when it is scheduled may be late by in a flood of
others."""

_FRUITFUL: Final = 2
"""Events in a row that brought something due, after which the next is answered by a step."""

_RESERVE: Final = (0.001, 0.004)
"""Seconds by which a reserve is behind: more than the round trip of the one in front, and bearable as lateness."""

_RECENT: Final = 0.01
"""Seconds within which a removal from the schedule explains that a step found nothing."""


class Schedule:
    """When to step or look next. Whoever sends calls `stepping` or `looking`, then `stepped` or `looked`."""

    def __init__(self, queue: str, most: int = 250) -> None:
        self.store = Store(queue)
        self.batch = Batch(most)
        """How many jobs a step moves."""
        self.full = False
        """The last step moved so many that the next is worth timing."""
        self.at = 0.0
        """When to step; 0 = at once."""
        self.reason: Reason = "reconnect"
        self.look_at = float("inf")
        self._not_before = 0.0
        """Redis refused the last step: until then it is not tried again, whatever is heard."""
        self.last_step = 0.0
        self.reserve = False
        """Another dispatcher is quicker."""
        self._why: Reason = "event"
        """What the look is for."""
        self._touched = 0.0
        """The last step or look."""
        self._gap = _GAP
        self._fruitful = 0
        """Steps after events that moved something, in a row."""
        self._ahead: float | None = None
        """Redis's clock minus ours, by the last step; None = not stepped yet."""
        self._moved = float("-inf")
        """When a step of ours last moved jobs."""
        self._vain = float("-inf")
        """When a step of ours last found nothing, though it had a reason."""
        self._removed = float("-inf")
        """When another last removed something."""

    def next(self) -> float:
        """Return when there is something to do."""
        return min(self.at, self.look_at)

    def step_by(self, at: float, reason: Reason) -> None:
        """Step at that moment, if not before."""
        at = max(at, self._not_before)
        if at < self.at:
            self.at, self.reason = at, reason

    def look_by(self, at: float, why: Reason) -> None:
        """Look at that moment, if not before."""
        at = max(at, self._not_before)
        if at < self.look_at:
            self.look_at, self._why = at, why

    def heard(self, now: float) -> None:
        """Note that the schedule has changed."""
        if self.reserve:
            self.look_by(max(now + _behind(), self._touched + self._gap), "event")
        elif now - self._touched >= _SILENCE or self._fruitful >= _FRUITFUL:
            self.step_by(max(now, self.last_step + _GAP), "event")
        else:
            self.look_by(max(now, self._touched + self._gap), "event")

    def opens(self, now: float, moment: float) -> None:
        """Note when a gate opens by its rate, by Redis's clock; 0 = step now."""
        at = now if self._ahead is None else max(now, moment - self._ahead)
        self.step_by(max(at + (_behind() if self.reserve else 0.0), self.last_step + _GAP), "event")

    def removed(self, now: float) -> None:
        """Note that jobs have left the schedule: by another dispatcher, unless we have just moved some."""
        if now - self._moved > _RECENT:
            self._removed = now
            self._judge()

    def stepping(self, now: float) -> None:
        """Note that a step is being sent: what is heard from now on is not answered by it."""
        self.at = self.look_at = float("inf")
        self.last_step = self._touched = now

    def stepped(self, sent: float, now: float, reason: Reason, done: Step, cap: float) -> None:
        """Note what a step came to, and when to step next.

        From when it was sent: the next call takes as long to reach Redis, so it arrives just when the job is due.
        Should it come early all the same, the script moves nothing and answers the rest.
        """
        self._ahead, self._not_before = done.now - sent, 0.0
        found = bool(done.moved or done.buried)
        self.full = self.batch.worth_timing(len(done.moved))
        if reason == "event":
            self._fruitful = self._fruitful + 1 if found else 0
        if found:
            # The removal that was heard meanwhile, or will be, is our own.
            self._moved, self._removed, self._gap, self.reserve = now, float("-inf"), _GAP, False
        elif reason in ("event", "timer"):
            self._vain = now
            self._judge()
        self.step_by(sent + cap, "safety")
        if done.sleep < cap:
            self._by(sent + done.sleep, sent + done.opens)

    def refused(self, now: float, delay: float) -> None:
        """Note that Redis refused the step: it is another queue's turn to prove the subscription."""
        self.last_step = now
        self._not_before = self.at = now + delay

    def looking(self, now: float) -> Reason:
        """Note that a look is being sent; return what for."""
        self.look_at = float("inf")
        self._touched = now
        return self._why

    def looked(self, now: float, why: Reason, nearest: float | None) -> None:
        """Note the nearest due, by Redis's clock."""
        due = float("inf") if nearest is None else nearest - (self._ahead or 0.0)
        if due <= now:
            self._gap = _GAP
            self.step_by(now, why)
        else:
            self._gap, self._fruitful = min(2 * self._gap, LOOK_MOST), 0
            self._by(due, float("inf"))

    def _by(self, due: float, opens: float) -> None:
        """Wake when a job is due, and when the gate opens."""
        if not self.reserve:
            self.step_by(min(due, opens), "timer")
        else:
            self.step_by(opens + _behind(), "timer")
            if due < opens:
                self.look_by(due + _behind(), "timer")

    def _judge(self) -> None:
        """Become a reserve if a step found nothing about when another removed something."""
        if abs(self._vain - self._removed) < _RECENT:
            self.reserve = True


def _behind() -> float:
    return random.uniform(*_RESERVE)  # noqa: S311 - no secret
