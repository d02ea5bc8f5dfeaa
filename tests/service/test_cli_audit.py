"""`evsched audit`: each act of an operator, by commands, Python and filters, is listed once, with who and what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.client.client import Client, SyncClient
from evsched.client.reshard import Reshard
from evsched.client.sweep import Filter, cancelling
from evsched.errors import ConfigError
from evsched.recurrence.recurrence import Declared
from evsched.shards import Shards
from evsched.store import server as about
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.support.cli import Cli

FAR = 2e9
MANY = 1200


@pytest.fixture
def enqueue(server: EmbeddedRedis, queue: str) -> Callable[[int], None]:
    """Return a function that schedules so many jobs."""

    def enqueue(count: int) -> None:
        sender = SyncSender(server.url)
        jobs = [New(f"j{n}", b'{"task":"pay"}', due=FAR) for n in range(count)]
        for some in (jobs[:1000], jobs[1000:]):
            sender.send(Store(queue).enqueue(some))
        sender.close()

    return enqueue


@pytest.fixture
def operator(server: EmbeddedRedis, queue: str) -> Any:
    client = SyncClient(server.url)
    yield client.as_operator("bob")
    client.close()


def brief(acts: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(act["who"], act["from"], act["act"]) for act in acts]


def test_job_is_edited_from_the_command_line(cli: Cli, queue: str, enqueue: Callable[[int], None]) -> None:
    enqueue(1)
    of = ("--queue", queue)
    words = ("edit", "j0", "1", '"two"', "--arg", "a=[3]", "--priority", "9", "--group", "g", "--tag", "x", *of)
    assert cli.run(*words, "--as", "ann").stdout == "j0: args, kwargs, tags, priority, group changed\n"
    job = cli.json("show", "j0", *of)
    assert job["payload"] == {"task": "pay", "args": [1, "two"], "kwargs": {"a": [3]}, "tags": ["x"]}
    assert (job["priority"], job["group"], job["due"]) == (9, "g", FAR)
    assert cli.run("edit", "j0", "--arg", "b=4", "--group", "", "--tag", "", *of).returncode == 0
    job = cli.json("show", "j0", *of)
    assert (job["payload"]["kwargs"], job["group"], job["tags"]) == ({"a": [3], "b": 4}, None, [])
    late = cli.run("edit", "j0", "--priority", "1", "--version", "0", *of)
    assert (late.returncode, "has changed since you have read it" in late.stderr) == (1, True)
    assert cli.run("edit", "j0", *of).returncode == 2
    capped = cli.run("edit", "j0", f'"{"x" * 200}"', *of, EVSCHED_PAYLOAD_CAP="200")
    assert (capped.returncode, "more than 200" in capped.stderr) == (2, True), capped.stderr
    acts = cli.json("audit", *of, "--who", "ann")
    assert [(act["act"], act["what"]["changed"]) for act in acts] == [
        ("edit", ["args", "kwargs", "tags", "priority", "group"])
    ]


def test_acts_are_listed_with_who_and_what(cli: Cli, queue: str, enqueue: Callable[[int], None]) -> None:
    enqueue(3)
    cli.run("pause", queue, "--why", "the provider is down", "--as", "ann")
    cli.run("resume", queue, EVSCHED_AS="bob")
    cli.run("cancel", "j0", "--queue", queue)
    cli.run("limit", queue, "--concurrency", "3", "--as", "ann", EVSCHED_AS="bob")
    assert cli.run("cancel", "nobody", "--queue", queue, "--as", "eve").returncode == 1
    acts = cli.json("audit", "--queue", queue)
    assert brief(acts) == [
        ("ann", "cli", "limit"),
        ("default", "cli", "cancel"),
        ("bob", "cli", "resume"),
        ("ann", "cli", "pause"),
    ]
    assert acts[1] | {"at": 0} == {
        "at": 0,
        "queue": queue,
        "who": "default",
        "from": "cli",
        "act": "cancel",
        "what": {},
        "count": 1,
        "ids": ["j0"],
    }
    assert acts[0]["at"] >= acts[3]["at"] > 1e9
    rows = [line.split("\t") for line in cli.run("audit", "--queue", queue).stdout.splitlines()]
    assert rows[0] == ["at", "who", "from", "act", "queue", "jobs", "what"]
    assert [row[-2:] for row in rows[1:]] == [
        ["", "concurrency 3"],
        ["1", "j0"],
        ["", ""],
        ["", "why the provider is down"],
    ]
    assert {act["queue"] for act in cli.json("audit") if act["queue"] == queue} == {queue}


def test_conditions_and_limit_of_the_list(cli: Cli, queue: str, enqueue: Callable[[int], None]) -> None:
    enqueue(2)
    for who, job in (("ann", "j0"), ("bob", "j1")):
        cli.run("run-now", job, "--queue", queue, "--as", who)
    cli.run("pause", queue, "--as", "ann")
    of = ("--queue", queue)
    assert brief(cli.json("audit", *of, "--who", "ann")) == [("ann", "cli", "pause"), ("ann", "cli", "reschedule")]
    assert brief(cli.json("audit", *of, "--act", "pause")) == [("ann", "cli", "pause")]
    assert brief(cli.json("audit", *of, "--id", "j1")) == [("bob", "cli", "reschedule")]
    assert len(cli.json("audit", *of, "--since", "1h")) == 3
    assert cli.json("audit", *of, "--until", "1h") == []
    one = cli.run("audit", *of, "--limit", "1")
    assert len(one.stdout.splitlines()) == 2
    assert one.stderr == "evsched: the latest 1 acts: --limit lists more\n"
    assert cli.run("audit", *of, "--act", "drop").returncode == 0
    assert cli.run("audit", "--queue", "no-such-queue").returncode == 1
    for wrong in (("--act", "pausee"), ("--who", ""), ("--id", "")):
        refused = cli.run("audit", *of, *wrong)
        assert (refused.returncode, wrong[0] in refused.stderr) == (2, True)


def test_filter_of_an_act_is_listed_as_json(cli: Cli, queue: str) -> None:
    cli.run("enqueue", "pay", "--arg", "a=[true,null]", "--in", "1h", "--queue", queue)
    assert cli.run("cancel", "--arg", "a=[true,null]", "--queue", queue).stdout == "1 cancelled\n"
    assert '"value":[true,null]' in cli.run("audit", "--queue", queue).stdout


def test_command_that_changes_nothing_needs_no_valid_name(cli: Cli, queue: str, enqueue: Callable[[int], None]) -> None:
    enqueue(1)
    cli.environment["EVSCHED_AS"] = "a" * 201
    assert cli.run("jobs", "--queue", queue).returncode == 0
    assert "an operator's name" in cli.run("cancel", "j0", "--queue", queue).stderr


def test_acts_on_recurrences_are_listed(cli: Cli, queue: str, server: EmbeddedRedis) -> None:
    sender = SyncSender(server.url)
    sender.send(Store(queue).declare(Declared(name="nightly", payload=b'{"task":"t"}', rule="@hourly")))
    sender.close()
    of = ("nightly", "--queue", queue, "--as", "ann")
    for verb in ("pause", "resume", "trigger", "remove"):
        assert cli.run("recurrences", verb, *of).returncode == 0
    acts = cli.json("audit", "--queue", queue, "--id", "nightly")
    assert [act["act"] for act in acts] == ["remove", "trigger", "resume", "pause"]
    assert acts[1]["ids"][0].startswith("nightly@")
    assert {act["what"]["recurrence"] for act in acts} == {"nightly"}


@pytest.mark.parametrize("words", [("cancel",), ("reschedule", "--in", "1h")], ids=["cancel", "reschedule"])
def test_act_by_a_filter_has_one_entry_with_its_count(
    cli: Cli, queue: str, raw: Any, enqueue: Callable[[int], None], words: tuple[str, ...]
) -> None:
    enqueue(MANY)
    cli.run(*words, "--queue", queue, "--task", "pay", "--as", "ann")
    (act,) = cli.json("audit", "--queue", queue)
    assert (act["act"], act["count"], act["what"]["filter"]) == (words[0], MANY, {"task": "pay"})
    assert len(act["ids"]) > 100
    assert raw.xlen(f"evsched:{{{queue}}}:audit") == 1


def test_dead_jobs_of_one_command_are_one_act(cli: Cli, queue: str, raw: Any) -> None:
    for n in range(3):
        raw.hset(f"evsched:{{{queue}}}:job:d{n}", "payload", '{"task":"t"}')
        raw.zadd(f"evsched:{{{queue}}}:dead", {f"d{n}": 5})
    cli.run("dead", "revive", "d0", "d1", "--queue", queue, "--as", "ann")
    cli.run("dead", "drop", "--all", "--queue", queue, "--as", "ann")
    found = [(act["act"], act["count"], act["ids"]) for act in cli.json("audit", "--queue", queue)]
    assert found == [("drop", 1, ["d2"]), ("revive", 2, ["d0", "d1"])]


def test_interrupted_act_has_an_entry_that_says_how_far_it_came(
    operator: SyncClient, queue: str, enqueue: Callable[[int], None]
) -> None:
    enqueue(MANY)
    sweep = cancelling(operator.stores(queue), Filter(task="pay"))
    operator.run(sweep.step())
    operator.run(sweep.step())
    (act,) = operator.audit(queue)
    assert 0 < sweep.changed < MANY
    assert (act.who, act.source, act.count) == ("bob", "python", sweep.changed)


def test_programs_leave_no_trace_and_their_operators_do(
    operator: SyncClient, server: EmbeddedRedis, queue: str, enqueue: Callable[[int], None]
) -> None:
    enqueue(3)
    program = SyncClient(server.url)
    program.cancel(queue, "j0")
    operator.cancel(queue, "j1")
    operator.reschedule(queue, "j2", delay=5)
    assert [(act.act, act.ids) for act in program.audit(queue)] == [("reschedule", ["j2"]), ("cancel", ["j1"])]
    assert program.audit(queue, who="eve") == program.audit(queue, since=1e300) == program.audit(queue, until=-5) == []
    assert len(program.audit(queue, limit=1)) == 1
    with pytest.raises(ConfigError, match="an operator's name"):
        program.as_operator("  ")
    program.close()


async def test_client_with_an_event_loop_is_that_of_an_operator_too(server: EmbeddedRedis, queue: str) -> None:
    client = Client(server.url)
    await client.as_operator("ann").pause(queue)
    (act,) = await client.audit(queue, since=1e9)
    assert (act.who, act.source, act.act, act.queue) == ("ann", "python", "pause", queue)
    await client.close()


def test_act_on_a_queue_with_shards_is_one_act(server: EmbeddedRedis, queue: str, raw: Any) -> None:
    client = SyncClient(server.url, Shards({queue: 3}))
    operator = client.as_operator("ann")
    operator.limit(queue, concurrency=12)
    operator.enqueue(queue, [New(f"j{n}", b'{"task":"pay"}', due=FAR) for n in range(40)])
    operator.run(cancelling(operator.stores(queue), Filter(task="pay")).finish())
    dead = [f"d{n}" for n in range(9)]
    for job in dead:
        raw.zadd(f"evsched:{{{client.shards.home(queue, job)}}}:dead", {job: 5})
    operator.drop(queue, dead)
    operator.pause(f"{queue}:1")
    by_name = {act.act: act for act in client.audit(queue)}  # two shards may have acts of the same millisecond
    cancel, drop, limit, pause = (by_name[act] for act in ("cancel", "drop", "limit", "pause"))
    assert (pause.act, pause.queue) == ("pause", f"{queue}:1")
    assert (drop.queue, drop.count, sorted(drop.ids)) == (queue, 9, dead)
    assert (cancel.queue, cancel.count, sorted(cancel.ids)) == (queue, 40, sorted(f"j{n}" for n in range(40)))
    assert (limit.queue, limit.what) == (queue, {"limits": {"concurrency": 12.0}})
    assert client.audit(f"{queue}:1", act="pause") == [pause]
    client.close()


def test_jobs_that_move_to_other_shards_are_one_act(
    operator: SyncClient, queue: str, enqueue: Callable[[int], None]
) -> None:
    enqueue(40)
    operator.send(about.set_shards(queue, 3))
    work = Reshard(queue, 3, 0, make=operator.client.acting())
    while operator.run(work.step()):
        pass
    (act,) = operator.audit(queue)
    assert (act.act, act.count) == ("move", work.moved)
    assert work.moved > 10


@pytest.mark.extra
def test_repair_is_an_act(cli: Cli, queue: str, raw: Any, enqueue: Callable[[int], None]) -> None:
    enqueue(1)
    raw.hset(f"evsched:{{{queue}}}:job:lost", mapping={"payload": '{"task":"t"}', "due": FAR})
    cli.run("doctor", "--queue", queue, "--as", "ann")
    assert cli.json("audit", "--queue", queue) == []
    cli.run("doctor", "--queue", queue, "--repair", "--as", "ann")
    (act,) = cli.json("audit", "--queue", queue)
    assert (act["who"], act["act"], act["ids"]) == ("ann", "mend", ["lost"])
