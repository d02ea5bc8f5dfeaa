"""Commands, the HTTP interface and clients while a primary of a cluster is dead, and no replica takes its place."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from evsched import keys
from evsched.client import operations
from evsched.client.client import BlockingClient, SyncClient
from evsched.client.operations import Send, Step
from evsched.errors import ShardsDown, StoreDown
from evsched.store import server as about
from evsched.store.store import Store
from evsched.top.collector import Top
from evsched.transport import servers
from evsched.transport.embedded import EmbeddedRedis
from tests.support.api import LATER, calling
from tests.support.cli import Cli
from tests.support.cluster import JOB, Cluster, at, queue_on, schedule, slot_of
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def nothing_is_repeated_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send no call to the lost node again, ask for its slots without pauses, and forget the answers to other tests."""
    monkeypatch.setattr(operations, "_PATIENCE", 0.1)
    monkeypatch.setattr(servers, "_PACE", (0.0, 0.05))
    servers.topology.cache_clear()


@pytest.fixture(scope="module", params=["dead", pytest.param("hung", marks=pytest.mark.long)])
def lacking(server: EmbeddedRedis, request: pytest.FixtureRequest) -> Generator[Cluster]:
    """A cluster whose last primary is dead or hangs. It takes 2 s to serve, so the tests share it."""
    with Cluster(server.server) as cluster:
        lost = cluster.nodes[-1]
        assert lost.pid
        hung = request.param == "hung"
        os.kill(lost.pid, signal.SIGSTOP) if hung else lost.kill()
        try:
            yield cluster
        finally:
            if hung:
                os.kill(lost.pid, signal.SIGCONT)


@pytest.fixture
def without_one(lacking: Cluster, tmp_path: Path) -> Generator[tuple[Cluster, Cli]]:
    """That cluster, empty, and commands that use it."""
    yield lacking, Cli(lacking.url, tmp_path)
    for node in lacking.nodes[:-1]:
        lacking.client(node).flushall()


def healthy(cluster: Cluster, number: int = 0) -> str:
    """Return a queue on a node that answers."""
    return queue_on(cluster, cluster.nodes[number])


def test_an_accepted_job_is_printed_though_another_node_does_not_answer(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    queue = healthy(cluster)
    done = cli.run("enqueue", "rec", "1", "--queue", queue, "--in", "999s")
    assert done.returncode == 0, done.stderr
    (record,) = cluster.client(cluster.nodes[0]).keys(f"{keys.root(queue)}job:*")
    assert record.endswith(f"job:{done.stdout.strip()}")
    assert f"no worker serves queue {queue} now" in done.stderr


def test_doctor_names_a_silent_primary_and_checks_the_others(
    without_one: tuple[Cluster, Cli],
) -> None:
    cluster, cli = without_one
    first, second, lost = cluster.nodes
    slots = next(
        f"{low}-{high}"
        for low, high, (_, port, *_) in cluster.client(first).execute_command("CLUSTER", "SLOTS")
        if port == lost.port
    )
    cluster.client(second).hset(f"{keys.root(healthy(cluster, 1))}job:gone", "payload", JOB)
    found = cli.findings()
    (down,) = [one for one in found if one["check"] == "cluster-down"]
    assert (down["level"], down["where"]) == ("fault", f"127.0.0.1:{lost.port}")
    assert f"of slots {slots} does not answer: its queues stand still" in down["what"]
    assert [one["where"] for one in found if one["where"].endswith("job gone")] == [
        f"queue {healthy(cluster, 1)}, job gone"
    ]
    assert {one["where"] for one in found if one["check"] == "appendfsync"} == {
        f"Redis, appendfsync, {at(node)}" for node in (first, second)
    }


def test_the_doctor_asks_a_node_that_knows_all_slots(server: EmbeddedRedis, tmp_path: Path) -> None:
    with Cluster(server.server) as cluster:
        first, second, lost = cluster.nodes
        slots = next(
            (low, high)
            for low, high, (_, port, *_) in cluster.client(first).execute_command("CLUSTER", "SLOTS")
            if port == lost.port
        )
        lost.kill()
        cluster.client(second).execute_command("CLUSTER", "DELSLOTSRANGE", *slots)
        found = Cli(cluster.url, tmp_path).findings()
    assert [one for one in found if one["check"] == "cluster-slots"] == []
    (down,) = [one["what"] for one in found if one["check"] == "cluster-down"]
    assert f"of slots {slots[0]}-{slots[1]} does not answer" in down


def test_doctor_checks_a_named_queue_beside_a_silent_node(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    schedule(cluster, healthy(cluster))
    lost = next(name for name in map("x{}".format, count()) if slot_of(name) > 2 * 16384 // 3 + 1)
    for named, checked in ((healthy(cluster), {f"Redis, appendfsync, {at(cluster.nodes[0])}"}), (lost, set[str]())):
        found = cli.findings("--queue", named)
        assert {one["where"] for one in found if one["check"] == "appendfsync"} == checked
        assert [one["where"] for one in found if one["level"] == "fault"] == [f"127.0.0.1:{cluster.nodes[-1].port}"]


def test_commands_about_a_queue_need_its_node_alone(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    queue = healthy(cluster)
    unused = cli.run("queues", queue, "--json")
    assert [row["queue"] for row in json.loads(unused.stdout)] == [queue], unused.stderr
    missing = cli.run("show", "x", "--queue", queue)
    assert missing.returncode == 1
    assert "no job x" in missing.stderr
    assert "connecting" not in missing.stderr.splitlines()[-1]


def test_lists_name_the_primary_that_does_not_answer(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    queue, port = healthy(cluster), cluster.nodes[-1].port
    schedule(cluster, queue)
    for command in ("queues", "limits", "workers"):
        done = cli.run(command)
        assert done.returncode == 1
        assert f"primary 127.0.0.1:{port} does not answer: other queues there may be missing" in done.stderr
    assert queue in cli.run("queues").stdout


def test_top_shows_the_queues_of_the_primaries_that_answer(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    queue, down = healthy(cluster), cluster.nodes[-1].port
    schedule(cluster, queue)
    for words in ((), ("--queue", queue)):
        done = cli.run("top", "--json", *words)
        assert done.returncode == 1
        assert f"primary 127.0.0.1:{down} does not answer: other queues there may be missing" in done.stderr
        page = json.loads(done.stdout)
        assert {row["queue"]: row["schedule"] for row in page["queues"]} == {queue: 1}
        assert page["nodes_down"] == [["127.0.0.1", down]]
    lines = cli.run("top").stdout.splitlines()
    assert lines[1].startswith(f"Primary 127.0.0.1:{down} does not answer")
    assert any(line.startswith(queue) for line in lines)


async def test_top_names_queues_whose_primary_stops_answering(server: EmbeddedRedis) -> None:
    with Cluster(server.server) as cluster:
        queues = [queue_on(cluster, node) for node in cluster.nodes]
        for queue in queues:
            schedule(cluster, queue)
        top = Top(cluster.url)
        assert {*(await top.look()).stats} == {*queues}
        down = f"primary 127.0.0.1:{cluster.nodes[-1].port} does not answer"
        cluster.nodes[-1].kill()
        look = await top.look()
        assert {*look.stats} == {*queues[:2]}
        assert look.refused == {queues[2]: down}
        for node in cluster.nodes[:2]:
            node.kill()
        with pytest.raises(StoreDown):
            await top.look()
        await top.close()


def of_two_shards(cluster: Cluster) -> tuple[str, str, EmbeddedRedis]:
    """Schedule a job in the second shard of a queue and one in another queue.

    Return the names of the queues, and a node that has the first shard and neither these nor the numbers of shards.
    """
    beside_the_numbers = next(f"q{n}" for n in count() if slot_of(f"q{n}") == key_slot(keys.SHARDS.encode()))
    node = next(node for node in cluster.nodes if node is not cluster.primary(beside_the_numbers))
    other = next(f"q{n}" for n in count() if cluster.primary(f"q{n}") is not node)
    both = ((f"mail{n}", [cluster.primary(f"mail{n}:{shard}") is node for shard in (0, 1)]) for n in count())
    name = next(name for name, is_there in both if is_there == [True, False])
    with closing(SyncClient(cluster.url)) as client:
        client.send(about.set_shards(name, 2))
    for part in (f"{name}:1", other):
        schedule(cluster, part)
    return name, other, node


def test_lists_show_the_shards_of_a_queue_that_can_be_read(server: EmbeddedRedis, tmp_path: Path) -> None:
    with Cluster(server.server) as cluster:
        name, other, dead = of_two_shards(cluster)
        dead.kill()
        cli = Cli(cluster.url, tmp_path)
        for command in ("queues", "limits", "workers"):
            done = cli.run(command)
            assert (done.returncode, f"primary 127.0.0.1:{dead.port} does not answer" in done.stderr) == (1, True)
        rows = {row["queue"]: row for row in json.loads(cli.run("queues", "--json").stdout)}
        assert rows[other]["schedule"] == 1
        assert rows[name]["schedule"] == 1
        lost = f"{name}:0 cannot be read: primary 127.0.0.1:{dead.port} does not answer"
        assert lost in rows[name]["error"]
        for command in ("queues", "limits", "workers", "jobs", "dead"):
            done = cli.run(command, "--queue", name)
            assert (done.returncode, lost in done.stderr) == (1, True), done.stderr
        for words in (("--place", "schedule"), ("--task", "t")):
            assert len(json.loads(cli.run("jobs", "--queue", name, "--json", *words).stdout)) == 1, words
        (row,) = json.loads(cli.run("queues", name, "--json").stdout)
        assert (row["schedule"], lost in row["error"]) == (1, True)
        unread = next(f"q{n}" for n in count() if cluster.primary(f"q{n}") is dead)
        (row,) = json.loads(cli.run("queues", unread, "--json").stdout)
        assert (row["schedule"], row["error"]) == (None, f"primary 127.0.0.1:{dead.port} does not answer")


async def test_http_interface_lists_the_readable_queues(server: EmbeddedRedis) -> None:
    with Cluster(server.server) as cluster:
        name, other, dead = of_two_shards(cluster)
        async with calling(cluster.url) as api:
            whole = (await api.ask("GET", "/v1/queues")).json()
            assert ([row["queue"] for row in whole["queues"]], whole["complete"]) == ([name, other], True)
            dead.kill()
            rest = (await api.ask("GET", "/v1/queues")).json()
            assert ([row["queue"] for row in rest["queues"]], rest["complete"]) == ([other], False)
            for query in ("", "?task=t"):
                jobs = (await api.ask("GET", f"/v1/queues/{name}/jobs{query}")).json()
                assert (len(jobs["jobs"]), jobs["complete"]) == (1, False)
                jobs = (await api.ask("GET", f"/v1/queues/{other}/jobs{query}")).json()
                assert (len(jobs["jobs"]), jobs["complete"]) == (1, True)
            refused = await api.ask("GET", f"/v1/queues/{name}")
            down = f"primary 127.0.0.1:{dead.port} does not answer"
            assert (refused.status_code, refused.json()["detail"]) == (503, down)
            refused = await api.ask("DELETE", f"/v1/queues/{name}:0/jobs/a")
            perhaps = "a write may have been done all the same: look before you repeat it"
            assert (refused.status_code, refused.json()["detail"]) == (503, f"{down}; {perhaps}")


class KilledBetween(BlockingClient):
    """Kills a node before the second call of a script, or of a command, is sent."""

    def __init__(self, node: EmbeddedRedis, verb: str, *options: Any) -> None:
        super().__init__(*options)
        self._node, self._verb, self._calls = node, verb, 0

    async def perform(self, step: Step) -> Any:
        if isinstance(step, Send) and step.call.name == self._verb:
            self._calls += 1
            if self._calls == 2:
                self._node.kill()
        return await super().perform(step)


def killed_between(url: str, node: EmbeddedRedis, verb: str) -> SyncClient:
    return SyncClient(url, kind=partial(KilledBetween, node, verb))


def of_six_shards(cluster: Cluster) -> tuple[str, EmbeddedRedis]:
    """Return a queue of six shards, and the node of its second shard, which has neither the first nor their number."""
    with_numbers = next(
        node
        for node in cluster.nodes
        if cluster.primary(next(f"q{n}" for n in count() if slot_of(f"q{n}") == key_slot(keys.SHARDS.encode()))) is node
    )
    for name in map("mail{}".format, count()):
        first, second = cluster.primary(f"{name}:0"), cluster.primary(f"{name}:1")
        if second not in (first, with_numbers):
            with closing(SyncClient(cluster.url)) as client:
                client.send(about.set_shards(name, 6))
            return name, second
    raise AssertionError


def test_a_change_of_a_window_names_the_shards_that_were_given_it(server: EmbeddedRedis) -> None:
    with Cluster(server.server) as cluster:
        name, dead = of_six_shards(cluster)
        down = f"primary 127.0.0.1:{dead.port} does not answer"
        done = f"{name}, {name}:0 were given the change of window nights; {down}, so {name}:1 may have been"
        with (
            closing(killed_between(cluster.url, dead, "reopen")) as client,
            pytest.raises(StoreDown, match=f"{done}, and {name}:2, .* were not: repeat this when it does"),
        ):
            client.set_window(name, "nights", "22:00-06:00 UTC")


def test_a_change_of_a_window_says_when_nothing_was_done(server: EmbeddedRedis) -> None:
    with Cluster(server.server) as cluster:
        name, dead = of_six_shards(cluster)
        nothing = f"primary 127.0.0.1:{dead.port} does not answer, so nothing was done: start it"
        with closing(killed_between(cluster.url, dead, "ZCARD")) as client:
            with pytest.raises(ShardsDown, match=nothing):
                client.set_window(name, "nights", "22:00-06:00 UTC")
            assert client.send(Store(name).windows()) == {}


def test_a_change_of_a_window_is_not_reported_as_done_before_its_recurrences_are_planned(
    server: EmbeddedRedis,
) -> None:
    with Cluster(server.server) as cluster:
        name, _ = of_six_shards(cluster)
        keeper = cluster.primary(name)
        down = f"primary 127.0.0.1:{keeper.port} does not answer"
        with (
            closing(killed_between(cluster.url, keeper, "ZRANGE")) as client,
            pytest.raises(ShardsDown, match=f"{down}, so {name} may have been, and {name}:0, .* were not"),
        ):
            client.set_window(name, "nights", "22:00-06:00 UTC")


@pytest.mark.parametrize(
    "verb", ["limit", pytest.param("pause", marks=pytest.mark.long), pytest.param("resume", marks=pytest.mark.extra)]
)
async def test_a_change_of_a_queue_names_the_shards_that_were_changed(
    server: EmbeddedRedis, tmp_path: Path, verb: str
) -> None:
    with Cluster(server.server) as cluster:
        name, dead = of_six_shards(cluster)
        with closing(SyncClient(cluster.url)) as client:
            client.limit(name, concurrency=50)
            client.pause(name)
        changes: dict[str, tuple[str, Callable[[SyncClient], object]]] = {
            "pause": ("paused", lambda client: client.pause(name, why="new")),
            "resume": ("resumed", lambda client: client.resume(name)),
            "limit": ("given their parts of the new limits", lambda client: client.limit(name, concurrency=60)),
        }
        done, change = changes[verb]
        down = f"primary 127.0.0.1:{dead.port} does not answer"
        rest = f"{name}:2, {name}:3, {name}:4, {name}:5, {name} were not: repeat this when it does"
        with closing(killed_between(cluster.url, dead, verb)) as client, pytest.raises(StoreDown) as failed:
            change(client)
        assert str(failed.value) == f"{name}:0 was {done}; {down}, so {name}:1 may have been, and {rest}"

        there = [part for part in [f"{name}:{n}" for n in range(6)] + [name] if cluster.primary(part) is not dead]
        before = [cluster.client(cluster.primary(part)).hgetall(f"{keys.root(part)}limits") for part in there]
        with (
            closing(SyncClient(cluster.url)) as client,
            pytest.raises(StoreDown, match="so nothing was done: start it") as failed,
        ):
            change(client)
        assert down in str(failed.value)
        with (
            closing(SyncClient(cluster.url)) as client,
            pytest.raises(StoreDown, match="so nothing was done: start it"),
        ):
            client.set_window(name, "nights", "22:00-06:00 UTC")
        words = {"pause": ("--why", "again"), "resume": (), "limit": ("--concurrency", "70")}[verb]
        refused = Cli(cluster.url, tmp_path).run(verb, name, *words)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == f"evsched: {failed.value}\n"
        path, body = {"limit": ("limits", {"concurrency": 70})}.get(verb, (verb, {}))
        async with calling(cluster.url) as api:
            method = "PATCH" if verb == "limit" else "POST"
            response = await api.ask(method, f"/v1/queues/{name}/{path}", None if verb == "resume" else body)
            assert (response.status_code, response.json()["detail"]) == (503, str(failed.value))
        assert before == [cluster.client(cluster.primary(part)).hgetall(f"{keys.root(part)}limits") for part in there]


def test_a_job_is_found_though_another_node_does_not_answer(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    away = f"primary 127.0.0.1:{cluster.nodes[-1].port} does not answer, so queues there were not searched"
    queue = healthy(cluster)
    node = cluster.client(cluster.nodes[0])
    node.hset(keys.job(queue, "one"), "payload", '{"task":"rec","args":[1]}')
    node.zadd(keys.schedule(queue), {"one": 4e9})
    for command in ("show", "explain"):
        done = cli.run(command, "one")
        assert done.returncode == 0, done.stderr
        assert away in done.stderr
    for command in ("show", "explain", "cancel"):
        missing = cli.run(command, "two")
        assert missing.returncode == 1
        assert away in missing.stderr
    refused = cli.run("cancel", "one")
    assert refused.returncode == 1, "a queue of the other node may have a job one too"
    assert f"{away}: queue {queue} has a job one" in refused.stderr
    assert "say which with --queue" in refused.stderr
    assert cli.run("cancel", "one", "--queue", queue).returncode == 0


def test_job_is_found_in_a_shard_though_their_number_is_unknown(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    queue = healthy(cluster)
    part = next(f"{queue}:{n}" for n in count() if cluster.primary(f"{queue}:{n}") in cluster.nodes[:2])
    node = cluster.client(cluster.primary(part))
    node.hset(keys.job(part, "one"), "payload", '{"task":"rec","args":[1]}')
    node.zadd(keys.schedule(part), {"one": 4e9})
    for command in ("show", "explain"):
        done = cli.run(command, "one", "--queue", queue)
        assert done.returncode == 0, done.stderr
        assert "schedule" in done.stdout
        assert f"queue {part}, by its name a shard of {queue}, has job one" in done.stderr
    refused = cli.run("cancel", "one", "--queue", queue)
    assert refused.returncode == 1
    assert f"give --queue {part}" in refused.stderr
    missing = cli.run("cancel", "two", "--queue", queue).stderr
    assert missing.endswith(f"so queues there were not searched: no job two was found in queue {queue}\n")


def test_optional_answers_are_asked_for_once(without_one: tuple[Cluster, Cli], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "_PATIENCE", 2 * PATIENCE)  # a call that is sent again outlasts the test
    cluster, cli = without_one
    queue = healthy(cluster)
    done = cli.run("enqueue", "rec", "1", "--queue", queue, "--in", "999s")
    assert done.returncode == 0, done.stderr
    assert "similar names were not looked for, because a node of the cluster does not answer" in done.stderr
    assert cli.run("dead", "list", "--queue", queue).stdout.startswith("job\tdied")
    for command in ("show", "cancel", "explain"):
        assert "queues there were not searched" in cli.run(command, "two", "--queue", queue).stderr
    assert cli.run("queues").returncode == 1


def test_change_of_a_whole_queue_is_refused_while_its_shards_are_unknown(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    queue, node = healthy(cluster), cluster.client(cluster.nodes[0])
    schedule(cluster, queue)
    before = node.dbsize()
    for words in (
        ("pause", queue, "--why", "test"),
        ("resume", queue),
        ("limit", queue, "--concurrency", "14"),
        ("cancel", "--queue", queue, "--task", "t"),
        ("reschedule", "--queue", queue, "--task", "t", "--in", "1h"),
        ("dead", "revive", "--all", "--queue", queue),
        ("dead", "drop", "--all", "--queue", queue),
        ("windows", "set", "nights", "22:00-06:00 UTC", "--queue", queue),
        ("windows", "remove", "nights", "--queue", queue),
        ("queues", "shard", queue, "3"),
    ):
        done = cli.run(*words)
        assert (done.returncode, done.stdout) == (1, ""), words
        assert f"127.0.0.1:{cluster.nodes[-1].port} does not answer" in done.stderr, words
        assert "nothing was done" in done.stderr, words
    assert node.zrange(keys.schedule(queue), 0, -1, withscores=True) == [(JOB, 4e9)]
    assert node.dbsize() == before


def test_list_of_a_whole_queue_is_incomplete_while_its_shards_are_unknown(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    queue, unused = healthy(cluster), queue_on(cluster, cluster.nodes[0], "unused")
    schedule(cluster, queue)
    for words in (("queues",), ("jobs", "--queue"), ("dead", "--queue"), ("limits", "--queue"), ("workers", "--queue")):
        for named in (queue, unused):
            done = cli.run(*words, named)
            assert done.returncode == 1, words
            assert f"primary 127.0.0.1:{cluster.nodes[-1].port} does not answer" in done.stderr
            assert "no workers and no recurrences" not in done.stderr, words
    assert queue in cli.run("queues", queue).stdout
    assert len(json.loads(cli.run("jobs", "--queue", queue, "--json").stdout)) == 1
    assert cli.run("enqueue", "rec", "--queue", queue).returncode == 0


def test_errors_name_the_node_that_does_not_answer(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    at = f"127.0.0.1:{cluster.nodes[-1].port}"
    lost = next(name for name in map("x{}".format, count()) if slot_of(name) > 2 * 16384 // 3 + 1)
    problem = (
        f"evsched: primary {at} does not answer: start it, or fail over to its replica if it has one, and try again"
    )
    unsure = "; the change may have been made all the same: look before you repeat it"
    is_hung = bool(cluster.nodes[-1].pid)
    for words in (("calendars", "--queue", lost), ("queues", "plan"), ("cancel", "a", "--queue", lost)):
        done = cli.run(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[-1] == problem + (unsure if words[0] == "cancel" and is_hung else ""), words
    with closing(SyncClient(cluster.url)) as client, pytest.raises(StoreDown, match=at):
        client.status(lost, "a")


def test_a_queue_that_may_exist_on_another_node_is_not_surely_empty(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    for command in ("recurrences", "jobs", "calendars"):
        done = cli.run(command, "--queue", healthy(cluster))
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr


def test_only_commands_about_a_whole_queue_report_unknown_shards(
    without_one: tuple[Cluster, Cli],
) -> None:
    cluster, cli = without_one
    queue, unknown = healthy(cluster), "jobs in the shards of queues are left out"
    schedule(cluster, queue)
    assert cli.run("jobs", "--queue", queue).stderr.count(unknown) == 1
    for words in (("recurrences", "--queue", queue), ("enqueue", "rec", "--queue", queue)):
        assert unknown not in cli.run(*words).stderr, words
    for command in ("show", "explain", "cancel"):
        (line,) = cli.run(command, "two").stderr.splitlines()
        assert line.endswith("no job two was found in the queues of the other primaries")
        (line,) = cli.run(command, "two", "--queue", queue).stderr.splitlines()


def test_the_node_that_does_not_answer_comes_first(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    for command in ("show", "explain", "cancel"):
        for queue in ((), ("--queue", healthy(cluster))):
            line = cli.run(command, "two", *queue).stderr.splitlines()[-1]
            assert line.startswith(f"evsched: primary 127.0.0.1:{cluster.nodes[-1].port} does not answer"), line


async def test_http_interface_refuses_requests_that_need_an_unknown_shard(
    without_one: tuple[Cluster, Cli],
) -> None:
    cluster, _ = without_one
    path = f"/v1/queues/{healthy(cluster)}"
    down = f"primary 127.0.0.1:{cluster.nodes[-1].port} does not answer"
    job: dict[str, Any] = {"task": "t", "due": LATER}
    requests: list[tuple[str, str, Any, dict[str, str]]] = [
        ("GET", "", None, {}),
        ("GET", "/jobs/b", None, {}),
        ("GET", "/jobs/b/explain", None, {}),
        ("DELETE", "/jobs/b", None, {}),
        ("POST", "/jobs", job | {"id": "b"}, {}),
        ("POST", "/jobs", job | {"unique": {}}, {}),
        ("POST", "/jobs", job, {"Idempotency-Key": "once"}),
        ("POST", "/pause", {}, {}),
        ("POST", "/dead/drop", {"all": True}, {}),
        ("POST", "/dead/revive", {"ids": ["b"]}, {}),
    ]
    async with calling(cluster.url) as api:
        added = await api.ask("POST", f"{path}/jobs", job)
        assert added.status_code == 201
        listed = (await api.ask("GET", "/v1/queues")).json()
        assert ([row["queue"] for row in listed["queues"]], listed["complete"]) == ([healthy(cluster)], False)
        jobs = (await api.ask("GET", f"{path}/jobs")).json()
        assert ([job["id"] for job in jobs["jobs"]], jobs["complete"]) == ([added.json()["id"]], False)
        assert (await api.ask("GET", f"{path}/jobs/{added.json()['id']}")).status_code == 200
        for method, below, body, headers in requests:
            refused = await api.ask(method, f"{path}{below}", body, headers=headers)
            assert (refused.status_code, refused.json()["detail"]) == (
                503,
                f"{down}, so the numbers of shards of queues cannot be read, and nothing was done",
            ), (method, below)
    assert cluster.client(cluster.nodes[0]).zcard(keys.schedule(healthy(cluster))) == 1


def test_a_job_with_an_id_is_refused_while_its_shard_is_not_known(without_one: tuple[Cluster, Cli]) -> None:
    cluster, cli = without_one
    for option in (("--id", "a"), ("--unique",)):
        done = cli.run("enqueue", "rec", "1", "--queue", healthy(cluster), *option)
        assert done.returncode == 1
        assert "the numbers of shards of queues cannot be read, and nothing was done" in done.stderr
    assert cluster.client(cluster.nodes[0]).dbsize() == 0


@pytest.mark.long
def test_unanswered_enqueue_names_the_job_that_may_have_been_accepted(server: EmbeddedRedis, tmp_path: Path) -> None:
    with Cluster(server.server) as cluster:
        hung, queue = cluster.nodes[0], healthy(cluster)
        assert hung.pid
        os.kill(hung.pid, signal.SIGSTOP)
        try:
            done = Cli(cluster.url, tmp_path).run("enqueue", "rec", "1", "--queue", queue, "--in", "1h")
        finally:
            os.kill(hung.pid, signal.SIGCONT)
        assert done.returncode == 1
        (job,) = re.findall(r"the job may have been accepted all the same: `evsched show (\w+) ", done.stderr)
        assert cluster.client(hung).keys(f"{keys.root(queue)}job:*") in ([], [keys.job(queue, job)])


def test_python_changes_nothing_of_a_whole_queue_with_unknown_shards(without_one: tuple[Cluster, Cli]) -> None:
    cluster, _ = without_one
    refused = pytest.raises(StoreDown, match="the numbers of shards of queues cannot be read, and nothing was done")
    with closing(SyncClient(cluster.url)) as client, refused:
        client.pause(healthy(cluster))
    assert cluster.client(cluster.nodes[0]).dbsize() == 0
