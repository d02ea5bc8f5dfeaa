"""The lease as it is stored, and the times that follow from it."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.config import Config
from evsched.lease import Times, parse_lease

NAMES = ("heartbeat", "idle_lease", "idle_heartbeat", "probe_interval", "reply_timeout", "safety_cap")


def shown(times: Times) -> dict[str, Any]:
    return {name: pytest.approx(getattr(times, name)) for name in NAMES}


@pytest.mark.parametrize("text", [None, b"", b"soon", b"nan", b"0", b"-3", b"1e9", b"14 15", b"\xff"])
def test_malformed_stored_lease_is_read_as_none(text: bytes | None) -> None:
    assert parse_lease(text) is None


def test_times_follow_from_the_lease() -> None:
    times = Times(Config())
    default = dict(zip(NAMES, (5.0, 180.0, 60.0, 13.0, 1.5, 30.0), strict=True))
    assert (times.lease, default) == (14.0, shown(times))
    times.follow(28.0)
    assert shown(times) == dict(zip(NAMES, (10.0, 360.0, 120.0, 26.0, 3.0, 30.0), strict=True))
    times.follow(7.0)
    assert shown(times) == dict(zip(NAMES, (2.5, 90.0, 30.0, 6.5, 1.5, 15.0), strict=True))
    assert (times.heartbeat_of(28.0), times.probe_of(28.0)) == (10.0, 26.0), "of a worker with another lease"


@pytest.mark.parametrize("lease", [0.1, 1.0, 14.0, 600.0])
def test_two_heartbeats_may_fail_before_a_lease_ends(lease: float) -> None:
    times = Times(Config())
    times.follow(lease)
    assert 2 * times.heartbeat < times.lease
    assert 2 * times.idle_heartbeat < times.idle_lease


def test_a_time_that_a_test_fixes_stays_when_the_lease_changes() -> None:
    times = Times(Config(lease=1.0, heartbeat=0.2))
    assert (times.lease, times.heartbeat, times.probe_interval) == (1.0, 0.2, pytest.approx(13 / 14))
    times.follow(28.0)
    assert (times.lease, times.heartbeat) == (28.0, 0.2)


def test_listeners_are_called_after_a_change_of_the_lease() -> None:
    times, heard = Times(Config()), list[float]()
    times.listen(lambda: heard.append(times.lease))
    times.follow(28.0)
    assert heard == [28.0]
