"""What a command imports, which is most of the time that it takes.

Modules are counted, not seconds: the result is the same on a busy machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evsched.cli.root import FAMILIES, Command, build

COMMANDS = [command for commands in FAMILIES.values() for command in commands]


RUN = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from evsched.__main__ import main
main()
"""
"""Runs a command, and lists the modules that were imported."""


def modules(script: str, *words: str) -> set[str]:
    """Return the modules that a script lists."""
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60, check=False
    )
    return {*done.stderr.splitlines()[-1].split()}


def foreign(imported: set[str]) -> set[str]:
    """Return the packages of others, without those that Python imports in this environment for any program."""
    for_any = modules("import sys; print(*sys.modules, file=sys.stderr)")
    return {name.partition(".")[0] for name in imported - for_any} - {*sys.stdlib_module_names, "evsched"}


def test_version_imports_no_library() -> None:
    imported = modules(RUN, "--version")
    assert "evsched.cli.main" in imported
    assert foreign(imported) == set()
    assert not imported & {"asyncio", "inspect", "logging", "evsched.cli.root", "evsched.config"}


@pytest.mark.parametrize("words", [("--help",), ("-h",), ()], ids=" ".join)
def test_help_imports_what_draws_it_and_no_command(words: tuple[str, ...]) -> None:
    imported = modules(RUN, *words)
    assert foreign(imported) <= {"cyclopts", "attr", "attrs", "rich", "docstring_parser"}
    assert not imported & {"asyncio", "logging", "rich.markdown", "evsched.config", "evsched.cli.options"}
    assert not imported & {f"evsched.cli.{command.where.partition(':')[0]}" for command in COMMANDS}


def test_a_command_imports_what_it_uses(tmp_path: Path) -> None:
    imported = modules(RUN, "queues", "--url", f"unix://{tmp_path / 'none'}")
    assert {"evsched.cli.queues", "evsched.transport.senders", "redis"} <= imported
    assert not foreign(imported) & {"anyio", "markdown_it", "prometheus_client", "pygments"}
    assert not imported & {"rich.console", "evsched.app", "evsched.events", "evsched.execution", "evsched.worker"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_summary_is_the_first_paragraph_of_the_help(command: Command) -> None:
    text = build([command.name])[command.name].help
    assert text.partition("\n\n")[0].split() == command.summary.split()
