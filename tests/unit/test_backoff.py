"""The delays between two attempts to reach Redis, and between two starts of a worker process."""

from __future__ import annotations

from evsched.services.children import restart_delay
from evsched.transport.redis_errors import reconnect_delay


def test_every_failure_is_followed_by_a_delay() -> None:
    assert all(0.02 <= reconnect_delay(n) <= 1.0 for n in range(1, 100))


def test_restart_delay_grows_with_repeated_crashes() -> None:
    assert restart_delay(0) == 0.0, "it has run for long"
    assert restart_delay(1) <= 0.25
    assert all(15.0 <= restart_delay(n) <= 30.0 for n in (8, 9, 1000))
    assert sum(restart_delay(n) for n in range(1, 9)) > 30.0
