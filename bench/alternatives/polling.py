"""The usual design: look at the schedule at an interval. The script is evsched's, so that only the sleep differs."""

from __future__ import annotations

import time
from typing import Any

from bench.alternatives.client import LIMIT, SortedSet
from bench.alternatives.event_script import MOVE, sleep_of


class Polling(SortedSet):
    events = ""

    def __init__(self, interval: float) -> None:
        self._interval = interval

    def run(self, client: Any) -> None:
        move = client.register_script(MOVE)
        while True:
            if sleep_of(move(keys=["schedule", "ready"], args=[LIMIT])) > 0:
                time.sleep(self._interval)
