"""The commands of `evsched`: their names, where they are, and the help that lists them.

Imported at no cost: no library is needed before a command runs, so the help appears at once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Final

import evsched
from evsched.errors import EvschedError

if TYPE_CHECKING:
    from cyclopts import App


class UsageError(EvschedError):
    """The command line is not valid."""


_LEAST: Final = 20
"""Columns that are drawn, however narrow the terminal is: with fewer, help is letters below each other, and rich needs
endless time and memory for it."""


def width() -> int:
    """Return the columns of the terminal: the variable COLUMNS if it is set, else its width; 80 without a terminal."""
    if (asked := os.environ.get("COLUMNS", "")).isdecimal() and int(asked) > 0:
        return max(_LEAST, int(asked))
    try:
        return max(_LEAST, os.get_terminal_size(sys.stdout.fileno()).columns or 80)
    except OSError:
        return 80


def bold(text: str) -> str:
    """Return a text in bold, for a terminal that can show it."""
    return text if os.environ.get("TERM", "dumb") == "dumb" else f"\x1b[1m{text}\x1b[0m"


FAMILIES: Final = {
    "Run": {
        "dev": "run_commands:dev",
        "dispatcher": "run_commands:dispatcher",
        "worker": "run_commands:worker",
        "api": "run_commands:api",
        "mcp": "run_commands:mcp",
        "console": "console_commands:app",
        "demo": "run_commands:demo",
    },
    "Jobs": {
        "enqueue": "job_commands:enqueue",
        "jobs": "job_commands:jobs",
        "show": "job_commands:show",
        "explain": "job_commands:explain",
        "cancel": "job_commands:cancel",
        "reschedule": "job_commands:reschedule",
        "edit": "job_commands:edit",
        "run-now": "job_commands:run_now",
        "signal": "job_commands:signal",
        "dead": "dead_commands:app",
        "batches": "batch_commands:app",
        "history": "history_commands:app",
    },
    "Queues and workers": {
        "queues": "queue_commands:app",
        "workers": "worker_commands:app",
        "stack": "worker_commands:stack",
        "top": "top_commands:top",
        "pause": "policy_commands:pause",
        "resume": "policy_commands:resume",
        "limit": "policy_commands:limit",
        "limits": "policy_commands:limits",
        "audit": "audit_commands:audit",
    },
    "Recurrences and windows": {
        "recurrences": "recurrence_commands:app",
        "windows": "calendar_commands:windows",
        "calendars": "calendar_commands:app",
        "import": "import_commands:app",
    },
    "Ledger": {"ledger": "ledger_commands:app"},
    "Upkeep": {
        "doctor": "doctor_commands:doctor",
        "lease": "policy_commands:lease",
        "rekey": "upkeep_commands:rekey",
        "schema": "upkeep_commands:schema",
        "script": "upkeep_commands:script",
        "conformance": "upkeep_commands:conformance",
        "completion": "upkeep_commands:completion",
    },
}
"""The commands by family: the name of each, and its function or App below evsched.cli."""

COMMANDS: Final = {name: where for commands in FAMILIES.values() for name, where in commands.items()}
"""All commands by name."""

INSTALL_COMPLETION: Final = "--install-completion"
"""A command with the name of an option, because other programs made with cyclopts have it. No list has it."""


def summary(where: str) -> str:
    """Return the first paragraph of a command's help, from its source: an import would take far longer."""
    module, name = where.split(":")
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    app, function = (
        rf'^{name} = App\([^)]*help="([^"]*)"',
        rf'^(?:def {name}\(|@{name}\.default$).*?"""(.*?)(?:"""|\n\n)',
    )
    found = re.search(f"{app}|{function}", source, re.MULTILINE | re.DOTALL)
    assert found is not None
    return " ".join((found[1] or found[2]).split())


_WIDEST: Final = 100
"""Columns of the text: longer lines are hard to read."""

_NAME: Final = max(map(len, COMMANDS))

INTRODUCTION: Final = (
    "Run jobs on time, on Redis.",
    (
        "To see it work, run `evsched demo`. To develop, run `evsched dev tasks:app`. In production, run "
        "`evsched dispatcher` and `evsched worker tasks:app`. `evsched COMMAND --help` explains a command, "
        "`evsched --install-completion` installs tab completion, and `evsched --version` prints the version."
    ),
    "Write lengths of time as 250ms, 10s, 5m, 1.5h or 7d, and times as 2030-01-31T09:00 or in Unix seconds.",
)


def overview() -> str:
    """Return the help, as wide as the terminal."""
    columns, heading = min(width(), _WIDEST), bold if sys.stdout.isatty() else str
    parts = ["Usage: evsched COMMAND", *(fill(text, columns) for text in INTRODUCTION)]
    for family, commands in FAMILIES.items():
        lines = [
            fill(
                summary(where),
                max(columns, 2 * _NAME),
                initial_indent=f"  {name:{_NAME}}  ",
                subsequent_indent=" " * (_NAME + 4),
            )
            for name, where in commands.items()
        ]
        parts.append("\n".join([heading(family), *lines]))
    return "\n\n".join(parts)


def unknown(name: str) -> UsageError:
    """Return the error for a word that is not a command."""
    if name.startswith("-"):
        option = name.partition("=")[0]  # a URL may have a password
        return UsageError(
            f"{option} stands before the command: write evsched COMMAND {option} ... (see evsched --help)"
        )
    from evsched.display import nearest  # it needs a library, and a command that exists does not

    near = nearest(name, COMMANDS)
    hint = f", did you mean {near[0]}?" if near else ""
    return UsageError(f"there is no command {name!r}{hint} (see evsched --help)")


def build(names: Iterable[str] = COMMANDS) -> App:
    """Return the command `evsched` with the commands of these names.

    A command's module is imported when that command is used: each imports what it needs of Redis, terminals and
    calendars, which takes longer than most commands run.
    """
    from cyclopts import App

    root = App(name="evsched", version=evsched.__version__, suppress_keyboard_interrupt=False, help_format="markdown")
    everything = {**COMMANDS, INSTALL_COMPLETION: "upkeep_commands:install_completion"}
    for name in names:
        root.command(f"evsched.cli.{everything[name]}", name=name)
    return root


def reference() -> str:
    """Return the help of every command as Markdown, for the manual page and the site."""
    # cyclopts writes the arguments of the process, here those of a builder, into the usage of some commands.
    before, sys.argv = sys.argv, ["evsched"]
    try:
        return "## " + build().generate_docs().partition("\n## ")[2]
    finally:
        sys.argv = before
