"""The doctor's findings about a cluster, from the reports of its nodes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from evsched import keys
from evsched.diagnostics import server_checks
from evsched.diagnostics.finding import Finding
from evsched.diagnostics.server_checks import Server
from evsched.shards import shard
from evsched.store.server import SlotRange
from evsched.transport.address import Host
from evsched.transport.servers import Owners, slot_of

A, B, C = (("127.0.0.1", port) for port in (7000, 7001, 7002))


def levels(found: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(one.check, one.level) for one in found]


def ranges(*replicas: list[Host], last: int = 16383) -> list[SlotRange]:
    return [SlotRange(0, 5000, A, replicas[0]), SlotRange(5001, last, B, replicas[1])]


def test_slots_without_an_owner_are_reported() -> None:
    assert levels(server_checks.without_owner(ranges([], []))) == []
    (found,) = server_checks.without_owner(ranges([], [], last=16380))
    assert (found.check, found.level, found.what[:11]) == ("cluster-slots", "fault", "3 of 16384 ")
    assert found.mend


def test_primary_without_its_replica_is_reported() -> None:
    assert levels(server_checks.without_replica(ranges([C], [C]))) == []
    assert levels(server_checks.without_replica(ranges([], []))) == [("cluster-replicas", "info")]
    (found,) = server_checks.without_replica(ranges([C], []))
    assert (found.check, found.level, found.where) == ("cluster-replicas", "warning", "127.0.0.1:7001")


def test_a_replica_is_promoted_only_where_there_is_one() -> None:
    with_replica, without = server_checks.without_answer(ranges([C], []), {A, B})
    assert with_replica.mend.startswith("start it again; if that fails, promote one of its replicas")
    assert without.mend == "start it again: it has no replica"


def test_nodes_of_different_versions_are_reported() -> None:
    assert levels(server_checks.different_versions({A: "Redis 7.0.15", B: "Redis 7.0.15"})) == []
    (found,) = server_checks.different_versions({A: "Redis 7.0.15", B: "Valkey 9.1.2", C: "Redis 7.0.15"})
    assert "Redis 7.0.15 at 127.0.0.1:7000, 127.0.0.1:7002; Valkey 9.1.2 at 127.0.0.1:7001" in found.what


@pytest.mark.parametrize(("on_a", "crowds"), [(4, False), (7, False), (8, True), (12, True)])
def test_shards_crowded_on_one_primary_are_reported(on_a: int, crowds: bool) -> None:
    owners: Owners = [C] * 16384
    for number in range(12):
        owners[slot_of(keys.root(shard("q", number)))] = A if number < on_a else (B, C)[number % 2]
    found = [*server_checks.crowded({"q": 12, "none": 0}, owners)]
    assert levels(found) == [("shards-crowded", "info")] * crowds
    assert all(one.where == "127.0.0.1:7000" for one in found)


def replica(settings: dict[str, str], **info: str) -> list[tuple[str, str]]:
    return levels(server_checks.replicas(Server(info, settings)))


def test_replicas_that_do_not_follow_are_reported() -> None:
    one = "ip=127.0.0.1,port=7001,state={},offset=1,lag={}".format
    good, least = {"min-replicas-to-write": "1"}, {"min_slaves_good_slaves": "1"}
    assert replica(good, connected_slaves="1", slave0=one("online", 1), **least) == []
    assert replica(good, connected_slaves="1", slave0=one("online", 10), **least) == [("replica-lag", "warning")]
    assert replica(good, connected_slaves="1", slave0=one("wait_bgsave", 0), **least) == [("replica-lag", "warning")]
    assert replica(good, connected_slaves="0", min_slaves_good_slaves="0") == [("min-replicas", "fault")]
    assert replica({"min-replicas-to-write": "0"}, connected_slaves="1") == [("min-replicas", "info")]
    assert replica({"min-replicas-to-write": "0"}, connected_slaves="0") == []


def test_required_full_coverage_is_reported() -> None:
    info = {"cluster_enabled": "1"}
    for value, found in (("no", []), ("yes", [("cluster-coverage", "warning")])):
        settings = {"cluster-require-full-coverage": value}
        assert levels(server_checks.full_coverage(Server(info, settings))) == found
        assert levels(server_checks.full_coverage(Server({}, settings))) == []
