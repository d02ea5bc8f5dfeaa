"""The app of the targets, made of the settings. It has the tasks for which they allow something."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from evsched.app import App
from evsched.client.target_tasks import QUEUE, ForwardJob, HttpJob, target_task
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.execution.program import Lifespan, no_lifespan
from evsched.jobs import groups
from evsched.store.gate_limits import field
from evsched.targets.forward import RETRY, Forwarder, read_destinations
from evsched.transport.servers import topology

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver


def make_app(
    config: Config, environment: Mapping[str, str], names: Callable[[], AbstractResolver] | None = None
) -> App:
    """Return the app. `environment`: has the secrets, and the URLs of the servers to which messages are forwarded.

    `names`: see `Session`.

    Raises:
        ConfigError: nothing is allowed; a setting, a secret or a URL is not valid; or a library is missing.
    """
    forwards = bool(config.forward_destinations)
    sends = bool(config.http_hosts) or not forwards
    requests = _requests(config, environment, names) if sends else no_lifespan
    forwarder = Forwarder(
        read_destinations(config.forward_destinations, environment), cluster=topology(config.url) is not None
    )

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[Any]:
        async with forwarder, requests() as sender:
            yield sender

    app = App(queue=QUEUE, name="evsched.targets", lifespan=lifespan)
    # An origin that never answers holds its slots until the jobs time out: the gate leaves the rest to others.
    at_once = config.origin_concurrency
    app.program.limits.append(("", field("concurrency", groups.EACH_ORIGIN, at_once), float(at_once)))
    if sends:
        from evsched.targets.http_task import http

        app.tasks.add(target_task("evsched.http", HttpJob, http))
    if forwards:
        app.tasks.add(target_task("evsched.forward", ForwardJob, forwarder.forward, RETRY))
    return app


def _requests(config: Config, environment: Mapping[str, str], names: Callable[[], AbstractResolver] | None) -> Lifespan:
    """Return a context manager that yields the sender of requests."""
    try:
        from evsched.targets.allowed_hosts import read_allowed
        from evsched.targets.http_task import Sender, read_secrets
        from evsched.targets.session import Names, Session, check_authorities, raise_limit
    except ImportError as error:
        raise ConfigError("evsched.targets sends HTTP requests: pip install 'evsched[http]'") from error
    allowed, secrets = read_allowed(config), read_secrets(environment)
    check_authorities(environment)

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[Sender]:
        raise_limit()
        async with Session(allowed.networks, allowed.nat64, names or Names) as session:
            yield Sender(allowed, secrets, session)

    return lifespan
