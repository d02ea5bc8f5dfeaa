"""Redis as the timer: each job is a key that expires when it is due, and its expiry is an event.

Redis sends the event when it deletes the key, which may be long after the expiry; who does not listen at that moment
misses it; and each dispatcher gets it, so that they must agree whose job it is.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final

_PUSH: Final = """
if redis.call('SET', KEYS[2], '', 'NX', 'EX', 60) then
  redis.call('RPUSH', KEYS[1], ARGV[1])
end
"""


class KeyExpiry:
    events = "Ex"

    def schedule(self, pipe: Any, due: float, job: str) -> None:
        pipe.set(f"timer:{job}", "", pxat=ceil(due * 1000))

    def finish(self, pipe: Any, jobs: list[str]) -> None:
        pass

    def run(self, client: Any) -> None:
        push = client.register_script(_PUSH)
        messages = client.pubsub(ignore_subscribe_messages=True)
        messages.subscribe("__keyevent@0__:expired")
        for message in messages.listen():
            kind, _, job = message["data"].partition(b":")
            if kind == b"timer":
                push(keys=["ready", b"claim:" + job], args=[job])
