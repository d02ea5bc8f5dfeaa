"""How long a test waits for what must come: only a fault uses it up, so a machine that is busy fails no test."""

from typing import Final

PATIENCE: Final = 25.0
"""Seconds. Less than a dispatcher's safety cap, 30 s, so that what only the cap would bring is a failure."""
