"""`evsched history`, `history counts` and the runs in `show`, for people and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evsched.jobs.job import Buried, Done, Retried
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.support.cli import Cli


@pytest.fixture
def cli(server: EmbeddedRedis, tmp_path: Path, queue: str) -> Cli:
    """Two jobs have ended: `good` at its first attempt, `bad` at its second."""
    store, sender = Store(queue), SyncSender(server.url)

    def start() -> Any:
        sender.send(store.dispatch(limit=9, cap=1000))
        (job,) = sender.send(store.start("w", (), hold=9, lease=15)).jobs
        return job

    sender.send(store.enqueue([New("good", b'{"task":"t"}', group="g")]))
    sender.send(store.complete("w", [(start(), Done(b"1", 300.0, False, label=b'["t","vip","night"]'))]))
    sender.send(store.enqueue([New("bad", b'{"task":"t"}')]))
    sender.send(store.retry("w", [(start(), Retried(0.0, "attempt 1 of 2: Timeout", error="lib.Timeout"))]))
    buried = Buried("attempt 2 of 2: Timeout", False, error="lib.Timeout", location="/t.py:1 in f")
    sender.send(store.bury("w", [(start(), buried)]))
    sender.close()
    return Cli(server.url, tmp_path)


def test_history_lists_ends_newest_first_and_by_conditions(cli: Cli, queue: str) -> None:
    done = cli.run("history", "--queue", queue)
    header, *rows = (line.split("\t") for line in done.stdout.splitlines())
    assert [row[header.index("id")] for row in rows] == ["bad", "good"]
    assert [row[header.index("error")] for row in rows] == ["lib.Timeout /t.py:1 in f", ""]
    for condition, ids in (
        (("--outcome", "dead"), ["bad"]),
        (("--error", "Timeout"), ["bad"]),
        (("--group", "g"), ["good"]),
        (("--id", "good", "--since", "1h"), ["good"]),
        (("--until", "1h"), []),
        (("--limit", "1"), ["bad"]),
        (("--queue", queue), ["bad", "good"]),
        (("--tag", "vip", "--tag", "night"), ["good"]),
        (("--tag", "vip", "--tag", "day"), []),
    ):
        found = cli.json("history", "--queue", queue, *condition)
        assert [job["id"] for job in found] == ids, condition


def test_queue_that_has_nothing_but_a_past_is_listed(server: EmbeddedRedis, tmp_path: Path, queue: str) -> None:
    cli = Cli(server.url, tmp_path)
    job, who = f"{queue}-job", f"{queue}-ann"
    cli.run("enqueue", "t", "--queue", queue, "--id", job, "--in", "1h")
    cli.run("cancel", job, "--queue", queue, "--as", who)
    for command in (
        ("history", "--id", job),
        ("history", "counts", "--task", "t"),
        ("audit", "--who", who),
    ):
        assert queue in [row["queue"] for row in cli.json(*command)], command
        done = cli.run(*command, "--queue", queue, "--queue", queue)
        assert (done.returncode, done.stderr, done.stdout.count(f"{queue}\t")) == (0, "", 1), command
    assert cli.run("history", "--queue", queue, "--id", "other").returncode == 0


def test_counts_are_by_task_and_outcome(cli: Cli, queue: str) -> None:
    (counts,) = cli.json("history", "counts", "--queue", queue)
    assert (counts["task"], counts["ended"], counts["done"], counts["dead"]) == ("t", 2, 1, 1)
    assert counts["late_p99"] > 0
    header, row = (line.split("\t") for line in cli.run("history", "counts", "--queue", queue).stdout.splitlines())
    assert row[header.index("ended")] == "2"


def test_show_has_each_run(cli: Cli, queue: str) -> None:
    text = cli.run("show", "bad", "--queue", queue).stdout
    assert "attempt 1 of 2: Timeout" in text
    runs = cli.json("show", "bad", "--queue", queue)["runs"]
    assert [(run[0], run[4]) for run in runs] == [(1, "failed"), (2, "dead")]


def test_show_says_how_many_attempts_it_leaves_out(cli: Cli, queue: str, raw: Any) -> None:
    run = '[{},"w",1,2,"failed","","",""]'
    raw.hset(f"evsched:{{{queue}}}:job:bad", "runs", "\n".join(run.format(attempt) for attempt in (1, 2, 9)))
    assert "the runs of 6 attempts in between are left out\n" in cli.run("show", "bad", "--queue", queue).stdout


def test_show_says_when_the_next_run_is_due(cli: Cli, queue: str, server: EmbeddedRedis) -> None:
    store, sender = Store(queue), SyncSender(server.url)
    sender.send(store.enqueue([New("a", b'{"task":"t"}')]))
    sender.send(store.dispatch(limit=9, cap=1000))
    sender.send(store.start("w", (), hold=9, lease=15))
    sender.send(store.replace([New("a", b'{"task":"t"}', due=4_000_000_000.0)]))
    sender.close()
    assert cli.json("show", "a", "--queue", queue)["again"] == 4_000_000_000.0
    assert "\nagain" in cli.run("show", "a", "--queue", queue).stdout
    assert "the next run waits for the end of this one" in cli.run("explain", "a", "--queue", queue).stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [(("--outcome", "failed"), "one of done, dead"), (("--since", "soon"), "soon"), (("--limit", "0"), "--limit is 0")],
)
def test_a_wrong_condition_is_named(cli: Cli, queue: str, flags: tuple[str, ...], words: str) -> None:
    done = cli.run("history", "--queue", queue, *flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_limit_of_the_history_is_set_and_listed(cli: Cli, queue: str) -> None:
    limits = cli.json("limit", queue, "--history", "5", "--history-age", "2h")
    assert limits["queue"] == {"history": 5.0, "history_age": 7200.0}
    text = cli.run("limit", queue, "--history", "1234567").stdout
    assert [line.split("\t")[1:3] for line in text.splitlines()[1:]] == [
        ["history", "1234567"],
        ["history_age", "2h 00m"],
    ]
    assert cli.run("limit", queue, "--history", "2", "--group", "g").returncode in (1, 2)
