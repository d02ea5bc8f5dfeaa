"""`evsched batches`, as an operator uses it."""

from __future__ import annotations

import pytest

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


def test_batch_that_is_not_there_is_an_error(cli: Cli, queue: str, batch: str) -> None:
    for words in (("show", "x"), ("cancel", "x")):
        refused = cli.run("batches", *words, "--queue", queue)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "x is not a batch of queue" in refused.stderr
