"""When the parent of worker processes starts another, and when it ends one."""

from __future__ import annotations

import pytest

from evsched.errors import ConfigError
from evsched.services.supervisor import ProcessCount, ProcessRange, read_process_range
from evsched.services.worker_process import Behind, Idle


@pytest.mark.parametrize(
    ("text", "bounds"),
    [("4", ProcessRange(4, 4)), ("2:8", ProcessRange(2, 8)), ("1:1", ProcessRange(1, 1)), ("0:8", ProcessRange(0, 8))],
)
def test_a_number_of_processes_is_one_number_or_two(text: str, bounds: ProcessRange) -> None:
    assert read_process_range(text) == bounds


@pytest.mark.parametrize("text", ["", "0", "0:0", "8:2", "a", ":", "1:", "-1", "1:257", "1:1000", "1:2:3"])
def test_a_malformed_number_of_processes_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a number such as 4, 1 to 256, or MIN:MAX such as 2:8 or 0:8"):
        read_process_range(text)


def test_overloaded_processes_get_one_more_at_a_time_up_to_the_maximum() -> None:
    count = ProcessCount(ProcessRange(1, 3))
    assert count.decide(Behind(), 1, 0.0) == "add"
    assert count.decide(Behind(), 2, 1.0) is None  # the newest one has had no time to fetch
    assert count.decide(Behind(), 2, 2.5) == "add"
    assert count.decide(Behind(), 3, 9.0) is None


def test_process_started_for_a_sought_task_is_not_ended_as_idle() -> None:
    count = ProcessCount(ProcessRange(0, 3))
    count.keep(100.0)
    assert count.decide(Idle(), 1, 110.0) is None
    assert count.decide(Idle(), 1, 121.0) == "end"


def test_an_idle_process_ends_if_more_than_the_minimum_are_running() -> None:
    count = ProcessCount(ProcessRange(1, 3))
    assert count.decide(Idle(), 2, 0.0) == "end"
    assert count.decide(Idle(), 1, 0.0) is None
