"""The commands as processes: run to their end, or run as a service and heard."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE


class Cli:
    """Runs commands in a folder, against one Redis."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "EVSCHED_URL": url, "PYTHONPATH": str(Path(__file__).parents[2])}
        self.environment.pop("EVSCHED_TEST_SERVER", None)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "evsched", *words]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
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

    def until(self, event: str, count: int = 1, where: Callable[[dict[str, Any]], bool] = lambda line: True) -> Any:
        assert self._child.stderr is not None
        while len(found := [line for line in self.lines if line["event"] == event and where(line)]) < count:
            line = self._child.stderr.readline()
            assert line, f"it ended, and said {self.lines}"
            self.lines.append(json.loads(line))
        return found[count - 1]


def ended(child: subprocess.Popen[str]) -> int:
    """End a service with SIGTERM; return its exit code."""
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=PATIENCE)
    return child.returncode
