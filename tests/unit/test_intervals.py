"""Whether the retries of an occurrence fit into its interval, by the policies that workers have stored."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.errors import ConfigError
from evsched.jobs.retry import Retry, policy_of, task_of, write_policy
from evsched.recurrence.look_ahead import check_by_policies
from evsched.recurrence.recurrence import Declared, read_recurrence

SLOW = Retry(attempts=3, interval=30, factor=2, jitter=10)  # 30 + 60 + 120 + 3 * 10 = 240 s
POLICIES = {"slow": write_policy(SLOW), "broken": "{}", "foreign": "[]", "wild": '{"attempts":-1}'}


def check(rule: str, payload: bytes = b'{"task":"slow"}', **more: Any) -> None:
    check_by_policies(read_recurrence(Declared(name="r", rule=rule, payload=payload, **more)), POLICIES)


def test_a_policy_is_read_as_it_was_written() -> None:
    assert policy_of(write_policy(SLOW), b'{"task":"slow"}') == SLOW
    assert policy_of(write_policy(SLOW, ("a", "b")), b'{"task":"slow"}') == SLOW
    later = write_policy(SLOW)[:-1] + ',"a later field":1}'
    assert policy_of(later, b'{"task":"slow"}') == SLOW


@pytest.mark.parametrize(
    ("rule", "worst"), [("every 239", "240"), ("* * * * *", "240"), ("0 0 * * * ", None), ("every 240", None)]
)
def test_an_interval_shorter_than_the_retries_is_refused(rule: str, worst: str | None) -> None:
    if worst is None:
        check(rule)
    else:
        with pytest.raises(ConfigError, match=f"retries of one occurrence may take {worst} s"):
            check(rule)


@pytest.mark.parametrize(
    ("payload", "refused"),
    [
        (b'{"task":"slow","retry":{"attempts":1}}', False),
        (b'{"task":"slow","retry":{"interval":0,"jitter":0}}', False),
        (b'{"task":"slow","retry":{"attempts":2,"interval":100}}', True),
        (b'{"task":"slow","retry":{"attempts":-1}}', False),  # the job will go to dead with the reason
        (b'{"task":"unknown"}', False),
        (b'{"task":"broken"}', False),
        (b'{"task":"foreign"}', False),
        (b'{"task":"wild"}', False),
        (b"nothing", False),
        (b"\xff", False),
    ],
)
def test_payload_overrides_the_policy_and_unknown_values_are_not_checked(payload: bytes, refused: bool) -> None:
    if refused:
        with pytest.raises(ConfigError):
            check("every 60", payload)
    else:
        check("every 60", payload)


@pytest.mark.parametrize("more", [{"overlap": "allow"}, {"after": "end"}])
def test_interval_may_be_short_where_runs_cannot_collide(more: dict[str, Any]) -> None:
    check("every 60", **more)


def test_task_of_a_payload_is_read() -> None:
    assert [task_of(text) for text in (b'{"task":"t"}', b"{}", b"[", b"\xff\xfe")] == ["t", None, None, None]
