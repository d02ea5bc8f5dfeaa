"""The terminal: how wide it is, and whether it shows bold text."""

from __future__ import annotations

import os
import sys
from typing import Final

_LEAST: Final = 20
"""Columns that are drawn, however narrow the terminal is: with fewer, help is letters below each other, and rich needs
endless time and memory for it."""


def width() -> int:
    """Return its columns: the variable COLUMNS if it is set, else what the terminal says; 80 if there is none."""
    if (asked := os.environ.get("COLUMNS", "")).isdecimal() and int(asked) > 0:
        return max(_LEAST, int(asked))
    try:
        return max(_LEAST, os.get_terminal_size(sys.stdout.fileno()).columns or 80)
    except OSError:
        return 80


def bold(text: str) -> str:
    """Return a text in bold, for a terminal that can show it."""
    return text if os.environ.get("TERM", "dumb") == "dumb" else f"\x1b[1m{text}\x1b[0m"
