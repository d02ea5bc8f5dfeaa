"""Hooks: the tasks that get a job of their own when a job of another task has ended. Values only.

The script that ends a job also puts the hook's job on the schedule (`lua/_hooks.lua`): both happen, or neither.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from evsched.jobs.job import Buried, Done, Outcome


class EndedJob(Struct, frozen=True):
    """The job that has ended: what the handler of a hook gets, if its parameter has this annotation; else a dict."""

    id: str
    task: str
    outcome: Literal["done", "dead", "expired"]
    attempts: int
    """How many attempts it used."""
    result: Any = None
    """What its handler returned, as JSON has it. None if that has more than 64 KiB: its record has it."""
    reason: str | None = None
    """Why it is dead or expired."""


class Hook(Struct, frozen=True):
    """What a script needs to know of a hook."""

    task: str
    """The task that gets a job."""
    of: str
    """The task whose job has ended."""


class Hooks(Struct, frozen=True):
    """The hooks of a task."""

    on_done: Hook | None = None
    on_dead: Hook | None = None

    def after(self, outcome: Outcome) -> Hook | None:
        """Return the hook that a run calls which ends with this outcome."""
        if isinstance(outcome, Done):
            return self.on_done
        return self.on_dead if isinstance(outcome, Buried) else None
