"""How long a test waits for what must happen. Only a fault takes that long, so no test fails on a busy machine."""

from typing import Final

PATIENCE: Final = 25.0
"""Seconds. Less than a dispatcher's safety cap, 30 s, so that a test fails if only the cap brings what it waits for."""
