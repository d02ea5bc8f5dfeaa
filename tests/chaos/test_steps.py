"""A long import of rows whose worker is killed, or stopped by a deploy, every few seconds: no row is left out."""

from __future__ import annotations

import signal
import time
from bisect import bisect
from collections import defaultdict

import pytest

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from tests.chaos.conftest import Fleet

SHORT = {"EVSCHED_LEASE": "2", "EVSCHED_TEST_HEARTBEAT": "0.5"}

PAUSE = 0.01
"""Seconds that a row takes, at least."""

KILLS = 6


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "deploy"])
def test_import_that_is_cut_short_again_and_again_handles_each_row(
    fleet: Fleet, client: SyncClient, number: signal.Signals
) -> None:
    rows = 2400
    fleet.start("dispatcher", **SHORT)
    client.enqueue("chaos", [new_job("import_rows", (rows, PAUSE), {}, JobOptions(id="import"))])
    stops, end = list[float](), time.monotonic() + 240
    while True:
        worker = fleet.start("worker", "tests.chaos.app:app", **SHORT)
        before = len(fleet.lines())
        while len(fleet.lines()) == before and time.monotonic() < end:
            time.sleep(0.05)
        if len(stops) == KILLS:
            break
        time.sleep(3.0)
        stops.append(time.time())
        worker.send_signal(number)
        worker.wait()
    assert client.result("chaos", "import", end - time.monotonic()) is None
    handled = defaultdict[int, list[float]](list)
    for what, _, _, _, at in fleet.lines():
        handled[int(what.partition(":")[2])].append(at)
    assert sorted(handled) == list(range(rows))
    repeated = [list[float]() for _ in stops]
    for times in handled.values():
        for at in times[:-1]:
            stop = bisect(stops, at)
            repeated[stop].append(stops[stop] - at)
    counts, longest = [len(lengths) for lengths in repeated], max((max(one) for one in repeated if one), default=0.0)
    print(
        f"{number.name}: rows repeated after each of {KILLS} stops: {counts}; the oldest ended {longest:.2f} s before"
    )
    if number == signal.SIGTERM:
        assert counts == [0] * KILLS
    else:
        assert 0 < longest < 1.5
        assert max(counts) < 1.5 / PAUSE
