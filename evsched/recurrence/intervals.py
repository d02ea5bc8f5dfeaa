"""Whether the retries of an occurrence fit between it and the next one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from evsched.errors import ConfigError
from evsched.jobs.retry import Retry, policy_of, task_of
from evsched.recurrence.cron import Rule
from evsched.recurrence.recurrence import Recurrence


def check_by_policies(recurrence: Recurrence, policies: Mapping[str, str]) -> None:
    """Do as `check_interval`, by the policies of tasks as they are stored. A task that is not known is not checked.

    Raises:
        ConfigError: the message has both durations.
    """
    declared = recurrence.declared
    stored = policies.get(task_of(declared.payload) or "")
    policy = None if stored is None else policy_of(stored, declared.payload)
    if policy is not None:
        check_interval(recurrence, policy)


def check_interval(recurrence: Recurrence, retry: Retry) -> None:
    """Refuse a recurrence that can fall due again before the retries of one occurrence have ended.

    It may if its occurrences may overlap, or if the next one is counted from the end of the one before.

    Raises:
        ConfigError: the message has both durations.
    """
    declared, worst = recurrence.declared, retry.worst_case()
    # One attempt has no retries.
    if declared.overlap == "allow" or declared.after is not None or retry.attempts == 1:
        return
    if (shortest := _shortest(recurrence.rule)) < worst:
        raise ConfigError(
            f"recurrence {declared.name}: it recurs after {shortest:g} s, and the retries of one occurrence may take "
            f"{worst:g} s: give it fewer or quicker attempts, a longer interval, or overlap='allow'"
        )


_shortest = lru_cache(4096)(Rule.shortest)
"""A rule takes up to 50 ms, and many recurrences have the same."""
