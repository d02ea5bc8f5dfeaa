"""Tab completion: the script of each shell knows the commands, their flags and the choices of a flag."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli("", tmp_path)


@cache
def script(shell: str) -> str:
    """Return the script of a shell; it takes a second to make."""
    return Cli("", Path.cwd()).run("completion", shell).stdout


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
def test_bash_completes_commands_flags_and_choices(line: str, expected: set[str]) -> None:
    words = line.split(" ")
    program = f"""
        {script("bash")}
        COMP_WORDS=({" ".join(word or "''" for word in words)})
        COMP_CWORD={len(words) - 1}
        _evsched
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert expected <= {*done.stdout.split()}, done


@pytest.mark.extra
@pytest.mark.parametrize(("shell", "head"), [("zsh", "#compdef evsched"), ("fish", "complete -c evsched")])
def test_zsh_and_fish_have_a_completion_script(shell: str, head: str) -> None:
    assert head in script(shell)
    for word in ("run-now", "log-level", "CRITICAL", "recurrences"):
        assert word in script(shell)


@pytest.mark.extra
def test_a_new_bash_completes_commands_once_it_is_installed(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("--install-completion", "--shell", "bash", HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert f", and a line in {tmp_path}/.bashrc that loads it; " in done.stdout
    program = """
        read -ra complete <<< "$(complete -p evsched)"
        COMP_WORDS=(evsched dead rev) COMP_CWORD=2
        "${complete[-2]}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    words = ("bash", "--rcfile", str(tmp_path / ".bashrc"), "-ic", program)
    completed = subprocess.run(words, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert completed.stdout.split() == ["revive"]


@pytest.mark.extra
@pytest.mark.parametrize(
    ("shell", "file"),
    [("zsh", ".zsh/completions/_cyclopts_evsched"), ("fish", ".config/fish/completions/evsched.fish")],
)
def test_the_script_is_saved_where_the_shell_looks(cli: Cli, tmp_path: Path, shell: str, file: str) -> None:
    cli.run("--install-completion", "--shell", shell, HOME=str(tmp_path), ZSH="", ZSH_CUSTOM="")
    assert (tmp_path / file).read_text() == script(shell).removesuffix("\n")
    assert shell == "fish" or ".zsh/completions" in (tmp_path / ".zshrc").read_text()


@pytest.mark.parametrize(
    ("words", "environment", "code", "message"),
    [
        ((), {"SHELL": "", "PATH": ""}, 2, "add --shell bash, zsh or fish"),
        (("--shell", "bash"), {"HOME": "/dev/null"}, 1, "the script cannot be saved"),
        (("--shell", "csh"), {}, 2, "csh"),
    ],
)
def test_an_installation_that_is_not_possible_is_explained(
    cli: Cli, words: tuple[str, ...], environment: dict[str, str], code: int, message: str
) -> None:
    done = cli.run("--install-completion", *words, **environment)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert message in done.stderr


def test_completion_refuses_an_unknown_shell(cli: Cli) -> None:
    done = cli.run("completion", "csh")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
