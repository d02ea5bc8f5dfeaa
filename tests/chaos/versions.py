"""Two versions of an app: the new one has a task more, and of its recurrences one is changed and one is gone."""

from __future__ import annotations

import asyncio
from typing import Final

from evsched import App, Retry
from tests.chaos.app import note

RULES: Final = {
    "old": {"kept": "every 1", "changed": "every 1", "paused": "every 1", "removed": "every 1"},
    "new": {"kept": "every 1", "changed": "every 2", "paused": "every 2"},
}
"""By version, the recurrences that it declares."""

USUAL: Final = Retry(attempts=20, interval=0.05, factor=1, jitter=0)
"""A worker that is killed costs an attempt."""


async def _run(seconds: float) -> None:
    note("start")
    await asyncio.sleep(seconds)
    note("end")


def _make(version: str) -> App:
    app = App(queue="chaos", name="shop")

    @app.task(retry=USUAL, retention=600)
    async def common(seconds: float) -> None:
        await _run(seconds)

    @app.task(retry=USUAL, retention=600)
    async def tick() -> None:
        note("tick")

    for name, rule in RULES[version].items():
        app.recurring(rule, name=name, overlap="allow")(tick)
    return app


old = _make("old")
new = _make("new")


@new.task(retry=USUAL, retention=600)
async def added(seconds: float) -> None:
    await _run(seconds)
