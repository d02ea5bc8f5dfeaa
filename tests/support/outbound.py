"""A pool of connections to servers on this machine, and requests through it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from ipaddress import ip_network

from evsched.client.target_request import read_request
from evsched.client.target_tasks import HttpMethod
from evsched.targets.exchange import Progress
from evsched.targets.network import Connector
from evsched.targets.pool import Pool
from tests.support.patience import PATIENCE

Tls = Callable[..., ssl.SSLContext]
"""Makes the context of a server that the pool trusts, for these protocols."""


def new_pool() -> Pool:
    """Make a pool that finds every host on this machine."""
    return Pool(Connector([ip_network("127.0.0.0/8")], lambda host, port: ["127.0.0.1"]))


async def send(pool: Pool, url: str, body: str | None = None, method: HttpMethod = "POST") -> int:
    """Send a request, and return the status of its answer."""
    answer = await asyncio.wait_for(pool.send(read_request(url, method, {}, body), {}, Progress()), PATIENCE)
    return answer.status
