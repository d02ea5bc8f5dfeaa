"""`evsched batches`, as an operator uses it."""

from __future__ import annotations

import pytest

from evsched.batches.node import StoredNode
from evsched.jobs.job import encode
from evsched.store.batch_calls import PlanRow
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.support.cli import Cli


@pytest.fixture
def batch(server: EmbeddedRedis, queue: str) -> str:
    """A batch with a job that waits, one that is done and one that is dead."""
    sender, store = SyncSender(server.url), Store(queue)
    sender.send(store.batch_open("b", "t", retention=60.0))
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
    assert shown == {**listed, "failures": [{"id": "b.2", "queue": queue, "outcome": "dead"}]}
    assert f"dead: b.2 of queue {queue}" in cli.run("batches", "show", batch, *of).stdout
    assert cli.run("batches", "cancel", batch, *of, "--as", "ann").stdout == "b is being cancelled\n"
    assert cli.json("batches", "show", batch, *of)["stop"] == "cancelled"
    (act,) = cli.json("audit", *of)
    assert (act["who"], act["act"], act["what"]) == ("ann", "cancel", {"batch": "b"})


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


def test_batch_that_is_not_there_is_an_error(cli: Cli, queue: str, batch: str) -> None:
    for words in (("show", "x"), ("cancel", "x")):
        refused = cli.run("batches", *words, "--queue", queue)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "x is not a batch of queue" in refused.stderr
