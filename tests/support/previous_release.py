"""The previous release: its files come from the history of the repository."""

from __future__ import annotations

import atexit
import importlib
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.support.patience import PATIENCE

ROOT: Final = Path(__file__).parents[2]

PREVIOUS: Final = "731f8285e11b23f1d244e4cabc4fbc284fc56c66"
"""A commit of the repository with which this release shares Redis: the tag of the last release, once there is one."""


@cache
def previous_release() -> Path:
    """Return a folder with the package, the scripts and the redis.conf of the previous release; skip without it."""
    words = ("git", "archive", PREVIOUS, "evsched", "lua", "redis.conf")
    archive = subprocess.run(words, cwd=ROOT, capture_output=True, check=False, timeout=PATIENCE)
    if archive.returncode:
        pytest.skip(f"the previous release is not in this checkout's history: {archive.stderr.decode()}")
    folder = tempfile.mkdtemp(prefix="evsched-previous-")
    atexit.register(shutil.rmtree, folder)
    subprocess.run(("tar", "-x", "-C", folder), input=archive.stdout, check=True, timeout=PATIENCE)
    return Path(folder)


def import_previous(name: str) -> ModuleType:
    """Import a module of the previous release beside this release's.

    Python knows a module by its name alone. So this release's are put away for as long as the import takes, and the
    module must not import others of its package later.
    """
    folder = str(previous_release())
    ours = _put_away()
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
        _put_away()
        sys.modules.update(ours)


def _put_away() -> dict[str, ModuleType]:
    found = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "evsched"}
    for name in found:
        del sys.modules[name]
    return found
