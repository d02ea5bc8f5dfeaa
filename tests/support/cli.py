"""Run commands to their end, or as services whose log a test reads."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TextIO
from unittest.mock import patch

from evsched.cli.main import main
from tests.support.patience import NO_CAP, PATIENCE

SERVICES = {"dispatcher", "worker", "dev", "demo", "api"}


class Cli:
    """Runs commands in a folder, against one Redis."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "EVSCHED_URL": url, "PYTHONPATH": str(Path(__file__).parents[2])}
        self.environment.pop("EVSCHED_TEST_SERVER", None)
        self.environment["EVSCHED_TEST_SAFETY_CAP"] = str(NO_CAP)

    def run_first(self, text: str) -> None:
        """Inject a fault into the processes: Python runs this text when it starts."""
        (self.folder / "sitecustomize.py").write_text(text)
        self.environment["PYTHONPATH"] = f"{self.folder}:{self.environment['PYTHONPATH']}"

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "evsched", *words]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end.

        A command that is not a service runs in this process: hundreds of starts of Python would cost more than all the
        commands do. It runs in a thread of its own, since a test may have an event loop in this one.
        """
        if SERVICES & {*words[:1]}:
            return self.process(*words, **environment)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._call, words, {**self.environment, **environment}).result(PATIENCE)

    def _call(
        self, words: tuple[str, ...], environment: dict[str, str], stdout: TextIO | None = None
    ) -> subprocess.CompletedProcess[str]:
        out, err = StringIO(), StringIO()
        with (
            patch.dict(os.environ, environment, clear=True),
            patch.object(sys, "argv", ["evsched", *words]),
            redirect_stdout(stdout or out),
            redirect_stderr(err),
        ):
            code: Any = 0
            try:
                main()
            except SystemExit as ended:
                code = ended.code or 0
            if stdout is not None:
                stdout.close()  # flushes the rest
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def terminal(self, columns: int, *words: str) -> str:
        """Run a command whose stdout is a terminal with `columns` columns; return its output."""
        environment = {**self.environment, "TERM": "xterm"}
        environment.pop("COLUMNS", None)  # that of the terminal in which the tests run
        with ThreadPoolExecutor(1) as thread, Terminal(columns) as terminal:
            done = thread.submit(self._call, words, environment, terminal.stdout)
            return terminal.read_until_end(done)

    def process(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in a process of its own."""
        return subprocess.run(
            self.command(*words),
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def findings(self, *words: str) -> list[dict[str, Any]]:
        """Return the doctor's findings."""
        return json.loads(self.run("doctor", *words, "--json").stdout)

    def start(
        self,
        *words: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> subprocess.Popen[str]:
        """Start a service whose stderr a test reads, most often as a `Log`."""
        return subprocess.Popen(
            self.command(*words),
            env={**self.environment, **environment},
            cwd=self.folder,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def started(
        self,
        *words: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> Generator[tuple[subprocess.Popen[str], Log]]:
        """Start a service and yield it with its log; at the end kill it if it still runs."""
        with self.start(*words, environment=environment, stdin=stdin, stdout=stdout) as child:
            try:
                yield child, Log(child)
            finally:
                child.kill()

    @contextmanager
    def running(self, *words: str, until: str) -> Generator[subprocess.Popen[str]]:
        """Run a service and yield it when its log contains `until`; then end it with SIGTERM and expect exit code 0."""
        with self.started(*words) as (child, _):
            assert child.stderr is not None
            log = ""
            for line in child.stderr:
                log += line
                if until in line:
                    break
            else:
                raise AssertionError(f"its log never contained {until!r}: {log}")
            yield child
            child.send_signal(signal.SIGTERM)
            assert child.wait(PATIENCE) == 0, child.stderr.read()


class Terminal:
    """A pseudo-terminal with `columns` columns, to which a command of this process prints."""

    def __init__(self, columns: int) -> None:
        self._ours, its = os.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self.stdout = os.fdopen(its, "w")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdout.close()
        os.close(self._ours)

    def read_until_end(self, done: Future[subprocess.CompletedProcess[str]]) -> str:
        """Return all that is printed until the command has closed its stdout."""
        printed = b""
        while True:
            try:
                part = os.read(self._ours, 65536)
            except OSError:  # on Linux: the other end is closed
                part = b""
            if not part:
                break
            printed += part
        ended = done.result(PATIENCE)
        assert ended.returncode == 0, ended.stderr
        return printed.decode().replace("\r\n", "\n")


def _read_line(line: str) -> dict[str, Any]:
    """Read a line of a log; one that is no JSON is what a command prints when it cannot start."""
    return json.loads(line) if line.startswith("{") else {"message": line}


class Log:
    """The log of a service, line by line."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.lines: list[dict[str, Any]] = []

    def rest(self) -> None:
        """Read the rest of the log of a service that has ended."""
        assert self._child.stderr is not None
        self.lines += map(_read_line, self._child.stderr)

    def until(
        self, event: str, *others: str, count: int = 1, where: Callable[[dict[str, Any]], bool] = lambda line: True
    ) -> Any:
        """Read up to the `count`th line of an event, or of any of several, and return that line."""
        assert self._child.stderr is not None
        names = {event, *others}
        while len(found := [line for line in self.lines if line.get("event") in names and where(line)]) < count:
            line = self._child.stderr.readline()
            assert line, f"the service ended; its log was {self.lines}"
            self.lines.append(_read_line(line))
        return found[count - 1]


def terminate(child: subprocess.Popen[str]) -> int:
    """End a service with SIGTERM; return its exit code."""
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=PATIENCE)
    return child.returncode
