"""When a dispatcher steps or looks at one queue, and when it lets another dispatcher act first."""

from __future__ import annotations

import pytest

from evsched.dispatcher.timing import FOUND_GAP, GAP, QueueTimer
from evsched.events import Reason
from evsched.store.dispatcher_calls import Step

REDIS = 1_000_000.0
"""Redis's clock when ours is 0."""
CAP = 30.0
NEVER = float("inf")


def step(
    timer: QueueTimer,
    now: float,
    *,
    moved: int = 0,
    sleep: float = NEVER,
    opens: float = NEVER,
    reason: Reason = "event",
) -> None:
    """Send a step and receive its reply."""
    timer.stepping(now)
    timer.stepped(now, reason, Step(REDIS + now, min(sleep, opens), [REDIS] * moved, [], [], opens), CAP)


def look(timer: QueueTimer, now: float, due: float | None) -> None:
    """Send a look and receive the nearest due, by the monotonic clock, 0.2 ms later."""
    why = timer.looking(now)
    timer.looked(now + 0.0002, why, None if due is None else REDIS + due)


@pytest.fixture
def timer() -> QueueTimer:
    """A timer that was stepped at 1 and knows no due time."""
    timer = QueueTimer("q")
    step(timer, 1.0, reason="reconnect")
    return timer


@pytest.fixture
def reserve(timer: QueueTimer) -> QueueTimer:
    """A reserve that looked at 1.9 and found no job overdue."""
    timer.leads = False
    look(timer, 1.9, 500.0)
    return timer


def test_step_is_due_with_the_next_job_from_the_sending_of_the_last(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=5.0)
    assert (timer.next_step.at, timer.next_step.reason, timer.next()) == (7.0, "timer", 7.0)


def test_step_is_due_after_the_safety_cap_at_the_latest(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=100.0)
    assert (timer.next_step.at, timer.next_step.reason) == (2.0 + CAP, "safety")


def test_event_after_a_silence_is_answered_at_once(timer: QueueTimer) -> None:
    timer.changed(2.0)
    assert (timer.next(), timer.next_look.reason) == (2.0, "event")


def test_event_during_a_step_is_answered_a_gap_after_the_step_was_sent(timer: QueueTimer) -> None:
    timer.stepping(2.0)
    timer.changed(2.0005)
    assert timer.next() == pytest.approx(2.0 + GAP)


def test_flood_of_far_jobs_causes_looks_and_no_steps(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=500.0)
    looks, steps, now = 0, 0, 2.0
    while now < 3.0:
        now += 0.0005
        timer.changed(now)
        if timer.next_step.at <= now:
            steps += 1
            step(timer, now, sleep=500.0)
        elif timer.next_look.at <= now:
            looks += 1
            look(timer, now, 502.0)
    assert steps == 0
    assert looks <= 1 / GAP + 5


def test_look_that_finds_a_due_job_is_followed_by_a_step(timer: QueueTimer) -> None:
    timer.changed(2.0)
    look(timer, 2.0, 1.999)
    assert (timer.next_step.at, timer.next_step.reason) == (pytest.approx(2.0002), "event")


def test_look_that_finds_a_nearer_due_sets_the_timer(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=500.0)
    timer.changed(2.001)
    look(timer, 2.001, 7.5)
    assert (timer.next_step.at, timer.next_step.reason) == (pytest.approx(7.5), "timer")


def test_events_of_due_jobs_cause_steps_a_short_gap_apart(timer: QueueTimer) -> None:
    for n in range(2):
        step(timer, 2.0 + 0.1 * n, moved=1)
    timer.changed(2.1003)
    assert (timer.next_step.at, timer.next_look.at) == (pytest.approx(2.1 + FOUND_GAP), NEVER)
    step(timer, 2.11)
    timer.changed(2.2)
    assert timer.next_look.at == 2.2


def test_dispatcher_that_is_late_twice_becomes_a_reserve(
    timer: QueueTimer,
) -> None:
    step(timer, 2.0, sleep=0.5)
    timer.removed(2.499)
    step(timer, 2.5, sleep=0.5, reason="timer")
    assert (timer.leads, timer.next_step.at) == (True, 3.0)
    timer.removed(2.999)
    step(timer, 3.0, sleep=3.0, reason="timer")
    assert not timer.leads
    assert timer.next_step.at == 3.0 + CAP
    assert 6.004 <= timer.next_look.at <= 6.008
    timer.changed(4.0)
    assert 4.004 <= timer.next_look.at <= 4.008


def test_step_that_finds_no_job_after_a_look_counts_as_late(timer: QueueTimer) -> None:
    for now in (2.0, 3.0):
        look(timer, now, now - 0.001)
        step(timer, now + 0.001)
    assert not timer.leads


def test_early_steps_do_not_make_a_reserve(timer: QueueTimer) -> None:
    step(timer, 1.5, sleep=0.5)
    for n in range(5):
        step(timer, 1.9999 + n * 1e-6, sleep=0.0001 - n * 1e-6, reason="timer")
    assert timer.leads


def test_events_of_far_jobs_do_not_make_a_reserve(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=9.0)
    for n in range(1, 6):
        step(timer, 2.0 + n, sleep=9.0 - n)
    assert timer.leads


def test_jobs_cancelled_before_they_are_due_do_not_make_a_reserve(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=1.0)
    for due in (3.0, 4.0, 5.0):
        timer.removed(due - 0.5)
        step(timer, due, sleep=1.0, reason="timer")
    assert timer.leads


def test_job_cancelled_when_due_does_not_make_a_reserve(timer: QueueTimer) -> None:
    for due in (3.0, 4.0, 5.0):
        step(timer, due - 0.5, sleep=0.5)
        timer.removed(due - 0.001)
        step(timer, due, reason="timer")
        step(timer, due + 0.1, moved=1)
    assert timer.leads


def test_job_waiting_for_its_record_does_not_make_a_reserve(timer: QueueTimer) -> None:
    timer.changed(2.0)
    look(timer, 2.0, 1.999)
    step(timer, 2.0002, sleep=0.01)
    for n in range(5):
        step(timer, 2.01 * 2**n, sleep=2.01 * 2**n, reason="timer")
    assert timer.leads


def test_dispatchers_that_move_jobs_in_turn_notice_each_other() -> None:
    one, other = QueueTimer("q"), QueueTimer("q")
    due = 2.0
    for timer in (one, other):
        step(timer, 1.0, sleep=1.0)
    for first, second in ((one, other), (other, one), (one, other), (one, other)):
        step(first, due, moved=1, sleep=1.0, reason="timer")
        second.removed(due)
        step(second, due, sleep=1.0, reason="timer")
        first.removed(due)
        due += 1.0
    assert (one.leads, other.leads) == (True, False)


def test_reserve_looks_seldom_while_the_leader_acts(reserve: QueueTimer) -> None:
    """500 jobs a second, each due at once and moved by the leader before the reserve looks."""
    looks = 0
    for n in range(1000):
        at = 2.0 + 0.002 * n
        reserve.changed(at)
        if reserve.next_look.at <= at + 0.001:
            looks += 1
            look(reserve, at + 0.001, 500.0)
        assert reserve.next_step.at == 1.0 + CAP
    assert 19 <= looks <= 41


def test_reserve_that_has_just_looked_does_not_look_again_for_each_event(reserve: QueueTimer) -> None:
    reserve.changed(1.902)
    first = reserve.next_look.at
    assert 1.95 <= first <= 2.0
    reserve.changed(1.909)
    assert reserve.next_look.at == first


def test_reserve_takes_the_queue_within_100_ms_when_the_leader_stops(reserve: QueueTimer) -> None:
    look(reserve, 2.0, 500.0)
    reserve.changed(2.002)
    assert reserve.next_look.at <= 2.1005
    look(reserve, reserve.next_look.at, 2.002)
    assert reserve.next_step.at <= 2.101
    step(reserve, reserve.next_step.at, moved=1)
    assert reserve.leads


def test_reserve_takes_the_queue_of_a_leader_that_acts_but_is_late(reserve: QueueTimer) -> None:
    now = 2.0
    while reserve.next_step.at > now:
        now += 0.002
        reserve.changed(now)
        if reserve.next_look.at <= now + 0.001:
            look(reserve, now + 0.001, now - 0.03)
    assert now <= 2.11


def test_reserve_leaves_a_newly_due_job_to_the_leader_and_looks_again(reserve: QueueTimer) -> None:
    look(reserve, 5.0, 4.9999)
    assert reserve.next_step.at == 1.0 + CAP
    assert 5.05 <= reserve.next_look.at <= 5.1
    look(reserve, 5.08, 5.07)
    assert reserve.next_step.at == pytest.approx(5.0802)


def test_reserve_that_moves_a_due_job_leads(reserve: QueueTimer) -> None:
    look(reserve, 5.005, 5.0)
    assert reserve.next_step.at == pytest.approx(5.0052)
    step(reserve, 5.0052, moved=1, sleep=1.0)
    assert reserve.leads
    assert reserve.next_step.at == pytest.approx(6.0052)


def test_reserve_whose_job_was_moved_by_another_waits_for_the_next_job(reserve: QueueTimer) -> None:
    look(reserve, 5.002, 6.0)
    assert reserve.next_step.at == 1.0 + CAP
    assert 6.004 <= reserve.next_look.at <= 6.008


def test_reserve_that_came_too_late_is_ready_again_a_gap_later(reserve: QueueTimer) -> None:
    look(reserve, 5.005, 5.0)
    step(reserve, 5.0052)
    reserve.changed(5.006)
    assert 5.01 <= reserve.next_look.at <= 5.014


def test_step_is_due_when_the_gate_opens(timer: QueueTimer) -> None:
    timer.opens(2.0, REDIS + 4.0)
    assert timer.next_step.at == pytest.approx(4.0)
    timer.opens(2.0, 0.0)
    assert timer.next_step.at == 2.0


def test_reserve_steps_a_little_after_the_gate_opens(reserve: QueueTimer) -> None:
    step(reserve, 2.0, sleep=9.0, opens=1.0, reason="safety")
    assert 3.004 <= reserve.next_step.at <= 3.008


def test_gate_opening_that_moves_nothing_does_not_make_a_reserve(timer: QueueTimer) -> None:
    for n in range(5):
        step(timer, 2.0 + n, sleep=9.0, opens=1.0, reason="timer")
    assert timer.leads


def test_leader_without_events_looks_as_often_as_in_a_flood_of_them(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=500.0)
    looks, now = 0, 2.0
    timer.changed(now)
    while (now := timer.next_look.at) < 3.0:
        looks += 1
        look(timer, now, 502.0)
        timer.changed(now)
    assert looks == pytest.approx(1 / GAP, abs=5)
    assert timer.next_step.at == pytest.approx(2.0 + CAP)


def test_reserve_without_events_looks_seldom_despite_a_known_due_time(reserve: QueueTimer) -> None:
    look(reserve, 2.0, 2.01)
    reserve.changed(2.0)
    assert 2.05 <= reserve.next() <= 2.1
    look(reserve, 2.04, 2.01)
    assert reserve.next_step.at == pytest.approx(2.0402)
