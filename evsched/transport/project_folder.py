"""The folder of a project's private Redis: the same at each start of `evsched dev`, so that its URL stays the same.

There is one for each user, working folder and app: in XDG_RUNTIME_DIR, else in the folder for temporary files. Beside
it is a lock. `evsched dev`, the server and its guardian all hold it, so the folder is free when the last of them has
ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from evsched.errors import ConfigError
from evsched.transport import address

SOCKET: Final = "redis.sock"
SOCKET_PATH_MOST: Final = 100
"""Bytes. The system's limit is 108 with the zero at the end, on macOS 104."""

RANDOM_PREFIX: Final = "evsched-"
"""How the name of a server's folder begins if the server has no project."""

_FREED: Final = 3.0
"""Seconds to wait for the lock if no server answers: the guardian of one that ended is about to delete the folder."""

_LOOK: Final = 0.02
"""Seconds between two tries to get that lock."""


class ProjectFolder(NamedTuple):
    """An empty folder that is ours alone while the file descriptor `lock` is open anywhere."""

    path: Path
    lock: int


@contextmanager
def project_folder(app: str) -> Generator[ProjectFolder | None]:
    """Yield the folder of an app, MODULE:APP, of the working folder.

    None: another process uses it, no place for it exists that only this user can write to, or the working folder has
    been deleted.
    """
    base, here = _base(), _working_folder()
    if base is None or here is None:
        yield None
        return
    name = hashlib.sha256(f"{here}\0{app}".encode(errors="surrogateescape")).hexdigest()[:12]
    path = base / name
    lock = os.open(base / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not _get(lock, path):
            yield None
            return
        _empty(path)
        yield ProjectFolder(path, lock)
    finally:
        os.close(lock)


def is_ended(url: str) -> bool:
    """Return whether a URL is that of a private Redis, of this project or another, that has ended."""
    try:
        path = Path(str(address.parse(url).options.get("path", "")))
    except ConfigError:
        return False
    folder = path.parent
    private = folder.name.startswith(RANDOM_PREFIX) or folder.parent in _bases()
    return path.name == SOCKET and private and not _listens(path)


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _bases() -> list[Path]:
    """Return where the folders of projects may be, the best place first."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    mine = f"evsched-{os.getuid()}"
    return [*([Path(runtime, "evsched")] if runtime else []), Path(tempfile.gettempdir(), mine), Path("/tmp", mine)]  # noqa: S108


def _base() -> Path | None:
    """Return the first place that can be made, that only this user can open, and whose path is short enough."""
    for base in _bases():
        if len(os.fsencode(base / ("x" * 12) / SOCKET)) > SOCKET_PATH_MOST:
            continue
        try:
            base.mkdir(mode=0o700, exist_ok=True)
            found = base.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return base
    return None


def _get(lock: int, path: Path) -> bool:
    """Get the lock; return False when a server uses the folder."""
    end = time.monotonic() + _FREED
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _listens(path / SOCKET) or time.monotonic() > end:
                return False
            time.sleep(_LOOK)
        else:
            return True


def _empty(path: Path) -> None:
    """Make the folder, and delete what a server left in it when its machine crashed."""
    path.mkdir(mode=0o700, exist_ok=True)
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            Path(folder, name).unlink()
        for name in folders:
            Path(folder, name).rmdir()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        return True
    return False
