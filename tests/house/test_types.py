"""What type checkers say about a user's program. The package comes from its wheel, as it does for a user."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "program/program.py"

Refused = dict[int, str]
"""Line -> the error there."""


def run(*words: str | Path, cwd: Path, allowed: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode in allowed, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the sdist with the locked packages, without a network."""
    made = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", made, cwd=ROOT)
    return made


@pytest.fixture(scope="module")
def python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel, which takes the wheel's dependencies from this environment."""
    fresh = tmp_path_factory.mktemp("fresh")
    venv.create(fresh, symlinks=True, with_pip=False)
    (site,) = fresh.glob("lib/python*/site-packages")
    (wheel,) = dist.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "needs.pth").write_text(sysconfig.get_path("purelib"))
    return fresh / "bin/python"


def mypy(python: Path, where: Path) -> Refused:
    if find_spec("mypy") is None:
        pytest.skip("mypy is not installed (pip install --require-hashes -r requirements.lock)")
    output = run(
        *(sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--output=json"),
        *("--python-executable", python, PROGRAM.name),
        cwd=where,
        allowed=(0, 1),
    )
    rows = [json.loads(line) for line in output.splitlines()]
    return {row["line"]: row["message"] for row in rows if row["severity"] == "error"}


def pyright(python: Path, where: Path) -> Refused:
    (where / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    words = (sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, PROGRAM.name)
    rows = json.loads(run(*words, cwd=where, allowed=(0, 1)))["generalDiagnostics"]
    return {row["range"]["start"]["line"] + 1: row["message"] for row in rows if row["severity"] == "error"}


@pytest.mark.extra
def test_the_package_says_that_it_is_typed(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    assert "evsched/py.typed" in zipfile.ZipFile(wheel).namelist()
    with tarfile.open(sdist) as opened:
        assert any(name.endswith("/evsched/py.typed") for name in opened.getnames())


@pytest.mark.extra
def test_the_program_runs(python: Path, tmp_path: Path) -> None:
    where = run(python, "-c", "import program, evsched; print(evsched.__file__)", cwd=PROGRAM.parent).strip()
    assert Path(where).is_relative_to(python.parents[1])


@pytest.mark.extra
@pytest.mark.parametrize("check", [mypy, pyright])
def test_exactly_the_marked_lines_are_refused(
    check: Callable[[Path, Path], Refused], python: Path, tmp_path: Path
) -> None:
    lines = PROGRAM.read_text().splitlines()
    (tmp_path / PROGRAM.name).write_text("\n".join(lines))
    wanted = {number for number, line in enumerate(lines, 1) if re.search(r"# refused$", line)}
    refused = check(python, tmp_path)
    assert len(wanted) > 20
    assert {number: lines[number - 1] for number in wanted - set(refused)} == {}
    assert {number: (lines[number - 1], refused[number]) for number in set(refused) - wanted} == {}
