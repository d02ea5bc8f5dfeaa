"""One sorted set for all: a job that was handed out stays, with the end of its lease as a negative score.

So no list of what workers hold is needed. But each hand-out is a ZADD, whose event looks like a client's, and the
worker must remove the job at its end.
"""

from __future__ import annotations

from typing import Any, Final

from bench.alternatives.client import LIMIT, SortedSet, Wakeups
from bench.alternatives.event_script import sleep_of

_LEASE: Final = 15
"""Seconds."""

_HAND_OUT: Final = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local due = redis.call('ZRANGEBYSCORE', KEYS[1], 0, now, 'LIMIT', 0, ARGV[1])
if #due > 0 then
  local claims = {}
  for _, job in ipairs(due) do
    claims[#claims + 1] = -(now + ARGV[2])
    claims[#claims + 1] = job
  end
  redis.call('ZADD', KEYS[1], unpack(claims))
  redis.call('RPUSH', KEYS[2], unpack(due))
end
local front = redis.call('ZRANGEBYSCORE', KEYS[1], 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return front[2] and string.format('%.6f', front[2] - now)
"""


class NegativeScores(SortedSet):
    def finish(self, pipe: Any, jobs: list[str]) -> None:
        pipe.zrem("schedule", *jobs)

    def run(self, client: Any) -> None:
        hand_out, wakeups = client.register_script(_HAND_OUT), Wakeups(client, "schedule", b"zadd")
        while True:
            wakeups.wait(sleep_of(hand_out(keys=["schedule", "ready"], args=[LIMIT, _LEASE])))
