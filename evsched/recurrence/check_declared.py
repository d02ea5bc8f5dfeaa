"""Check a recurrence that a program declares: the type and the range of each of its fields. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from evsched.errors import ConfigError
from evsched.jobs import option_checks as check
from evsched.jobs.job import decode_payload
from evsched.jobs.option_checks import Check
from evsched.recurrence.recurrence import CHOICES, Declared

CHECKS: Final[dict[str, Check]] = {
    **CHOICES,
    "zone": check.text,
    "priority": check.priority,
    "group": check.group,
    "count": check.count,
    "most": check.count,
    "window": check.text,
    "skip": check.text,
    "pause_after": check.count,
}
"""The checks of the fields that `App.recurring` takes as they are."""


def _payload(name: str, value: Any) -> None:
    try:
        if isinstance(value, bytes):
            decode_payload(value)
            return
        why = ""
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        why = f" ({error})"
    raise check.invalid(name, value, f'the JSON of a job as bytes, such as b\'{{"task":"report"}}\'{why}')


_ALL: Final[dict[str, Check]] = {
    **CHECKS,
    "name": check.text,
    "rule": check.text,
    "payload": _payload,
    "start": check.number,
    "end": check.number,
    "spread": check.length_or_zero,
}

_MAY_BE_NONE: Final = ("priority", "group", "start", "end", "count", "window", "pause_after", "after", "skip")


def check_declared(declared: Declared) -> None:
    """Check the fields of a recurrence. What they mean together is checked by `read_recurrence`.

    Raises:
        ConfigError: a field is not valid; the message names the recurrence and the field.
    """
    given = msgspec.structs.asdict(declared)
    try:
        check.check_options("Declared", given, _ALL, [name for name in given if name not in _MAY_BE_NONE])
    except ConfigError as error:
        raise ConfigError(f"recurrence {declared.name}: {error}") from None
