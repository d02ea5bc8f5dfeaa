"""Reconnect: what is reported of a loop's failures, and when."""

from __future__ import annotations

from evsched import events
from evsched.errors import StoreDown, StoreRefused
from evsched.runtime.reconnect import Reconnect


class Loop:
    """A loop of which the test says what its passes meet, and when. `told` lists what was told, and at what second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[tuple[str, float]] = []
        self.reconnect = Reconnect("worker", self._emit, "q", clock=lambda: self.now)

    def _emit(self, event: events.Event) -> None:
        if not isinstance(event, events.RedisFailed):
            self.told.append((type(event).__name__, round(self.now - 100, 3)))

    def refused(self) -> None:
        self.reconnect.failed(StoreRefused("WRONGTYPE", kind="wrongtype"))

    def down(self) -> None:
        self.reconnect.failed(StoreDown("no answer"))

    def passed(self, after: float = 0.0) -> None:
        self.now += after
        self.reconnect.passed()


def test_a_single_mend_is_told_at_the_first_good_pass() -> None:
    loop = Loop()
    loop.refused()
    loop.refused()
    loop.passed(3)
    loop.passed(3)
    loop.now += 10
    loop.refused()  # long after: it is news, and so is its end
    loop.passed(1)
    assert loop.told == [("CallRefused", 0), ("CallAccepted", 3), ("CallRefused", 16), ("CallAccepted", 17)]


def test_what_is_refused_in_some_passes_and_not_in_others_is_told_twice_and_its_end_when_it_has_lasted() -> None:
    loop = Loop()
    for _ in range(500):
        loop.refused()
        loop.passed(0.034)
    assert loop.told == [("CallRefused", 0), ("CallAccepted", 0.034), ("CallRefused", 0.034)]
    loop.passed(9.9)
    assert loop.told[3:] == []
    loop.passed(0.1)
    assert loop.told[3:] == [("CallAccepted", 27.0)]
    assert loop.reconnect.reason is None


def test_that_redis_is_away_is_told_at_once_each_time() -> None:
    loop = Loop()
    for _ in range(2):
        loop.down()
        loop.down()
        loop.passed(1)
    assert loop.told == [("RedisDown", 0), ("RedisUp", 1), ("RedisDown", 1), ("RedisUp", 2)]
    loop.refused()
    loop.down()
    loop.refused()
    loop.passed(1)
    assert [name for name, _ in loop.told[4:]] == [
        "CallRefused",
        "CallAccepted",
        "RedisDown",
        "RedisUp",
        "CallRefused",  # so soon after: its end must last
    ]
