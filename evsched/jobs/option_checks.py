"""Options that are passed by name: checked where they are given, not by the worker that runs the job. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, cast

from evsched.display import nearest
from evsched.errors import ConfigError
from evsched.jobs.job import TAG, TAGS_MOST
from evsched.jobs.redaction import is_entry
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
            near = nearest(name, checks)
            hint = f", did you mean {near[0]!r}?" if near else f": its options are {', '.join(sorted(checks))}"
            raise TypeError(f"{function}() takes no option {name!r}{hint}")
        if value is not None or name in never_none:
            checks[name](name, value)


def invalid(name: str, value: Any, give: str) -> ConfigError:
    """Return the error for a value that is not valid: it says what to give."""
    return ConfigError(f"{name} is {repr(value)[:200]}: give {give}")


def is_unicode(value: str) -> bool:
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


def _is_group(value: Any) -> bool:
    return isinstance(value, str) and is_unicode(value) and 0 < len(value.encode()) <= 200 and "}" not in value


def check_of(is_valid: Callable[[Any], bool], give: str) -> Check:
    """Return the check of an option. `give` says which values are valid."""

    def check(name: str, value: Any) -> None:
        if not is_valid(value):
            raise invalid(name, value, give)

    return check


def text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise invalid(name, value, "a string that is not empty")
    if not is_unicode(value):
        raise invalid(name, value, "text that can be encoded in UTF-8: it has half of a surrogate pair")


def one_of(*choices: str) -> Check:
    """Return the check of an option that has these values."""

    def check(name: str, value: Any) -> None:
        if value not in choices:
            near = nearest(str(value), choices)
            hint = f", did you mean {near[0]!r}?" if near else f": give {' or '.join(map(repr, choices))}"
            raise ConfigError(f"{name} is {repr(value)[:200]}{hint}")

    return check


identifier: Final = check_of(
    lambda value: isinstance(value, str) and NAME.fullmatch(value) is not None and value not in (".", ".."),
    "1 to 200 of A-Z a-z 0-9 . _ : @ -, and not . or ..",
)
"""Checks the name of a queue, or the id of a job: one that the API can address, so not `.` or `..`."""

known_group: Final = check_of(_is_group, "a string of 1 to 200 bytes, without `}`")
"""Checks the name of a group as the scripts do: other clients may have made it."""

group: Final = check_of(
    lambda value: _is_group(value) and value.isprintable() and not value.isspace(),
    "a string of 1 to 200 bytes, without `}` and characters that cannot be seen, and not only spaces",
)
"""Checks the name of a group that somebody gives."""

flag: Final = check_of(lambda value: isinstance(value, bool), "True or False")
priority: Final = check_of(
    lambda value: _is_whole(value) and 0 <= value <= 9, "a whole number from 0 to 9; higher runs first"
)
critical: Final = check_of(
    lambda value: _is_whole(value) and 0 <= value <= 32767,
    "a whole number from 0 to 32767; higher ones are restored first",
)
number: Final = check_of(_is_number, "a number")
length: Final = check_of(lambda value: _is_number(value) and 0 < value < math.inf, "a number of seconds, more than 0")
length_or_zero: Final = check_of(
    lambda value: _is_number(value) and 0 <= value < math.inf, "a number of seconds, 0 or more"
)
count: Final = check_of(lambda value: _is_whole(value) and value >= 1, "a whole number, 1 or more")
revision: Final = check_of(
    lambda value: _is_whole(value) and 1 <= value <= 2**53,
    "a whole number from 1 to 2**53 that grows with each deploy",
)
"""Checks the revision of an app. Redis and Lua store larger whole numbers inexactly."""

retry: Final = check_of(lambda value: isinstance(value, Retry), "a Retry, such as Retry(attempts=3)")
named: Final = check_of(
    lambda value: isinstance(value, dict) and all(isinstance(key, str) for key in cast("dict[Any, Any]", value)),
    "a dict whose keys are strings",
)
tags: Final = check_of(
    lambda value: (
        isinstance(value, (tuple, list))
        and len(cast("list[Any]", value)) <= TAGS_MOST
        and all(isinstance(tag, str) and TAG.fullmatch(tag) for tag in cast("list[Any]", value))
    ),
    f"a tuple of at most {TAGS_MOST} tags, each 1 to 64 ASCII characters without spaces, commas and control characters",
)
argument_names: Final = check_of(
    lambda value: (
        isinstance(value, (tuple, list))
        and all(isinstance(name, str) and is_entry(name) and is_unicode(name) for name in cast("list[Any]", value))
    ),
    'a tuple of names of arguments, or of positions from "1", such as ("card",)',
)
ids: Final = check_of(
    lambda value: (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and all(isinstance(one, str) for one in cast("Sequence[Any]", value))
    ),
    'a list of ids, such as ["a-1"]',
)
in_order: Final = check_of(lambda value: isinstance(value, (tuple, list)), "a tuple or a list")
