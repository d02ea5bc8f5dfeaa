"""The package as users get it: built, and installed in an environment of its own. All test processes share it."""

from __future__ import annotations

import fcntl
import os
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import run

ROOT = Path(__file__).parents[2]

Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Return a function that fills a folder, or waits until another test process has filled it."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def fill(name: str, make: Callable[[Path], None]) -> Path:
        folder, made = shared / name, shared / f"{name}.made"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                make(folder)
                made.touch()
        return folder

    return fill


@pytest.fixture(scope="session")
def dist(once: Once) -> Path:
    """Build the sdist, and from it the wheel, with the locked packages and without a network."""

    def build(folder: Path) -> None:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=ROOT)

    return once("dist", build)


@pytest.fixture(scope="session")
def python(dist: Path, once: Once) -> Path:
    """Install the wheel in an environment, which takes the wheel's dependencies from this environment."""

    def install(folder: Path) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "needs.pth").write_text(sysconfig.get_path("purelib"))
        (wheel,) = dist.glob("*.whl")
        pip = (sys.executable, "-m", "pip", "--quiet", "--python", folder / "bin/python")
        run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)

    return once("installed", install) / "bin/python"
