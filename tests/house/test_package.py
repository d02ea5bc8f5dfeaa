"""The package: each build gives the same bytes, and what is installed needs no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

import evsched
from evsched.cli.commands import COMMANDS
from tests.house.test_deploy import copied_files
from tests.support.command import run

ROOT = Path(__file__).parents[2]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.extra
def test_a_build_elsewhere_at_another_time_gives_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    source = tmp_path / f"evsched-{evsched.__version__}"
    (source / "PKG-INFO").unlink()  # the build makes it
    for path in source.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1e9, 1e9))
    build = (sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "again", "-t")
    run(*build, "sdist", cwd=source)
    for path in source.iterdir():
        if path.name not in copied_files():  # as in the image
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    run(*build, "wheel", cwd=source)
    assert digests(tmp_path / "again") == digests(dist)


@pytest.mark.extra
def test_the_sdist_has_every_file_of_the_repository(dist: Path) -> None:
    words = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is not a checkout")
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert names - {"PKG-INFO"} == {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


@pytest.mark.extra
def test_the_installed_package_runs_the_demo_without_a_checkout(python: Path, tmp_path: Path) -> None:
    command = python.with_name("evsched")
    assert run(command, "--version", cwd=tmp_path) == f"{evsched.__version__}\n"
    assert "20 jobs" in run(command, "demo", "--jobs", "20", "--seconds", "1", "--idle", "0", cwd=tmp_path)
    package = Path(run(python, "-c", "import evsched; print(evsched.__file__)", cwd=tmp_path)).parent
    assert package.is_relative_to(python.parents[1])
    for path in ("redis.conf", "lua/dispatch.lua", "grafana/dashboards/overview.json", "grafana/prometheus/alerts.yml"):
        assert (package / path).is_file()


@pytest.mark.extra
def test_the_manual_page_explains_every_command(python: Path) -> None:
    page = python.parents[1] / "share/man/man1/evsched.1"
    headings = re.findall(r"^\.SS evsched (\S+)", page.read_text().replace(r"\-", "-"), re.MULTILINE)
    assert {*headings} == {*COMMANDS}
    if shutil.which("man"):
        shown = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True, check=True)
        assert shown.stderr == ""
        assert "evsched worker [OPTIONS] MODULE:APP" in shown.stdout
