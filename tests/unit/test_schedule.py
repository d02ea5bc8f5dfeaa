"""When a dispatcher steps or looks at one queue, and when it lets another dispatcher act first."""

from __future__ import annotations

import pytest

from evsched.dispatcher.pace import LOOK_MOST
from evsched.dispatcher.schedule import Schedule
from evsched.events import Reason
from evsched.store.replies import Step

REDIS = 1_000_000.0
"""Redis's clock when ours is 0."""
CAP = 30.0
NEVER = float("inf")


def step(
    schedule: Schedule,
    now: float,
    *,
    moved: int = 0,
    sleep: float = NEVER,
    opens: float = NEVER,
    reason: Reason = "event",
) -> None:
    """Send a step and receive its reply, 0.2 ms later."""
    schedule.stepping(now)
    done = Step(REDIS + now, min(sleep, opens), [REDIS] * moved, [], [], opens)
    schedule.stepped(now, now + 0.0002, reason, done, CAP)


def look(schedule: Schedule, now: float, due: float | None) -> None:
    """Send a look and receive the nearest due, by the monotonic clock."""
    why = schedule.looking(now)
    schedule.looked(now + 0.0002, why, None if due is None else REDIS + due)


@pytest.fixture
def schedule() -> Schedule:
    """A schedule that was stepped at 1 and knows no due time."""
    schedule = Schedule("q")
    step(schedule, 1.0, reason="reconnect")
    return schedule


def test_it_steps_when_the_next_job_is_due_counted_from_when_the_last_step_was_sent(schedule: Schedule) -> None:
    step(schedule, 2.0, sleep=5.0)
    assert (schedule.next_step.at, schedule.next_step.reason, schedule.next()) == (7.0, "timer", 7.0)


def test_it_steps_after_the_safety_cap_at_the_latest(schedule: Schedule) -> None:
    step(schedule, 2.0, sleep=100.0)
    assert (schedule.next_step.at, schedule.next_step.reason) == (2.0 + CAP, "safety")


def test_an_event_after_a_silence_is_answered_by_a_step_at_once(schedule: Schedule) -> None:
    schedule.changed(2.0)
    assert (schedule.next_step.at, schedule.next_step.reason) == (2.0, "event")


def test_an_event_during_a_step_is_answered_a_gap_after_the_step_was_sent(schedule: Schedule) -> None:
    schedule.stepping(2.0)
    schedule.changed(2.0005)
    assert schedule.next() == pytest.approx(2.001)


def test_a_flood_of_far_jobs_costs_looks_and_no_steps(schedule: Schedule) -> None:
    step(schedule, 2.0, sleep=500.0)
    looks, steps, now = 0, 0, 2.0
    while now < 3.0:
        now += 0.0005
        schedule.changed(now)
        if schedule.next_step.at <= now:
            steps += 1
            step(schedule, now, sleep=500.0)
        elif schedule.next_look.at <= now:
            looks += 1
            look(schedule, now, 502.0)
    assert steps == 0
    assert looks <= 1 / LOOK_MOST + 5


def test_a_look_that_finds_a_due_job_is_followed_by_a_step_and_by_quicker_looks(schedule: Schedule) -> None:
    step(schedule, 2.0)
    for n in range(1, 6):
        schedule.changed(2.0 + 0.01 * n - 0.005)
        look(schedule, 2.0 + 0.01 * n, 500.0)
    schedule.changed(2.0501)
    assert schedule.next_look.at == pytest.approx(2.05 + LOOK_MOST)
    look(schedule, 2.055, 2.05)
    assert schedule.next_step.at == pytest.approx(2.0552)
    step(schedule, 2.0552, moved=1)
    schedule.changed(2.0553)
    assert schedule.next_look.at == pytest.approx(2.0562)


def test_a_look_that_finds_a_nearer_due_sets_the_timer(schedule: Schedule) -> None:
    step(schedule, 2.0, sleep=500.0)
    schedule.changed(2.001)
    look(schedule, 2.001, 7.5)
    assert (schedule.next_step.at, schedule.next_step.reason) == (pytest.approx(7.5), "timer")


def test_events_that_all_bring_due_jobs_are_answered_by_steps_a_millisecond_apart(schedule: Schedule) -> None:
    for n in range(3):
        step(schedule, 2.0 + 0.1 * n, moved=1)
    schedule.changed(2.2003)
    assert (schedule.next_step.at, schedule.next_look.at) == (pytest.approx(2.201), NEVER)


def test_a_dispatcher_that_came_too_late_becomes_a_reserve_and_looks_after_the_other(schedule: Schedule) -> None:
    schedule.changed(2.0)
    schedule.removed(2.0001)
    step(schedule, 2.0, sleep=3.0)
    assert schedule.rivals.reserve
    assert schedule.next_step.at == 2.0 + CAP
    assert 5.001 <= schedule.next_look.at <= 5.004
    schedule.changed(3.0)
    assert 3.001 <= schedule.next_look.at <= 3.004


def test_a_reserve_that_moves_a_due_job_is_in_front_again(schedule: Schedule) -> None:
    schedule.rivals.reserve = True
    look(schedule, 5.002, 5.0)
    assert schedule.next_step.at == pytest.approx(5.0022)
    step(schedule, 5.0022, moved=1, sleep=1.0)
    assert not schedule.rivals.reserve
    assert schedule.next_step.at == pytest.approx(6.0022)


def test_a_reserve_whose_job_was_moved_by_another_waits_for_the_next_job(schedule: Schedule) -> None:
    schedule.rivals.reserve = True
    look(schedule, 5.002, 6.0)
    assert schedule.next_step.at == 1.0 + CAP
    assert 6.001 <= schedule.next_look.at <= 6.004


def test_a_dispatchers_own_removals_do_not_make_it_a_reserve(schedule: Schedule) -> None:
    schedule.stepping(2.0)
    schedule.removed(2.0001)  # the event may come before the reply
    schedule.stepped(2.0, 2.0002, "event", Step(REDIS + 2.0, NEVER, [REDIS], [], [], NEVER), CAP)
    schedule.removed(2.0003)
    step(schedule, 2.002)
    assert not schedule.rivals.reserve


def test_it_steps_when_the_gate_opens(schedule: Schedule) -> None:
    schedule.opens(2.0, REDIS + 4.0)
    assert schedule.next_step.at == pytest.approx(4.0)
    schedule.opens(2.0, 0.0)
    assert schedule.next_step.at == 2.0


def test_a_reserve_steps_when_the_gate_opens(schedule: Schedule) -> None:
    schedule.rivals.reserve = True
    step(schedule, 2.0, sleep=9.0, opens=1.0, reason="safety")
    assert 3.001 <= schedule.next_step.at <= 3.004
