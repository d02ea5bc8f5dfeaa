"""The disk of a server loses in a power cut exactly what no sync had covered, and refuses writes while it is full."""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis.exceptions import ResponseError

from evsched.transport.embedded import EmbeddedRedis
from tests.support.disk import Disk
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client
from tests.support.topology import pause

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build the shim for the server's disk")


class OnDisk(NamedTuple):
    redis: EmbeddedRedis
    disk: Disk
    client: Any


@pytest.fixture
def on_disk(tmp_path: Path) -> Generator[OnDisk]:
    redis = EmbeddedRedis(appendfsync="always")
    disk, client = Disk(redis, tmp_path), plain_client(redis.url)
    try:
        disk.start_server()
        yield OnDisk(redis, disk, client)
    finally:
        client.close()
        redis.close()


def test_power_cut_loses_only_unsynced_writes(on_disk: OnDisk) -> None:
    redis, disk, client = on_disk
    client.set("synced", 1)
    client.config_set("appendfsync", "no")
    client.set("written", 1)
    disk.cut_power()
    redis.start()
    assert client.keys() == [b"synced"]


def test_kill_keeps_written_data(on_disk: OnDisk) -> None:
    redis, _, client = on_disk
    client.config_set("appendfsync", "no")
    client.set("written", 1)
    redis.kill()
    redis.start()
    assert client.keys() == [b"written"]


def test_slow_sync_delays_an_answer_that_waits_for_it(on_disk: OnDisk) -> None:
    _, disk, client = on_disk
    disk.delay(0.3)
    begin = time.monotonic()
    client.set("a", 1)
    assert time.monotonic() - begin >= 0.3


def test_full_disk_refuses_writes_until_it_has_room(on_disk: OnDisk) -> None:
    _, disk, client = on_disk
    client.config_set("appendfsync", "everysec")
    disk.fill()
    client.set("a", 1)  # Redis notices when it writes it to the file
    with pytest.raises(ResponseError, match="MISCONF"):
        client.set("b", 1)
    disk.empty()
    until = time.monotonic() + PATIENCE
    while True:
        try:
            assert client.set("b", 1)
            break
        except ResponseError:
            assert time.monotonic() < until
            pause()
