"""`evsched batches`, as an operator uses it."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from evsched import keys
from evsched.batches.node import StoredNode
from evsched.jobs.job import encode
from evsched.store.batch_calls import PlanRow
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.call import Call, raw
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.support.cli import Cli
from tests.support.patience import PATIENCE


@pytest.fixture
def batch(server: EmbeddedRedis, queue: str) -> str:
    """A batch with a job that waits, one that is done and one that is dead."""
    sender, store = SyncSender(server.url), Store(queue)
    calls = {"on_done": '{"queue":"reports","payload":{"task":"sum"}}'}
    sender.send(store.batch_open("b", "t", retention=60.0, fields=calls))
    reserved = sender.send(store.batch_add("b", "r", 3, queue))
    sender.send(store.enqueue([New("b.0", b'{"task":"t"}', delay=3600)], batch=reserved.address(queue, "b")))
    sender.send(store.batch_count([("b", 1, b"\x01\x02")]))
    sender.send(store.batch_close("b", confirms="r"))
    sender.close()
    return "b"


def test_batches_are_listed_shown_and_cancelled(cli: Cli, queue: str, batch: str) -> None:
    of = ("--queue", queue)
    header, row = cli.run("batches", *of).stdout.splitlines()
    assert header.split("\t")[:6] == ["id", "state", "jobs", "open", "done", "failed"]
    assert row.split("\t")[:6] == [batch, "running", "3", "1", "1", "1"]
    (listed,) = cli.json("batches", *of)
    shown = cli.json("batches", "show", batch, *of)
    failures = [{"id": "b.2", "queue": queue, "outcome": "dead"}]
    calls = [{"outcome": "done", "task": "sum", "queue": "reports"}]
    assert shown == {**listed, "callbacks": calls, "failures": failures}
    text = cli.run("batches", "show", batch, *of).stdout
    assert f"dead: b.2 of queue {queue}" in text
    assert "progress\t████████████████████░░░░░░░░░░ 66 %, 2 of 3 jobs\n" in text
    assert "on_done\tsum in queue reports\n" in text
    assert cli.run("batches", "cancel", batch, *of, "--as", "ann").stdout == "b is being cancelled\n"
    assert cli.json("batches", "show", batch, *of)["stop"] == "cancelled"
    (act,) = cli.json("audit", *of)
    assert (act["who"], act["act"], act["what"]) == ("ann", "cancel", {"batch": "b"})


def test_batch_is_paused_and_resumed(cli: Cli, server: EmbeddedRedis, queue: str, batch: str) -> None:
    of = ("--queue", queue)
    paused = cli.run("batches", "pause", batch, *of, "--until", "1h", "--why", "the disk is full", "--as", "ann")
    assert re.fullmatch(r"b is paused since .+ until .+\n", paused.stdout)
    assert cli.run("batches", *of).stdout.splitlines()[1].split("\t")[1] == "paused"
    shown = cli.run("batches", "show", batch, *of).stdout
    assert re.search(r"^paused\t.+\npaused_until\t.+\npaused_why\tthe disk is full$", shown, re.MULTILINE)
    resume = f"evsched batches resume b --queue {queue}"
    assert f"{queue}\tbatch {queue}/b\tpaused\t{resume}\t" in cli.run("limits", *of).stdout
    listed = {"queue": queue, "group": f"batch:{queue}/b", "limit": "paused", "value": None}
    assert cli.json("limits", *of) == [listed]
    held = (
        r"batch b of queue \S+ has been paused for [^,;]+, and is for [^,;]+ more \(the disk is full\): resume it with "
        rf"`evsched batches resume b --queue {queue}`"
    )
    assert re.search(rf"due in [^;]+; {held}", cli.run("explain", "b.0", *of).stdout)
    sender = SyncSender(server.url)
    sender.send(Store(queue).reschedule("b.0", 0.0))
    sender.send(Store(queue).dispatch(limit=9, cap=99))
    sender.close()
    assert re.match(rf"b.0: {held}", cli.run("explain", "b.0", *of).stdout)
    resumed = cli.run("batches", "resume", batch, *of, "--as", "bob").stdout
    assert re.fullmatch(r"b is resumed: it was paused since .+\n", resumed)
    assert cli.run("batches", "resume", batch, *of).stdout == "b is resumed: it was not paused\n"
    acts = [(act["who"], act["act"], act["what"].get("why")) for act in cli.json("audit", *of)]
    assert acts[0] == ("bob", "resume", None)
    assert acts[-1] == ("ann", "pause", "the disk is full")
    assert "--until has passed" in cli.run("batches", "pause", batch, *of, "--until", "2020-01-01T00:00").stderr


def test_job_is_shown_and_explained_with_the_id_and_the_home_of_its_batch(cli: Cli, queue: str, batch: str) -> None:
    for command in ("show", "explain"):
        assert f"batch\t{batch} of queue {queue}\n" in cli.run(command, "b.0", "--queue", queue).stdout


def test_nodes_of_a_graph_are_shown_and_explained(cli: Cli, server: EmbeddedRedis, queue: str) -> None:
    sender, store, of = SyncSender(server.url), Store(queue), ("--queue", queue)
    sender.send(store.batch_open("g", "t", retention=60.0))
    nodes = [
        (name, StoredNode(name, queue, {"task": "t", "args": [], "kwargs": {}, "retention": 1.0}, 1.0))
        for name in ("a", "b", "c", "d", "e")
    ]
    after = [(), (), (), (0, 1, 2), (3,)]
    rows = [PlanRow(encode(node), f"g.{name}", queue, at) for (name, node), at in zip(nodes, after, strict=True)]
    sender.send(store.batch_plan("g", 0, rows))
    explained = ("explain", "g.d", *of)
    assert "g.d: batch g is not closed" in cli.run(*explained).stdout
    sender.send(store.batch_close("g"))
    sender.send(store.batch_count([("g", 0, b"\x01")]))
    assert "g.d: waits for 2 of 3 jobs before it: b, c\n" in cli.run(*explained).stdout
    assert f"batch\tg of queue {queue}\n" in cli.run(*explained).stdout
    assert "g.b: it was released" in cli.run("explain", "g.b", *of).stdout
    shown = cli.run("batches", "show", "g", *of).stdout
    assert "done: node a\nopen: node b\n" in shown
    assert "waiting: node d waits for 2 of 3 jobs before it: b, c\n" in shown
    refused = cli.run("show", "g.d", *of)
    assert (refused.returncode, "g.d has no job yet: waits for 2 of 3" in refused.stderr) == (1, True)
    sender.send(store.batch_count([("g", 1, b"\x02")]))
    assert "stopped: node e: b is dead\n" in cli.run("batches", "show", "g", *of).stdout
    assert "g.e: it does not run: b is dead; it waits again when you revive" in cli.run("explain", "g.e", *of).stdout
    graph = cli.json("batches", "show", "g", *of)["graph"]
    assert [(node["name"], node["after"], node["outcome"]) for node in graph[2:4]] == [
        ("c", [], "open"),
        ("d", [0, 1, 2], "stopped"),
    ]
    sender.close()


def test_show_on_a_terminal_says_how_fast_a_batch_is(cli: Cli, queue: str, server: EmbeddedRedis) -> None:
    sender, store = SyncSender(server.url), Store(queue)
    sender.send(store.batch_open("fast", "t", retention=60.0))
    sender.send(store.batch_add("fast", "r", 300, queue))
    with ThreadPoolExecutor(1) as thread:
        shown = thread.submit(cli.terminal, 100, "batches", "show", "fast", "--queue", queue)
        until_blocked(sender, queue, shown)
        sender.send(store.batch_count([("fast", 0, b"\x01" * 200)]))
        text = shown.result(PATIENCE)
    assert re.search(r"\d+ a second; at this rate the rest takes", text)
    sender.close()


def until_blocked(sender: SyncSender, queue: str, command: Future[Any]) -> None:
    """Wait until a command waits for the end of a batch of a queue."""
    clients = Call(("CLIENT", "LIST"), raw, near=keys.root(queue))
    while b"cmd=blmove" not in sender.send(clients):
        assert not command.done()


def test_show_waits_for_the_end_of_a_batch_if_it_is_to_watch_it(
    cli: Cli, queue: str, batch: str, server: EmbeddedRedis
) -> None:
    sender, store = SyncSender(server.url), Store(queue)
    with ThreadPoolExecutor(1) as thread:
        watching = thread.submit(cli.run, "batches", "show", batch, "--queue", queue, "--watch", "--json")
        until_blocked(sender, queue, watching)
        sender.send(store.batch_count([("b", 0, b"\x01")]))
        ended = watching.result(PATIENCE)
    assert (ended.returncode, json.loads(ended.stdout)["state"]) == (1, "failed")
    sender.send(store.batch_count([("b", 2, b"\x09")]))
    done = cli.run("batches", "show", batch, "--queue", queue, "--watch")
    assert (done.returncode, "100 %, 3 of 3 jobs" in done.stdout) == (0, True)
    sender.close()


def test_priority_of_a_batch_is_one_entry_of_the_audit_trail(cli: Cli, queue: str, batch: str) -> None:
    of = ("--queue", queue)
    done = cli.run("batches", "priority", batch, "9", *of, "--as", "ann")
    assert done.stdout == "1 of 1 jobs that have not ended were given priority 9\n"
    assert cli.json("show", "b.0", *of)["priority"] == 9
    (act,) = cli.json("audit", *of)
    assert (act["who"], act["act"], act["what"]) == ("ann", "edit", {"batch": "b", "changed": ["priority"]})
    assert cli.run("batches", "priority", batch, "10", *of).returncode != 0


def test_batch_that_is_not_there_is_an_error(cli: Cli, queue: str, batch: str) -> None:
    for words in (("show", "x"), ("cancel", "x")):
        refused = cli.run("batches", *words, "--queue", queue)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "x is not a batch of queue" in refused.stderr
