"""Child processes with all their descendants: started, measured, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.figures import Failed

CHECKOUT: Final = Path(__file__).parents[1]

_STOP: Final = 15.0
"""Seconds that a process has to end after SIGTERM; then it is killed."""


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; none if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def tree(*pids: int) -> list[int]:
    """Return processes and their descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (fields := _stat(int(path.name))):
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found = list(dict.fromkeys(pids))
    for one in found:  # grows meanwhile
        found += [child for child in children.get(one, []) if child not in pids]
    return found


def cpu(*pids: int) -> float:
    """Return the CPU seconds that these processes and their descendants have used.

    The clock ticks of /proc/PID/stat are too coarse for an idle process; what the scheduler counts for each thread is
    exact. Of processes that have ended there are only ticks; threads that have ended count no longer.
    """
    seconds = 0.0
    for one in tree(*pids):
        seconds += sum(map(int, _stat(one)[13:15])) / os.sysconf("SC_CLK_TCK")
        for thread in Path(f"/proc/{one}/task").glob("*/schedstat"):
            try:
                seconds += int(thread.read_text(encoding="ascii").split()[0]) / 1e9
            except (FileNotFoundError, ProcessLookupError):
                pass  # it has just ended
    return seconds


class Child:
    """A running command."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    def check(self) -> None:
        """Fail if the process has ended."""
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").splitlines()[-5:]
            raise Failed(f"a process ended with {self._process.returncode}: {' / '.join(lines)}")

    def stop(self) -> None:
        """End the process and its descendants: by SIGTERM, and what remains of them by SIGKILL."""
        family = {pid: _stat(pid)[19:20] for pid in tree(self.pid)}  # with the time at which it started
        self._process.terminate()
        try:
            self._process.wait(_STOP)
        except subprocess.TimeoutExpired:
            pass
        for pid, started in family.items():
            if started and _stat(pid)[19:20] == started:
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str]) -> Generator[Child]:
    """Run a command in the checkout, with these variables besides our own; end it at the end."""
    with tempfile.NamedTemporaryFile(prefix="bench-log-") as log:
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we end it
        )
        child = Child(process, Path(log.name))
        try:
            yield child
        finally:
            child.stop()
