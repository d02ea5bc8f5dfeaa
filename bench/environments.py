"""How each scheduler is installed and started: what its file in schedulers/ says in a header.

The header is a comment in TOML of the standard form for scripts (PEP 723), in the comment signs of the file's language:

    dependencies    what it is made of, the scheduler itself first
    [tool.bench]
    debian          the Debian package that has it
    server          where its jobs are, if not in Redis: "PostgreSQL"
    note            what a reader of the figures should know

Python packages are pinned there, and are installed into an environment of the scheduler's own, which is made once and
kept in bench/.envs. The versions of Node's are those of bench/package.json. Those, and what Debian has, are not
installed by the benchmark: it says how to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, convert

from bench.figures import Failed
from tests.support.postgres import find_postgres

_HERE: Final = Path(__file__).parent
FOLDER: Final = _HERE / "schedulers"
_LANGUAGES: Final = {".py": "Python", ".mjs": "Node", ".rb": "Ruby"}
_FILES: Final = {path.stem: path for path in FOLDER.glob("[a-z]*") if path.suffix in _LANGUAGES}
SCHEDULERS: Final = sorted(_FILES)
_ENVIRONMENTS: Final = _HERE / ".envs"
_MODULES: Final = _HERE / "node_modules"
_HEADER: Final = re.compile(r"(?m)^(?:#|//) /// script$\n(?P<toml>(?:^(?:#|//).*$\n)+?)^(?:#|//) ///$")

_PRODUCERS: Final = {
    "Python": ("python", "-m", "bench.produce"),
    "Node": ("node", "bench/produce.mjs"),
    "Ruby": ("ruby", "bench/produce.rb"),
}
"""The program that enqueues; the name of the scheduler follows."""


class Header(Struct):
    """What the header of a scheduler's file says."""

    dependencies: list[str] = []
    debian: str = ""
    server: str = "Redis"
    note: str = ""


def header(name: str, folder: Path = FOLDER) -> Header:
    """Return what the scheduler's file says of itself. evsched needs nothing: it runs in the checkout's own Python."""
    path = _FILES[name] if folder == FOLDER else folder / f"{name}.py"
    found = _HEADER.search(path.read_text(encoding="utf-8"))
    if found is None:
        return Header()
    script: dict[str, Any] = tomllib.loads(re.sub(r"(?m)^(?:#|//) ?", "", found["toml"]))
    return convert({**script, **script.get("tool", {}).get("bench", {})}, Header)


def language(name: str) -> str:
    """Return the language of the scheduler's tasks: Python, Node or Ruby."""
    return _LANGUAGES[_FILES[name].suffix]


def title(name: str) -> str:
    """Return the scheduler's name with its version, and what sets it apart from most: its language, its server."""
    said, spoken = header(name), language(name)
    if not said.dependencies:
        return name.replace("_", " ")
    scheduler = re.sub(r"\[.*?]", "", said.dependencies[0])
    versions = {"Python": lambda: "", "Node": lambda: _pinned()[scheduler], "Ruby": lambda: gem_version(scheduler)}
    words = f"{scheduler.replace('==', ' ')} {versions[spoken]()}".strip()
    apart = [word for word, most in ((spoken, "Python"), (said.server, "Redis")) if word != most]
    return words + f" ({', '.join(apart)})" * bool(apart)


def note(name: str) -> list[str]:
    """Return what a reader of the figures should know of the scheduler, if there is something."""
    return [f"{title(name)}: {text}"] if (text := header(name).note) else []


def producer(name: str) -> list[str]:
    """Return the command that enqueues with this scheduler; the first word is one of its `programs`."""
    return [*_PRODUCERS[language(name)], name]


def programs(name: str, folder: Path = FOLDER) -> Path:
    """Return the folder of the scheduler's programs and of its language's; install the packages of Python.

    Raises:
        Failed: they are not installed, or could not be; the message says how to.
    """
    said = header(name, folder)
    if said.server == "PostgreSQL" and find_postgres() is None:
        raise Failed("PostgreSQL is not installed (Debian: postgresql)")
    if folder == FOLDER and language(name) == "Node":
        return _node(said)
    if said.debian:
        return _on_path(said.dependencies[0], said.debian)
    return _environment(name, said.dependencies) if said.dependencies else Path(sys.executable).parent


def _on_path(program: str, package: str) -> Path:
    found = shutil.which(program)
    if found is None:
        raise Failed(f"not installed (Debian: {package})")
    return Path(found).parent


def _pinned() -> dict[str, str]:
    """Return the versions of Node's packages."""
    return json.loads((_HERE / "package.json").read_text(encoding="utf-8"))["dependencies"]


def _node(said: Header) -> Path:
    for package in said.dependencies:
        try:
            installed = json.loads((_MODULES / package / "package.json").read_text(encoding="utf-8"))["version"]
        except FileNotFoundError:
            installed = None
        if installed != _pinned()[package]:
            raise Failed(f"{package} {_pinned()[package]} is not installed (npm ci --prefix bench)")
    return _on_path("node", "nodejs")


@cache
def gem_version(name: str) -> str:
    """Return the version of a gem, as its program says it; nothing if it is not installed."""
    if shutil.which(name) is None:
        return ""
    return subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]


def _environment(name: str, pins: list[str]) -> Path:
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
    variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    ended = subprocess.run([*command, *more], capture_output=True, text=True, check=False, env=variables)
    if ended.returncode:
        raise Failed(f"cannot be installed: {ended.stderr.strip().rpartition(chr(10))[2]}")
