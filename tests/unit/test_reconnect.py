"""Which failures of a loop are reported, and when."""

from __future__ import annotations

from evsched import events, process_events
from evsched.errors import StoreDown, StoreRefused
from evsched.runtime.reconnect import Reconnect


class Loop:
    """A loop whose failures and clock the test controls. `reported` lists the events, each with its second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.reported: list[tuple[str, float]] = []
        self.reconnect = Reconnect("worker", self._emit, "q", clock=lambda: self.now)

    def _emit(self, event: events.Event) -> None:
        if not isinstance(event, process_events.RedisFailed):
            self.reported.append((type(event).__name__, round(self.now - 100, 3)))

    def refused(self) -> None:
        self.reconnect.failed(StoreRefused("WRONGTYPE", kind="wrongtype"))

    def down(self) -> None:
        self.reconnect.failed(StoreDown("no answer"))

    def passed(self, after: float = 0.0) -> None:
        self.now += after
        self.reconnect.passed()


def test_the_end_of_a_refusal_is_reported_at_the_first_pass_that_succeeds() -> None:
    loop = Loop()
    loop.refused()
    loop.refused()
    loop.passed(3)
    loop.passed(3)
    loop.now += 10
    loop.refused()  # long afterwards: both it and its end are reported
    loop.passed(1)
    assert loop.reported == [("CallRefused", 0), ("CallAccepted", 3), ("CallRefused", 16), ("CallAccepted", 17)]


def test_intermittent_refusals_are_reported_twice_and_their_end_once() -> None:
    loop = Loop()
    for _ in range(500):
        loop.refused()
        loop.passed(0.034)
    assert loop.reported == [("CallRefused", 0), ("CallAccepted", 0.034), ("CallRefused", 0.034)]
    loop.passed(9.9)
    assert loop.reported[3:] == []
    loop.passed(0.1)
    assert loop.reported[3:] == [("CallAccepted", 27.0)]
    assert loop.reconnect.reason is None


def test_each_outage_of_redis_is_reported_at_once() -> None:
    loop = Loop()
    for _ in range(2):
        loop.down()
        loop.down()
        loop.passed(1)
    assert loop.reported == [("RedisDown", 0), ("RedisUp", 1), ("RedisDown", 1), ("RedisUp", 2)]
    loop.refused()
    loop.down()
    loop.refused()
    loop.passed(1)
    assert [name for name, _ in loop.reported[4:]] == [
        "CallRefused",
        "CallAccepted",
        "RedisDown",
        "RedisUp",
        "CallRefused",  # soon afterwards: its end is reported only when it has lasted
    ]
