"""The doctor: faults of a server are planted, found with their mend, and gone where it may repair; and a system that
works gives it nothing to say.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from evsched import App, GiveUp, Retry, RetryLater, current_job, events
from evsched.config import Config
from evsched.diagnostics import acl, server_checks
from evsched.diagnostics.acl import ROLES, Role
from evsched.diagnostics.audit import Audit
from evsched.diagnostics.broken_recurrences import broken_recurrences
from evsched.diagnostics.doctor import Doctor
from evsched.diagnostics.finding import Finding
from evsched.diagnostics.standstill import Standstill
from evsched.errors import StoreDown
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.scripts import folder
from evsched.transport.senders import BatchingSender
from tests.service.test_rights import USERS, url, words_of
from tests.support.cli import Cli
from tests.support.patience import PATIENCE
from tests.support.system import system


def client(server: EmbeddedRedis) -> Any:
    return redis.Redis.from_url(server.url, protocol=2, driver_info=None)


async def examine(
    address: str, role: Role | None = None, *, repair: bool = False, skew: float = 0.0, heard: float = 3.0
) -> list[Finding]:
    """Return what the doctor finds, without what is only worth knowing; unless it is about rights."""
    sender = BatchingSender(address)
    try:
        doctor = Doctor(address, sender, "q", repair=repair, wall=lambda: time.time() + skew, heard=heard)
        return await doctor.run(role)
    finally:
        await sender.close()


def wrong(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.level != "info"]


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
    """The snapshot cannot take its name, since a folder has it."""
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
    # what is planted: the settings; what is done besides; the check; its level; a piece of the mend; is it repaired?
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
    "events not heard": ({"notify-keyspace-events": "g"}, nothing, "canary", "fault", "CONFIG SET notify", True),
    "memory is full": ({}, fill_memory, "memory", "warning", "CONFIG SET maxmemory", False),
    "no connection left": ({}, connect, "connections", "warning", "CONFIG SET maxclients", False),
    "a replica": ({}, make_replica, "replica", "fault", "use 127.0.0.1:1", False),
}


@pytest.mark.parametrize("planted", FAULTS)
async def test_what_is_planted_in_a_server_is_found_and_mended(planted: str) -> None:
    settings, plant, check, level, mend, repairable = FAULTS[planted]
    with EmbeddedRedis(None, port=None, **settings) as server:
        raw = client(server)
        plant(raw, server)
        (finding,) = [finding for finding in wrong(await examine(server.url)) if finding.check == check]
        assert (finding.level, mend in finding.mend, finding.repaired) == (level, True, False), finding
        await examine(server.url, repair=True)
        again = [finding.check for finding in wrong(await examine(server.url))]
        assert (check in again) is not repairable
        raw.close()


async def test_a_server_of_our_own_has_nothing_wrong_and_says_what_a_crash_costs(server: EmbeddedRedis) -> None:
    found = await examine(server.url)
    assert wrong(found) == []
    assert [finding.check for finding in found] == ["appendfsync"]


@pytest.mark.parametrize(("skew", "told"), [(0.5, None), (-60.0, "60.0 s ahead of this"), (60.0, "60.0 s behind this")])
async def test_a_clock_that_is_off(server: EmbeddedRedis, skew: float, told: str | None) -> None:
    found = [finding.what for finding in wrong(await examine(server.url, skew=skew))]
    assert len(found) == (told is not None)
    assert told is None or told in found[0]


@pytest.mark.parametrize(
    ("info", "check", "what"),
    [
        ({"redis_version": "6.2.14"}, server_checks.version, "redis 6.2.14 is too old"),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.0"}, server_checks.version, "valkey 7.1.0 is too old"),
        ({"aof_enabled": "1", "aof_last_write_status": "err"}, server_checks.persistence, "Redis refuses every write"),
        ({"aof_enabled": "1", "aof_last_bgrewrite_status": "err"}, server_checks.persistence, "the log keeps growing"),
        ({"used_memory": "95", "maxmemory": "100"}, server_checks.memory, "when it is full, Redis refuses new jobs"),
        ({"used_memory": "198", "maxmemory": "100"}, server_checks.memory, "it is full, and Redis refuses new jobs"),
    ],
)
def test_what_no_test_can_plant(
    info: dict[str, str], check: Callable[[server_checks.Server], list[Finding]], what: str
) -> None:
    (finding,) = check(server_checks.Server(info, {}))
    assert what in finding.what


async def test_a_redis_that_is_not_there() -> None:
    with pytest.raises(StoreDown):
        await examine("redis://127.0.0.1:1/0")


# Rights.


def test_the_commands_that_are_asked_for_are_those_of_the_scripts() -> None:
    def used(flag: str) -> set[str]:
        """Return what the scripts with a flag do; what stands before all counts for all."""
        texts = {path.stem: path.read_text() for path in folder().glob("*.lua")}
        bodies = [text for text in texts.values() if text.startswith(f"#!lua{flag}")]
        return {name for text in bodies for name in re.findall(r"redis\.p?call\(\s*'(\w+)'", text)}

    def asked(lines: str) -> set[str]:
        return {words.split()[0] for words in lines.replace("·", "\n").splitlines() if words.split()}

    everything = used("") | used(" flags=allow-oom") | used(" flags=no-writes")
    before = {
        name for path in folder().glob("_*.lua") for name in re.findall(r"redis\.p?call\(\s*'(\w+)'", path.read_text())
    }
    told = asked(acl.READS) | asked(acl.WRITES) | asked(acl.AUDITS) | {"TIME", "PUBLISH"}
    assert everything | before == told
    assert used(" flags=no-writes") <= asked(acl.READS) | {"TIME"}


async def test_the_users_of_redis_conf_may_do_what_their_roles_need() -> None:
    with EmbeddedRedis() as server:
        raw = client(server)
        for name, rules in USERS:
            if name != "default":
                raw.execute_command("ACL", "SETUSER", name, *words_of(rules))
        assert {name for name, _ in USERS} == {"default", *ROLES}
        for role in ROLES:
            assert [finding.check for finding in await examine(server.url, role)] == ["appendfsync"], role
        raw.execute_command("ACL", "SETUSER", "worker", "-hset")
        raw.execute_command("ACL", "SETUSER", "dispatcher", "resetchannels")
        found = wrong([*await examine(server.url, "worker"), *await examine(server.url, "dispatcher")])
        assert [(finding.check, finding.where) for finding in found] == [
            ("rights", "user worker"),
            ("rights", "user dispatcher"),
        ]
        assert "HSET evsched:{q}:job:x" in found[0].what
        assert "PSUBSCRIBE __keyspace@0__:evsched:{*}:schedule" in found[1].what
        assert "the line `user worker` in redis.conf" in found[0].mend
        raw.execute_command("ACL", "DELUSER", "worker")
        (told,) = [finding for finding in await examine(server.url, "worker") if finding.check == "rights"]
        assert (told.level, told.where) == ("info", "user default")
        # As its own user the doctor needs no more, and as another it says what it cannot ask.
        assert wrong(await examine(url(server, "doctor"), "doctor")) == []
        for user in ("producer", "client", "observer", "dispatcher"):
            found = await examine(url(server, user), "producer" if user == "producer" else "client")
            assert wrong(found) == []
            assert {"rights"} < {finding.check for finding in found}
        sender = BatchingSender(url(server, "doctor"))
        assert await Audit(sender, ["q"], pause=0.0).run() == []
        await sender.close()
        log = raw.execute_command("ACL", "LOG")
        assert b"doctor" not in {entry[entry.index(b"username") + 1] for entry in log}
        raw.close()


# The command.


@pytest.fixture
def cli(server: EmbeddedRedis, tmp_path: Path) -> Cli:
    return Cli(server.url, tmp_path)


def test_the_command_finds_repairs_and_then_finds_it_no_more(cli: Cli, queue: str, raw: Any, store: Store) -> None:
    of = ("doctor", "--queue", queue)
    done = cli.run(*of)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing found; 0 records and entries of 1 queue looked at" in done.stdout
    raw.hset(f"evsched:{{{queue}}}:job:lost", mapping={"payload": '{"task":"t"}', "due": "5.5"})
    done = cli.run(*of)
    assert (done.returncode, done.stderr) == (1, "")
    assert "fault   orphan: a job that has not ended is in no place" in done.stdout
    assert f"queue {queue}, job lost" in done.stdout
    done = cli.run(*of, "--repair", "--json")
    assert done.returncode == 1
    assert '"repaired": true' in done.stdout
    assert raw.zscore(f"evsched:{{{queue}}}:schedule", "lost") == 5.5
    assert "orphan" not in cli.run(*of).stdout


def test_the_command_without_a_redis_and_with_a_role_that_is_none(cli: Cli) -> None:
    done = cli.run("doctor", "--url", "redis://127.0.0.1:1/0")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert cli.run("doctor", "--role", "cook").returncode == 2
    assert cli.run("doctor", "--queue", "a b").returncode == 2


# A system that works.

LOOKS = 25
"""How often the audit walks meanwhile."""


async def test_nothing_is_found_while_a_system_works(server: EmbeddedRedis, queue: str, raw: Any) -> None:
    """The audit walks again and again while all that a queue can do is done in it."""
    app = App(queue=queue)
    looks, seen = 0, 0
    root = f"evsched:{{{queue}}}:"

    @app.task(retry=Retry(attempts=3, interval=0.02, jitter=0.02), retention=1.0)
    async def work(n: int) -> int:
        job = current_job()
        if n % 11 == 0:
            raise GiveUp("no")
        if n % 7 == 0:
            raise ValueError("once more")
        if n % 5 == 0 and job.attempt == 1:
            raise RetryLater(0.01, "later")
        return n

    @app.task(retention=0.0)
    async def forgotten() -> None: ...

    @app.recurring(every=1, overlap="wait")
    @app.task(retry=Retry(attempts=1, jitter=0.0, interval=0.1))
    async def tick() -> None: ...

    async def produce(whole: Any) -> None:
        store, send = Store(queue), whole.sender.send
        await send(store.limit({"concurrency": 40, "rate": 4000, "concurrency:a": 3, "rate:b": 300, "weight:c": 2}))
        n = 0
        while looks < LOOKS or not whole.recorder.of(events.Recurred):
            n += 1
            for group in ("a", "b", "c"):
                await work.using(group=group, delay=0.01 * (n % 3)).enqueue_many([(i,) for i in range(40)])
            await forgotten.using(priority=9).enqueue_many([()] * 20)
            pipe = raw.pipeline(transaction=False)
            for i in range(20):  # ids that are used again, wherever they are
                pipe.hset(f"{root}job:again-{i}", "payload", f'{{"task":"work","args":[{i}]}}')
                pipe.persist(f"{root}job:again-{i}")
                pipe.zadd(f"{root}schedule", {f"again-{i}": 0})
                pipe.zadd(f"{root}schedule", {f'{{"task":"forgotten","id":"inline-{i}"}}': 0})
            await asyncio.to_thread(pipe.execute)
            if n % 4 == 0:
                await send(store.pause())
                await send(store.revive(limit=20))
                await send(store.resume())
            await send(store.limit({"concurrency": 10.0 * (n % 4 + 1)}))
            last = await work.using(priority=0).enqueue(1)  # not more than the workers can do
            await last.result(PATIENCE)

    config = Config(url=server.url, queues=(queue,), concurrency=32)
    async with system(config, app, workers=2) as whole:
        producing = asyncio.create_task(produce(whole))
        while not producing.done():
            audit = Audit(whole.sender, [queue], pause=0.2)
            assert await audit.run() == []
            assert wrong(await Standstill(whole.sender, [queue], watch=0.2).run()) == []
            looks, seen = looks + 1, seen + audit.seen
        await producing
        assert len(whole.recorder.of(events.Started)) > LOOKS
        assert whole.recorder.of(events.Retrying)
        assert whole.recorder.of(events.JobBuried)
    assert seen > 100 * LOOKS


def test_a_node_of_a_cluster_is_told_by_that_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        bus = free.getsockname()[1]
    with EmbeddedRedis(port=0, cluster_enabled="yes", cluster_port=str(bus)) as server:
        cli = Cli(server.url, tmp_path)
        for command in (("doctor",), ("dispatcher",), ("enqueue", "t"), ("queues", "--url", f"{server.url}?db=1")):
            done = cli.run(*command)
            assert (done.returncode, "Traceback" in done.stderr) == (1, False)
            assert "Redis Cluster, which evsched does not support yet" in done.stdout + done.stderr, command
            assert "EVAL" not in done.stdout


@pytest.mark.parametrize("password", ["", "wrong"])
def test_a_connection_that_is_refused_is_told_in_one_line(tmp_path: Path, password: str) -> None:
    with EmbeddedRedis(requirepass="secret") as server:
        url = server.url.replace("unix://", f"unix://default:{password}@" if password else "unix://")
        done = Cli(url, tmp_path).run("doctor")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert ("invalid username-password" if password else "uthentication required") in done.stderr
    assert "wrong@" not in done.stderr


@pytest.mark.parametrize(
    "place",
    [
        *("schedule", "backlog", "ready", "dead", "leases", "limits", "in_flight", "throttled", "fair", "recurrences"),
        *("arrival", "canary", "windows", "recurrence:x", "arrival:alice", "backlog:alice", "processing:w"),
        *("declared:app", "deferred:night", "reply:42"),
    ],
)
async def test_each_key_of_a_wrong_type_is_named(sender: BatchingSender, queue: str, raw: Any, place: str) -> None:
    raw.pfadd(f"evsched:{{{queue}}}:{place}", "x")  # a string
    if place.startswith("arrival"):
        raw.delete(f"evsched:{{{queue}}}:{place}")
        raw.rpush(f"evsched:{{{queue}}}:{place}", "x")
    found = await Audit(sender, [queue], pause=0).run()
    (finding,) = [finding for finding in found if finding.check in ("place-type", "key-type")]
    assert (finding.level, place in finding.where) == ("fault", True)
    assert finding.mend == f"RENAME or DEL evsched:{{{queue}}}:{place}"
    raw.delete(f"evsched:{{{queue}}}:{place}")
    assert not [one for one in await Audit(sender, [queue], pause=0).run() if one.check.endswith("-type")]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"rule": "61 * * * *", "payload": "{}"}, "the minute"),
        ({"rule": "0 0 30 2 *", "payload": "{}"}, "it never falls due"),
        ({"rule": "@daily", "zone": "Europe/Berln", "payload": "{}"}, "did you mean Europe/Berlin?"),
        ({"rule": "@daily"}, "no payload"),
        ({"rule": "@daily", "payload": "{}", "count": "many"}, "$.count"),
        (None, "no record"),
    ],
)
async def test_a_recurrence_that_cannot_recur_is_found(
    sender: BatchingSender, queue: str, raw: Any, record: dict[str, str] | None, words: str
) -> None:
    root = f"evsched:{{{queue}}}:"
    for name, fields in (("good", {"rule": "@daily", "payload": "{}"}), ("bad", record)):
        raw.zadd(root + "recurrences", {name: 0})
        if fields:
            raw.hset(f"{root}recurrence:{name}", mapping=fields)
    raw.zadd(root + "recurrences", {"typed": 0})
    raw.set(root + "recurrence:typed", "of a wrong type: the audit reports it")
    (found,) = await broken_recurrences(sender, [queue], pause=0)
    assert (found.check, found.level, found.where) == ("recurrence-broken", "fault", f"queue {queue}, bad")
    assert words in found.what
    assert f"ZADD {root}recurrences 0 bad" in found.mend
    # What the finding says mends it.
    raw.hset(f"{root}recurrence:bad", mapping={"rule": "@daily", "zone": "UTC", "payload": "{}", "count": 9})
    assert await broken_recurrences(sender, [queue], pause=0) == []


async def test_recurrences_of_a_wrong_type_are_left_to_the_audit(sender: BatchingSender, queue: str, raw: Any) -> None:
    raw.set(f"evsched:{{{queue}}}:recurrences", "x")
    assert await broken_recurrences(sender, [queue], pause=0) == []
