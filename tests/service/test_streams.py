"""Odd places to run a command: narrow terminals, poor encodings, readers that end early, a folder that is gone."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from rich.cells import cell_len
from rich.text import Text

from tests.support.cli import Cli
from tests.support.patience import PATIENCE


@pytest.mark.extra
@pytest.mark.parametrize("columns", ["0", "1", "2"])
def test_help_is_drawn_however_few_columns_there_are(cli: Cli, columns: str) -> None:
    done = cli.process("worker", "--help", COLUMNS=columns)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: evsched" in done.stdout
    assert len(done.stdout) > 5000


def test_help_is_drawn_on_a_terminal_of_two_columns(cli: Cli) -> None:
    drawn = cli.terminal(2, "completion", "--help")
    assert max(map(cell_len, Text.from_ansi(drawn).plain.splitlines())) == 20


@pytest.mark.extra
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_unencodable_character_is_printed_as_an_escape(cli: Cli, queue: str, encoding: str) -> None:
    of = ("--queue", queue)
    done = cli.process("enqueue", "t", '"\N{EURO SIGN}"', "--id", "a", *of, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stdout) == (0, "a\n")
    shown = cli.process("show", "a", *of, PYTHONIOENCODING=encoding)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "\\u20ac" in shown.stdout
    printed = cli.process("show", "a", "--json", *of, PYTHONIOENCODING=encoding)
    assert json.loads(printed.stdout)["payload"]["args"] == ["\N{EURO SIGN}"]
    assert "\N{EURO SIGN}" not in printed.stdout


@pytest.mark.extra
@pytest.mark.parametrize(
    "words", [("--help",), ("completion", "bash"), ("limit", "--help"), ("queues",), ("queues", "--json"), ("top",)]
)
def test_closed_output_pipe_is_not_a_failure(cli: Cli, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            cli.command(*words),
            env=cli.environment,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.extra
@pytest.mark.parametrize("words", [("worker", "tasks:app"), ("dev", "tasks:app")])
def test_a_folder_that_has_been_deleted_is_named_in_one_line(cli: Cli, words: tuple[str, ...]) -> None:
    gone = cli.folder / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone), *cli.command(*words)],
        env=cli.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "the current folder has been deleted" in done.stderr
