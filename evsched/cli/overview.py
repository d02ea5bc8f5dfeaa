"""The help of `evsched` itself: the list of its commands. It is printed without any library, so it appears at once."""

from __future__ import annotations

import difflib
import sys
from textwrap import fill
from typing import Final

from evsched.cli import terminal
from evsched.cli.commands import COMMANDS, FAMILIES
from evsched.cli.usage import UsageError

_WIDEST: Final = 100
"""Columns of the text: longer lines are hard to read."""

_NAME: Final = max(map(len, COMMANDS))

_INTRODUCTION: Final = (
    "Run jobs on time, on Redis.",
    (
        "To see it work, run `evsched demo`. To develop, run `evsched dev tasks:app`. In production, run "
        "`evsched dispatcher` and `evsched worker tasks:app`. `evsched COMMAND --help` explains a command, and "
        "`evsched --version` prints the version."
    ),
    "Write lengths of time as 250ms, 10s, 5m, 1.5h or 7d, and times as 2030-01-31T09:00 or in Unix seconds.",
)


def overview() -> str:
    """Return the help, as wide as the terminal."""
    width, heading = min(terminal.width(), _WIDEST), terminal.bold if sys.stdout.isatty() else str
    parts = ["Usage: evsched COMMAND", *(fill(text, width) for text in _INTRODUCTION)]
    for family, commands in FAMILIES.items():
        lines = [
            fill(
                command.summary,
                max(width, 2 * _NAME),
                initial_indent=f"  {command.name:{_NAME}}  ",
                subsequent_indent=" " * (_NAME + 4),
            )
            for command in commands
        ]
        parts.append("\n".join([heading(family), *lines]))
    return "\n\n".join(parts)


def unknown(name: str) -> UsageError:
    """Return the error for a word that is not a command."""
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    return UsageError(f"there is no command {name!r}{hint} (see evsched --help)")
