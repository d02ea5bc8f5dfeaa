"""The commands of `evsched`: their names, where they are, their summaries, and the help that lists them.

Imported at no cost: no library is needed before a command runs, so the help appears at once.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from textwrap import fill
from typing import TYPE_CHECKING, Final, NamedTuple

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
    """Return its columns: the variable COLUMNS if it is set, else the terminal's width; 80 without a terminal."""
    if (asked := os.environ.get("COLUMNS", "")).isdecimal() and int(asked) > 0:
        return max(_LEAST, int(asked))
    try:
        return max(_LEAST, os.get_terminal_size(sys.stdout.fileno()).columns or 80)
    except OSError:
        return 80


def bold(text: str) -> str:
    """Return a text in bold, for a terminal that can show it."""
    return text if os.environ.get("TERM", "dumb") == "dumb" else f"\x1b[1m{text}\x1b[0m"


class Command(NamedTuple):
    """A command: its name, its function or App below evsched.cli, and its summary, the first line of its help."""

    name: str
    where: str
    summary: str


FAMILIES: Final[dict[str, tuple[Command, ...]]] = {
    "Run": (
        Command(
            "dev",
            "run_commands:dev",
            "Run a dispatcher and a worker in one process, for development. It starts a private Redis if no URL is "
            "set.",
        ),
        Command(
            "dispatcher",
            "run_commands:dispatcher",
            "Run a dispatcher: it moves due jobs to the workers, and recovers the jobs of workers that died.",
        ),
        Command(
            "worker",
            "run_commands:worker",
            "Run a worker: it runs the jobs of your app. Start any number of workers, on any machines.",
        ),
        Command(
            "api",
            "run_commands:api",
            "Serve the HTTP interface: schedule, look up and change jobs and recurrences with JSON. It needs tokens.",
        ),
        Command(
            "demo",
            "run_commands:demo",
            "Schedule jobs in three ways, run them with a dispatcher and a worker, and print how late they started.",
        ),
    ),
    "Jobs": (
        Command(
            "enqueue",
            "job_commands:enqueue",
            "Schedule a job, and print its id. Without --in or --at, it is due now.",
        ),
        Command(
            "jobs",
            "job_commands:jobs",
            "List the waiting and the dead jobs of a queue, the next to run first; with a filter, only matching jobs.",
        ),
        Command(
            "show", "job_commands:show", "Show a job: where it is, when it ran, its arguments, result and last error."
        ),
        Command(
            "explain",
            "job_commands:explain",
            "Explain why a job has not run yet, with the facts behind the answer. Exit code 1: there is no such job.",
        ),
        Command(
            "cancel",
            "job_commands:cancel",
            "Cancel a job: delete it if it waits, or ask its worker to stop it if it is running.",
        ),
        Command(
            "reschedule",
            "job_commands:reschedule",
            "Give a waiting job another due time, or with a filter all waiting jobs that match.",
        ),
        Command("run-now", "job_commands:run_now", "Make a waiting job due now."),
        Command(
            "dead", "dead_commands:app", "List, revive or drop dead jobs: jobs that failed and will not be tried again."
        ),
    ),
    "Queues and workers": (
        Command(
            "queues",
            "queue_commands:app",
            "Count the jobs of each queue by place. Exit code 1: a queue cannot be read or does not exist.",
        ),
        Command(
            "workers",
            "queue_commands:workers",
            "List the workers: how many jobs each holds, and when it will count as dead unless it sends a heartbeat.",
        ),
        Command(
            "top",
            "top_commands:top",
            "Show queues, workers, throughput, lateness and running jobs, refreshed each second. q or Ctrl-C quits.",
        ),
        Command(
            "pause",
            "policy_commands:pause",
            "Pause a queue: running jobs finish, and no other job starts until you resume the queue.",
        ),
        Command("resume", "policy_commands:resume", "Resume a paused queue."),
        Command(
            "limit",
            "policy_commands:limit",
            "Set limits of a queue, a group or a task, and show all limits of the queue. They apply at once, to all "
            "workers.",
        ),
        Command(
            "limits",
            "policy_commands:limits",
            "List the limits of each queue, and the limits that apps declare. Exit code 1: as `evsched queues`.",
        ),
    ),
    "Recurrences and windows": (
        Command(
            "recurrences",
            "recurrence_commands:app",
            "List, add, pause or remove recurrences: rules that make jobs again and again.",
        ),
        Command(
            "windows",
            "calendar_commands:windows",
            "List, set or remove named windows: the hours in which jobs may start.",
        ),
        Command(
            "calendars",
            "calendar_commands:app",
            "List, set or remove calendars: days on which recurrences make no jobs.",
        ),
    ),
    "Ledger": (
        Command(
            "ledger",
            "ledger_commands:app",
            "Schedule jobs by rows of a PostgreSQL database, which Redis cannot lose: migrate, run, status.",
        ),
    ),
    "Upkeep": (
        Command(
            "doctor", "doctor_commands:doctor", "Check Redis and every queue for problems, and print how to fix each."
        ),
        Command(
            "lease",
            "policy_commands:lease",
            "Show or change the lease: the seconds without a heartbeat after which a worker's jobs start elsewhere.",
        ),
        Command(
            "schema",
            "run_commands:schema",
            "Print the JSON Schema of the records that clients write to Redis: payloads, inline jobs, recurrences.",
        ),
        Command(
            "completion",
            "run_commands:completion",
            "Print a script for tab completion of commands, flags and their choices. Save it where your shell looks "
            "for it.",
        ),
    ),
}

COMMANDS: Final = {command.name: command for commands in FAMILIES.values() for command in commands}
"""All commands by name."""


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
    columns, heading = min(width(), _WIDEST), bold if sys.stdout.isatty() else str
    parts = ["Usage: evsched COMMAND", *(fill(text, columns) for text in _INTRODUCTION)]
    for family, commands in FAMILIES.items():
        lines = [
            fill(
                command.summary,
                max(columns, 2 * _NAME),
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


def build(names: Iterable[str] = COMMANDS) -> App:
    """Return the command `evsched` with the commands of these names.

    A command's module is imported when that command is used: each imports what it needs of Redis, terminals and
    calendars, which takes longer than most commands run.
    """
    from cyclopts import App

    root = App(name="evsched", version=evsched.__version__, suppress_keyboard_interrupt=False, help_format="markdown")
    for name in names:
        root.command(f"evsched.cli.{COMMANDS[name].where}", name=name)
    return root
