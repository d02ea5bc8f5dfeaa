"""The session of a worker with servers on this machine, and requests through it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from ipaddress import ip_network

from evsched.client.target_tasks import HttpMethod, read_request
from evsched.targets.intake import Answer, Transfer
from evsched.targets.session import Session
from tests.support.names import Find, names
from tests.support.patience import PATIENCE

Tls = Callable[..., ssl.SSLContext]
"""Makes the context of a server that the session trusts, for these protocols."""


def new_session(find: Find = lambda host: ["127.0.0.1"], networks: str = "127.0.0.0/8") -> Session:
    """Make a session that finds every host on this machine."""
    return Session([ip_network(networks)], names=names(find))


async def ask(session: Session, url: str, body: str | None = None, method: HttpMethod = "POST") -> Answer:
    """Send a request, and return its answer."""
    request = read_request(url, method, {}, body)
    return await asyncio.wait_for(session.send(request, request.headers, Transfer(request.target)), PATIENCE)


async def send(session: Session, url: str, body: str | None = None, method: HttpMethod = "POST") -> int:
    """Send a request, and return the status of its answer."""
    return (await ask(session, url, body, method)).status
