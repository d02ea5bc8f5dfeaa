"""The pages for whatever supervises the server: is it alive, and can it reach Redis?"""

from __future__ import annotations

import asyncio
import logging
import time
from http import HTTPStatus
from typing import Final

from evsched.api.replies import Health, Reply
from evsched.client.client import Client
from evsched.client.operations import Send
from evsched.telemetry.readiness import why_redis_does_not_serve

_AWAY: Final = "Redis does not serve: the log of the server says why"
"""The reason itself has the address of Redis, which is nobody's business who has no token."""

_logger: Final = logging.getLogger("evsched")

_KEPT: Final = 1.0
"""Seconds for which an answer is given again: these pages need no token, and must not load Redis."""


class HealthPages:
    """Answers /healthz and /readyz."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._reason: str | None = None
        self._checked = -_KEPT
        self._checking = asyncio.Lock()

    async def alive(self) -> Reply:
        """Say that the event loop runs."""
        return Reply(HTTPStatus.OK, Health(True))

    async def ready(self) -> Reply:
        """Say whether Redis serves."""
        async with self._checking:
            if time.monotonic() - self._checked >= _KEPT:
                before = self._reason
                self._reason = await why_redis_does_not_serve(
                    lambda call: self._client.perform(Send(call)), self._queue
                )
                self._checked = time.monotonic()
                if self._reason is not None and before is None:
                    _logger.error("not ready: %s", self._reason)
        if self._reason is None:
            return Reply(HTTPStatus.OK, Health(True))
        return Reply(HTTPStatus.SERVICE_UNAVAILABLE, Health(False, _AWAY))
