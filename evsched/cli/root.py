"""The command line: reads the flags of a command, calls its function, and draws its help.

A command's module is imported when that command is used: each imports its parts for Redis, terminals and calendars,
which takes longer than most commands run.
"""

from __future__ import annotations

from collections.abc import Iterable

from cyclopts import App

import evsched
from evsched.cli.commands import COMMANDS


def build(names: Iterable[str] = COMMANDS) -> App:
    """Return the command `evsched` with the commands of these names."""
    root = App(name="evsched", version=evsched.__version__, suppress_keyboard_interrupt=False, help_format="markdown")
    for name in names:
        root.command(f"evsched.cli.{COMMANDS[name].where}", name=name)
    return root
