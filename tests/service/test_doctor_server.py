"""The doctor finds each planted fault of a server, and repairs the repairable ones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from evsched.diagnostics import server_checks
from evsched.diagnostics.finding import Finding
from evsched.errors import StoreDown
from evsched.transport.embedded import EmbeddedRedis
from tests.support.examine import client, examine, problems
from tests.support.patience import PATIENCE


def fill_memory(raw: Any, _: EmbeddedRedis) -> None:
    raw.config_set("maxmemory", int(raw.info("memory")["used_memory"] * 1.02))


def evict(raw: Any, _: EmbeddedRedis) -> None:
    for n in range(20):
        raw.set(f"evsched:{{q}}:job:{n}", "x" * 200_000)
    raw.config_set("maxmemory", "2mb")
    raw.set("one", "more")
    raw.config_set("maxmemory", "0")


def connect(raw: Any, server: EmbeddedRedis) -> None:
    for _ in range(20):
        raw.connection_pool.get_connection()
    raw.config_set("maxclients", len(raw.client_list()) + 2)


def fail_snapshot(raw: Any, server: EmbeddedRedis) -> None:
    """Make a snapshot fail: a folder has the name of its file."""
    (server.folder / "dump.rdb").mkdir()
    raw.bgsave()
    end = time.monotonic() + PATIENCE
    while raw.info("persistence")["rdb_bgsave_in_progress"]:
        assert time.monotonic() < end


def make_replica(raw: Any, _: EmbeddedRedis) -> None:
    raw.execute_command("REPLICAOF", "127.0.0.1", "1")


def nothing(raw: Any, server: EmbeddedRedis) -> None:
    """Do nothing: the settings are the fault."""


FAULTS: dict[str, tuple[dict[str, str], Callable[[Any, EmbeddedRedis], None], str, str, str, bool]] = {
    # the settings; what else is done to the server; the check; its level; a part of its remedy; whether it is repaired
    "eviction": (
        {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"},
        nothing,
        "eviction",
        "fault",
        "CONFIG SET maxmemory-policy noeviction",
        False,
    ),
    "has evicted": ({"maxmemory-policy": "allkeys-lru"}, evict, "evicted-keys", "warning", "CONFIG RESETSTAT", False),
    "no log": ({"appendonly": "no"}, nothing, "persistence", "fault", "CONFIG SET appendonly yes", False),
    "snapshots alone": (
        {"appendonly": "no", "save": "900 1"},
        nothing,
        "persistence",
        "warning",
        "CONFIG SET appendonly yes",
        False,
    ),
    "a snapshot failed": ({"appendonly": "no"}, fail_snapshot, "persistence-failed", "warning", "the disk", False),
    "no flush": ({"appendfsync": "no"}, nothing, "appendfsync", "fault", "appendfsync everysec", False),
    "no events": ({"notify-keyspace-events": ""}, nothing, "notifications", "fault", "CONFIG SET notify", True),
    "events without renames": ({"notify-keyspace-events": "Kz"}, nothing, "notifications", "fault", "Kzg", True),
    "events of another kind": ({"notify-keyspace-events": "g"}, nothing, "canary", "fault", "CONFIG SET notify", True),
    "memory is full": ({}, fill_memory, "memory", "warning", "CONFIG SET maxmemory", False),
    "no connection left": ({}, connect, "connections", "warning", "CONFIG SET maxclients", False),
    "a replica": ({}, make_replica, "replica", "fault", "use 127.0.0.1:1", False),
}


@pytest.mark.parametrize("planted", FAULTS)
async def test_a_planted_fault_of_a_server_is_found_and_repaired(planted: str) -> None:
    settings, plant, check, level, mend, repairable = FAULTS[planted]
    with EmbeddedRedis(None, port=None, **settings) as server:
        raw = client(server)
        plant(raw, server)
        (finding,) = [finding for finding in problems(await examine(server.url)) if finding.check == check]
        assert (finding.level, mend in finding.mend, finding.repaired) == (level, True, False), finding
        await examine(server.url, repair=True)
        again = [finding.check for finding in problems(await examine(server.url))]
        assert (check in again) is not repairable
        raw.close()


@pytest.mark.one_server
async def test_doctor_reports_only_appendfsync_for_an_embedded_server(server: EmbeddedRedis) -> None:
    found = await examine(server.url)
    assert problems(found) == []
    assert [finding.check for finding in found] == ["appendfsync"]


@pytest.mark.one_server
@pytest.mark.parametrize(("skew", "side"), [(-3600.0, "ahead of"), (3600.0, "behind")])
async def test_a_clock_that_differs_is_reported(server: EmbeddedRedis, skew: float, side: str) -> None:
    (found,) = problems(await examine(server.url, skew=skew))
    differs = re.search(rf"([\d.]+) s {side} this", found.what)
    assert differs is not None, found.what
    assert abs(float(differs[1]) - abs(skew)) < PATIENCE, "it differs by the time that the check took at most"


@pytest.mark.parametrize(("offset", "error", "found"), [(0.5, 0.0, 0), (-3.0, 0.1, 1), (3.0, 2.5, 0)])
def test_a_slow_answer_is_not_taken_for_a_clock_that_differs(offset: float, error: float, found: int) -> None:
    assert len([*server_checks.clock(offset, error)]) == found


@pytest.mark.parametrize(
    ("info", "check", "what"),
    [
        ({"redis_version": "6.2.14"}, server_checks.version, "redis 6.2.14 is too old"),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.0"}, server_checks.version, "valkey 7.1.0 is too old"),
        ({"aof_enabled": "1", "aof_last_write_status": "err"}, server_checks.persistence, "Redis refuses every write"),
        ({"aof_enabled": "1", "aof_last_bgrewrite_status": "err"}, server_checks.persistence, "the log keeps growing"),
        ({"used_memory": "95", "maxmemory": "100"}, server_checks.memory, "when it is full, Redis refuses new jobs"),
        (
            {"used_memory": "198", "maxmemory": "100"},
            server_checks.memory,
            "it is full, and Redis refuses new jobs, and messages that jobs forward to it are put off",
        ),
    ],
)
def test_a_fault_that_cannot_be_planted_is_found_in_info(
    info: dict[str, str], check: Callable[[server_checks.Server], Iterable[Finding]], what: str
) -> None:
    (finding,) = check(server_checks.Server(info, {}))
    assert what in finding.what


async def test_a_redis_that_does_not_answer_raises_store_down() -> None:
    with pytest.raises(StoreDown):
        await examine("redis://127.0.0.1:1/0")
