"""What type checkers say about a user's program. The package comes from its wheel, as it does for a user."""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.command import run

PROGRAM = Path(__file__).parent / "program/program.py"

Refused = dict[int, str]
"""Line -> the error there."""


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
