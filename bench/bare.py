"""The bare loop: the same scripts with no scheduler around them, as the ceiling of what a worker could reach."""

from __future__ import annotations

import asyncio
import sys
import time

from evsched.jobs.job import Done, FetchedJob, decode_payload
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_BATCH = 256


async def _noop() -> None:
    return None


async def run(url: str, queue: str, jobs: int) -> float:
    """Fetch, decode, await a no-op and complete `jobs` jobs; return the seconds."""
    sender, store = BatchingSender(url), Store(queue)
    ended: list[tuple[FetchedJob, Done]] = []
    done, began = 0, time.monotonic()
    while done < jobs:
        calls = [store.complete("bare", ended)] if ended else []
        reply = (await sender.send_all([*calls, store.start("bare", (), hold=_BATCH, lease=15.0)]))[-1]
        done += len(ended)
        ended = []
        for job in reply.jobs:
            decode_payload(job.payload)
            await _noop()
            ended.append((job, Done(b"null", 300.0, False)))
    elapsed = time.monotonic() - began
    await sender.close()
    return elapsed


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
