"""The files in deploy/ are valid, harden what they start, and fit evsched's own commands, settings and pages."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from evsched import environment
from evsched.cli.commands import build
from evsched.config import SETTINGS, Config

ROOT: Final = Path(__file__).parents[2]
SYSTEMD: Final = ROOT / "deploy/systemd"
FORCE: Final = 10.0
"""Seconds that a process may take to end after its shutdown grace: see docs/deploy.md."""


def check_command(words: Sequence[str], variables: Mapping[str, str]) -> Config:
    """Parse a command line with the settings in its environment; return them all. An unknown one is an error."""
    assert environment.warning(variables) is None
    _, bound, ignored = build([*words[:1]]).parse_args(words, exit_on_error=False, print_error=False)
    assert ignored == {} or set(ignored) <= {"config"}
    flags = {name: value for name, value in bound.arguments.items() if name in SETTINGS and value is not None}
    return environment.load(variables, **flags)


def test_wrong_commands_and_settings_are_noticed() -> None:
    check_command(["worker", "tasks:app", "--metrics-port", "1"], {"EVSCHED_LOG_LEVEL": "info"})
    for words, variables in (
        (["worker", "tasks:app", "--metric-port", "1"], {}),
        (["worker"], {}),
        (["workers", "tasks:app"], {}),
        (["dispatcher", "--metrics-port", "70000"], {}),
        (["dispatcher"], {"EVSCHED_LOGLEVEL": "info"}),
        (["dispatcher"], {"EVSCHED_METRICS_PORT": "x"}),
    ):
        with pytest.raises(Exception, match=r"."):
            check_command(words, variables)


# systemd.

UNITS: Final = sorted(SYSTEMD.glob("*.service"))


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.M)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_starts_a_command_of_evsched_and_lets_it_end(unit: Path) -> None:
    assert values(unit, "User") == ["evsched"]
    assert values(unit, "Type") == ["exec"]
    (command,) = values(unit, "ExecStart")
    program, *words = shlex.split(command.replace("%i", "tasks"))
    if program == "/usr/bin/redis-server":
        return
    assert program == "/opt/evsched/.venv/bin/evsched"
    given = dict(one.split("=", 1) for one in values(unit, "Environment"))
    config = check_command(words, given)
    (patience,) = values(unit, "TimeoutStopSec")
    assert float(patience) > config.shutdown_grace + FORCE + 1, "with --processes, a second more"
    if words[0] != "doctor":  # its flag is no setting
        assert config.metrics_port is not None


def test_each_service_has_a_unit() -> None:
    commands = {tuple(shlex.split(values(unit, "ExecStart")[0])[1:3]) for unit in UNITS}
    first = {words[0] for words in commands}
    assert {"dispatcher", "worker", "api", "console", "doctor"} <= first
    assert {("ledger", "run"), ("ledger", "history")} <= commands
    ports = [port for unit in UNITS for port in re.findall(r"(?:--metrics-port |METRICS_PORT=)(\d+)", unit.read_text())]
    assert len(ports) == len(set(ports)) == len(UNITS) - 1, "they may all run on one host; Redis has none"


@pytest.fixture
def installed(tmp_path: Path) -> Generator[list[str]]:
    """The names of the units, in a folder in which their programs exist; skips without systemd."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed (Debian: systemd)")
    shutil.copytree(SYSTEMD, tmp_path, dirs_exist_ok=True)
    for unit in [*tmp_path.glob("*.service")]:
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.M)
        unit.unlink()
        (tmp_path / unit.name.replace("@", "@tasks")).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        yield [f"./{unit.name}" for unit in tmp_path.glob("*.service")]


def test_systemd_accepts_the_units(installed: list[str]) -> None:
    done = subprocess.run(["systemd-analyze", "verify", *installed], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    Path("evsched-.service.d/hardening.conf").write_text("[Service]\nNoNewPrivilege=yes\n")
    done = subprocess.run(["systemd-analyze", "verify", installed[0]], capture_output=True, text=True, check=False)
    assert "Unknown key" in done.stderr, "the file for all units is read too"


def test_units_are_as_exposed_as_the_docs_say(installed: list[str]) -> None:
    told = re.findall(r"exposure level is (\d\.\d)", (ROOT / "docs/systemd.md").read_text())
    assert len(told) == 1
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={float(told[0]) * 10:.0f}"]
    for unit in installed:
        assert subprocess.run([*command, unit], capture_output=True, check=False).returncode == 0, unit
    shutil.rmtree("evsched-.service.d")
    assert subprocess.run([*command, installed[0]], capture_output=True, check=False).returncode != 0
