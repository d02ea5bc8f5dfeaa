"""evsched's design: one script moves what is due and says how long to sleep; a schedule event ends the sleep."""

from __future__ import annotations

from typing import Any, Final

from bench.alternatives.client import CAP, LIMIT, SortedSet, Wakeups

MOVE: Final = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
if #due > 0 then
  redis.call('ZREM', KEYS[1], unpack(due))
  redis.call('RPUSH', KEYS[2], unpack(due))
end
local front = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return front[2] and string.format('%.6f', front[2] - now)
"""
"""Replies with the seconds until the next job is due, or nothing when there is none."""


def sleep_of(reply: bytes | None) -> float:
    """Return how long the dispatcher may sleep."""
    return CAP if reply is None else float(reply)


class EventScript(SortedSet):
    def run(self, client: Any) -> None:
        move, wakeups = client.register_script(MOVE), Wakeups(client, "schedule", b"zadd")
        while True:
            wakeups.wait(sleep_of(move(keys=["schedule", "ready"], args=[LIMIT])))
