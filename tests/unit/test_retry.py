"""A retry policy: the delay between two attempts, and the longest time that all of them take."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.errors import ConfigError
from evsched.jobs.retry import Retry


def test_a_delay_doubles_up_to_its_bound_with_jitter_on_top() -> None:
    policy = Retry(attempts=9, interval=0.2, max_interval=1.0, jitter=0)
    assert [policy.delay(n) for n in range(1, 6)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert policy.delay(10_000) == 1.0
    assert all(0.2 <= Retry(interval=0.2, jitter=0.5).delay(1) <= 0.7 for _ in range(100))


@pytest.mark.parametrize(
    "field",
    [
        {"attempts": 0},
        {"interval": -1},
        {"factor": 0.5},
        {"jitter": float("nan")},
        {"attempts": 2.0},
        {"attempts": "3"},
        {"attempts": True},
        {"interval": "1"},
        {"factor": None},
        {"retry_on": ConnectionError},
        {"retry_on": ""},
        {"retry_on": ("ConnectionError",)},
        {"retry_on": (ConnectionError(),)},
        {"give_up_on": [ValueError]},
        {"give_up_on": (ValueError, int)},
        {"give_up_on": None},
    ],
)
def test_invalid_policy_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(field))):
        Retry(**field)


def test_a_class_on_which_the_policy_gives_up_cannot_be_retried() -> None:
    Retry(retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    for give_up_on in ((OSError,), (FileNotFoundError,)):
        with pytest.raises(ConfigError, match="retry_on has FileNotFoundError, on which give_up_on gives up"):
            Retry(retry_on=(ConnectionError, FileNotFoundError), give_up_on=give_up_on)


@pytest.mark.parametrize(
    ("policy", "worst"),
    [
        (Retry(attempts=3, interval=0.2, jitter=0.5), 2.9),
        (Retry(attempts=1, interval=7, jitter=0), 7.0),
        (Retry(attempts=4, interval=10, max_interval=25, jitter=1), 10 + 20 + 25 + 25 + 4),
        (Retry(attempts=1000, interval=1, factor=1, jitter=0), 1000),
    ],
)
def test_worst_case_duration_of_a_policy_is_computed(policy: Retry, worst: float) -> None:
    assert policy.worst_case() == pytest.approx(worst)
