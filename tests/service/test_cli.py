"""The commands: their effects and output. test_cli_mistakes.py covers their error messages."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli
from tests.support.patience import PATIENCE

TASKS = """
from evsched import App, current_job

app = App()

@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b

@app.task
async def fail() -> None:
    raise ValueError("no luck\\x1b[31m")
"""

POOLED = """
import time
from pathlib import Path
from evsched import App

app = App()

@app.task(on="process")
def wait() -> None:
    while not Path("go").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def cli(server: EmbeddedRedis, folder: Path) -> Cli:
    return Cli(server.url, folder)


@pytest.mark.extra
def test_a_job_is_scheduled_moved_run_and_shown_from_the_command_line(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    assert cli.run("enqueue", "add", "1", "--in", "1h", "--id", "one", *of).stdout == "one\n"
    assert cli.json("enqueue", "add", "2", "3", "--id", "two", *of)["id"] == "two"
    cli.run("enqueue", "fail", "--id", "bad", "--at", "2001-01-01T00:00:00+00:00", *of)
    assert [row["id"] for row in cli.json("jobs", "--place", "schedule", *of)] == ["bad", "two", "one"]
    assert cli.run("reschedule", "bad", "--in", "2h", *of).returncode == 0
    assert cli.json("show", "bad", *of)["place"] == "schedule"
    assert cli.run("run-now", "one", *of).returncode == 0
    assert "it was in schedule" in cli.run("cancel", "bad", *of).stdout
    done = cli.run("worker", "tasks:app", "--burst", *of)
    assert done.returncode == 0, done.stderr
    shown = cli.json("show", "two", *of)
    assert (shown["place"], shown["result"], shown["attempt"]) == ("finished", 5, 1)
    assert cli.json("show", "one", *of)["result"] == 1
    assert "finished" in cli.run("show", "one", *of).stdout


@pytest.mark.extra
def test_explain_says_that_a_job_waits_for_a_process(cli: Cli, folder: Path, queue: str) -> None:
    of = ("--queue", queue)
    (folder / "pooled.py").write_text(POOLED)
    with (
        cli.running("dispatcher", *of, until="keyspace events arrive"),
        cli.running("worker", "pooled:app", *of, "--process-pool", "1", until="slots"),
    ):
        for job in ("a", "b", "c"):
            cli.run("enqueue", "wait", "--id", job, *of)
        end = time.monotonic() + PATIENCE
        while "process of a worker's pool" not in (sentence := cli.run("explain", "c", *of).stdout):
            assert time.monotonic() < end, sentence
        assert sentence.startswith("c: ready, behind ")
        (folder / "go").touch()


@pytest.mark.extra
def test_enqueue_takes_keyword_arguments_a_window_and_a_timeout(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    options = ("--window", "00:00-24:00 UTC", "--timeout", "2m")
    cli.run("enqueue", "add", "--arg", "b=3", "--arg", "a=2", "--id", "named", *options, *of)
    assert cli.json("show", "named", *of)["payload"] == {
        "task": "add",
        "kwargs": {"b": 3, "a": 2},
        "timeout": 120.0,
        "window": "00:00-24:00 UTC",
    }
    cli.run("enqueue", "add", "4", "--arg=b=5", "--id", "both", *of)
    assert cli.run("worker", "tasks:app", "--burst", *of).returncode == 0
    assert [cli.json("show", job, *of)["result"] for job in ("named", "both")] == [5, 9]


def test_tags_are_shown_and_filter_the_lists(cli: Cli, queue: str, raw: Any) -> None:
    of = ("--queue", queue)
    cli.run("enqueue", "add", "1", "--id", "a", "--tag", "patient:42", "--tag", "vip", "--in", "1h", *of)
    cli.run("enqueue", "add", "1", "--id", "b", "--in", "1h", *of)
    assert "tags\tpatient:42 vip\n" in cli.run("show", "a", *of).stdout
    assert "tags" not in cli.run("show", "b", *of).stdout
    assert cli.json("explain", "a", *of)["facts"]["tags"] == "patient:42 vip"
    (row,) = cli.json("jobs", "--tag", "vip", "--tag", "patient:42", *of)
    assert (row["id"], row["tags"]) == ("a", ["patient:42", "vip"])
    for job in ("a", "b"):
        raw.zrem(f"evsched:{{{queue}}}:schedule", job)
        raw.zadd(f"evsched:{{{queue}}}:dead", {job: 1.0})
    assert [(dead["id"], dead["tags"]) for dead in cli.json("dead", "--tag", "vip", *of)] == [("a", row["tags"])]
    assert cli.json("dead", "--tag", "nobody", *of) == []
    assert cli.run("dead", "drop", "--tag", "vip", *of).stdout == "1 dropped\n"
    wrong = cli.run("enqueue", "add", "1", "--tag", "a b", *of)
    assert (wrong.returncode, "tags is ['a b']: give a tuple of at most 5 tags" in wrong.stderr) == (2, True)


def test_jobs_are_found_by_their_arguments_wherever_they_are(cli: Cli, queue: str, raw: Any) -> None:
    root, of = f"evsched:{{{queue}}}:", ("--queue", queue)
    cli.run("enqueue", "add", "1", "--id", "past", *of)
    assert cli.run("worker", "tasks:app", "--burst", *of).returncode == 0  # it also describes its tasks
    cli.run("enqueue", "add", "1", "--arg", "b=3", "--id", "waits", "--in", "1h", *of)
    cli.run("enqueue", "add", "2", "--arg", "b=3", "--id", "other", "--in", "1h", *of)
    raw.hset(f"{root}job:runs", mapping={"payload": '{"task":"add","args":[1]}', "worker": "w", "attempt": 1})
    raw.rpush(f"{root}processing:w", "runs")
    raw.zadd(f"{root}leases", {"w": 4e9})
    for argument in ("a=1", "1=1"):
        found = cli.json("jobs", "--arg", argument, *of)
        assert [(job["place"], job["id"]) for job in found] == [("schedule", "waits"), ("processing", "runs")]
        assert [job["id"] for job in cli.json("jobs", "--arg", argument, "--place", "finished", *of)] == ["past"]
    assert [job["id"] for job in cli.json("jobs", "--arg", "a=1", "--arg", "b=3", *of)] == ["waits"]
    assert cli.json("jobs", "--arg", "b=three", *of) == []
    assert [job["id"] for job in cli.json("jobs", "--place", "processing", *of)] == ["runs"]
    assert cli.run("cancel", "--arg", "a=1", *of).stdout == "1 cancelled\n"
    for wrong, words in (("b", "write NAME=JSON"), ("b=9007199254740993", "--arg b is 9007199254740993: give numbers")):
        refused = cli.run("jobs", "--arg", wrong, *of)
        assert (refused.returncode, words in refused.stderr) == (2, True)


def test_redacted_arguments_are_not_shown(cli: Cli, queue: str, raw: Any) -> None:
    root, of = f"evsched:{{{queue}}}:", ("--queue", queue)
    cli.run("enqueue", "add", '"4111"', "--arg", 'b="4111"', "--redact", "1", "--redact", "b", "--id", "dead", *of)
    assert cli.run("worker", "tasks:app", "--burst", *of).returncode == 0
    raw.zadd(f"{root}schedule", {'{"task":"add","args":["4111"],"redact":["1"]}': 4e9})
    commands = [("show", "dead"), ("explain", "dead"), ("dead",), ("jobs",), ("jobs", "--task", "add")]
    commands += [("cancel", "--task", "add", "--dry-run")]
    shown = [cli.run(*command, *of, *json).stdout for command in commands for json in ((), ("--json",))]
    assert all(shown)
    assert [text for text in shown if "4111" in text] == []
    assert cli.json("show", "dead", *of)["payload"]["args"] == ["[redacted]"]
    assert cli.json("jobs", "--arg", 'b="4111"', *of) == cli.json("jobs", "--arg", 'a="4111"', *of) == []


def test_argument_redacted_by_name_is_hidden_though_it_is_passed_by_position(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    assert cli.run("enqueue", "add", "0", '"4111"', "--redact", "b", "--id", "a", "--in", "1h", *of).returncode == 0
    assert cli.json("show", "a", *of)["payload"]["args"] == ["[redacted]", "[redacted]"]
    assert cli.json("jobs", "--arg", '2="4111"', *of) == []
    refused = cli.run("enqueue", "add", "--arg", 'b="4111"', "--redact", "B", *of)
    assert refused.returncode != 0
    assert "task add: redact names 'B', and the job has no such argument: its arguments are 'b'" in refused.stderr


def test_cancel_reports_its_effect_on_the_current_and_next_run(cli: Cli, queue: str, raw: Any) -> None:
    root, of = f"evsched:{{{queue}}}:", ("--queue", queue)
    raw.hset(f"{root}job:a", mapping={"payload": '{"task":"add","args":[1]}', "due": 1, "worker": "w", "attempt": 1})
    raw.rpush(f"{root}processing:w", "a")
    raw.zadd(f"{root}leases", {"w": 4e9})
    assert cli.run("enqueue", "add", "2", "--id", "a", "--on-conflict", "replace", "--in", "1h", *of).returncode == 0
    said = "a is running: its worker was asked to stop it"
    assert cli.run("cancel", "a", *of).stdout == f"{said}; its next run is cancelled\n"
    assert not raw.exists(f"{root}schedule")
    assert cli.run("cancel", "a", *of).stdout == f"{said}\n"


def test_enqueue_says_that_no_worker_serves_the_queue(cli: Cli, queue: str, raw: Any) -> None:
    raw.zadd(f"evsched:{{{queue}}}:leases", {"w": 4e9})
    assert cli.run("enqueue", "add", "1", "--queue", queue).stderr == ""
    done = cli.run("enqueue", "add", "1", "--id", "one", "--queue", f"{queue}x")
    assert (done.returncode, done.stdout) == (0, "one\n")
    assert done.stderr == (
        f"evsched: no worker serves queue {queue}x now, so the job waits until one does: did you mean {queue}?\n"
    )


def test_enqueue_of_a_request_names_the_queue_of_its_workers(cli: Cli) -> None:
    hint = "evsched.http: its workers serve queue targets unless they name another: give --queue targets"
    words = ("enqueue", "evsched.http", '"http://example.com"', "--in", "1h")
    assert hint in cli.run(*words).stderr
    assert hint not in cli.run(*words, "--queue", "targets").stderr


def test_enqueue_says_that_a_queue_has_no_window_of_a_name(cli: Cli, queue: str, raw: Any) -> None:
    raw.zadd(f"evsched:{{{queue}}}:leases", {"w": 4e9})
    done = cli.run("enqueue", "add", "1", "--window", "09-17", "--queue", queue)
    assert (done.returncode, done.stdout.count("\n"), done.stderr.count("\n")) == (0, 1, 1)
    assert f"queue {queue} has no window '09-17' now" in done.stderr
    assert "mon-fri 09:00-17:00 Europe/Berlin" in done.stderr
    raw.hset(f"evsched:{{{queue}}}:windows", "09-17", "09:00-17:00 UTC")
    for window in ("09-17", "09:00-17:00 UTC"):
        assert cli.run("enqueue", "add", "1", "--window", window, "--queue", queue).stderr == ""


def test_enqueue_says_nothing_if_a_parent_stands_by(cli: Cli, queue: str, raw: Any) -> None:
    raw.zadd(f"evsched:{{{queue}}}:parents", {"p": 4e9})
    assert cli.run("enqueue", "add", "1", "--queue", queue).stderr == ""
    raw.zadd(f"evsched:{{{queue}}}:parents", {"p": 1})  # its registration has ended
    assert "no worker serves" in cli.run("enqueue", "add", "1", "--queue", queue).stderr


@pytest.mark.extra
def test_dead_jobs_are_listed_revived_and_dropped(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    for job in ("a", "b", "c"):
        cli.run("enqueue", "nothing", "--id", job, *of)
    assert cli.run("worker", "tasks:app", "--burst", "--unknown-task-grace", "0", *of).returncode == 0
    rows = cli.json("dead", *of)
    assert sorted(row["id"] for row in rows) == ["a", "b", "c"]
    assert "unknown task 'nothing'" in rows[0]["reason"]
    assert cli.run("dead", "drop", "a", *of).stdout == "1 dropped\n"
    assert cli.run("dead", "revive", "b", *of).stdout == "1 revived\n"
    assert cli.run("dead", "revive", "--all", *of).stdout == "1 revived\n"
    assert cli.run("dead", "drop", "--all", *of).stdout == "0 dropped\n"
    missing = cli.run("dead", "revive", "a", *of)
    assert (missing.returncode, missing.stderr) == (1, "evsched: a is not dead\n")


@pytest.mark.extra
def test_job_of_an_unknown_task_is_explained(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    cli.run("enqueue", "ad", "--id", "a", *of)
    assert cli.run("worker", "tasks:app", "--burst", *of).returncode == 0
    shown = dict(line.split(maxsplit=1) for line in cli.run("show", "a", *of).stdout.splitlines())
    assert shown["place"] in {"schedule", "ready"}, "ready if it was due again just as the burst ended"
    assert re.match(r"\d{4}-\d\d-\d\d", shown["unknown_since"]), "a date, not a number"
    sentence = cli.run("explain", "a", *of).stdout
    # It may be due already: no dispatcher runs.
    assert "unknown task 'ad': did you mean 'add'?" in sentence
    found = cli.run("doctor", *of)
    assert (found.returncode, "unknown-task: 1 job waits for a worker" in found.stdout) == (1, True)


@pytest.mark.extra
@pytest.mark.parametrize(("flags", "environment"), [(("--log-jobs",), {}), ((), {"EVSCHED_LOG_JOBS": "1"}), ((), {})])
def test_the_start_and_end_of_each_job_are_logged_when_asked_for(
    cli: Cli, queue: str, flags: tuple[str, ...], environment: dict[str, str]
) -> None:
    of = ("--queue", queue)
    cli.run("enqueue", "add", "1", "--id", "one", *of)
    done = cli.run("worker", "tasks:app", "--burst", *flags, *of, **environment)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    of_job = [(line["event"], line["task"], line["attempt"]) for line in lines if line.get("id") == "one"]
    asked = bool(flags or environment)
    assert of_job == ([("Started", "add", 1), ("Completed", "add", 1)] if asked else [])


@pytest.mark.extra
def test_failure_is_shown_and_logged_with_its_traceback_for_all_handlers(cli: Cli, folder: Path, queue: str) -> None:
    of = ("--queue", queue)
    (folder / "failing.py").write_text(
        "import json\n"
        "from evsched import App, Retry\n\n"
        "app = App()\n"
        "once = Retry(attempts=1)\n\n"
        "def read() -> None:\n"
        "    json.loads('{')\n\n"
        "@app.task(retry=once)\n"
        "async def loop() -> None:\n"
        "    read()\n\n"
        "@app.task(retry=once)\n"
        "def thread() -> None:\n"
        "    read()\n\n"
        "@app.task(retry=once, on='process')\n"
        "def process() -> None:\n"
        "    read()\n"
    )
    places = ("loop", "thread", "process")
    for task in places:
        cli.run("enqueue", task, "--id", task, *of)
    done = cli.run("worker", "failing:app", "--burst", *of)
    logged = {
        line["id"]: line for line in map(json.loads, done.stderr.splitlines()) if line.get("event") == "JobBuried"
    }
    for task in places:
        status = cli.json("show", task, *of)
        assert f"({folder}/failing.py:8 in read)" in status["reason"]
        assert "json/decoder.py" in status["traceback"]
        assert status["traceback"].splitlines()[1].endswith(f", in {task}")
        assert logged[task]["traceback"] == status["traceback"]
        assert "\n    json.loads('{')\n" in cli.run("show", task, *of).stdout


@pytest.mark.extra
def test_show_prints_results_that_are_false_or_empty(cli: Cli, folder: Path, queue: str) -> None:
    of = ("--queue", queue)
    (folder / "echo.py").write_text(
        "from typing import Any\n"
        "from evsched import App\n\n"
        "app = App()\n\n"
        "@app.task\n"
        "async def echo(value: Any) -> Any:\n"
        "    return value\n"
    )
    values = {"zero": "0", "null": "null", "false": "false", "empty": '""', "text": '"x"'}
    for job, value in values.items():
        cli.run("enqueue", "echo", value, "--id", job, *of)
    assert cli.run("worker", "echo:app", "--burst", *of).returncode == 0
    for job, value in values.items():
        shown = cli.run("show", job, *of).stdout
        assert f"\nresult\t{value}\n" in shown


def test_a_worker_is_listed_while_it_runs_and_not_after_it_has_stopped(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    with (
        cli.running("dispatcher", *of, until="keyspace events arrive"),
        cli.running("worker", "tasks:app", *of, "--concurrency", "5", until="5 slots"),
    ):
        (worker,) = cli.json("workers", *of)
        assert (worker["queue"], worker["held"]) == (queue, 0)
        (row,) = cli.json("queues", *of)
        assert (row["workers"], row["next_due"]) == (1, None)
    assert cli.json("workers", *of) == []


@pytest.mark.extra
def test_dev_starts_a_private_redis_and_runs_jobs(folder: Path) -> None:
    cli = Cli("", folder)
    del cli.environment["EVSCHED_URL"]
    with cli.running("dev", "tasks:app", until="keyspace events arrive"):
        pass


def test_the_demo_runs_all_its_jobs_and_prints_how_late_they_started(folder: Path) -> None:
    cli = Cli("", folder)
    del cli.environment["EVSCHED_URL"]
    done = cli.run("demo", "--jobs", "30", "--seconds", "1", "--idle", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 of 30" in done.stdout


@pytest.mark.extra
@pytest.mark.parametrize("url", ["redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/mymaster"])
def test_the_demo_needs_one_server(cli: Cli, url: str) -> None:
    done = cli.process("demo", "--url", url)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the demo needs one server, redis://HOST:PORT" in done.stderr


@pytest.mark.extra
def test_every_kind_of_command_has_help_with_an_example(cli: Cli) -> None:
    assert "run-now" in cli.run("--help").stdout
    for command in (
        "dev",
        "enqueue",
        "show",
        "limit",
        "recurrences add",
        "windows set",
        "recurrences next",
        "doctor",
        "top",
    ):
        assert "Example: evsched " in cli.run(*command.split(), "--help").stdout, command


@pytest.mark.parametrize("command", ["", "queues", "recurrences add", "dead list", "windows set"])
def test_every_command_prints_the_version(cli: Cli, command: str) -> None:
    assert cli.run(*command.split(), "--version").stdout == "0.1.0\n"


def test_json_output_escapes_control_characters(cli: Cli) -> None:
    words = "\x9b31m\u202e\u2028"
    job = cli.run("enqueue", "t", json.dumps(words), "--in", "1h").stdout.strip()
    done = cli.run("show", job, "--json")
    assert done.stdout.replace("\n", "").isprintable()
    assert json.loads(done.stdout)["payload"]["args"] == [words]


@pytest.mark.extra
def test_the_flags_of_services_are_read_where_pydantic_was_imported_first(cli: Cli) -> None:
    pytest.importorskip("pydantic")
    cli.run_first("import pydantic")  # cyclopts then checks values, and defaults, with it
    done = cli.run("dispatcher", "--url", "redis://127.0.0.1:1", "--require-redis")
    assert (done.returncode, "no Redis at" in done.stderr) == (1, True), done.stderr
