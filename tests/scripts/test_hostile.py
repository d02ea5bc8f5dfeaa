"""What a bad producer writes costs one job: whatever is in a record, the other jobs of the queue run."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from redis.exceptions import NoPermissionError

from evsched.embedded import EmbeddedRedis
from tests.support import hostile

IDS = [b"a", b"b", b"r@1"]


@pytest.fixture
def producer(raw: Any, server: EmbeddedRedis) -> Generator[Any]:
    client = hostile.producer(raw, server.url)
    yield client
    client.close()


@pytest.mark.parametrize("way", hostile.WAYS)
def test_the_rights_of_a_producer_allow_each_way(producer: Any, queue: str, way: str) -> None:
    for command in hostile.WAYS[way](queue):
        producer.execute_command(*command)


@settings(max_examples=50, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commands=hostile.commands("grammar", IDS))
def test_the_rights_of_a_producer_allow_the_grammar(producer: Any, raw: Any, commands: list[hostile.Command]) -> None:
    for command in commands:
        try:
            producer.execute_command(*command)
        except NoPermissionError:
            raise
        except redis.ResponseError:
            pass  # what Redis itself refuses: a key of another type, a sum that is no number
    for key in raw.scan_iter(match="evsched:{grammar}:*"):
        raw.delete(key)
