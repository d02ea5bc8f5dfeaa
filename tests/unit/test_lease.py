"""The lease as it is stored, and the times that follow from it."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from evsched.config import Config
from evsched.lease import SETTLING, LeaseLength, Times, parse_lease

NAMES = ("heartbeat", "idle_lease", "idle_heartbeat", "probe_interval", "reply_timeout", "safety_cap")


def shown(times: Times) -> dict[str, Any]:
    return {name: pytest.approx(getattr(times, name)) for name in NAMES}


@pytest.mark.parametrize(
    "lease",
    [LeaseLength(14.0), LeaseLength(0.5), LeaseLength(60.0, 14.0, 1_900_000_000.0), LeaseLength(14.0, inf, 1.0)],
)
def test_lease_is_read_as_it_was_written(lease: LeaseLength) -> None:
    assert parse_lease(lease.text().encode()) == lease


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"soon",
        b"nan",
        b"0",
        b"-3",
        b"1e9",
        b"14 15",
        b"14 0 5",
        b"14 60 nan",
        b"14 60 inf",
        b"1 2 3 4",
        b"\xff",
    ],
)
def test_malformed_stored_lease_is_read_as_none(text: bytes | None) -> None:
    assert parse_lease(text) is None


def test_both_leases_apply_until_a_change_has_settled() -> None:
    for lease in (LeaseLength(60.0, 14.0, 1000.0), LeaseLength(14.0, 60.0, 1000.0)):
        assert lease.span(1000.0) == (14.0, 60.0)
        assert lease.span(1000.0 + SETTLING - 1) == (14.0, 60.0)
        assert lease.span(1000.0 + SETTLING) == (lease.seconds, lease.seconds)
    assert LeaseLength(60.0).span(0.0) == (60.0, 60.0)


def test_workers_may_have_any_lease_while_the_one_before_is_not_known() -> None:
    lost = LeaseLength(14.0, inf, 1000.0)
    assert (lost.span(1000.0), lost.span(1000.0 + SETTLING)) == ((14.0, None), (14.0, 14.0))


def test_clock_that_was_set_back_delays_a_change_no_further() -> None:
    assert LeaseLength(60.0, 14.0, 1e9).settles_in(0.0) == SETTLING


def test_times_follow_from_the_lease() -> None:
    times = Times(Config())
    default = dict(zip(NAMES, (5.0, 135.0, 45.0, 13.0, 1.5, 30.0), strict=True))
    assert (times.lease, times.longest_lease, default) == (14.0, 14.0, shown(times))
    times.follow(28.0, 28.0)
    assert shown(times) == dict(zip(NAMES, (10.0, 270.0, 90.0, 26.0, 3.0, 30.0), strict=True))
    times.follow(7.0, 28.0)
    assert shown(times) == dict(zip(NAMES, (2.5, 67.5, 22.5, 6.5, 1.5, 15.0), strict=True))
    assert (times.longest_lease, times.longest_heartbeat) == (28.0, pytest.approx(10.0))
    times.follow(28.0, None)
    assert (times.longest_lease, times.longest_heartbeat) == (float("inf"), pytest.approx(10.0))


@pytest.mark.parametrize("lease", [0.1, 1.0, 14.0, 600.0])
def test_two_heartbeats_may_fail_before_a_lease_ends(lease: float) -> None:
    times = Times(Config())
    times.follow(lease, lease)
    assert 2 * times.heartbeat < times.lease
    assert 2 * times.idle_heartbeat < times.idle_lease


def test_a_time_that_a_test_fixes_stays_when_the_lease_changes() -> None:
    times = Times(Config(lease=1.0, heartbeat=0.2))
    assert (times.lease, times.heartbeat, times.safety_cap) == (1.0, 0.2, 30.0)
    times.follow(28.0, 28.0)
    assert (times.lease, times.heartbeat) == (28.0, 0.2)


def test_listeners_are_called_after_a_change_of_the_lease() -> None:
    times, heard = Times(Config()), list[float]()
    times.listen(lambda: heard.append(times.lease))
    times.follow(28.0, 28.0)
    assert heard == [28.0]
