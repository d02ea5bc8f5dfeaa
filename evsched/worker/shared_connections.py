"""The connections that the consumers of a worker share if they are many, or serve shards: two for each server."""

from __future__ import annotations

from typing import Final

from evsched.runtime.runtime import Runtime
from evsched.transport.senders import BatchingSender
from evsched.worker.notices import Notices

_FEW: Final = 8
"""Queues for which a worker has connections of their own, two for each. Opening hundreds of them takes a busy machine
many seconds after the loss of a server, with TLS above all."""


class SharedConnections:
    """The connections that a worker has once for all queues that share them."""

    def __init__(self, runtime: Runtime, queues: int) -> None:
        self._shards = runtime.shards
        self._many = queues > _FEW
        self.sender = BatchingSender(runtime.config.url)
        """Sends the exchanges, so that those of one moment travel together."""
        self.notices = Notices(runtime)

    def serve(self, queue: str) -> bool:
        """Return whether a queue shares them: each does if they are many, and a queue with shards always."""
        return self._many or self._shards.counts.get(self._shards.whole(queue), 0) > 0

    async def close(self) -> None:
        """Cut the connections; the notices end with their task."""
        await self.sender.close()
