"""Retry policies of tasks as workers write them to Redis: for clients that make recurrences without the code."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Struct

from evsched.errors import ConfigError
from evsched.jobs.job import RetryFields, decode_payload
from evsched.jobs.retry import Retry


class _Stored(Struct, frozen=True):
    """The part of a policy that decides how long retries take. Other fields may come with later releases."""

    attempts: int
    interval: float
    factor: float
    max_interval: float
    jitter: float


_decode: Final = msgspec.json.Decoder(_Stored).decode


def override(policy: Retry, own: RetryFields | None) -> Retry:
    """Return a task's policy with the values that the payload of a job overrides.

    Raises:
        ConfigError: the payload's values are not valid.
    """
    if own is None:
        return policy
    named = {name: getattr(own, name) for name in own.__struct_fields__}
    return msgspec.structs.replace(policy, **{name: value for name, value in named.items() if value is not UNSET})


def write_policy(policy: Retry) -> str:
    """Return a policy as it is stored."""
    fields = (getattr(policy, name) for name in _Stored.__struct_fields__)
    return msgspec.json.encode(_Stored(*fields)).decode()


def task_of(payload: bytes) -> str | None:
    """Return the task of a payload; None if it is not valid."""
    try:
        return decode_payload(payload).task
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def policy_of(stored: str, payload: bytes) -> Retry | None:
    """Return the policy of a job by that of its task; None if one of them is not valid."""
    try:
        known = msgspec.structs.asdict(_decode(stored))
        return override(Retry(**known), decode_payload(payload).retry)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ConfigError):
        return None
