"""The tasks that the benchmark runs."""

from __future__ import annotations

from evsched import App, current_job

app = App()


@app.task
async def noop() -> None:
    """Do nothing: what remains is the scheduler's own cost."""


@app.task
async def lateness() -> float:
    """Return the seconds from the due to this handler, by Redis's clock."""
    return current_job().lateness
