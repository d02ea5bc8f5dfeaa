"""How many jobs are fetched together, by how long the last ones took to begin. Time is simulated."""

from __future__ import annotations

from evsched.execution.beginning import BeginLimit


def test_limit_starts_at_one_job_and_grows_fourfold_with_quick_jobs() -> None:
    limit, rooms = BeginLimit(), list[int]()
    for now in range(5):
        rooms.append(limit.room(now))
        limit.handed_out()
        limit.begun(rooms[-1], 0.0001, now)
    assert rooms == [1, 4, 16, 64, 256]


def test_few_quick_jobs_do_not_lower_the_limit() -> None:
    limit = BeginLimit()
    for count in (100, 1):
        limit.handed_out()
        limit.begun(count, 0.001, 0.0)
    assert limit.room(0.0) == 400


def test_limit_is_the_number_of_jobs_that_begin_in_10_ms() -> None:
    limit = BeginLimit()
    for count, seconds, room in ((1, 0.001, 4), (4, 0.004, 10), (10, 0.02, 5), (5, 1.0, 1)):
        limit.handed_out()
        limit.begun(count, seconds, 0.0)
        assert limit.room(0.0) == room


def test_the_next_jobs_wait_until_slow_or_unknown_ones_have_begun() -> None:
    limit = BeginLimit()
    for seconds, waits in ((0.1, True), (0.001, True), (0.001, False)):
        limit.handed_out()
        assert (limit.waits, limit.room(0.0) == 0) == (waits, waits)
        limit.begun(1, seconds, 0.0)
        assert not limit.waits


def test_measurement_expires_after_a_second() -> None:
    limit = BeginLimit()
    limit.handed_out()
    limit.begun(100, 0.001, 5.0)
    assert (limit.room(6.0), limit.room(6.1)) == (400, 1)
    limit.handed_out()
    assert limit.waits


def test_limit_is_slow_for_a_second_after_slow_beginnings() -> None:
    limit = BeginLimit()
    assert not limit.is_slow(0.0)
    limit.handed_out()
    limit.begun(1, 0.1, 5.0)
    assert (limit.is_slow(6.0), limit.is_slow(6.1)) == (True, False)


def test_limit_can_be_lowered() -> None:
    limit = BeginLimit()
    limit.handed_out()
    limit.begun(100, 0.001, 0.0)
    limit.lower(2)
    assert limit.room(0.0) == 2
