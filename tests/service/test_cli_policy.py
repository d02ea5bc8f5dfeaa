"""Commands that set the limits and pauses of a queue, and commands that show one job in detail."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from evsched import keys
from evsched.client.option_values import id_of_arguments
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.support.cli import Cli
from tests.support.patience import PATIENCE
from tests.support.sent import Sent

TASKS = """
import os
from evsched import App, current_job

app = App()

@app.task
async def noop() -> None: ...

@app.task
def climb(begun: str, goes_on: str) -> int:
    current_job().progress(1, 4, "camp one")
    with open(begun, "w") as file:
        file.write("now")
    with open(goes_on) as file:
        file.read()
    current_job().progress(4, 4, "the top")
    return 8848
"""


@pytest.fixture
def cli(cli: Cli) -> Cli:
    (cli.folder / "tasks.py").write_text(TASKS)
    return cli


@pytest.fixture
def sender(server: EmbeddedRedis) -> Generator[SyncSender]:
    sender = SyncSender(server.url)
    yield sender
    sender.close()


@pytest.mark.one_server
def test_limits_of_many_queues_are_read_with_a_few_commands(
    cli: Cli, server: EmbeddedRedis, raw: Any, queue: str
) -> None:
    names = [f"{queue}-{n}" for n in range(60)]
    raw.sadd(keys.QUEUES, *names)
    for name in names:
        raw.hset(keys.root(name) + "limits", "concurrency", 7)
    with Sent(server.url) as sent:
        shown = cli.json("limits")
        lines = sent.commands()
    assert {row["queue"] for row in shown} >= {*names}
    assert not [line for line in lines if line.startswith("HGETALL") and queue in line]
    with Sent(server.url) as sent:
        counts = {row["queue"]: row["limits"] for row in cli.json("queues")}
        lines = sent.commands()
    assert {counts[name] for name in names} == {1}
    assert not [line for line in lines if line.startswith("HGETALL") and queue in line]


def test_limits_are_set_shown_and_lifted(cli: Cli, queue: str) -> None:
    cli.run("enqueue", "noop", "--in", "1h", "--queue", queue)
    assert cli.terminal(80, "limit", queue) == f"queue {queue} has no limits\n"
    assert cli.json("limit", queue, "--concurrency", "5", "--rate", "90/m", "--create") == {
        "paused": None,
        "paused_until": None,
        "paused_why": None,
        "reserved": {},
        "queue": {"concurrency": 5.0, "rate": 1.5},
        "groups": {},
        "batches": [],
        "declared": {},
    }
    shown = cli.json("limit", queue, "--group", "alice", "--rate", "10/s", "--burst", "3", "--weight", "2")
    assert shown["groups"] == {"alice": {"rate": 10.0, "burst": 3.0, "weight": 2.0}}
    table = cli.run("limit", queue, "--concurrency", "none").stdout
    assert "concurrency" not in table
    assert "alice" in table
    assert cli.json("limit", queue, "--group", "*", "--concurrency", "2")["groups"]["*"] == {"concurrency": 2.0}
    assert cli.json("limit", queue, "--task", "noop", "--rate", "5/s")["groups"]["task:noop"] == {"rate": 5.0}
    refusals = {("--group", "*", "--weight", "2"): "name one", ("--task", "a", "--group", "b"): "either"}
    for words, why in (refusals | {("--task", "a}b", "--rate", "1"): "without `}`"}).items():
        refused = cli.run("limit", queue, *words)
        assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr


def test_declared_limits_are_shown_beside_manual_changes(cli: Cli, queue: str, sender: SyncSender) -> None:
    store, of = Store(queue), ("--queue", queue)
    sender.send(store.declare_limits("shop", 1, {"concurrency": 2, "rate:alice": 5, "burst:alice": 2}))
    assert cli.run("limits", *of).returncode == 0
    assert cli.run("limit", queue, "--concurrency", "1").returncode == 0
    assert cli.run("limit", queue, "--group", "alice", "--burst", "none").returncode == 0
    columns, *rows = (line.split("\t") for line in cli.run("limits", *of).stdout.splitlines())
    assert columns == ["queue", "group", "limit", "value", "in the code"]
    assert rows == [
        [queue, "", "concurrency", "1", "2 in app shop, changed by hand"],
        [queue, "alice", "rate", "5/s", "5/s in app shop"],
        [queue, "alice", "burst", "none", "2 in app shop, changed by hand"],
    ]
    assert [line.split("\t", 1)[1] for line in cli.run("limits", *of).stdout.splitlines()] == cli.run(
        "limit", queue
    ).stdout.splitlines()
    shown = cli.json("limits", *of)
    assert shown[0] == {
        "queue": queue, "group": None, "limit": "concurrency", "value": 1.0, "declared": 2.0, "app": "shop"
    }  # fmt: skip
    (row,) = cli.json("queues", *of)
    assert (row["limits"], row["changed_by_hand"]) == (2, 2)
    assert cli.run("queues", *of).stdout.splitlines()[1].endswith("\t2, 2 changed by hand\t\t")
    for job in ("one", "two"):
        assert cli.run("enqueue", "noop", "--id", job, *of).returncode == 0
    sender.send(store.heartbeat("w", 99, fresh=True))
    sender.send(store.dispatch(limit=9, cap=999))
    sentence = "the gate is closed by the concurrency limit: 1 of 1 (changed by hand; app shop declares 2)"
    explained = cli.json("explain", "two", *of)
    assert explained["sentence"] == sentence
    assert explained["facts"]["limit concurrency"] == "1 (changed by hand; app shop declares 2)"


def test_a_paused_queue_starts_no_job_until_it_is_resumed(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    assert "is paused since" in cli.run("pause", queue, "--create").stdout
    assert [row["paused"] is not None for row in cli.json("queues") if row["queue"] == queue] == [True]
    cli.run("enqueue", "noop", "--id", "a", *of)
    assert cli.run("worker", "tasks:app", "--burst", *of).returncode == 0
    assert cli.json("show", "a", *of)["place"] == "backlog"
    assert cli.run("explain", "a", *of).stdout.startswith(f"a: queue {queue} has been paused for")
    assert "it was paused since" in cli.run("resume", queue).stdout
    assert "it was not paused" in cli.run("resume", queue).stdout
    assert cli.run("worker", "tasks:app", "--burst", *of).returncode == 0
    assert "completed" in cli.json("explain", "a", *of)["sentence"]


@pytest.mark.extra
def test_pause_with_an_end_and_a_reason_is_shown_by_all_commands(cli: Cli, queue: str) -> None:
    until, why = "2099-01-31T09:00Z", "the provider is down"
    cli.run("enqueue", "noop", "--id", "a", "--queue", queue)
    done = cli.run("pause", "--queue", queue, "--until", until, "--why", why)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{queue} is paused since" in done.stdout
    (row,) = cli.json("queues", queue)
    assert (row["paused_until"], row["paused_why"]) == (datetime.fromisoformat(until).timestamp(), why)
    assert cli.run("queues", queue).stdout.splitlines()[1].split("\t")[-1] == why
    rows = [line.split("\t") for line in cli.run("limits", "--queue", queue).stdout.splitlines()[1:]]
    assert [row[2:4] for row in rows][1:] == [["paused until", rows[1][3]], ["paused because", why]]
    assert datetime.fromisoformat(rows[1][3]) == datetime.fromisoformat(until)
    assert cli.run("worker", "tasks:app", "--burst", "--queue", queue).returncode == 0
    explained = cli.run("explain", "a").stdout
    assert " more (the provider is down): resume it with `evsched resume`" in explained
    assert cli.run("resume", "--queue", queue).returncode == 0
    assert cli.json("queues", queue)[0]["paused_why"] is None


def test_a_pause_ends_after_a_length_or_at_the_next_time_of_day(cli: Cli, queue: str, raw: Any) -> None:
    cli.run("enqueue", "noop", "--in", "1h", "--queue", queue)
    cli.run("recurrences", "add", "r", "noop", "--rule", "@daily", "--queue", queue)
    for pause, key, name in (
        (("pause", queue), "limits", "paused_until"),
        (("recurrences", "pause", "r", "--queue", queue), "recurrence:r", "paused_until"),
    ):
        began = raw.time()[0]
        for until, most in (("10m", 600), ("17:00", 25 * 3600)):
            done = cli.run(*pause, "--until", until)
            assert (done.returncode, done.stderr) == (0, "")
            ends = float(raw.hget(f"evsched:{{{queue}}}:{key}", name))
            assert began + (600 if until == "10m" else -1) <= ends <= raw.time()[0] + 1 + most


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pause", "{q}", "--until", "soon"), "10m for ten minutes from now"),
        (("pause",), "pause: name one queue: evsched pause mail"),
        (("limit", "a", "--queue", "b"), "limit: name one queue: evsched limit mail"),
        (("resume", "a b"), "a queue's name is"),
        (("pause", "{q}", "--until", "2001-01-01T00:00"), "--until has passed"),
        (("pause", "{q}", "--why", "x" * 501), "--why has 501 characters: at most 500"),
    ],
)
def test_a_pause_that_is_not_valid_is_refused(cli: Cli, queue: str, words: tuple[str, ...], message: str) -> None:
    cli.run("enqueue", "noop", "--in", "1h", "--queue", queue)
    done = cli.run(*(word.replace("{q}", queue) for word in words))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
    assert cli.json("queues", queue)[0]["paused"] is None


def test_an_unknown_queue_is_paused_or_limited_only_with_create(cli: Cli, queue: str, raw: Any) -> None:
    cli.run("enqueue", "noop", "--in", "1h", "--queue", queue)
    gate = raw.pubsub(ignore_subscribe_messages=True)
    gate.subscribe(keys.gate(f"{queue}x"))
    assert gate.get_message(timeout=PATIENCE) is None  # the confirmation
    for command in (("pause",), ("resume",), ("limit", "--concurrency", "5")):
        done = cli.run(*command, f"{queue}x")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"did you mean {queue}" in done.stderr
    assert cli.run("limit", f"{queue}x").returncode == 1
    assert not raw.exists(f"evsched:{{{queue}x}}:limits")
    # Nothing was published before this: a dispatcher that receives a message adds the queue to the set of all queues.
    raw.publish(keys.gate(f"{queue}x"), "the first")
    assert gate.get_message(timeout=PATIENCE)["data"] == b"the first"
    assert cli.run("limit", f"{queue}x", "--concurrency", "5", "--create").returncode == 0
    assert gate.get_message(timeout=PATIENCE) is not None
    gate.close()
    assert cli.run("limit", f"{queue}x", "--rate", "3/s").returncode == 0
    # It has limits and an audit trail now: so it is known, and no other name is suggested.
    assert cli.run("pause", f"{queue}x").returncode == 0


def test_a_queue_that_cannot_be_read_does_not_hide_the_others(cli: Cli, queue: str, raw: Any) -> None:
    cli.run("enqueue", "noop", "--in", "1h", "--queue", queue)
    bad = f"evsched:{{{queue}-bad}}:"
    raw.set(f"{bad}schedule", "x")
    raw.set(f"{bad}leases", "x")
    try:
        done = cli.run("queues", "--json")
        rows = {row["queue"]: row for row in json.loads(done.stdout)}
        assert done.returncode == 1
        assert (rows[queue]["schedule"], rows[queue]["error"]) == (1, None)
        assert "`evsched doctor` names it" in rows[f"{queue}-bad"]["error"]
        assert f"queue {queue}-bad cannot be read" in cli.run("queues").stderr
        done = cli.run("workers", "--json")
        assert (done.returncode, json.loads(done.stdout)) == (1, [])
        assert f"queue {queue}-bad cannot be read" in done.stderr
    finally:
        raw.delete(f"{bad}schedule", f"{bad}leases")


def test_a_list_that_limit_shortens_says_how_many_rows_there_are(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    raw.zadd(f"evsched:{{{queue}}}:dead", {f"job-{n}": n for n in range(7)})
    raw.zadd(f"evsched:{{{queue}}}:schedule", {f"later-{n}": 4e9 + n for n in range(3)})
    done = cli.run("dead", "--limit", "2", "--json", *of)
    assert [row["id"] for row in json.loads(done.stdout)] == ["job-6", "job-5"]
    assert "2 of 7 dead jobs, the newest first" in done.stderr
    assert cli.run("dead", *of).stderr == ""
    done = cli.run("jobs", "--limit", "2", *of)
    assert "2 of 3 jobs in schedule" in done.stderr
    assert "2 of 7 jobs in dead" in done.stderr


def test_explain_suggests_ids_like_a_missing_one(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    cli.run("enqueue", "noop", "--id", "welcome-42", "--in", "1h", *of)
    done = cli.run("explain", "welcom-42", *of)
    assert done.returncode == 1
    assert done.stderr.endswith("did you mean welcome-42?\n")
    assert cli.run("explain", "welcom-42", "--json", *of).stderr == done.stderr
    explained = cli.json("explain", "welcome-42", *of)
    raw.hset(f"evsched:{{{queue}}}:job:welcome-43", "payload", "{}")  # a record, and no job
    assert cli.run("explain", "welcome-43", *of).stderr.endswith("did you mean welcome-42?\n")
    assert explained["sentence"].startswith("due in ")
    assert explained["facts"]["task"] == "noop"


def test_on_conflict_keeps_or_replaces_a_waiting_job(cli: Cli, queue: str) -> None:
    of = ("--queue", queue, "--id", "a")
    cli.run("enqueue", "noop", "--in", "1h", *of)
    assert "has not ended yet" in cli.run("enqueue", "noop", *of).stderr
    kept = cli.json("enqueue", "noop", "--on-conflict", "keep", *of)
    replaced = cli.json("enqueue", "noop", "--in", "3h", "--on-conflict", "replace", *of)
    assert replaced["due"] - kept["due"] == pytest.approx(7200, abs=60)


def test_unique_job_is_recognized_from_every_way_to_enqueue(cli: Cli, queue: str) -> None:
    of = ("enqueue", "noop", "1", "--arg", 'b={"d":2,"c":[]}', "--queue", queue, "--in", "1h", "--unique")
    job = cli.run(*of, "--within", "5m").stdout.strip()
    assert job == id_of_arguments("noop", [1], {"b": {"c": [], "d": 2}})
    assert f"{job} has not ended yet" in cli.run(*of).stderr
    assert cli.run(*of, "--on-conflict", "keep").stdout.strip() == job
    cli.run("cancel", job, "--queue", queue)
    assert cli.json(*of, "--on-conflict", "replace")["id"] == job
    for wrong, words in (
        (("--id", "a"), "id and unique: give one of them"),
        (("--within", "0s"), "Unique: within is 0.0: give"),
        (("--within", "soon"), "is not a duration"),
    ):
        refused = cli.run(*of, *wrong)
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
    refused = cli.run("enqueue", "noop", "--within", "5m")
    assert (refused.returncode, "--within needs --unique" in refused.stderr) == (2, True)


@pytest.mark.extra
def test_a_job_is_followed_to_its_end(cli: Cli, queue: str, tmp_path: Path) -> None:
    """The command shows the progress that Redis publishes, and the end of the job. It polls nothing."""
    of, begun, goes_on = ("--queue", queue), tmp_path / "begun", tmp_path / "goes_on"
    for fifo in (begun, goes_on):
        subprocess.run(["mkfifo", fifo], check=True)
    cli.run("enqueue", "climb", f'"{begun}"', f'"{goes_on}"', "--id", "everest", *of)
    worker = subprocess.Popen(
        cli.command("worker", "tasks:app", "--burst", "--log-level", "ERROR", *of),
        env=cli.environment,
        cwd=cli.folder,
    )
    begun.read_text()
    follow = subprocess.Popen(
        cli.command("show", "everest", "--follow", "--json", *of),
        env={**cli.environment, "FORCE_COLOR": "1", "COLUMNS": "120"},
        cwd=cli.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert follow.stdout is not None
    printed = ""
    while "camp one" not in printed:
        printed += (char := follow.stdout.read(1))
        assert char, printed
    goes_on.write_text("now")
    printed += follow.stdout.read()
    follow.stdout.close()
    assert (follow.wait(PATIENCE), worker.wait(PATIENCE)) == (0, 0)
    assert '"result": 8848' in printed
    assert "25%" in printed


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("from 1 to 1,000,000", ("--concurrency", "0")),
        ("a whole number", ("--concurrency", "2.5")),
        ("write it as 200/s", ("--rate", "fast")),
        ("write it as 5, or none", ("--burst", "3/s")),
        ("weight is the share of a group", ("--weight", "2")),
        ("from 0.001 to 1,000", ("--weight", "5000", "--group", "a")),
        ("--history-age is 86,400,000 s: must be from 60 to 31,622,400 s", ("--history-age", "1000d")),
    ],
)
def test_a_limit_that_is_not_valid_is_refused(cli: Cli, words: str, command: tuple[str, ...]) -> None:
    done = cli.run("limit", "q", *command)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert words in done.stderr


@pytest.mark.parametrize(
    ("score", "sentence", "due"),
    [
        ("+inf", "waits for the previous occurrence to end", "never"),
        ("1e308", "due in more than 10,000 years", "in more than 10,000 years"),
    ],
)
def test_due_beyond_the_calendar_is_explained(
    cli: Cli, queue: str, raw: Any, score: str, sentence: str, due: str
) -> None:
    raw.hset(f"evsched:{{{queue}}}:job:far", "payload", '{"task":"add"}')
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"far": score})
    found = cli.json("explain", "far", "--queue", queue)
    assert sentence in found["sentence"]
    assert found["facts"]["due"] == due


def test_a_due_of_inf_is_shown_as_never(cli: Cli, queue: str, raw: Any) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"add"}': "+inf"})
    assert cli.run("jobs", "--queue", queue).stdout.splitlines()[1].split("\t")[2] == "never"


def test_help_of_limits_has_the_stars_of_groups(cli: Cli) -> None:
    text = " ".join(cli.run("limit", "--help").stdout.split())
    assert "'*': each" in text
    assert "'origin:*'" in text
