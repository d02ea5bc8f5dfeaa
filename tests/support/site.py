"""An endpoint for requests, a system that may send them there, and a client that schedules them with HSET and ZADD."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from msgspec.structs import replace

from evsched import JobDead
from evsched.config import Config
from evsched.targets.targets_app import make_app
from tests.support.endpoint import Answer, Endpoint, Received, fine
from tests.support.names import names, on_loopback
from tests.support.patience import PATIENCE
from tests.support.system import System, system

LOOPBACK: Final = "127.0.0.0/8"


class Requests:
    """Schedules jobs as a client does that knows Redis alone."""

    def __init__(self, running: System, raw: Any, queue: str) -> None:
        self.recorder = running.recorder
        self._app = running.app
        self._raw = raw
        self._root = f"evsched:{{{queue}}}:"
        self._queue = queue

    def schedule(self, job: str = "one", *, payload: dict[str, Any] | None = None, **kwargs: Any) -> str:
        text = json.dumps({"task": "evsched.http", "kwargs": kwargs, "reply": True, **(payload or {})})
        self._raw.hset(f"{self._root}job:{job}", mapping={"payload": text})
        self._raw.zadd(f"{self._root}schedule", {job: 0})
        return job

    async def result(self, job: str = "one", **kwargs: Any) -> Any:
        """Schedule a job, and return its result."""
        return await self.end(self.schedule(job, **kwargs))

    async def end(self, job: str) -> Any:
        """Return the result of a job that was scheduled."""
        return await self._app.job(job, queue=self._queue).result(PATIENCE)

    async def reason(self, job: str = "one", **kwargs: Any) -> str:
        """Schedule a job, and return why it is dead."""
        with pytest.raises(JobDead) as dead:
            await self.result(job, **kwargs)
        return str(dead.value)


class Site:
    """An endpoint, and what sends requests to it."""

    def __init__(self, endpoint: Endpoint, requests: Requests) -> None:
        self.endpoint = endpoint
        self.requests = requests
        self.url = f"http://shop.test:{endpoint.port}"

    @property
    def received(self) -> list[Received]:
        return self.endpoint.requests


@asynccontextmanager
async def site(
    config: Config, raw: Any, answer: Answer = fine, *, secrets: Mapping[str, str] = {}, redirects: int = 0
) -> AsyncGenerator[Site]:
    """Run an endpoint, and a system that may send requests to each host of the domain `test` on its port."""
    (queue,) = config.queues
    async with Endpoint(answer) as endpoint:
        allowed = replace(
            config, http_hosts=(f"*.test:{endpoint.port}",), http_networks=(LOOPBACK,), http_redirects=redirects
        )
        async with system(config, make_app(allowed, secrets, names(on_loopback))) as running:
            yield Site(endpoint, Requests(running, raw, queue))
