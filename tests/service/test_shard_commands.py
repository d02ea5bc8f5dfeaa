"""Commands treat a queue and its shards as one queue, on one server and on a cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from evsched import App, current_job, keys
from evsched.cli import job_commands
from evsched.cli.command_client import CommandClient
from evsched.client.client import SyncClient
from evsched.client.sweep import Filter
from evsched.config import Config
from evsched.diagnostics import standstill
from evsched.jobs.job import Buried, Deferred
from evsched.shards import Shards
from evsched.store import server as about
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.call import Call, raw
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli
from tests.support.cluster import Cluster
from tests.support.patience import PATIENCE
from tests.support.system import system

pytestmark = pytest.mark.anyio

JOB = b'{"task":"t"}'
FAR = 4e9
SHARDS = Shards({"mail": 3, "post": 2})
MAIL = SHARDS.all_of("mail")


@pytest.fixture(scope="module")
def running(server: EmbeddedRedis) -> Generator[Cluster]:
    with Cluster(server.server) as found:
        yield found


@pytest.fixture(params=["one server", "cluster"])
def url(request: pytest.FixtureRequest, server: EmbeddedRedis) -> str:
    if request.param == "one server":
        return server.url
    cluster: Cluster = request.getfixturevalue("running")
    for node in cluster.nodes:
        cluster.client(node).flushdb()
    return cluster.url


@pytest.fixture
def redis(url: str) -> Generator[SyncClient]:
    """A client of a Redis that has two queues with shards."""
    found = SyncClient(url, SHARDS)
    for queue, count in SHARDS.counts.items():
        found.send(about.set_shards(queue, count))
    yield found
    found.close()


@pytest.fixture
def cli(url: str, tmp_path: Path) -> Cli:
    return Cli(url, tmp_path)


def put(
    redis: SyncClient, queue: str, *ids: str, due: float = FAR, priority: int | None = None, group: str | None = None
) -> None:
    """Schedule jobs in one shard, as a client does that chooses it by itself."""
    redis.send(Store(queue).enqueue([New(job_id, JOB, priority, group, due) for job_id in ids]))


def inline(redis: SyncClient, queue: str, due: float, member: str) -> None:
    redis.send(Call(("ZADD", keys.schedule(queue), due, member), raw, near=keys.schedule(queue)))


def elsewhere(job_id: str) -> str:
    """Return a shard of `mail` that is not a job's home."""
    return next(name for name in MAIL[:-1] if name != SHARDS.home("mail", job_id))


def die(redis: SyncClient, queue: str, *ids: str, now: float = 1e9, reason: str = "no luck") -> None:
    """Have jobs die in one shard."""
    store = Store(queue)
    for job_id in ids:
        redis.send(store.at(now).enqueue([New(job_id, JOB, due=now)]))
        redis.send(store.at(now).dispatch(limit=1, cap=1000))
        (run,) = redis.send(store.at(now).start("w", (), hold=1, lease=15)).jobs
        redis.send(store.at(now).bury("w", [(run, Buried(reason, reply=False))]))


def place(redis: SyncClient, queue: str, job_id: str) -> str | None:
    found = redis.send(Store(queue).look(job_id))
    return found and found.place


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


# One job.


def test_a_job_is_enqueued_at_its_home_unless_a_shard_is_named(redis: SyncClient, cli: Cli) -> None:
    assert cli.run("enqueue", "t", "--id", "a", "--queue", "mail").returncode == 0
    assert cli.json("enqueue", "t", "--id", "b", "--queue", "mail")["queue"] == "mail"
    cli.run("enqueue", "t", "--id", "c", "--queue", "mail:2")
    where = {job: [name for name in MAIL if place(redis, name, job)] for job in "abc"}
    assert where == {"a": [SHARDS.home("mail", "a")], "b": [SHARDS.home("mail", "b")], "c": ["mail:2"]}


def test_enqueue_warns_that_no_worker_serves_the_shard(redis: SyncClient, cli: Cli) -> None:
    redis.send(Store("mail").heartbeat("w", 60, fresh=True))
    home = SHARDS.home("mail", "a")
    said = cli.run("enqueue", "t", "--id", "a", "--queue", "mail").stderr
    assert f"no worker serves {home}, a shard of queue mail," in said
    assert "restart the workers of queue mail" in said
    redis.send(Store(home).heartbeat("w", 60, fresh=True))
    assert cli.run("enqueue", "t", "--id", "a", "--queue", "mail", "--on-conflict", "keep").stderr == ""


@pytest.mark.extra
@pytest.mark.parametrize("at_home", [True, False])
def test_job_is_found_in_any_shard(redis: SyncClient, cli: Cli, at_home: bool) -> None:
    shard = SHARDS.home("mail", "a") if at_home else elsewhere("a")
    put(redis, shard, "a")
    assert cli.json("show", "a", "--queue", "mail")["queue"] == shard
    assert f"shard\t{shard}\n" in cli.run("show", "a", "--queue", "mail").stdout
    assert cli.json("explain", "a", "--queue", "mail")["facts"]["shard"] == shard
    assert cli.run("reschedule", "a", "--at", "3999999999", "--queue", "mail").returncode == 0
    assert cli.json("show", "a", "--queue", "mail")["due"] == 3999999999
    assert cli.run("run-now", "a", "--queue", "mail").returncode == 0
    assert cli.json("show", "a", "--queue", "mail")["due"] < FAR - 1
    assert cli.run("cancel", "a", "--queue", "mail").returncode == 0
    assert place(redis, shard, "a") is None
    for command in ("show", "explain", "cancel", "run-now"):
        gone = cli.run(command, "a", "--queue", "mail")
        assert (gone.returncode, gone.stdout) == (1, "")
        assert "evsched: " in gone.stderr


def test_a_job_in_the_queue_itself_is_found(redis: SyncClient, cli: Cli) -> None:
    put(redis, "mail", "a")
    shown = cli.run("show", "a", "--queue", "mail")
    assert shown.returncode == 0
    assert "shard" not in shown.stdout
    assert cli.run("cancel", "a", "--queue", "mail").returncode == 0


def test_a_named_shard_is_that_shard_alone(redis: SyncClient, cli: Cli) -> None:
    put(redis, "mail:0", "x")
    put(redis, "mail", "y")
    assert cli.run("show", "x", "--queue", "mail:1").returncode == 1
    assert cli.run("show", "y", "--queue", "mail:0").returncode == 1
    assert ids(cli.json("jobs", "--queue", "mail:0")) == ["x"]
    assert [row["schedule"] for row in cli.json("queues", "--queue", "mail:0")] == [1]


def test_jobs_of_other_queues_are_not_mistaken_for_shard_jobs(redis: SyncClient, cli: Cli) -> None:
    put(redis, "post:1", "a")
    put(redis, "mail:9", "b")  # mail has three shards
    put(redis, "orders:1", "a")  # orders has none
    for queue in ("mail", "orders"):
        assert cli.run("cancel", "a", "--queue", queue).returncode == 1
        assert json.loads(cli.run("jobs", "--queue", queue, "--json").stdout) == []
    assert {row["queue"] for row in cli.json("queues")} == {"post", "mail:9", "orders:1"}


def test_an_id_like_the_missing_one_is_suggested_from_any_shard(redis: SyncClient, cli: Cli) -> None:
    put(redis, "mail:1", "report-17")
    assert "did you mean report-17?" in cli.run("explain", "report-18", "--queue", "mail").stderr


async def test_a_job_of_a_shard_is_followed_to_its_end(
    url: str, redis: SyncClient, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, begun, goes_on = App(url, queue="mail"), asyncio.Event(), asyncio.Event()
    shard, loop = elsewhere("a"), asyncio.get_running_loop()
    wait = job_commands._wait_for_end  # pyright: ignore[reportPrivateUsage]

    @app.task(retention=60)
    async def climb() -> int:
        current_job().progress(1, 4, "camp one")
        begun.set()
        await goes_on.wait()
        return 8848

    async def wait_noted(*more: Any) -> None:
        loop.call_soon_threadsafe(goes_on.set)
        await wait(*more)

    monkeypatch.setattr(job_commands, "_wait_for_end", wait_noted)
    async with system(Config(url=url, queues=tuple(MAIL)), app):
        await climb.using(queue=shard, id="a").enqueue()
        await asyncio.wait_for(begun.wait(), PATIENCE)
        try:
            done = await asyncio.to_thread(cli.run, "show", "a", "--follow", "--json", "--queue", "mail")
        finally:
            goes_on.set()
    assert done.returncode == 0, done.stderr
    assert '"result": 8848' in done.stdout


# Lists.


def test_the_jobs_of_all_shards_are_listed_the_next_to_run_first(redis: SyncClient, cli: Cli) -> None:
    for at, shard in enumerate(MAIL):
        put(redis, shard, f"late-{at}", due=FAR + 10 + at)
        put(redis, shard, f"soon-{at}", due=FAR - at)
    inline(redis, "mail:1", FAR - 99, '{"task":"t"}')
    put(redis, "post:1", "another", due=FAR - 200)
    every = ['{"task":"t"}', "soon-3", "soon-2", "soon-1", "soon-0", *(f"late-{at}" for at in range(4))]
    assert ids(cli.json("jobs", "--queue", "mail")) == every
    some = cli.run("jobs", "--queue", "mail", "--place", "schedule", "--limit", "3", "--json")
    assert ids(json.loads(some.stdout)) == every[:3]
    assert "3 of 9 jobs in schedule" in some.stderr
    assert ids(cli.json("jobs", "--queue", "mail", "--task", "t")) == every


def test_jobs_in_the_backlogs_of_shards_take_turns(redis: SyncClient, cli: Cli) -> None:
    for shard in MAIL[:2]:
        redis.send(Store(shard).pause())
        for priority in (9, 1, 5):
            put(redis, shard, f"{shard}-p{priority}", due=0.0, priority=priority)
        redis.send(Store(shard).dispatch(limit=10, cap=1000))
    listed = ids(cli.json("jobs", "--queue", "mail", "--place", "backlog"))
    assert listed == [f"{shard}-p{priority}" for priority in (9, 5, 1) for shard in MAIL[:2]]


def test_dead_jobs_of_all_shards_are_listed_the_newest_first(redis: SyncClient, cli: Cli) -> None:
    for at, shard in enumerate(MAIL):
        die(redis, shard, f"d{at}", now=1e9 + at, reason=f"reason {at}")
    rows = cli.json("dead", "--queue", "mail")
    assert [(row["id"], row["reason"]) for row in rows] == [(f"d{at}", f"reason {at}") for at in (3, 2, 1, 0)]
    some = cli.run("dead", "--queue", "mail", "--limit", "2", "--json")
    assert ids(json.loads(some.stdout)) == ["d3", "d2"]
    assert "2 of 4 dead jobs" in some.stderr


# Many jobs.


def test_filter_covers_all_shards_and_no_other_queue(redis: SyncClient, cli: Cli) -> None:
    for shard in (*MAIL, "post:0", "mail:3"):
        put(redis, shard, "a", group="g")
        put(redis, shard, "b", group="h")
    dry = cli.run("cancel", "--group", "g", "--dry-run", "--queue", "mail")
    assert dry.stdout.startswith("4 would be cancelled\n")
    assert cli.run("reschedule", "--group", "g", "--at", "3999999999", "--queue", "mail").stdout == "4 rescheduled\n"
    assert cli.run("cancel", "--group", "g", "--queue", "mail").stdout == "4 cancelled\n"
    left = {shard: [job for job in "ab" if place(redis, shard, job)] for shard in (*MAIL, "post:0", "mail:3")}
    assert left == {**{shard: ["b"] for shard in MAIL}, "post:0": ["a", "b"], "mail:3": ["a", "b"]}


def test_dead_jobs_of_all_shards_are_revived_and_dropped_by_a_filter(redis: SyncClient, cli: Cli) -> None:
    for shard in (*MAIL, "post:1"):
        die(redis, shard, "a", reason="ConnectionError")
        die(redis, shard, "b")
    assert cli.run("dead", "revive", "--reason", "connection", "--queue", "mail").stdout == "4 revived\n"
    assert cli.run("dead", "drop", "--all", "--queue", "mail").stdout == "4 dropped\n"
    assert [place(redis, shard, "a") for shard in MAIL] == ["schedule"] * 4
    assert [place(redis, shard, "b") for shard in MAIL] == [None] * 4
    assert (place(redis, "post:1", "a"), place(redis, "post:1", "b")) == ("dead", "dead")


@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_dead_jobs_of_several_shards_are_changed_together_or_not_at_all(redis: SyncClient, cli: Cli, verb: str) -> None:
    die(redis, SHARDS.home("mail", "a"), "a")
    die(redis, elsewhere("b"), "b")
    put(redis, SHARDS.home("mail", "b"), "b")  # the same id waits at its home
    missing = cli.run("dead", verb, "a", "b", "gone", "--queue", "mail")
    assert (missing.returncode, "gone" in missing.stderr) == (1, True)
    assert (place(redis, SHARDS.home("mail", "a"), "a"), place(redis, elsewhere("b"), "b")) == ("dead", "dead")
    done, after = ("revived", "schedule") if verb == "revive" else ("dropped", None)
    assert cli.run("dead", verb, "a", "b", "--queue", "mail").stdout == f"2 {done}\n"
    assert (place(redis, SHARDS.home("mail", "a"), "a"), place(redis, elsewhere("b"), "b")) == (after, after)
    assert place(redis, SHARDS.home("mail", "b"), "b") == "schedule"


# Queues and workers.


def test_a_queue_and_its_shards_are_one_row(redis: SyncClient, cli: Cli) -> None:
    for at, shard in enumerate(MAIL):
        put(redis, shard, "a", f"b{at}", due=FAR - at)
        die(redis, shard, "d")
        redis.send(Store(shard).heartbeat("w", 60, fresh=True))
    put(redis, "post:1", "a")
    put(redis, "orders:1", "a")
    rows = {row["queue"]: row for row in cli.json("queues")}
    assert set(rows) == {"mail", "post", "orders:1"}
    assert (rows["mail"]["schedule"], rows["mail"]["dead"], rows["mail"]["workers"]) == (8, 4, 1)
    assert rows["mail"]["next_due"] == FAR - 3
    (named,) = cli.json("queues", "--queue", "mail")
    assert named == rows["mail"]
    page = cli.json("top")
    assert {row["queue"]: row["schedule"] for row in page["queues"]} == {"mail": 8, "post": 1, "orders:1": 1}
    assert [row["schedule"] for row in cli.json("top", "--queue", "mail")["queues"]] == [8]
    assert [row["schedule"] for row in cli.json("top", "--queue", "mail:1")["queues"]] == [2]
    assert cli.run("doctor", "--queue", "mail:0").returncode in (0, 1)  # it is a name, not a queue with a weight


def test_a_worker_of_all_shards_is_one_worker(redis: SyncClient, cli: Cli) -> None:
    for shard in MAIL:
        store = Store(shard)
        put(redis, shard, "a", due=0.0)
        redis.send(store.heartbeat("w", 60, fresh=True))
        redis.send(store.dispatch(limit=1, cap=1000))
        assert redis.send(store.start("w", (), hold=1, lease=30)).jobs
    (row,) = cli.json("workers")
    assert (row["worker"], row["queue"], row["held"]) == ("w", "mail", 4)
    assert row["lease_left"] <= 60
    (row,) = cli.json("top")["workers"]
    assert (row["worker"], row["busy"]) == ("w", 4)


def test_a_shard_that_cannot_be_read_is_reported_with_its_queue(redis: SyncClient, cli: Cli) -> None:
    inline(redis, "mail:0", FAR, '{"task":"t"}')
    key = keys.root("mail:1") + "backlog"
    redis.send(Call(("SET", key, "a string"), raw, near=key))
    done = cli.run("queues", "--queue", "mail")
    assert (done.returncode, "queue mail cannot be read" in done.stderr) == (1, True)


# Limits.


def limits_of(redis: SyncClient, field: str) -> list[float | None]:
    return [redis.send(Store(shard).limits()).fields().get(field) for shard in MAIL]


def test_a_limit_is_divided_among_the_shards_and_shown_as_their_sum(redis: SyncClient, cli: Cli) -> None:
    asked = ("--concurrency", "10", "--rate", "1/s", "--burst", "4", "--create")
    shown = cli.json("limit", "mail", *asked)
    assert shown["queue"] == {"concurrency": 10, "rate": 1, "burst": 4}
    assert limits_of(redis, "concurrency") == [3, 3, 2, 2]
    assert limits_of(redis, "rate") == [0.25] * 4
    cli.run("limit", "mail", "--group", "alice", "--weight", "2", "--concurrency", "4")
    assert limits_of(redis, "weight:alice") == [2] * 4
    listed = {(row["group"], row["limit"]): row["value"] for row in cli.json("limits") if row["queue"] == "mail"}
    assert listed == {
        (None, "concurrency"): 10,
        (None, "rate"): 1,
        (None, "burst"): 4,
        ("alice", "weight"): 2,
        ("alice", "concurrency"): 4,
    }
    assert [row["limits"] for row in cli.json("queues", "--queue", "mail")] == [5]
    cli.run("limit", "mail", "--rate", "none")
    assert limits_of(redis, "rate") == [None] * 4
    put(redis, "mail:0", "a")
    facts = cli.json("explain", "a", "--queue", "mail")["facts"]
    assert facts["limit concurrency of the shard"] == "3"


@pytest.mark.parametrize("asked", [("--concurrency", "3"), ("--rate", "0.00002"), ("--burst", "2", "--rate", "5")])
def test_indivisible_limit_is_refused_and_nothing_is_set(redis: SyncClient, cli: Cli, asked: tuple[str, ...]) -> None:
    refused = cli.run("limit", "mail", *asked, "--create")
    assert refused.returncode == 2
    assert f"{asked[0].lstrip('-')} " in refused.stderr
    assert [redis.send(Store(shard).limits()).fields() for shard in MAIL] == [{}] * 4


def test_a_limit_of_one_shard_alone_is_listed_by_itself(redis: SyncClient, cli: Cli) -> None:
    cli.run("limit", "mail", "--rate", "8", "--create")
    cli.run("limit", "mail:1", "--concurrency", "5", "--create")
    rows = [(row["queue"], row.get("alone"), row["limit"], row["value"]) for row in cli.json("limits")]
    assert rows == [("mail", None, "rate", 8), ("mail", "mail:1", "concurrency", 5)]
    assert "mail:1 alone" in cli.run("limits").stdout
    assert cli.json("limit", "mail")["queue"] == {"rate": 8}
    assert "in mail:1 alone" in cli.run("limit", "mail").stdout


def test_a_declared_limit_that_was_changed_in_one_shard_counts_as_changed(redis: SyncClient, cli: Cli) -> None:
    for shard in MAIL:
        redis.send(Store(shard).declare_limits("app", None, SHARDS.divide({"concurrency": 10, "rate": 1 / 3}, shard)))
    assert [row["changed_by_hand"] for row in cli.json("queues", "--queue", "mail")] == [0]
    (rate,) = [row for row in cli.json("limits") if row["limit"] == "rate"]
    assert (rate["value"], rate["declared"], rate["app"]) == (0.333333333, 0.333333333, "app")
    cli.run("limit", "mail:1", "--concurrency", "9")
    assert [row["changed_by_hand"] for row in cli.json("queues", "--queue", "mail")] == [1]
    assert "10 in app app, changed by hand" in cli.run("limits").stdout


def test_a_pause_holds_for_all_shards(redis: SyncClient, cli: Cli) -> None:
    for shard in MAIL:
        put(redis, shard, "a")
    redis.send(Store("mail:0").pause())  # as if the command had failed after the first shard
    assert cli.json("queues", "--queue", "mail")[0]["paused"] is not None
    assert "mail:0 alone" in cli.run("limits").stdout
    assert cli.run("pause", "mail").returncode == 0
    assert all(redis.send(Store(shard).limits()).paused for shard in MAIL)
    assert cli.json("queues", "--queue", "mail")[0]["paused"] is not None
    assert "it was paused since" in cli.run("resume", "mail").stdout
    assert not any(redis.send(Store(shard).limits()).paused for shard in MAIL)
    assert "it was not paused" in cli.run("resume", "mail").stdout


def test_declarations_are_rolled_back_and_pruned_in_all_shards(redis: SyncClient, cli: Cli) -> None:
    for shard in MAIL:
        redis.send(Store(shard).declare_limits("app", None, SHARDS.divide({"concurrency": 10}, shard)))
    dry = cli.run("recurrences", "prune", "--all", "--app", "app", "--queue", "mail", "--dry-run")
    assert dry.stdout == "limit concurrency would be removed\n"
    redis.send(Store("mail:2").heartbeat("w", 60, fresh=True))
    assert cli.run("recurrences", "prune", "--all", "--app", "app", "--queue", "mail").returncode == 1
    leases = keys.root("mail:2") + "leases"
    redis.send(Call(("ZREM", leases, "w"), raw, near=leases))
    assert cli.run("recurrences", "prune", "--all", "--app", "app", "--queue", "mail").returncode == 0
    assert [redis.send(Store(shard).declared_limits()) for shard in MAIL] == [{}] * 4
    assert limits_of(redis, "concurrency") == [None] * 4


# Windows.


def test_a_window_is_set_for_the_jobs_of_all_shards(redis: SyncClient, cli: Cli) -> None:
    assert cli.run("windows", "set", "nights", "22:00-06:00 UTC", "--queue", "mail").returncode == 0
    for shard in MAIL:
        store, text = Store(shard), "22:00-06:00 UTC"
        put(redis, shard, "a", due=0.0)
        redis.send(store.dispatch(limit=1, cap=1000))
        (run,) = redis.send(store.start("w", (), hold=1, lease=15)).jobs
        deferred = Deferred(FAR, f"outside its window {text}", "nights", text, elsewhere=shard != "mail")
        redis.send(store.defer("w", [(run, deferred)]))
    assert "outside its window 22:00-06:00 UTC" in cli.run("explain", "a", "--queue", "mail").stdout
    changed = cli.run("windows", "set", "nights", "00:00-24:00 UTC", "--queue", "mail")
    assert "4 jobs that waited for it are checked again" in changed.stdout
    for shard in MAIL:
        found = redis.send(Store(shard).look("a"))
        assert found is not None
        assert (found.due or FAR) < FAR


# The doctor.


def test_the_doctor_of_a_queue_examines_its_shards(
    redis: SyncClient, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill.find_standstill, "__kwdefaults__", {"watch": 0.05})
    store = Store("mail:1")
    put(redis, "mail:1", "a", due=0.0)
    redis.send(store.dispatch(limit=1, cap=1000))
    redis.send(Store("mail").heartbeat("w", 60, fresh=True))
    found = json.loads(cli.run("doctor", "--queue", "mail", "--json").stdout)
    (finding,) = [one for one in found if one["check"] == "no-worker"]
    assert finding["where"] == "queue mail:1"
    assert finding["mend"].startswith("restart the workers of queue mail: they serve the shards that there were when")
    assert not [one for one in found if one["check"] == "no-queue"]  # the other shards have no keys, and need none
    explained = cli.json("explain", "a", "--queue", "mail")["sentence"]
    assert "no worker serves shard mail:1: restart the workers of queue mail" in explained


def test_the_doctor_reports_a_queue_with_shards_that_has_nothing(redis: SyncClient, cli: Cli) -> None:
    put(redis, "mail:1", "a")
    found = json.loads(cli.run("doctor", "--queue", "post", "--queue", "mall", "--json").stdout)
    said = {one["where"]: one["what"] for one in found if one["check"] == "no-queue"}
    assert set(said) == {"queue post", "queue mall"}
    assert said["queue mall"].endswith("did you mean mail?")


# What Redis does not say.


def test_without_the_right_numbers_each_shard_is_a_queue(redis: SyncClient, cli: Cli) -> None:
    put(redis, "mail:1", "a")
    redis.send(Call(("DEL", keys.SHARDS), raw, near=keys.SHARDS))
    redis.send(Call(("SET", keys.SHARDS, "a string"), raw, near=keys.SHARDS))
    assert [row["queue"] for row in cli.json("queues")] == ["mail:1"]
    assert [row["queue"] for row in cli.json("top")["queues"]] == ["mail:1"]
    assert cli.run("cancel", "a", "--queue", "mail").returncode == 1
    assert cli.run("cancel", "a", "--queue", "mail:1").returncode == 0


# Shards beyond the number of shards.


def test_a_job_beyond_the_number_of_shards_is_found_reported_and_moved(
    url: str, redis: SyncClient, cli: Cli, tmp_path: Path
) -> None:
    redis.send(about.add_queues(["mail:7", "mail:8"]))  # as a dispatcher does
    put(redis, "mail:7", "a", "b", "c")
    inline(redis, "mail:8", 1.0, '{"task":"t","id":"late"}')  # nobody serves it, so it does not stay because it is due
    assert cli.json("show", "a", "--queue", "mail")["queue"] == "mail:7"
    assert "shard\tmail:7\n" in cli.run("show", "a", "--queue", "mail").stdout
    assert "evsched queues shard mail 3" in cli.json("explain", "a", "--queue", "mail")["sentence"]
    assert cli.run("cancel", "b", "--queue", "mail").returncode == 0
    with App(url, queue="mail", shards=2).sync() as session:  # a program that names fewer
        assert session.job("a").status().queue == "mail:7"
    found = json.loads(cli.run("doctor", "--queue", "mail", "--json").stdout)
    strays = {one["where"]: one for one in found if one["check"] == "stray-jobs"}
    assert set(strays) == {"queue mail:7", "queue mail:8"}
    assert strays["queue mail:7"]["mend"].endswith("evsched queues shard mail 3")
    assert cli.run("queues", "shard", "mail", "3", "--dry-run").stdout.startswith("3 of 3 jobs")
    assert cli.run("queues", "shard", "mail", "3").stdout == "3 moved\nqueue mail has 3 shards now\n"
    assert [place(redis, SHARDS.home("mail", job), job) for job in ("a", "c")] == ["schedule"] * 2
    assert [row["queue"] for row in cli.json("queues")] == ["mail"]


def test_a_queue_that_others_serve_is_not_taken_for_a_shard(redis: SyncClient, cli: Cli) -> None:
    put(redis, "mail:7", "a")
    redis.send(Store("mail:7").heartbeat("w", 60, fresh=True))
    assert cli.run("queues", "shard", "mail", "3").returncode == 0
    assert place(redis, "mail:7", "a") == "schedule"


def test_removed_shard_is_listed_while_it_holds_jobs(redis: SyncClient, cli: Cli) -> None:
    put(redis, "mail", "a")
    put(redis, "mail:7", "b")
    redis.send(about.add_queues(["mail:7", "mail:8"]))
    redis.send(Store("mail:8").limit({"rate": 5}))
    assert [row["queue"] for row in cli.json("queues")] == ["mail", "mail:7"]
    assert {row["queue"] for row in cli.json("top")["queues"]} == {"mail", "mail:7"}
    cli.run("cancel", "b", "--queue", "mail")
    assert [row["queue"] for row in cli.json("queues")] == ["mail"]


def test_limits_of_single_shards_are_counted(redis: SyncClient, cli: Cli) -> None:
    put(redis, "mail", "a")
    cli.run("limit", "mail:1", "--concurrency", "5", "--create")
    assert [row["limits"] for row in cli.json("queues", "--queue", "mail")] == [1]


def test_filter_includes_jobs_that_are_moving(redis: SyncClient, cli: Cli) -> None:
    put(redis, "mail", "a", "b", group="g")
    assert redis.send(Store("mail").depart("mail:1", "t", [b"a", b"b"])).batch is not None
    assert cli.run("cancel", "--group", "g", "--queue", "mail").stdout == "2 cancelled\n"
    put(redis, "mail", "a", "b", group="g")
    assert redis.send(Store("mail").depart("mail:1", "u", [b"a", b"b"])).batch is not None
    assert redis.cancel_matching("mail", Filter(group="g")).changed == 2


def test_sweep_is_repeated_when_jobs_leave_during_it(
    redis: SyncClient, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(redis, "mail", "a", group="g")
    run = CommandClient.work_off

    def leave(*words: Any) -> int:
        assert redis.send(Store("mail").depart("mail:1", "t", [b"a"])).batch is not None
        return run(*words)

    monkeypatch.setattr(CommandClient, "work_off", leave)
    done = cli.run("cancel", "--group", "g", "--queue", "mail")
    assert (done.returncode, "1 jobs were on their way between shards" in done.stderr) == (1, True)
    monkeypatch.undo()
    assert cli.run("cancel", "--group", "g", "--queue", "mail").stdout == "1 cancelled\n"


def test_remedy_for_a_queue_named_like_a_shard_serves_that_queue(
    redis: SyncClient, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill.find_standstill, "__kwdefaults__", {"watch": 0.05})
    put(redis, "orders:10", "a", due=0.0)
    redis.send(Store("orders:10").dispatch(limit=1, cap=1000))
    (finding,) = [one for one in json.loads(cli.run("doctor", "--json").stdout) if one["check"] == "no-worker"]
    assert finding["mend"] == "start one: evsched worker MODULE:APP --queue orders:10"
    assert "--queue orders:10`" in cli.json("explain", "a", "--queue", "orders:10")["sentence"]
