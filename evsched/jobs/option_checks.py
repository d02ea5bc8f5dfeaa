"""Options that are passed by name: checked where they are given, not by the worker that runs the job. Pure."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from evsched.errors import ConfigError
from evsched.jobs.retry import Retry
from evsched.keys import NAME

Check = Callable[[str, Any], object]
"""Gets the name and the value of an option, and raises ConfigError if the value is not valid."""


def check_options(
    function: str, given: Mapping[str, Any], checks: Mapping[str, Check], never_none: Collection[str] = ()
) -> None:
    """Check the options that `function` was given. None is the same as left out, except for options in `never_none`.

    Raises:
        TypeError: it takes no option of that name, as Python says of any function; the message suggests the nearest.
        ConfigError: a value is not valid.
    """
    for name, value in given.items():
        if name not in checks:
            near = difflib.get_close_matches(name, checks, n=1)
            hint = f", did you mean {near[0]!r}?" if near else f": its options are {', '.join(sorted(checks))}"
            raise TypeError(f"{function}() takes no option {name!r}{hint}")
        if value is not None or name in never_none:
            checks[name](name, value)


def invalid(name: str, value: Any, give: str) -> ConfigError:
    """Return the error for a value that is not valid: it says what to give."""
    return ConfigError(f"{name} is {repr(value)[:200]}: give {give}")


def identifier(name: str, value: Any) -> None:
    """Check the name of a queue, or the id of a job: one that the API can address, so not `.` or `..`."""
    if not isinstance(value, str) or not NAME.fullmatch(value) or value in (".", ".."):
        raise invalid(name, value, "1 to 200 of A-Z a-z 0-9 . _ : @ -, and not . or ..")


def text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise invalid(name, value, "a string that is not empty")
    if not _is_unicode(value):
        raise invalid(name, value, "text that can be encoded in UTF-8: it has half of a surrogate pair")


def flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise invalid(name, value, "True or False")


def priority(name: str, value: Any) -> None:
    if not _is_whole(value) or not 0 <= value <= 9:
        raise invalid(name, value, "a whole number from 0 to 9; higher runs first")


def critical(name: str, value: Any) -> None:
    if not _is_whole(value) or not 0 <= value <= 32767:
        raise invalid(name, value, "a whole number from 0 to 32767; higher ones are restored first")


def group(name: str, value: Any) -> None:
    if not isinstance(value, str) or not _is_unicode(value) or not 0 < len(value.encode()) <= 200 or "}" in value:
        raise invalid(name, value, "a string of 1 to 200 bytes, without `}`")


def number(name: str, value: Any) -> None:
    if not _is_number(value):
        raise invalid(name, value, "a number")


def length(name: str, value: Any) -> None:
    """Check a number of seconds that may not be 0."""
    if not _is_number(value) or not 0 < value < math.inf:
        raise invalid(name, value, "a number of seconds, more than 0")


def length_or_zero(name: str, value: Any) -> None:
    if not _is_number(value) or not 0 <= value < math.inf:
        raise invalid(name, value, "a number of seconds, 0 or more")


def count(name: str, value: Any) -> None:
    if not _is_whole(value) or value < 1:
        raise invalid(name, value, "a whole number, 1 or more")


def revision(name: str, value: Any) -> None:
    """Check the revision of an app. Redis and Lua store larger whole numbers inexactly."""
    if not _is_whole(value) or not 1 <= value <= 2**53:
        raise invalid(name, value, "a whole number from 1 to 2**53 that grows with each deploy")


def retry(name: str, value: Any) -> None:
    if not isinstance(value, Retry):
        raise invalid(name, value, "a Retry, such as Retry(attempts=3)")


def named(name: str, value: Any) -> None:
    """Check values by name: what JSON calls an object."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):  # pyright: ignore[reportUnknownVariableType]
        raise invalid(name, value, "a dict whose keys are strings")


def in_order(name: str, value: Any) -> None:
    if not isinstance(value, (tuple, list)):
        raise invalid(name, value, "a tuple or a list")


def one_of(*choices: str) -> Check:
    """Return the check of an option that has these values."""

    def check(name: str, value: Any) -> None:
        if value not in choices:
            near = difflib.get_close_matches(str(value)[:200], choices, n=1)
            hint = f", did you mean {near[0]!r}?" if near else f": give {' or '.join(map(repr, choices))}"
            raise ConfigError(f"{name} is {repr(value)[:200]}{hint}")

    return check


def _is_unicode(value: str) -> bool:
    """Return whether a string can be sent: half of a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and abs(value) > sys.float_info.max:  # JSON's readers refuse it
        return False
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
