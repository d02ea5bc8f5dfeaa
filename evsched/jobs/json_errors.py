"""Says why a text is no JSON, where msgspec's words mislead."""

from __future__ import annotations

import re
from typing import Final

_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
"""A surrogate pair: one character as two escapes."""

_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def describe(text: bytes, error: Exception) -> str:
    """Return what is wrong with a text that could not be decoded. msgspec may call half a surrogate pair truncated."""
    escapes = text.replace(rb"\\", b"")  # an escaped backslash escapes nothing
    if _HALF.search(_PAIR.sub(b"", escapes)):
        return "it has half of a surrogate pair, \\ud800 to \\udfff, which is no character"
    return str(error)
