"""The error of a command line that is not valid; in a file that is imported at no cost."""

from __future__ import annotations

from evsched.errors import EvschedError


class UsageError(EvschedError):
    """The command line is not valid."""
