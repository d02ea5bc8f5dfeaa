"""A long import of rows whose worker is killed, or stopped by a deploy, every few seconds: no row is left out.

A million rows, and a kill every ten seconds, in some minutes:

    CHAOS_ROWS=1000000 CHAOS_ROW_PAUSE=0 CHAOS_STOP_EVERY=10 pytest -n 0 -s tests/chaos/test_steps.py -k kill
"""

from __future__ import annotations

import os
import random
import signal
import time
from bisect import bisect
from collections import defaultdict

import pytest

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from tests.chaos.conftest import Fleet

SHORT = {"EVSCHED_LEASE": "5", "EVSCHED_TEST_HEARTBEAT": "0.5"}
"""Long enough for a machine that is busy: a worker that loses its lease repeats rows too."""

ROWS = int(os.environ.get("CHAOS_ROWS", "2400"))

PAUSE = float(os.environ.get("CHAOS_ROW_PAUSE", "0.01"))
"""Seconds that a row takes, at least."""

EVERY = float(os.environ.get("CHAOS_STOP_EVERY", "3"))
"""Seconds between the first row of a worker and its stop; up to one more, since rows are saved once a second."""


@pytest.mark.timeout(300 + ROWS / 250)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "deploy"])
def test_import_that_is_cut_short_again_and_again_handles_each_row(
    fleet: Fleet, client: SyncClient, number: signal.Signals
) -> None:
    fleet.start("dispatcher", **SHORT)
    client.enqueue("chaos", [new_job("import_rows", (ROWS, PAUSE), {}, JobOptions(id="import"))])
    rng, stops, end = random.Random(5), list[float](), time.monotonic() + 240 + ROWS / 250
    while True:
        worker = fleet.start("worker", "tests.chaos.app:app", **SHORT)
        before = fleet.oracle.stat().st_size
        while fleet.oracle.stat().st_size == before and not _is_over(client):
            assert time.monotonic() < end, "the import does not go on"
            time.sleep(0.05)
        stop = time.monotonic() + rng.uniform(EVERY, EVERY + 1)
        while time.monotonic() < stop and not _is_over(client):
            time.sleep(0.05)
        if _is_over(client):
            break
        worker.send_signal(number)
        worker.wait()
        stops.append(time.time())  # rows may have ended until now
    assert client.result("chaos", "import", 10) is None
    handled = defaultdict[int, list[float]](list)
    for what, _, _, _, at in fleet.lines():
        handled[int(what.partition(":")[2])].append(at)
    assert sorted(handled) == list(range(ROWS))
    repeated = [list[float]() for _ in stops]
    for row, times in handled.items():
        for at in sorted(times)[:-1]:
            stop_of = bisect(stops, at)
            assert stop_of < len(stops), f"row {row} was handled again, and nothing was stopped: {times}, {stops[-1]}"
            repeated[stop_of].append(stops[stop_of] - at)
    counts, longest = [len(lengths) for lengths in repeated], [max(one, default=0.0) for one in repeated]
    print(f"{number.name}: {ROWS} rows, {len(stops)} stops; rows repeated after each of them: {counts}")
    print(f"the oldest of these had ended {', '.join(f'{one:.2f}' for one in longest)} s before")
    assert len(stops) > 2
    if number == signal.SIGTERM:
        assert not any(counts)
    else:
        assert 0 < max(longest) < 1.5


def _is_over(client: SyncClient) -> bool:
    status = client.status("chaos", "import")
    return status is not None and status.outcome is not None
