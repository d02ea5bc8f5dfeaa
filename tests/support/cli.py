"""The commands: run to their end, or run as a service and heard."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from evsched.cli.main import main
from tests.support.patience import PATIENCE

SERVICES = {"dispatcher", "worker", "dev", "demo"}


class Cli:
    """Runs commands in a folder, against one Redis."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "EVSCHED_URL": url, "PYTHONPATH": str(Path(__file__).parents[2])}
        self.environment.pop("EVSCHED_TEST_SERVER", None)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "evsched", *words]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end.

        What is not a service is called in this process: a start of Python costs more than all that it does, and there
        are hundreds. It has a thread of its own, since a test may have an event loop in this one.
        """
        if SERVICES & {*words[:1]}:
            return self.process(*words, **environment)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._call, words, {**self.environment, **environment}).result(PATIENCE)

    def _call(self, words: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        with (
            patch.dict(os.environ, environment, clear=True),
            patch.object(sys, "argv", ["evsched", *words]),
            redirect_stdout(StringIO()) as out,
            redirect_stderr(StringIO()) as err,
        ):
            code: Any = 0
            try:
                main()
            except SystemExit as ended:
                code = ended.code or 0
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def process(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in a process of its own."""
        return subprocess.run(
            self.command(*words),
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def running(self, *words: str, until: str) -> Generator[subprocess.Popen[str]]:
        """Run a service until its log has said `until`; end it with SIGTERM, and see that it ends well."""
        child = subprocess.Popen(
            self.command(*words), env=self.environment, cwd=self.folder, stderr=subprocess.PIPE, text=True
        )
        assert child.stderr is not None
        try:
            said = ""
            for line in child.stderr:
                said += line
                if until in line:
                    break
            else:
                raise AssertionError(f"it never said {until!r}: {said}")
            yield child
            child.send_signal(signal.SIGTERM)
            assert child.wait(PATIENCE) == 0, child.stderr.read()
        finally:
            child.kill()
            child.wait()
            child.stderr.close()


class Log:
    """What a service says, line by line."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.lines: list[dict[str, Any]] = []

    def until(
        self, event: str, *others: str, count: int = 1, where: Callable[[dict[str, Any]], bool] = lambda line: True
    ) -> Any:
        """Read on to the `count`th line of an event, or of any of several."""
        assert self._child.stderr is not None
        names = {event, *others}
        while len(found := [line for line in self.lines if line["event"] in names and where(line)]) < count:
            line = self._child.stderr.readline()
            assert line, f"it ended, and said {self.lines}"
            self.lines.append(json.loads(line))
        return found[count - 1]


def ended(child: subprocess.Popen[str]) -> int:
    """End a service with SIGTERM; return its exit code."""
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=PATIENCE)
    return child.returncode
