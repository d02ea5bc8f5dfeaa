"""The delay between two attempts to reach Redis."""

from __future__ import annotations

from evsched.transport.backoff import reconnect_delay


def test_no_failure_is_answered_by_a_hot_loop() -> None:
    assert all(0.02 <= reconnect_delay(n) <= 1.0 for n in range(1, 100))
