"""What a command imports, which is most of the time that it takes.

Modules are counted, not seconds: the result is the same on a busy machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evsched.cli.commands import COMMANDS, build, summary
from tests.support.patience import PATIENCE

RUN = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from evsched.__main__ import main
main()
"""
"""Runs a command, and lists the modules that were imported."""

COUNT = RUN.replace("sys\n", "gc, sys\n", 1).replace("*sys.modules", "gc.get_freeze_count() // len(gc.get_objects())")
"""Runs a command, and prints how many objects the last collection passes over, for each that it looks at."""


def modules(script: str, *words: str) -> set[str]:
    """Return the modules that a script lists."""
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return {*done.stderr.splitlines()[-1].split()}


def foreign(imported: set[str]) -> set[str]:
    """Return the packages of others, without those that Python imports in this environment for any program."""
    for_any = modules("import sys; print(*sys.modules, file=sys.stderr)")
    return {name.partition(".")[0] for name in imported - for_any} - {*sys.stdlib_module_names, "evsched"}


def families(imported: set[str]) -> set[str]:
    """Return the modules of commands among these."""
    return imported & {f"evsched.cli.{where.partition(':')[0]}" for where in COMMANDS.values()}


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("-h",), ()], ids=" ".join)
def test_a_call_without_a_command_imports_no_library(words: tuple[str, ...]) -> None:
    imported = modules(RUN, *words)
    assert "evsched.cli.main" in imported
    assert foreign(imported) == set()
    assert families(imported) == set()
    assert not imported & {"asyncio", "inspect", "logging", "cyclopts", "evsched.config"}


def test_a_mistyped_command_imports_no_command() -> None:
    imported = modules(RUN, "quues")
    assert foreign(imported) <= {"msgspec", "typing_extensions"}  # for the characters of the message
    assert "evsched.cli.commands" in imported
    assert families(imported) == set()


@pytest.mark.extra
def test_a_mistyped_command_of_a_family_imports_that_family() -> None:
    assert families(modules(RUN, "dead", "lst")) == {"evsched.cli.dead_commands"}


def test_a_command_imports_only_the_libraries_that_it_uses(tmp_path: Path) -> None:
    imported = modules(RUN, "queues", "--url", f"unix://{tmp_path / 'none'}")
    assert {"evsched.cli.queue_commands", "evsched.transport.senders", "redis"} <= imported
    assert not foreign(imported) & {"anyio", "markdown_it", "prometheus_client", "pygments"}
    assert not imported & {
        "zoneinfo",
        "cronsim",
        "rich.console",
        "evsched.app",
        "evsched.events",
        "evsched.execution",
        "evsched.worker",
    }


def test_the_last_collection_passes_over_what_a_command_imported(tmp_path: Path) -> None:
    (passed_over,) = modules(COUNT, "queues", "--url", f"unix://{tmp_path / 'none'}")
    assert int(passed_over) > 10


@pytest.mark.parametrize("command", COMMANDS)
def test_a_summary_is_the_first_paragraph_of_the_help(command: str) -> None:
    text = build([command])[command].help
    assert text.partition("\n\n")[0].split() == summary(COMMANDS[command]).split()
