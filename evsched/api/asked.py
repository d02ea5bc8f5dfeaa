"""A request as a handler sees it: its path, query and body are read and checked, and its caller may do this."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from msgspec import Struct

from evsched.api.problem import Problem
from evsched.client.client import Client
from evsched.config import Config
from evsched.store.store import Store

Body = TypeVar("Body")
Query = TypeVar("Query")


class Waiters:
    """The requests that wait for the end of a job: each has a connection to Redis of its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._now = 0

    @contextmanager
    def one_more(self, seconds: float) -> Generator[None]:
        """Count a request that waits so many seconds.

        Raises:
            Problem: too many wait.
        """
        if seconds <= 0:
            yield
            return
        if self._now >= self._most:
            detail = "too many requests wait for the end of a job: look again later, or wait for fewer jobs"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-waiting", detail, {"Retry-After": "1"})
        self._now += 1
        try:
            yield
        finally:
            self._now -= 1


class Asked(Struct, Generic[Body, Query], frozen=True, kw_only=True):
    """A request. `base`: the path under which the API is mounted; '' = none."""

    client: Client
    config: Config
    waiters: Waiters
    base: str
    path: Mapping[str, str]
    headers: Mapping[str, str]
    body: Body
    query: Query

    @property
    def queue(self) -> str:
        return self.path["queue"]

    @property
    def job(self) -> str:
        """The id of the job."""
        return self.path["id"]

    @property
    def name(self) -> str:
        """The name of the recurrence."""
        return self.path["name"]

    @property
    def store(self) -> Store:
        """The calls of the queue."""
        return self.client.store(self.queue)

    def limit(self, given: int) -> int:
        """Return how many rows to list: those that were asked for, up to the server's limit."""
        return min(given, self.config.api_list_cap)


Request = Asked[Any, Any]
