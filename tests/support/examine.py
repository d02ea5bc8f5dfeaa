"""Run the doctor on a server, and sort its findings."""

from __future__ import annotations

import time
from typing import Any

from evsched.diagnostics.doctor import Doctor
from evsched.diagnostics.finding import Finding
from evsched.diagnostics.server_checks import Role
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.plain import plain_client


def client(server: EmbeddedRedis) -> Any:
    return plain_client(server.url)


async def examine(
    address: str, role: Role | None = None, *, repair: bool = False, skew: float = 0.0, event_timeout: float = 3.0
) -> list[Finding]:
    """Run the doctor and return its findings."""
    sender = BatchingSender(address)
    try:
        doctor = Doctor(
            address, sender, "q", repair=repair, wall=lambda: time.time() + skew, event_timeout=event_timeout
        )
        return await doctor.run(role)
    finally:
        await sender.close()


def problems(found: list[Finding]) -> list[Finding]:
    """Return the faults and warnings."""
    return [finding for finding in found if finding.level != "info"]
