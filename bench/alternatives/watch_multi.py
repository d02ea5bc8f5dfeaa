"""Without a script: WATCH the schedule, read what is due, move it in a transaction, which any other write lets fail."""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import WatchError

from bench.alternatives.client import CAP, LIMIT, SortedSet, Wakeups


class WatchMulti(SortedSet):
    def run(self, client: Any) -> None:
        wakeups = Wakeups(client, "schedule", b"zadd")
        while True:
            with client.pipeline() as pipe:
                try:
                    wakeups.wait(self._step(pipe))
                except WatchError:
                    pass  # someone else wrote: try again at once

    def _step(self, pipe: Any) -> float:
        """Move what is due; return how long to sleep."""
        pipe.watch("schedule")
        due = pipe.zrangebyscore("schedule", "-inf", time.time(), start=0, num=LIMIT)
        if due:
            pipe.multi()
            pipe.zrem("schedule", *due)
            pipe.rpush("ready", *due)
            pipe.execute()
            return 0.0
        front = pipe.zrange("schedule", 0, 0, withscores=True)
        pipe.unwatch()
        return front[0][1] - time.time() if front else CAP
