"""Results of handlers as JSON, which cannot hold every value: what it would change silently is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from evsched.jobs.job import encode
from evsched.jobs.steering import GiveUp


def encode_result(result: Any) -> bytes:
    """Return a result as JSON.

    Raises:
        GiveUp: JSON cannot hold it. The handler has done its work, so another attempt would do it again for nothing.
    """
    try:
        text = encode(result)
        # NaN and the infinities become null. Most results have no null, and are not looked at.
        lost = result is not None and b"null" in text and _is_not_finite(msgspec.to_builtins(result))
    # A class may raise anything while it is encoded.
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise GiveUp(f"the result is not JSON: {error}: return what JSON can hold") from None
    if lost:
        raise GiveUp("the result has a number that JSON cannot hold, NaN or infinite: return None or a string for it")
    return text


def _is_not_finite(value: Any) -> bool:
    """Tell whether a number in a value is not finite. `value`: of Python's own types."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return True
        if isinstance(one, Mapping):
            left += cast("Mapping[Any, Any]", one).values()
        elif isinstance(one, list | tuple | set | frozenset):
            left += cast("list[Any]", one)
    return False
