"""The commands of `evsched`: their names, where they are, and what they do. Imported at no cost."""

from __future__ import annotations

from typing import Final, NamedTuple


class Command(NamedTuple):
    """A command: its name, its function or App below evsched.cli, and its summary, the first line of its help."""

    name: str
    where: str
    summary: str


FAMILIES: Final[dict[str, tuple[Command, ...]]] = {
    "Run": (
        Command(
            "dev",
            "run:dev",
            "Run a dispatcher and a worker in one process, for development. It starts a private Redis if no URL is "
            "set.",
        ),
        Command(
            "dispatcher",
            "run:dispatcher",
            "Run a dispatcher: it moves due jobs to the workers, and recovers the jobs of workers that died.",
        ),
        Command(
            "worker",
            "run:worker",
            "Run a worker: it runs the jobs of your app. Start any number of workers, on any machines.",
        ),
        Command(
            "api",
            "api:api",
            "Serve the HTTP interface: schedule, look up and change jobs and recurrences with JSON. It needs tokens.",
        ),
        Command(
            "demo",
            "run:demo",
            "Schedule jobs in three ways, run them with a dispatcher and a worker, and print how late they started.",
        ),
    ),
    "Jobs": (
        Command(
            "enqueue",
            "jobs:enqueue",
            "Schedule a job, and print its id. Without --in or --at, it is due now.",
        ),
        Command(
            "jobs",
            "jobs:jobs",
            "List the waiting and the dead jobs of a queue, the next to run first; with a filter, those that match.",
        ),
        Command("show", "follow:show", "Show a job: where it is, when it ran, its arguments, result and last error."),
        Command(
            "explain",
            "follow:explain",
            "Explain why a job has not run yet, with the facts behind the answer. Exit code 1: there is no such job.",
        ),
        Command(
            "cancel",
            "jobs:cancel",
            "Cancel a job: delete it if it waits, or ask its worker to stop it if it is running.",
        ),
        Command(
            "reschedule",
            "jobs:reschedule",
            "Give a waiting job another due time, or with a filter all waiting jobs that match.",
        ),
        Command("run-now", "jobs:run_now", "Make a waiting job due now."),
        Command("dead", "dead:app", "List, revive or drop dead jobs: jobs that failed and will not be tried again."),
    ),
    "Queues and workers": (
        Command(
            "queues",
            "queues:app",
            "Count the jobs of each queue by place. Exit code 1: a queue cannot be read or does not exist.",
        ),
        Command(
            "workers",
            "queues:workers",
            "List the workers: how many jobs each holds, and when it will count as dead unless it sends a heartbeat.",
        ),
        Command(
            "top",
            "top:top",
            "Show queues, workers, throughput, lateness and running jobs, refreshed each second. q or Ctrl-C quits.",
        ),
        Command(
            "pause",
            "policy:pause",
            "Pause a queue: running jobs finish, and no other job starts until you resume the queue.",
        ),
        Command("resume", "policy:resume", "Resume a paused queue."),
        Command(
            "limit",
            "policy:limit",
            "Set limits of a queue, a group or a task, and show all limits of the queue. They apply at once, to all "
            "workers.",
        ),
        Command(
            "limits",
            "limits:limits",
            "List the limits of each queue, and what the code of the apps declares. Exit code 1: as `evsched queues`.",
        ),
    ),
    "Recurrences and windows": (
        Command(
            "recurrences",
            "recurrences:app",
            "List, add, pause or remove recurrences: rules that make jobs again and again.",
        ),
        Command(
            "windows",
            "calendars:windows",
            "List, set or remove named windows: the hours in which jobs may start.",
        ),
        Command(
            "calendars",
            "calendars:app",
            "List, set or remove calendars: days on which recurrences make no jobs.",
        ),
    ),
    "Ledger": (
        Command(
            "ledger",
            "ledger:app",
            "Schedule jobs by rows of a PostgreSQL database, which Redis cannot lose: migrate, run, status.",
        ),
    ),
    "Upkeep": (
        Command("doctor", "doctor:doctor", "Check Redis and every queue for problems, and print how to fix each."),
        Command(
            "lease",
            "settings:lease",
            "Show or change the lease: the seconds without a heartbeat after which a worker's jobs start elsewhere.",
        ),
        Command(
            "schema",
            "schema:schema",
            "Print the JSON Schema of what clients write to Redis: payloads, inline jobs, the records of recurrences.",
        ),
        Command(
            "completion",
            "completion:completion",
            "Print a script for tab completion of commands, flags and their choices. Save it where your shell looks "
            "for it.",
        ),
    ),
}

COMMANDS: Final = {command.name: command for commands in FAMILIES.values() for command in commands}
"""All commands by name."""
