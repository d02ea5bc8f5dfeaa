"""`evsched recurrences next` lists the runs that really happen when a window opens."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evsched import App, Declared, Retry, current_job, events
from evsched.config import Config
from evsched.recurrence.recurrence import Overlap
from tests.support.cli import Cli
from tests.support.clock import server_with_clock
from tests.support.plain import plain_client
from tests.support.system import system

EVERY = 10
CLOSED = 600
"""Seconds until the window opens: the recurrence is made that long before."""


def ticking(queue: str, ran: list[int]) -> App:
    app = App(queue=queue)

    @app.task(retry=Retry(attempts=1))
    async def tick() -> None:
        ran.append(int(current_job().id.removeprefix("r@")))

    return app


def waiting(raw: Any, queue: str, until: float) -> bool:
    ids = [job_id.decode() for job_id in raw.zrange(f"evsched:{{{queue}}}:schedule", 0, -1)]
    return any(int(job_id.removeprefix("r@")) <= until for job_id in ids)


@pytest.mark.extra
@pytest.mark.parametrize("overlap", ["skip", "wait", "allow"])
async def test_runs_at_an_opening_match_the_times_that_commands_list(
    tmp_path: Path, queue: str, overlap: Overlap
) -> None:
    opens = (int(time.time()) // 3600 + 2) * 3600
    window = "-".join(f"{datetime.fromtimestamp(opens + more, UTC):%H:%M}" for more in (0, 3600)) + " UTC"
    declared = Declared(
        name="r", rule=f"every {EVERY}", payload=b'{"task":"tick"}', window=window, overlap=overlap, misfire="skip"
    )
    ran = list[int]()
    app = ticking(queue, ran)
    with server_with_clock(tmp_path) as (server, clock):
        clock.set(opens - CLOSED - int(time.time()))
        cli, of, raw = Cli(server.url, tmp_path), ("--queue", queue), plain_client(server.url)
        async with system(Config(url=server.url, queues=(queue,)), app) as running:
            await app.client.declare(queue, declared)
            await running.recorder.wait(events.Recurred)  # from now on its planned times are certain
            in_span = cli.json("recurrences", "next", "--from", str(opens - 60), "--to", str(opens), *of)["times"]
            listed = cli.json("recurrences", "next", "r", "-n", "1000", *of)["times"]
            # The dispatcher looks at them every 10 s, and puts them on the schedule up to 15 s ahead.
            clock.set(opens - 14 - int(time.time()))
            await running.recorder.until(lambda: len(ran) >= len(in_span) and not waiting(raw, queue, opens))
        raw.close()
    at_opening = sorted(planned for planned in ran if planned <= opens)
    assert at_opening == [one["planned"] for one in listed if one["planned"] <= opens]
    assert [one["due"] for one in in_span] == [opens] * len(at_opening)
    assert len(at_opening) > 1 if overlap == "allow" else len(at_opening) == 1
