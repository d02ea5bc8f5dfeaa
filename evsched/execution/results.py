"""Results of handlers as JSON, which cannot hold every value: what it would change silently is refused."""

from __future__ import annotations

from typing import Any

import msgspec

from evsched.jobs.job import encode, is_not_finite
from evsched.jobs.steering import GiveUp


def encode_result(result: Any) -> bytes:
    """Return a result as JSON.

    Raises:
        GiveUp: JSON cannot hold it. The handler has done its work, so another attempt would do it again for nothing.
    """
    try:
        text = encode(result)
        # NaN and the infinities become null. Most results have no null, and are not looked at.
        lost = result is not None and b"null" in text and is_not_finite(result)
    # A class may raise anything while it is encoded.
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise GiveUp(f"the result is not JSON: {error}: return what JSON can hold") from None
    if lost:
        raise GiveUp("the result has a number that JSON cannot hold, NaN or infinite: return None or a string for it")
    return text
