"""A list of jobs for each moment, and a sorted set of the moments: cheap if many jobs share a moment.

A moment is a millisecond, so that jobs are not late by design. A job cannot be cancelled or moved without a search.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from bench.alternatives.client import LIMIT, Wakeups
from bench.alternatives.event_script import sleep_of

_MOVE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local left = tonumber(ARGV[1])
for _, moment in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, left)) do
  local jobs = redis.call('LPOP', 'due:' .. moment, left) or {}
  if #jobs > 0 then
    redis.call('RPUSH', KEYS[2], unpack(jobs))
  end
  if redis.call('EXISTS', 'due:' .. moment) == 0 then
    redis.call('ZREM', KEYS[1], moment)
  end
  left = left - #jobs
  if left == 0 then
    break
  end
end
local front = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return front[2] and string.format('%.6f', (front[2] - now) / 1000)
"""


class TimestampLists:
    events = "Kz"

    def schedule(self, pipe: Any, due: float, job: str) -> None:
        moment = ceil(due * 1000)
        pipe.rpush(f"due:{moment}", job)
        pipe.zadd("moments", {str(moment): moment})

    def finish(self, pipe: Any, jobs: list[str]) -> None:
        pass

    def run(self, client: Any) -> None:
        move, wakeups = client.register_script(_MOVE), Wakeups(client, "moments", b"zadd")
        while True:
            wakeups.wait(sleep_of(move(keys=["moments", "ready"], args=[LIMIT])))
