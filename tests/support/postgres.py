"""A real PostgreSQL server for tests: it belongs to them, in a temporary folder, and listens on a Unix socket alone."""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

import psycopg

from evsched.ledger.database import migrate
from tests.support.patience import PATIENCE

_VERSIONS: Final = Path("/usr/lib/postgresql")
"""Where Debian puts the servers' programs: not on PATH."""

_MEMORY: Final = Path("/dev/shm")
"""A file system in memory, on Linux. There a database is copied and dropped in a quarter of the CPU time."""

_ROOM: Final = 2**30
"""Bytes that must be free in it: eight processes of tests need half of that."""

_TEMPLATE: Final = "ledger"
"""The database that the databases of the tests are copied from: a copy takes a third of the time of a migration."""

_SHARED: Final = """
listen_addresses = ''
unix_socket_permissions = 0777
"""

_FAST: Final = """
fsync = off
max_connections = 200
"""
"""The tests kill processes, not the machine: what was written to a file stays without fsync."""

_DURABLE: Final = """
synchronous_commit = off
"""
"""Commits reach the disk within 0.6 s, as the file that Redis appends to does within a second."""


def find_postgres() -> Path | None:
    """Return the folder of the newest server's programs; None if there is none."""
    if (on_path := shutil.which("postgres")) is not None:
        return Path(on_path).resolve().parent
    found = sorted(_VERSIONS.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


class Postgres:
    """A server with an empty database. It refuses to run as root: then it runs as the user `postgres`, or `nobody`."""

    def __init__(self, programs: Path, *, durable: bool = False) -> None:
        """`durable`: the data are on disk, and all settings have their defaults, except that a commit does not wait."""
        self._programs = programs
        self._settings = _SHARED + (_DURABLE if durable else _FAST)
        self._folder = tempfile.TemporaryDirectory(
            prefix="evsched-postgres-", dir=None if durable else _memory(), ignore_cleanup_errors=True
        )
        folder = Path(self._folder.name)
        self._data, self._sockets = folder / "data", folder / "sockets"
        self._process: subprocess.Popen[bytes] | None = None
        self._strategy: str | None = None
        """How a database is copied from the template; None until there is one."""
        self.url = f"postgresql://evsched@/postgres?host={self._sockets}"
        self._user = _user()
        self._sockets.mkdir()
        if self._user is not None:
            for path in (folder, self._sockets):
                shutil.chown(path, self._user)
            folder.chmod(0o711)
            self._sockets.chmod(0o711)

    def _command(self, program: str, *words: str) -> list[str]:
        return [str(self._programs / program), *words]

    def __enter__(self) -> Postgres:
        made = self._command("initdb", "-D", str(self._data), "-U", "evsched", "-A", "trust", "-E", "UTF8", "--no-sync")
        done = subprocess.run([*made, "--locale=C"], user=self._user, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"{self._settings}unix_socket_directories = '{self._sockets}'\n")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Return the number of the process that runs now; the other processes of the server descend from it."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server, and wait until it serves."""
        log = (self._data / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", str(self._data)), user=self._user, stdout=log, stderr=log
            )
        waited = self._command("pg_isready", "-h", str(self._sockets), "-q")
        while subprocess.run(waited, check=False).returncode != 0:
            assert self._process.poll() is None, (self._data / "log").read_text()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends all sessions in order; SIGQUIT at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    @contextmanager
    def ledger(self) -> Generator[str]:
        """Make a database with the tables of the ledger, and yield its URL; drop it at the end."""
        if self._strategy is None:
            self.execute(f"CREATE DATABASE {_TEMPLATE}")
            asyncio.run(migrate(self._url_of(_TEMPLATE)))
            [[version]] = self.execute("SHOW server_version_num")
            self._strategy = "STRATEGY file_copy" if int(str(version)) >= 150000 else ""  # older ones know no other
        name = f"t_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE} {self._strategy}")
        yield self._url_of(name)
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _url_of(self, database: str) -> str:
        return self.url.replace("/postgres?", f"/{database}?")

    def execute(self, statement: str, *words: object) -> list[tuple[object, ...]]:
        """Run one statement in a transaction of its own; return its rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), words)
            return cursor.fetchall() if cursor.description else []


class PgBouncer:
    """A pooler in front of a server of tests, on a Unix socket. It serves the user and the databases of the server."""

    def __init__(self, program: str, server: str, mode: str) -> None:
        """`server`: the URL of a database; `url` is then that of the same database, through the pool."""
        self._program = program
        self._folder = tempfile.TemporaryDirectory(prefix="evsched-bouncer-", ignore_cleanup_errors=True)
        folder, host = Path(self._folder.name), server.partition("?host=")[2]
        self._conf = folder / "pgbouncer.ini"
        # Any user is let in, and logs in to the server by this name.
        self._conf.write_text(
            f"[databases]\n* = host={host} user=evsched\n[pgbouncer]\npool_mode = {mode}\nauth_type = any\n"
            f"listen_addr =\nunix_socket_dir = {folder}\nlogfile = {folder}/log\n"
        )
        self.url = f"{server.partition('?')[0]}?host={folder}&port=6432"
        self._socket = folder / ".s.PGSQL.6432"
        self._user = _user()
        if self._user is not None:
            shutil.chown(folder, self._user)
            folder.chmod(0o711)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PgBouncer:
        command = [self._program, "-q", str(self._conf)]
        self._process = subprocess.Popen(command, user=self._user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = time.monotonic() + PATIENCE
        while not self._accepts():
            assert self._process.poll() is None, "pgbouncer has ended"
            assert time.monotonic() < limit, "pgbouncer does not start"
        return self

    def _accepts(self) -> bool:
        """Return whether it accepts connections: the file of its socket is there a moment before."""
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self._socket)) == 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
        self._folder.cleanup()


def find_pgbouncer() -> str | None:
    """Return the program; None if it is not installed. Debian puts it where only root has its PATH."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _memory() -> Path | None:
    """Return a folder in memory; None if there is not enough."""
    return _MEMORY if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM else None


def _user() -> str | None:
    """Return the user for the server if this process is root, which PostgreSQL refuses; None = this one."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
