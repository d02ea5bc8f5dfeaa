"""An environment for each scheduler, with the versions that its file pins. They are made once and kept in bench/.envs.

A scheduler's file lists its requirements in a comment of the standard form for scripts (PEP 723), in which
`[tool.bench]` can have a `note`: what a reader of the figures should know.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, convert

from bench.figures import Failed

FOLDER: Final = Path(__file__).parent / "schedulers"
SCHEDULERS: Final = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
_ENVIRONMENTS: Final = Path(__file__).parent / ".envs"
_HEADER: Final = re.compile(r"(?m)^# /// script$\n(?P<toml>(?:^#.*$\n)+?)^# ///$")


class Header(Struct):
    """What the header of a scheduler's file says."""

    dependencies: list[str] = []
    note: str = ""


def header(name: str, folder: Path = FOLDER) -> Header:
    """Return what the scheduler's file says of itself. evsched needs nothing: it runs in the checkout's own Python."""
    found = _HEADER.search((folder / f"{name}.py").read_text(encoding="utf-8"))
    if found is None:
        return Header()
    script: dict[str, Any] = tomllib.loads(re.sub(r"(?m)^# ?", "", found["toml"]))
    return convert({**script, **script.get("tool", {}).get("bench", {})}, Header)


def title(name: str) -> str:
    """Return the scheduler's name with its version."""
    pins = header(name).dependencies
    return re.sub(r"\[.*?]", "", pins[0]).replace("==", " ") if pins else name.replace("_", " ")


def note(name: str) -> list[str]:
    """Return what a reader of the figures should know of the scheduler, if there is something."""
    return [f"{title(name)}: {text}"] if (text := header(name).note) else []


def programs(name: str, folder: Path = FOLDER) -> Path:
    """Return the folder of the scheduler's `python` and other programs; make the environment if it is not there.

    Raises:
        Failed: the packages could not be installed.
    """
    pins = header(name, folder).dependencies
    if not pins:
        return Path(sys.executable).parent
    place = _ENVIRONMENTS / name
    made = place / "requirements.txt"
    if made.exists() and made.read_text(encoding="utf-8").split("\n") == pins:
        return place / "bin"
    print(f"installing {', '.join(pins)}", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    uv = shutil.which("uv")
    python = str(place / "bin" / "python")
    _run([uv, "venv", "--quiet", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"], str(place))
    _run([uv, "pip", "install", "--quiet", "--python", python] if uv else [python, "-m", "pip", "install"], *pins)
    made.write_text("\n".join(pins), encoding="utf-8")
    return place / "bin"


def _run(command: list[str], *more: str) -> None:
    ended = subprocess.run([*command, *more], capture_output=True, text=True, check=False, env=_environment())
    if ended.returncode:
        raise Failed(f"cannot be installed: {ended.stderr.strip().rpartition(chr(10))[2]}")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
