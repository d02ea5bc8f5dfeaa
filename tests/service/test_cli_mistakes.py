"""Errors of commands: one clear line, and an exit code."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli
from tests.support.patience import PATIENCE

TASKS = """
from evsched import App

app = App()

@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found")
    (tmp_path / "empty.py").write_text("")
    return tmp_path


@pytest.fixture
def cli(server: EmbeddedRedis, folder: Path) -> Cli:
    return Cli(server.url, folder)


MISTAKES: list[tuple[int, str, tuple[str, ...]]] = [
    (2, "write redis://USER:PASSWORD@HOST:PORT/DB", ("queues", "--url", "localhost:6379")),
    (1, "start one, or name another with --url", ("dispatcher", "--require-redis", "--url", "redis://127.0.0.1:1/0")),
    (1, "Connection refused", ("queues", "--url", "redis://127.0.0.1:1/0")),
    (1, "connecting to 127.0.0.1:1", ("top", "--url", "redis://127.0.0.1:1/0")),
    (1, "('127.0.0.1', 1): start it, or name another", ("doctor", "--url", "redis://127.0.0.1:1/0")),
    (2, "a queue's name is", ("top", "--queue", "a b")),
    (1, "looked in this folder", ("worker", "nothing:app")),
    (1, "No module named 'nowhere_to_be_found'", ("worker", "broken:app")),
    (1, "make one with app = evsched.App()", ("worker", "empty:app")),
    (1, "it has app", ("worker", "tasks:application")),
    (2, "write MODULE:APP", ("worker", "tasks")),
    (2, "queues has no option --nonsense (see evsched queues --help)", ("queues", "--nonsense")),
    (2, "jobs has no option --quee, did you mean --queue? (see evsched jobs --help)", ("jobs", "--quee", "x")),
    (
        2,
        "--origin-concurrency: write evsched limit targets --group 'origin:*'",
        ("worker", "--origin-concurrency", "5"),
    ),
    (2, "jobs has no option --heartbeat (see evsched jobs --help)", ("jobs", "--heartbeat", "5")),
    (2, "--arg 'x': write NAME=JSON", ("jobs", "--arg=x")),
    (2, "dead revive has no option --from, did you mean --since?", ("dead", "revive", "--from", "14:00")),
    (2, "show has no option --job: write evsched show JOB, without", ("show", "--job", "clinic")),
    (2, "a queue is named by --queue clinic (see evsched jobs --help)", ("jobs", "clinic")),
    (2, "requires an argument. (see evsched enqueue --help)", ("enqueue", "--in")),
    (2, "nonsense", ("nonsense",)),
    (2, "from 1 to 999", ("worker", "tasks:app", "--concurrency", "0")),
    (2, "a queue's name is", ("dispatcher", "--queue", "a b")),
    (2, "only `evsched worker` takes a weight such as =3", ("jobs", "--queue", "mail=3")),
    (2, "give several one by one, each with its own --queue", ("jobs", "--queue", "mail,news")),
    (2, "give several one by one, each with its own --queue", ("worker", "tasks:app", "--queue", "mail,news")),
    (2, "give several one by one, each with its own --queue", ("dispatcher", "--queue", "mail,news")),
    (2, "only `evsched worker` takes a weight such as =3", ("enqueue", "add", "--queue", "mail=3")),
    (2, "only `evsched worker` takes a weight such as =3", ("pause", "mail=3")),
    (2, "a queue's name is", ("queues", "--queue", "a b")),
    (2, "a queue's name is", ("show", "job", "--queue", "a b")),
    (2, "MIN:MAX such as 2:8", ("worker", "tasks:app", "--processes", "0")),
    (2, "one of DEBUG, INFO", ("worker", "tasks:app", "--log-level", "foo")),
    (2, "one of DEBUG, INFO", ("worker", "tasks:app", "--processes", "2", "--log-level", "foo")),
    (2, "one of DEBUG, INFO", ("dispatcher", "--log-level", "foo")),
    (2, "one of DEBUG, INFO", ("dev", "tasks:app", "--log-level", "foo")),
    (2, "write a string as", ("enqueue", "add", "text")),
    (2, "--arg 'b': write NAME=JSON", ("enqueue", "add", "1", "--arg", "b")),
    (2, "--arg b is given twice", ("enqueue", "add", "1", "--arg", "b=1", "--arg", "b=2")),
    (2, "write a string as", ("enqueue", "add", "1", "--arg", "b=text")),
    (2, "more than 0", ("enqueue", "add", "1", "--timeout", "0")),
    (2, "window 'never: 1'", ("enqueue", "add", "1", "--window", "never: 1")),
    (2, "is not a time", ("enqueue", "add", "1", "--at", "soon")),
    (2, "is not a time", ("enqueue", "add", "1", "--at", "1_900_000_000")),
    (2, "write 17:00", ("enqueue", "add", "1", "--at", "17.00")),
    (2, "'2020-01-01' has passed: give a time to come, or now", ("reschedule", "x", "--at", "2020-01-01")),
    (2, "is not a duration", ("enqueue", "add", "1", "--in", "soon")),
    (2, "give one of them", ("enqueue", "add", "1", "--in", "1s", "--at", "1e9")),
    (2, "from 0 to 9", ("enqueue", "add", "1", "--priority", "10")),
    (2, "id is 'a b': give 1 to 200", ("enqueue", "add", "1", "--id", "a b")),
    (2, "'-5s' begins like a flag: if it is the value, write --in=-5s", ("enqueue", "add", "--in", "-5s")),
    (2, "'-5s' is not a duration", ("enqueue", "add", "--in=-5s")),
    (2, "there is no command 'dead revve', did you mean revive?", ("dead", "revve")),
    (2, "there is no command 'windows x', there are list, set, remove", ("windows", "x")),
    (2, "--url stands before the command: write evsched COMMAND --url", ("--url", "redis://h", "queues")),
    (2, "--url stands before the command: write evsched COMMAND --url", ("--url=redis://u:p@h", "queues")),
    (2, "jobs does not take 'a', 'b': leave it out", ("jobs", "a", "b")),
    (2, "dead list does not take 'a': leave it out", ("dead", "list", "a")),
    (1, "with --metrics-host", ("dispatcher", "--metrics-port", "0", "--metrics-host", "nope.invalid")),
    (2, "with --at or --in", ("reschedule", "x")),
    (2, "or --all", ("dead", "drop")),
    (2, "say which jobs: an id, or a filter", ("cancel",)),
    (2, "say which jobs: an id, or a filter", ("reschedule", "--in", "1s")),
    (2, "name jobs, or give a filter: one of them", ("cancel", "x", "--task", "t")),
    (2, "name jobs, or give a filter, or --all: one of them", ("dead", "drop", "--all", "--task", "t")),
    (2, "--reason is '': give a string", ("dead", "revive", "--reason", "")),
    (2, "'soon' is not a duration", ("cancel", "--older", "soon")),
    (2, "--dry-run needs a filter", ("dead", "drop", "a", "--dry-run")),
    (2, "--json needs --dry-run", ("cancel", "--task", "t", "--json")),
    (1, "it was cancelled while it waited", ("show", "nobody")),
    (1, "does not wait and does not run", ("cancel", "nobody")),
    (1, "is not on the schedule", ("run-now", "nobody")),
]


def mistake(row: tuple[int, str, tuple[str, ...]]) -> Any:
    """Mark mistakes of services, which start slowly, as extra, except one."""
    slow = row[2][0] in ("worker", "dispatcher", "dev") and row[2] != ("worker", "broken:app")
    return pytest.param(*row, id=" ".join(row[2]), marks=pytest.mark.extra if slow else ())


@pytest.mark.parametrize(("code", "words", "command"), [mistake(row) for row in MISTAKES])
def test_usage_error_gives_one_line_and_its_exit_code(
    cli: Cli, code: int, words: str, command: tuple[str, ...]
) -> None:
    done = cli.run(*command)
    line = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (code, 1, ""), done.stderr
    assert line.startswith("evsched: ")
    assert words in line


UNKNOWN = [
    *("jobs", "queues", "workers", "top --json", "cancel --task t", "reschedule --task t --in 1h", "dead"),
    *("cancel --task t --dry-run", "dead revive --all", "dead drop --all", "dead drop --task t", "recurrences next"),
    *("recurrences", "recurrences prune", "windows", "calendars"),
]


@pytest.mark.extra
@pytest.mark.parametrize("command", [*(f"{command} --queue" for command in UNKNOWN), "limit"])
def test_a_queue_that_does_not_exist_is_named_with_the_nearest(cli: Cli, queue: str, command: str) -> None:
    cli.run("enqueue", "add", "1", "--queue", queue)
    done = cli.run(*command.split(), f"{queue}x")
    assert done.returncode == 1
    assert done.stderr == f"evsched: queue {queue}x has no jobs, no workers and no recurrences: did you mean {queue}?\n"
    known = cli.run(*command.split(), queue)
    assert (known.returncode, known.stderr) == (0, "")


@pytest.mark.extra
@pytest.mark.parametrize(
    "command",
    [
        *("cancel", "reschedule --in 1h", "run-now", "show", "explain", "dead revive", "dead drop"),
        *(
            f"recurrences {verb}"
            for verb in ("next", "trigger", "pause", "resume", "remove", "backfill --from 2025-01-01")
        ),
    ],
)
def test_missing_item_in_a_missing_queue_is_reported_with_the_queue(cli: Cli, queue: str, command: str) -> None:
    cli.run("enqueue", "add", "1", "--id", "a", "--queue", queue)
    done = cli.run(*command.split(), "a", "--queue", f"{queue}x")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    no_queue = f"; queue {queue}x has no jobs, no workers and no recurrences: did you mean {queue}?\n"
    assert done.stderr.endswith(no_queue)
    known = cli.run(*command.split(), "b", "--queue", queue)
    assert known.returncode == 1
    assert "has no jobs" not in known.stderr


def test_windows_alone_make_a_queue(cli: Cli, queue: str, raw: Any) -> None:
    cli.run("windows", "set", "nights", "22:00-06:00 UTC", "--queue", queue)
    listed = cli.run("windows", "--queue", queue)
    assert (listed.returncode, listed.stderr) == (0, "")
    raw.hset(f"evsched:{{{queue}}}:windows", "never", "22:00-06:00 UTC; not 2000-01-01..2999-12-31")
    never, nights = cli.json("windows", "--queue", queue)
    assert (nights["name"], nights["window"]) == ("nights", "22:00-06:00 UTC")
    assert (nights["now"] == "closed") is (nights["opens"] is not None)
    assert (never["now"], never["opens"]) == ("does not open again", None)


def test_explaining_an_unknown_name_reports_its_queue(cli: Cli, queue: str) -> None:
    cli.run("enqueue", "add", "1", "--queue", queue)
    done = cli.run("explain", "nightly", "--queue", queue)
    assert done.returncode == 1
    assert done.stderr.startswith(f"evsched: no job nightly in queue {queue}, and no recurrence of this name: ")


def test_empty_command_without_a_queue_names_the_existing_queues(tmp_path: Path) -> None:
    with EmbeddedRedis() as own:
        cli = Cli(own.url, tmp_path)
        assert (cli.run("jobs").returncode, cli.run("jobs").stderr) == (0, "")
        cli.run("enqueue", "t", "--queue", "mail")
        done = cli.run("jobs")
        assert done.returncode == 0
        assert done.stderr.startswith("evsched: queue default has no jobs, no workers and no recurrences; ")
        assert done.stderr.endswith("; give --queue for another: there is mail\n")


def test_empty_known_queue_is_not_reported(cli: Cli, queue: str) -> None:
    cli.run("limit", queue, "--concurrency", "3", "--create")
    done = cli.run("jobs", "--queue", queue)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.extra
def test_a_variable_that_is_not_a_setting_causes_a_warning_and_no_error(cli: Cli) -> None:
    done = cli.process("queues", EVSCHED_CONCURENCY="3", EVSCHED_REDIS_SERVICE_HOST="10.0.0.1")
    assert done.returncode == 0
    assert done.stderr.count("evsched: warning: ") == 1
    assert "did you mean EVSCHED_CONCURRENCY?" in done.stderr
    assert "Kubernetes" in done.stderr


@pytest.mark.extra
async def test_a_redis_that_is_too_old_is_refused(cli: Cli) -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            text = b"redis_version:6.2.14\r\n"
            writer.write(b"$%d\r\n%s\r\n" % (len(text), text))
        writer.close()

    server = await asyncio.start_server(old, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    done = await asyncio.to_thread(cli.run, "dispatcher", "--url", f"redis://127.0.0.1:{port}/0")
    server.close()
    assert done.returncode == 1
    assert "redis 6.2.14" in done.stderr
    assert "needs redis 7.0 or newer" in done.stderr


@pytest.mark.extra
@pytest.mark.parametrize("error", ["RuntimeError", "CancelledError"])
def test_a_lifespan_that_fails_gives_one_line_on_stderr(cli: Cli, folder: Path, queue: str, error: str) -> None:
    (folder / "shared.py").write_text(
        "from asyncio import CancelledError\n"
        "from contextlib import asynccontextmanager\n"
        "from evsched import App\n\n"
        "@asynccontextmanager\n"
        "async def lifespan():\n"
        f"    raise {error}('no database')\n"
        "    yield\n\n"
        "app = App(lifespan=lifespan)\n"
    )
    done = cli.run("worker", "shared:app", "--queue", queue)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert f"lifespan did not begin: {error}: no database" in done.stderr


@pytest.mark.extra
@pytest.mark.parametrize("command", ["queues --json", "top --json", "doctor", "--help", "enqueue noop"])
@pytest.mark.parametrize(("to", "words"), [(">/dev/full", "No space left"), (">&-", "Bad file descriptor")])
def test_a_stdout_that_cannot_be_written_gives_one_line_on_stderr(cli: Cli, command: str, to: str, words: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {to}', "sh", *cli.command(*command.split())],
        env=cli.environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"evsched: stdout cannot be written: {words}" in done.stderr


@pytest.mark.parametrize("command", [("enqueue", "t"), ("recurrences", "add", "r", "t", "--rule", "@daily")])
def test_an_argument_that_is_nested_too_deeply_is_bad_usage(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli.run(*command, "--", "[" * 3000 + "]" * 3000)
    assert (done.returncode, done.stderr.count("\n"), "nested too deeply" in done.stderr) == (2, 1, True)


@pytest.mark.parametrize("command", [("dead",), ("jobs",)])
@pytest.mark.parametrize("limit", ["0", "99999999999999999999"])
def test_a_limit_out_of_range_is_bad_usage(cli: Cli, command: tuple[str, ...], limit: str) -> None:
    done = cli.run(*command, "--limit", limit)
    assert (done.returncode, done.stderr) == (2, f"evsched: --limit is {limit}: from 1 to 1000000\n")


def test_a_job_without_a_task_is_bad_usage(cli: Cli) -> None:
    done = cli.run("enqueue", "")
    assert (done.returncode, done.stderr) == (2, "evsched: a job needs the name of a task: it is empty\n")


def test_a_recurrence_that_would_never_recur_is_bad_usage(cli: Cli) -> None:
    done = cli.run("recurrences", "add", "r", "t", "--rule", "@daily", "--end", "2001-09-10")
    assert (done.returncode, "would never recur" in done.stderr) == (2, True)
    assert cli.json("recurrences") == []


@pytest.mark.one_server
def test_the_message_names_a_database_that_redis_does_not_have(cli: Cli) -> None:
    for command in ("queues", "doctor"):
        done = cli.run(command, "--url", f"{cli.environment['EVSCHED_URL']}?db=99")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "the URL names a database that Redis does not have" in done.stderr


@pytest.mark.parametrize("command", [("queues",), ("enqueue", "t", "--id", "a")])
def test_a_command_without_a_password_says_that_redis_asks_for_one(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Redis answers a command of many words with an error of the protocol."""
    with EmbeddedRedis(requirepass="secret") as server:
        done = Cli(server.url, tmp_path).run(*command)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "uthentication required" in done.stderr or "asks for a password" in done.stderr
    assert "multibulk" not in done.stderr


@pytest.mark.parametrize("words", [("enqueue", "good", '"\udcff"'), ("explain", "\udcff"), ("dead", "drop", "\udcff")])
def test_an_argument_that_is_not_utf_8_is_refused_with_code_2(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli.run(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("evsched: argument ")
    assert done.stderr.endswith(" is not UTF-8\n")
