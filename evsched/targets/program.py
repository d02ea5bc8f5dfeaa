"""The app of the targets, made of the settings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from evsched.app import App
from evsched.config import Config
from evsched.targets.allowed import read_allowed
from evsched.targets.http import Sender, http
from evsched.targets.network import Connector, Resolve, resolve
from evsched.targets.pool import Pool
from evsched.targets.signature import read_secrets

QUEUE: Final = "targets"
"""A queue of its own: workers of other apps do not know its tasks."""


def make_app(config: Config, environment: Mapping[str, str], resolve: Resolve = resolve) -> App:
    """Return the app. `environment`: has the secrets.

    Raises:
        ConfigError: no host is allowed, or a setting or a secret is not valid.
    """
    allowed, secrets = read_allowed(config), read_secrets(environment)

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[Sender]:
        async with Pool(Connector(allowed.networks, resolve)) as pool:
            yield Sender(allowed, secrets, pool)

    app = App(queue=QUEUE, name="evsched.targets", lifespan=lifespan)
    app.task(name="evsched.http")(http)
    return app
