"""The connections that the consumers of all shards of a worker share: one each for a server, or none."""

from __future__ import annotations

from evsched.runtime.runtime import Runtime
from evsched.transport.senders import BatchingSender
from evsched.worker.notices import Notices


class ShardConnections:
    """What a worker has once, however many shards it serves."""

    def __init__(self, runtime: Runtime) -> None:
        self.sender = BatchingSender(runtime.config.url)
        """Sends the exchanges, so that those of one moment travel together."""
        self.notices = Notices(runtime)

    async def close(self) -> None:
        """Cut the connections; the notices end with their task."""
        await self.sender.close()
