"""`evsched worker evsched.targets:app` forwards messages: its flags, and its processes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.patience import PATIENCE

APP = "evsched.targets:app"


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    cli.environment |= {"EVSCHED_QUEUES": queue, "EVSCHED_SHUTDOWN_GRACE": "1"}
    return cli


@pytest.fixture
def news(queue: str) -> str:
    return f"{queue}:news"


def schedule(raw: Any, queue: str, **kwargs: Any) -> str:
    """Schedule a message; return the key of its record."""
    record = f"evsched:{{{queue}}}:job:one"
    raw.hset(record, "payload", json.dumps({"task": "evsched.forward", "kwargs": kwargs, "reply": True}))
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"one": 0})
    return record


@pytest.mark.extra
@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("orders", "EVSCHED_FORWARD_DESTINATIONS has 'orders', which is not a destination: write stream:NAME"),
        ("list:evsched:x", "EVSCHED_FORWARD_DESTINATIONS has 'list:evsched:x'"),
        ("list@other:x", "names the server other: set EVSCHED_FORWARD_URL_OTHER"),
    ],
)
def test_a_destination_that_is_not_valid_is_named(cli: Cli, to: str, words: str) -> None:
    done = cli.run("worker", APP, "--forward-destination", to)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert words in done.stderr


@pytest.mark.extra
def test_forwarding_without_its_library_names_the_package_to_install(cli: Cli) -> None:
    cli.run_first("import sys; sys.modules['aiormq'] = None")
    rabbit = {"EVSCHED_FORWARD_URL_RABBIT": "amqp://localhost/"}
    done = cli.run("worker", APP, "--forward-destination", "queue@rabbit:orders", **rabbit)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'evsched[amqp]'" in done.stderr


@pytest.mark.extra
@pytest.mark.one_server
def test_forwarding_to_a_stream_needs_no_libraries_of_other_targets(cli: Cli, raw: Any, queue: str, news: str) -> None:
    missing = ["aiormq", "aiohttp", "aiodns", "standardwebhooks"]
    cli.run_first(f"import sys; sys.modules.update(dict.fromkeys({missing}))")
    record = schedule(raw, queue, to=f"stream:{news}", message={"n": 1})
    done = cli.run("worker", APP, "--burst", "--forward-destination", f"stream:{queue}:*")
    assert done.returncode == 0, done.stderr
    assert raw.hget(record, "outcome") == b"done"
    assert [fields for _, fields in raw.xrange(news)] == [{b"id": b"one", b"message": b'{"n":1}'}]


@pytest.mark.extra
@pytest.mark.one_server
def test_isolated_process_can_forward_a_message(cli: Cli, raw: Any, queue: str, news: str) -> None:
    record = schedule(raw, queue, to=f"list:{news}", message=1, bare=True)
    raw.hset(f"evsched:{{{queue}}}:suspects", "one", "2 0")  # two workers have died that held it
    done = cli.run("worker", APP, "--burst", "--forward-destination", f"list:{queue}:*")
    assert done.returncode == 0, done.stderr
    assert raw.hget(record, "outcome") == b"done"
    assert raw.lrange(news, 0, -1) == [b"1"]


@pytest.mark.extra
@pytest.mark.one_server
@pytest.mark.parametrize("words", [("worker", APP, "--processes", "1"), ("dev", APP)], ids=" ".join)
async def test_each_process_has_the_flags(cli: Cli, raw: Any, queue: str, news: str, words: tuple[str, ...]) -> None:
    with (
        cli.running("dispatcher", until="DispatcherStarted"),
        cli.running(*words, "--forward-destination", f"list:{queue}:*", until="WorkerStarted"),
    ):
        schedule(raw, queue, to=f"list:{news}", message=1)
        reply = await asyncio.to_thread(raw.blpop, [f"evsched:{{{queue}}}:reply:one"], PATIENCE)
        assert json.loads(reply[1])["outcome"] == "done"
        assert json.loads(raw.lpop(news)) == {"id": "one", "message": 1}
