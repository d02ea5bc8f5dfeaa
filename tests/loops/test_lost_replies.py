"""Replies that are lost although Redis did what was asked: nothing is lost with them, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import App, StoreDown, current_job, events
from evsched.config import Config
from evsched.transport.call import Call
from evsched.transport.senders import DirectSender
from tests.support.patience import PATIENCE
from tests.support.system import system


async def test_an_end_that_is_repeated_does_not_end_the_next_run_of_its_id(
    config: Config, app: App, raw: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()

    @app.task
    async def work() -> None:
        ran.append(current_job().id)
        if len(ran) == 1:
            # Where one was ready there may be more: the worker asks for it when it writes the end of this run.
            await app.job("other").cancel()
            await work.using(id="again", on_conflict="replace").enqueue()

    members = {f'{{"task":"{app.tasks["work"].name}","id":"{name}"}}': n for n, name in enumerate(("again", "other"))}
    raw.zadd(f"evsched:{{{queue}}}:schedule", members)
    send, lost = DirectSender.attempt_all, list[str]()

    async def lose_reply(self: DirectSender, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send the calls. The first time that they end and start jobs, the job that has ended is dispatched again in
        between, and no reply arrives."""
        names = [call.name for call in calls]
        if lost or not {"complete", "start"} <= {*names}:
            return await send(self, calls)
        at = names.index("start")
        await send(self, calls[:at])
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(raw.llen, f"evsched:{{{queue}}}:ready"):
                pass
        await send(self, calls[at:])
        lost.extend(names)
        raise StoreDown("the reply was lost")

    monkeypatch.setattr(DirectSender, "attempt_all", lose_reply)
    async with system(replace(config, concurrency=1), app) as running:
        await running.recorder.until(lambda: ran == ["again", "again"])
        await running.recorder.wait(events.Completed, count=2)
    assert lost
