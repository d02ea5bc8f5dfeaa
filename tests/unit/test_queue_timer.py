"""When a dispatcher steps or looks at one queue, and when it lets another dispatcher act first."""

from __future__ import annotations

import pytest

from evsched.dispatcher.pace import LOOK_MOST
from evsched.dispatcher.queue_timer import QueueTimer
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
    """Send a step and receive its reply, 0.2 ms later."""
    timer.stepping(now)
    done = Step(REDIS + now, min(sleep, opens), [REDIS] * moved, [], [], opens)
    timer.stepped(now, now + 0.0002, reason, done, CAP)


def look(timer: QueueTimer, now: float, due: float | None) -> None:
    """Send a look and receive the nearest due, by the monotonic clock."""
    why = timer.looking(now)
    timer.looked(now + 0.0002, why, None if due is None else REDIS + due)


def trust(timer: QueueTimer) -> None:
    """Make a reserve that has looked often without finding a job overdue."""
    timer.rivals.reserve = True
    for n in range(10):
        look(timer, 1.0 + 0.09 * n, 500.0)


@pytest.fixture
def timer() -> QueueTimer:
    """A timer that was stepped at 1 and knows no due time."""
    timer = QueueTimer("q")
    step(timer, 1.0, reason="reconnect")
    return timer


def test_it_steps_when_the_next_job_is_due_counted_from_when_the_last_step_was_sent(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=5.0)
    assert (timer.next_step.at, timer.next_step.reason, timer.next()) == (7.0, "timer", 7.0)


def test_it_steps_after_the_safety_cap_at_the_latest(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=100.0)
    assert (timer.next_step.at, timer.next_step.reason) == (2.0 + CAP, "safety")


def test_an_event_after_a_silence_is_answered_by_a_step_at_once(timer: QueueTimer) -> None:
    timer.changed(2.0)
    assert (timer.next_step.at, timer.next_step.reason) == (2.0, "event")


def test_an_event_during_a_step_is_answered_a_gap_after_the_step_was_sent(timer: QueueTimer) -> None:
    timer.stepping(2.0)
    timer.changed(2.0005)
    assert timer.next() == pytest.approx(2.001)


def test_a_flood_of_far_jobs_costs_looks_and_no_steps(timer: QueueTimer) -> None:
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
    assert looks <= 1 / LOOK_MOST + 5


def test_a_look_that_finds_a_due_job_is_followed_by_a_step_and_by_quicker_looks(timer: QueueTimer) -> None:
    step(timer, 2.0)
    for n in range(1, 6):
        timer.changed(2.0 + 0.01 * n - 0.005)
        look(timer, 2.0 + 0.01 * n, 500.0)
    timer.changed(2.0501)
    assert timer.next_look.at == pytest.approx(2.05 + LOOK_MOST)
    look(timer, 2.055, 2.05)
    assert timer.next_step.at == pytest.approx(2.0552)
    step(timer, 2.0552, moved=1)
    timer.changed(2.0553)
    assert timer.next_look.at == pytest.approx(2.0562)


def test_a_look_that_finds_a_nearer_due_sets_the_timer(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=500.0)
    timer.changed(2.001)
    look(timer, 2.001, 7.5)
    assert (timer.next_step.at, timer.next_step.reason) == (pytest.approx(7.5), "timer")


def test_events_that_all_bring_due_jobs_are_answered_by_steps_a_millisecond_apart(timer: QueueTimer) -> None:
    for n in range(3):
        step(timer, 2.0 + 0.1 * n, moved=1)
    timer.changed(2.2003)
    assert (timer.next_step.at, timer.next_look.at) == (pytest.approx(2.201), NEVER)


def test_a_dispatcher_that_came_too_late_becomes_a_reserve_and_looks_later_than_the_other(timer: QueueTimer) -> None:
    timer.changed(2.0)
    timer.removed(2.0001)
    step(timer, 2.0, sleep=3.0)
    assert timer.rivals.reserve
    assert timer.next_step.at == 2.0 + CAP
    assert 5.001 <= timer.next_look.at <= 5.004
    timer.changed(3.0)
    assert 3.001 <= timer.next_look.at <= 3.004


def test_a_reserve_looks_seldom_while_the_leader_acts(timer: QueueTimer) -> None:
    """500 jobs a second, each scheduled for at once and moved by the leader half a millisecond later."""
    trust(timer)
    looks = 0
    for n in range(1000):
        at = 2.0 + 0.002 * n
        timer.changed(at)
        timer.removed(at + 0.0005)
        if timer.next_look.at <= at + 0.001:
            looks += 1
            look(timer, at + 0.001, 500.0)
        assert timer.next_step.at == 1.0 + CAP
    assert 9 <= looks <= 21


def test_a_reserve_takes_the_queue_within_50_ms_when_the_leader_stops(timer: QueueTimer) -> None:
    trust(timer)
    timer.changed(2.0)
    timer.removed(2.0005)
    timer.changed(2.002)
    assert timer.next_look.at <= 2.0505
    look(timer, timer.next_look.at, 2.002)
    assert timer.next_step.at <= 2.051
    step(timer, timer.next_step.at, moved=1)
    assert not timer.rivals.reserve


def test_a_reserve_takes_the_queue_of_a_leader_that_acts_but_is_late(timer: QueueTimer) -> None:
    trust(timer)
    now = 2.0
    while timer.next_step.at > now:
        now += 0.002
        timer.changed(now)
        timer.removed(now + 0.0005)
        if timer.next_look.at <= now + 0.001:
            look(timer, now + 0.001, now - 0.03)
    assert now <= 2.21


def test_a_reserve_that_sees_a_job_which_is_just_due_looks_again(timer: QueueTimer) -> None:
    trust(timer)
    look(timer, 5.0, 4.9999)
    assert timer.next_step.at == 1.0 + CAP
    assert 5.02 <= timer.next_look.at <= 5.05


def test_a_dispatcher_that_hears_after_its_step_that_another_was_quicker_lets_it_act_first(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=0.5)
    timer.removed(2.0003)
    assert 2.501 <= timer.next_step.at <= 2.504


def test_without_events_a_reserve_looks_even_if_it_hears_of_a_removal(timer: QueueTimer) -> None:
    trust(timer)
    timer.poll(2.0)
    planned = timer.next_look.at
    timer.removed(2.001)
    assert timer.next_look.at == planned


def test_removals_do_not_delay_the_leader(timer: QueueTimer) -> None:
    step(timer, 2.0, moved=1, sleep=0.5)
    timer.changed(2.0001)
    before = timer.next_step.at, timer.next_look.at
    timer.removed(2.0002)
    assert (timer.next_step.at, timer.next_look.at) == before


def test_a_reserve_that_moves_a_due_job_leads(timer: QueueTimer) -> None:
    timer.rivals.reserve = True
    look(timer, 5.002, 5.0)
    assert timer.next_step.at == pytest.approx(5.0022)
    step(timer, 5.0022, moved=1, sleep=1.0)
    assert not timer.rivals.reserve
    assert timer.next_step.at == pytest.approx(6.0022)


def test_a_reserve_whose_job_was_moved_by_another_waits_for_the_next_job(timer: QueueTimer) -> None:
    timer.rivals.reserve = True
    look(timer, 5.002, 6.0)
    assert timer.next_step.at == 1.0 + CAP
    assert 6.005 <= timer.next_look.at <= 6.008


def test_a_dispatchers_own_removals_do_not_make_it_a_reserve(timer: QueueTimer) -> None:
    timer.stepping(2.0)
    timer.removed(2.0001)  # the event may come before the reply
    timer.stepped(2.0, 2.0002, "event", Step(REDIS + 2.0, NEVER, [REDIS], [], [], NEVER), CAP)
    step(timer, 2.002)
    assert not timer.rivals.reserve


def test_it_steps_when_the_gate_opens(timer: QueueTimer) -> None:
    timer.opens(2.0, REDIS + 4.0)
    assert timer.next_step.at == pytest.approx(4.0)
    timer.opens(2.0, 0.0)
    assert timer.next_step.at == 2.0


def test_a_reserve_steps_when_the_gate_opens(timer: QueueTimer) -> None:
    timer.rivals.reserve = True
    step(timer, 2.0, sleep=9.0, opens=1.0, reason="safety")
    assert 3.001 <= timer.next_step.at <= 3.004


def test_without_events_the_leader_looks_as_often_as_in_a_flood_of_them(timer: QueueTimer) -> None:
    step(timer, 2.0, sleep=500.0)
    looks, now = 0, 2.0
    timer.poll(now)
    while (now := timer.next_look.at) < 3.0:
        looks += 1
        look(timer, now, 502.0)
        timer.poll(now)
    assert looks == pytest.approx(1 / LOOK_MOST, abs=5)
    assert timer.next_step.at == pytest.approx(2.0 + CAP)


def test_without_events_a_reserve_looks_seldom_even_if_it_knows_when_a_job_is_due(timer: QueueTimer) -> None:
    timer.rivals.reserve = True
    step(timer, 2.0, sleep=0.01)
    timer.poll(2.0)
    assert 2.1 <= timer.next() <= 2.3
    look(timer, 2.2, 2.01)
    assert timer.next_step.at == pytest.approx(2.2002)
