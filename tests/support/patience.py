"""How long a test waits for an event. Only a fault takes that long, so no test fails on a busy machine."""

from typing import Final

PATIENCE: Final = 120.0
"""Seconds. With forty processes for each core, starting one takes twenty."""

NO_CAP: Final = 3600.0
"""A dispatcher's safety cap in tests: much longer than PATIENCE, so a test fails if only the cap brings its event."""
