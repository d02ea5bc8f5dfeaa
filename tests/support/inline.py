"""Inline jobs, as a client without a library schedules them: with the payload as the member, and without an id."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from evsched.client.client import SyncClient
from evsched.store.client_calls import New


def id_of(payload: bytes) -> str:
    """Return the id that an inline job gets."""
    return hashlib.sha1(payload).hexdigest()


def enqueue_half_inline(client: SyncClient, raw: Any, queue: str, jobs: Sequence[New]) -> list[str]:
    """Enqueue jobs, every second one inline, under an id of its own; return the ids. All payloads must differ."""
    inline = {job.payload: client.now() + job.delay if job.due is None else job.due for job in jobs[1::2]}
    assert len(inline) == len(jobs) // 2, "two jobs have the same payload"
    client.enqueue(queue, jobs[::2])
    raw.zadd(f"evsched:{{{queue}}}:schedule", inline)
    return [*(job.id for job in jobs[::2]), *map(id_of, inline)]
