"""Slots are shared by weight, for any number of slots and any lengths of jobs. Time is simulated."""

from __future__ import annotations

import heapq
from itertools import count

import pytest

from evsched.worker.slots import QueueShare, Slots


def run(slots: Slots, shares: dict[QueueShare, float], until: float) -> dict[QueueShare, float]:
    """Simulate shares that always have jobs, of the given seconds each; return the slot seconds that each used."""
    used, ends, order, now = dict.fromkeys(shares, 0.0), list[tuple[float, int, QueueShare]](), count(), 0.0
    for share in shares:
        share.want(True)
    while now < until:
        given = True
        while given:
            given = False
            for share, seconds in shares.items():
                for _ in range(share.reserve(999)):
                    heapq.heappush(ends, (now + seconds, next(order), share))
                    given = True
        now, _, share = heapq.heappop(ends)
        share.end(shares[share])
        used[share] += shares[share]
    return used


@pytest.mark.extra
@pytest.mark.parametrize("total", [1, 4, 16, 64])
@pytest.mark.parametrize("seconds", [(0.1, 0.1), (1.0, 1.0), (0.1, 1.0), (1.0, 0.1)])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (1.0, 5.0)])
def test_slot_seconds_are_proportional_to_the_weights(
    total: int, seconds: tuple[float, float], weights: tuple[float, float]
) -> None:
    slots = Slots(total)
    shares = [slots.join(weight, lambda: None) for weight in weights]
    length = max(20.0, 800.0 / total)  # about as many jobs for any number of slots
    used = run(slots, dict(zip(shares, seconds, strict=True)), length)
    part = used[shares[0]] / sum(used.values())
    assert part == pytest.approx(weights[0] / sum(weights), rel=0.1)
    assert sum(used.values()) == pytest.approx(length * total, rel=0.05)  # no slot was left free


def test_lone_queue_gets_all_slots_until_another_has_work() -> None:
    slots, woken = Slots(4), list[str]()
    a, b = slots.join(1.0, lambda: woken.append("a")), slots.join(1.0, lambda: woken.append("b"))
    a.want(True)
    assert a.reserve(999) == 4
    b.want(True)
    assert b.reserve(999) == 0
    woken.clear()
    a.end(60.0)
    assert woken == ["a", "b"]
    assert (a.reserve(999), b.reserve(999)) == (0, 1)


def test_an_idle_queue_saves_up_no_turns() -> None:
    slots = Slots(1)
    a, b = slots.join(1.0, lambda: None), slots.join(1.0, lambda: None)
    run(slots, {a: 1.0}, 1000.0)
    order = list[QueueShare]()
    b.want(True)
    for _ in range(10):
        share = a if a.reserve(999) else b
        if share is b:
            assert b.reserve(999) == 1
        order.append(share)
        share.end(1.0)
    assert order.count(a) == order.count(b) == 5


def test_a_queue_that_wants_no_more_wakes_the_others() -> None:
    slots, woken = Slots(3), list[str]()
    a, b = slots.join(1.0, lambda: woken.append("a")), slots.join(1.0, lambda: None)
    a.want(True)
    b.want(True)
    assert 1 <= a.reserve(999) <= 2
    b.want(False)
    assert woken == ["a"]
    a.reserve(999)
    assert slots.free == 0


def test_a_job_that_was_fetched_takes_a_free_slot_out_of_turn() -> None:
    slots = Slots(1)
    a, b = slots.join(1.0, lambda: None), slots.join(1.0, lambda: None)
    assert a.reserve_one()
    assert not b.reserve_one()
    a.release(1)
    assert b.reserve_one()


def test_queue_without_a_slot_blocks_only_if_others_hold_the_slots() -> None:
    """Otherwise nothing would wake it when it has a turn; a queue alone is woken by the ends of its own runs."""
    slots = Slots(1)
    a = slots.join(1.0, lambda: None)
    a.want(True)
    assert a.may_wait
    assert a.reserve(999) == 1
    assert not a.may_wait
    b = slots.join(1.0, lambda: None)
    assert b.may_wait


def test_many_queues_share_many_slots_with_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, woken, tag = count(), list[int](), QueueShare.tag

    def counting(share: QueueShare, more: int = 0) -> float:
        next(asked)
        return tag(share, more)

    monkeypatch.setattr(QueueShare, "tag", counting)
    slots = Slots(256)
    shares = [slots.join(1.0, lambda: woken.append(1)) for _ in range(200)]
    for share in shares:
        share.want(True)
    before = next(asked)
    assert sorted(share.reserve(999) for share in shares) == [1] * 144 + [2] * 56
    assert next(asked) - before < 1000  # each slot is dealt once, and not once for each queue
    woken.clear()
    for share in shares:
        share.end(0.1)
    assert len(woken) == 200  # each once for all ends, as none has looked for a slot since
    assert sum(share.reserve(999) for share in shares) == 200


def test_queue_refused_a_slot_is_woken_by_the_next_free_one() -> None:
    slots, woken = Slots(2), list[str]()
    a, b = slots.join(1.0, lambda: woken.append("a")), slots.join(1.0, lambda: woken.append("b"))
    a.want(True)
    assert a.reserve(2) == 2
    b.want(True)
    a.end(1.0)
    assert (a.reserve(1), b.reserve(1)) == (0, 1)
    woken.clear()
    assert a.reserve(1) == 0
    b.end(1.0)
    assert woken == ["a", "b"]
