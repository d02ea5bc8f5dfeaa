"""Asks the workers of a queue for the stack of a run."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from evsched import keys
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender
from evsched.transport.subscription import Subscription
from evsched.worker.status_reporter import RunStack

_PATIENCE: Final = 1.0
"""Seconds to wait for the reply: none comes if no worker runs the job, or if a handler blocks its event loop."""

_LONGEST: Final = 16 * 1024
"""The most bytes of a reply that are read: anybody with the right to publish could send one."""


async def ask_stack(url: str, queues: Sequence[str], job_id: str) -> RunStack | None:
    """Return where the run of a job is now; None if no worker replies. `queues`: a queue and its shards.

    Raises:
        StoreDown, StoreRefused
    """
    asker, sender, subscription = secrets.token_hex(8), BatchingSender(url), Subscription(url)
    try:
        await subscription.open([], [keys.status_replies(queue, asker) for queue in queues])
        asked = await sender.send_all([Store(queue).request_stack(asker, job_id) for queue in queues])
        if not sum(asked) and len(await sender.nodes()) == 1:
            return None  # no worker listens
        try:
            async with asyncio.timeout(_PATIENCE):
                async for _, message in subscription.messages():
                    if (found := _read(message)) is not None and found.id == job_id:
                        return found
        except TimeoutError:
            pass
        return None
    finally:
        await subscription.close()
        await sender.close()


def _read(message: bytes) -> RunStack | None:
    if len(message) > _LONGEST:
        return None
    try:
        return msgspec.json.decode(message, type=RunStack)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
