"""Tab completion: the script of each shell knows the commands, their flags and the choices of a flag."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli("", tmp_path)


@pytest.mark.extra
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("evsched re", {"recurrences", "reschedule", "resume"}),
        ("evsched recurrences ", {"add", "list", "next", "pause", "remove", "resume"}),
        ("evsched worker --conc", {"--concurrency"}),
        ("evsched worker --log-level ", {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}),
        ("evsched jobs --place ", {"schedule", "backlog", "ready", "dead"}),
        ("evsched completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes_commands_flags_and_choices(cli: Cli, line: str, expected: set[str]) -> None:
    words = line.split(" ")
    program = f"""
        {cli.run("completion", "bash").stdout}
        COMP_WORDS=({" ".join(word or "''" for word in words)})
        COMP_CWORD={len(words) - 1}
        _evsched
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert expected <= {*done.stdout.split()}, done


@pytest.mark.extra
@pytest.mark.parametrize(("shell", "head"), [("zsh", "#compdef evsched"), ("fish", "complete -c evsched")])
def test_zsh_and_fish_have_a_completion_script(cli: Cli, shell: str, head: str) -> None:
    script = cli.run("completion", shell).stdout
    assert head in script
    for word in ("run-now", "log-level", "CRITICAL", "recurrences"):
        assert word in script


def test_completion_refuses_an_unknown_shell(cli: Cli) -> None:
    done = cli.run("completion", "csh")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
