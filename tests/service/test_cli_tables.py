"""Every command that prints a table, on a terminal of 80 and of 60 columns, and into a pipe."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli

REASON = "ValueError: the mail server at mail.example.org has not answered since 2026-01-02 03:04:05"

TASKS = f"""
from evsched import App, Retry

app = App()

@app.task(retry=Retry(attempts=1))
async def send_a_mail() -> None:
    raise ValueError({REASON.removeprefix("ValueError: ")!r})
"""

COMMANDS = {
    "jobs": ("place", "job", "due / died", "task", "created", "by", "tags"),
    "dead": ("job", "died", "task", "reason"),
    "queues": (
        "queue",
        "schedule",
        "backlog",
        "ready",
        "processing",
        "dead",
        "workers",
        "next due",
        "paused since",
        "limits",
        "paused until",
        "why",
    ),
    "workers": ("worker", "queue", "release", "holds", "lease left", "state"),
    "recurrences": (
        "name",
        "rule",
        "zone",
        "next",
        "runs",
        "failed",
        "missed",
        "last",
        "finished",
        "late",
        "skip",
        "state",
    ),
    "recurrences next nightly-report-of-all-customers": ("in Europe/Berlin", "here", "due"),
    "recurrences next": ("name", "in UTC", "here", "due"),
    "recurrences next --by hour": ("hour", "runs", "DST", "of"),
    "windows": ("name", "now", "opens", "window"),
    "limit QUEUE": ("group", "limit", "value", "in the code"),
    "limits": ("queue", "group", "limit", "value", "in the code"),
    "show dead-1": ("field", "value"),
    "explain dead-1": ("field", "value"),
}


QUEUE = "tables"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cli]:
    """Yield the commands while a worker runs and each table has rows."""
    folder, of = tmp_path_factory.mktemp("tables"), ("--queue", QUEUE)
    (folder / "tasks.py").write_text(TASKS)
    with EmbeddedRedis() as server:
        cli = Cli(server.url, folder)
        _fill(cli, *of)
        with cli.running("worker", "tasks:app", *of, until="slots"):
            yield cli


def _fill(cli: Cli, *of: str) -> None:
    def run(*words: str) -> None:
        done = cli.run(*words, *of)
        assert done.returncode == 0, done.stderr

    run("enqueue", "send_a_mail", "--id", "dead-1")
    run("worker", "tasks:app", "--burst")
    run("enqueue", "send_a_mail", "--id", "a-job-with-a-long-name-of-fifty-characters-0123456", "--in", "1h")
    rule = ("--rule", "*/5 0-23 * * mon-fri,sat,sun", "--zone", "Europe/Berlin")
    run("recurrences", "add", "nightly-report-of-all-customers", "send_a_mail", *rule)
    run("windows", "set", "nights", "mon-fri 22:00-06:00 Europe/Berlin; not 2026-12-24..2026-12-26")
    assert cli.run("limit", QUEUE, "--concurrency", "5", "--rate", "200/s").returncode == 0


def _words(command: str) -> list[str]:
    words = command.replace("QUEUE", QUEUE).split()
    return words if "QUEUE" in command else [*words, "--queue", QUEUE]


@pytest.mark.extra
@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("command", COMMANDS)
def test_table_omits_columns_that_do_not_fit_and_breaks_no_word(cli: Cli, command: str, columns: int) -> None:
    piped, printed = cli.run(*_words(command)).stdout, cli.terminal(columns, *_words(command))
    shown = re.sub(r"\x1b\[[01]m", "", printed)
    assert "\x1b" not in shown, "the only escape sequences are those of bold text"
    assert "\t" not in shown
    shown = shown.partition("\nTraceback")[0]
    left_out = re.findall(rf"\({columns} columns are too few for: (.*);\s--json\sshows\sall\)", shown, re.DOTALL)
    shown = shown.partition("\n(")[0]
    for line in shown.splitlines():
        # Only a single word may be wider than the terminal.
        assert len(line) <= columns or len(line.strip().rpartition("  ")[2].split()) == 1, line
        assert not re.search(r"\d{4}-\d\d-\d\d$", line.replace("2026-12-24..2026-12-26", "")), "a time is on one line"
    known = {QUEUE, *piped.split(), *(word for names in COMMANDS.values() for word in " ".join(names).split())}
    for word in shown.split():
        # Times and lengths of time may have changed between the two commands.
        assert word in known or re.fullmatch(r"[\d:.+-]+(ms|s|m|h|d)?", word), f"{word} is a part of a word"
    header = next((f" {line} " for line in shown.splitlines() if line.startswith(COMMANDS[command][0])), "")
    lacking = [name for name in COMMANDS[command] if f" {name} " not in header]
    if "value" not in COMMANDS[command]:
        assert [" ".join(names.split()) for names in left_out] == ([", ".join(lacking)] if lacking else [])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_in_a_pipe_has_a_header_and_one_line_for_each_row(cli: Cli, command: str) -> None:
    lines = cli.run(*_words(command), COLUMNS="20").stdout.splitlines()
    header = "\t".join(COMMANDS[command])
    rows = lines[lines.index(header) :]
    if command.startswith("show"):
        rows = rows[: rows.index("")]  # the traceback follows
        assert f": {REASON} (" in "\n".join(rows)
    assert len(rows) > 1
    assert {row.count("\t") for row in rows} == {len(COMMANDS[command]) - 1}
    assert all(row.replace("\t", "").isprintable() for row in rows)


def test_queues_shows_next_due_and_paused_since_in_80_columns(cli: Cli) -> None:
    def header() -> str:
        return re.sub(r"\x1b\[[01]m", "", cli.terminal(80, "queues")).splitlines()[0]

    assert "next due" in header()
    assert cli.run("pause", "other", "--create").returncode == 0
    assert {"next due", "paused since"} <= set(re.split(r"  +", header()))
    assert cli.run("resume", "other").returncode == 0


@pytest.mark.extra
@pytest.mark.parametrize("command", [("jobs",), ("show", "a-job-with-a-long-name-of-fifty-characters-0123456")])
def test_created_is_shown_in_whole_seconds(cli: Cli, command: tuple[str, ...]) -> None:
    lines = [line.split("\t") for line in cli.run(*command, "--queue", QUEUE).stdout.splitlines()]
    if command[0] == "jobs":
        (created,) = {row[lines[0].index("created")] for row in lines[1:] if "a-job-with" in row[1]}
    else:
        created = dict(row for row in lines if len(row) == 2)["created"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", created)
