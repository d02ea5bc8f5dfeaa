"""One scene with one fault: its processes run, one of them strikes itself and is replaced, until all jobs have ended.

Processes are forked from this one, which has imported evsched already: to start Python for each would take longer than
the scenes do. So this process must have no threads.
"""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, get_args

import psycopg

from evsched import keys
from evsched.__main__ import main as run_command
from evsched.execution import parent_death
from evsched.shards import Shards
from tests.crash_points import injection
from tests.crash_points.injection import Fault, Moment, Point
from tests.crash_points.scenes import QUEUE, SCENES, SHARDS
from tests.crash_points.testimony import WORKER, read
from tests.crash_points.verdict import Seen, counts_of_recurrence, judge
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client

SHORT: Final = {"EVSCHED_LEASE": "1.5", "EVSCHED_TEST_HEARTBEAT": "0.3", "EVSCHED_LOG_LEVEL": "WARNING"}
HANG: Final = 2.4
"""Seconds for which a process is stopped: its lease, and some time in which a dispatcher looks twice."""
BESIDE: Final = 6
"""How many attacks are made at a time: each keeps a core busy for about a sixth of its time."""


@dataclass
class Report:
    """What came of an attack."""

    scene: str
    striker: str
    point: Point | None
    struck: bool = False
    wrong: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    calls: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Of a recording: the calls of the striker, each with how many of its verb there were before and with it."""
    again: int = 0
    """Runs beyond those of a scene without a fault."""

    def __str__(self) -> str:
        return f"{self.scene}: {self.striker} {self.point}: {'; '.join(self.wrong) or 'nothing is wrong'}"


def attack(url: str, ledger: str, folder: Path, scene: str, striker: str, point: Point | None) -> Report:
    """Play a scene in which a process strikes at a point; None = it does not, and its calls are recorded."""
    queue = f"crash-{secrets.token_hex(4)}"
    own = folder / queue
    own.mkdir()
    report, began = Report(scene, striker, point), time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    with ExitStack() as stack:
        url = stack.enter_context(_redis(url, folder))
        if SCENES[scene].ledger:
            ledger = stack.enter_context(_ledger(ledger, queue))
        playing = _Playing(url, ledger, own, queue, scene, striker, point)
        stack.callback(playing.end)
        redis = stack.enter_context(plain_client(url))
        try:
            playing.play(redis)
            lines = read(own / "testimony")
            killed = {line.worker for line in lines if line.what == "killed"} | {playing.struck or 0}
            seen = Seen(queue, lines, killed, point is not None)
            report.wrong, report.again = judge(redis, url, SCENES[scene], seen)
        except AssertionError as error:
            report.wrong.append(f"{error}; {playing.last_words()}")
    report.struck, report.seconds = playing.struck is not None, time.monotonic() - began
    if point is None and (own / "calls").exists():
        words = (line.rsplit(" ", 1) for line in (own / "calls").read_text().splitlines())
        report.calls = [(verb, int(nth)) for verb, nth in words]
    return report


def attack_all(
    url: str, ledger: str, folder: Path, wanted: Sequence[tuple[str, str, Point | None]], *, beside: int = BESIDE
) -> Iterator[Report]:
    """Attack points, some beside each other: most of the time they wait for leases to end."""
    with ProcessPoolExecutor(beside, get_context("spawn"), _end_with_parent) as pool:
        for done in as_completed([pool.submit(attack, url, ledger, folder, *one) for one in wanted]):
            yield done.result()


def points_of(recorded: Report) -> list[Point]:
    """Return the points at the calls that a recording has."""
    return [
        Point(verb, nth, moment, fault)
        for verb, nth in recorded.calls
        for moment in get_args(Moment)
        for fault in get_args(Fault)
    ]


def _end_with_parent() -> None:
    """End this process with the one that has started it."""
    parent_death._ask_kernel()  # pyright: ignore[reportPrivateUsage]


@contextmanager
def _redis(url: str, folder: Path) -> Generator[str]:
    """Yield the URL of a database of Redis that no other attack uses."""
    for number in range(1, 16):
        with suppress(FileExistsError):
            (folder / f"database-{number}").mkdir()
            own = f"{url}?db={number}"
            try:
                yield own
            finally:
                with plain_client(own) as redis:
                    redis.flushdb()
                (folder / f"database-{number}").rmdir()
            return
    raise AssertionError("there are 15 databases for attacks")


@contextmanager
def _ledger(template: str, queue: str) -> Generator[str]:
    """Yield the URL of a ledger of its own, a copy of an empty one."""
    before, after = template.split("?")
    server, name = before.rsplit("/", 1)
    own = queue.replace("-", "_")
    with psycopg.connect(f"{server}/postgres?{after}", autocommit=True) as rows:
        rows.execute(f"CREATE DATABASE {own} TEMPLATE {name}".encode())
        yield f"{server}/{own}?{after}"
        rows.execute(f"DROP DATABASE {own} WITH (FORCE)".encode())


class _Playing:
    """The processes of one scene."""

    def __init__(
        self, url: str, ledger: str, folder: Path, queue: str, name: str, striker: str, point: Point | None
    ) -> None:
        self._scene = scene = SCENES[name]
        self._folder = folder
        self._queue = queue
        self._striker = striker
        self._point = point
        self._environment = {
            **SHORT,
            **scene.environment,
            "EVSCHED_URL": url,
            "EVSCHED_LEDGER_URL": ledger,
            QUEUE: queue,
            injection.FOLDER: str(folder),
        }
        self._running = dict[int, str]()
        """The names of the processes that run, by their ids."""
        self._ended = set[str]()
        """The programs that have ended in order."""
        self._ending = False
        self.struck: int | None = None
        """The process that has struck."""
        self._continue_at: float | None = None

    def play(self, redis: Any) -> None:
        """Start everything, and return when all jobs and processes have ended."""
        late, programs = self._scene.late, list(self._scene.programs)
        for name in self._scene.services:
            if name not in late:
                self._start(name)
        for name in programs:
            if name == programs[-1]:
                for service in late:
                    self._start(service)
            self._start(name)
            self._wait(f"program {name} does not end", lambda name=name: name in self._ended)
        self._wait("jobs do not end", lambda: self._is_idle(redis))
        self._ending = True
        for pid, name in self._running.items():
            if name in self._scene.services:
                os.kill(pid, signal.SIGTERM)
        self._wait("services do not end", lambda: not self._running)
        self._wait("it is stopped", lambda: self._continue_at is None)

    def end(self) -> None:
        """Kill what still runs."""
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        for pid in self._running:
            os.waitpid(pid, 0)
        self._running.clear()

    def last_words(self) -> str:
        """Return what processes have logged last."""
        return " / ".join(
            f"{file.name}: {text[-400:]}" for file in self._folder.glob("*.log") if (text := file.read_text())
        )

    def _wait(self, problem: str, condition: Callable[[], bool]) -> None:
        """Wait for an event. On a busy machine a scene takes minutes, but something begins or ends meanwhile."""
        testimony, seen, limit = self._folder / "testimony", -1, 0.0
        while not condition():
            size = testimony.stat().st_size if testimony.exists() else 0
            if size > seen:
                seen, limit = size, time.monotonic() + PATIENCE
            assert time.monotonic() < limit, problem
            signal.sigtimedwait((signal.SIGCHLD,), 0.02)
            self._look()

    def _look(self) -> None:
        """Note which processes have ended or struck; replace them."""
        struck = self._folder / "struck"
        if self.struck is None and struck.exists() and (text := struck.read_text().strip()):
            self.struck = int(text)
            if self._point is not None and self._point.fault == "stop":
                self._continue_at = time.monotonic() + HANG
                if self._striker in self._scene.services and not self._ending:
                    self._start(self._striker)
        if self._continue_at is not None and time.monotonic() > self._continue_at:
            self._continue_at = None
            assert self.struck is not None
            os.kill(self.struck, signal.SIGCONT)
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._note_end(pid, os.waitstatus_to_exitcode(status))

    def _note_end(self, pid: int, code: int) -> None:
        name = self._running.pop(pid)
        killed = code == -signal.SIGKILL and (self._folder / "struck").exists()
        if name in self._scene.services:
            # One that has just taken the place of the one that was struck may not handle signals yet.
            orderly = (0, -signal.SIGTERM) if self.struck is not None else (0,)
            assert killed or (self._ending and code in orderly), f"service {name} ended with {code}"
            if killed and not self._ending:
                self._start(name)
        elif code == 0:
            self._ended.add(name)
        else:
            assert killed, f"program {name} ended with {code}"
            self._start(name)

    def _is_idle(self, redis: Any) -> bool:
        """Whether every job has ended, those of the recurrence included."""
        # First: an occurrence that is made between the two reads must be found in a place.
        made, _ = counts_of_recurrence(redis, self._queue)
        if made != self._scene.occurrences:
            return False
        for part in Shards({self._queue: self._scene.shards}).all_of(self._queue):
            for key in redis.keys(f"{keys.root(part)}*"):
                place = key.removeprefix(keys.root(part).encode())
                if place in (b"schedule", b"ready", b"backlog", b"moving") or place.startswith(
                    (b"processing:", b"backlog:")
                ):
                    return False
        return True

    def _start(self, name: str) -> None:
        words = {**self._scene.services, **self._scene.programs}[name]
        pid = os.fork()
        if pid:
            self._running[pid] = name
            return
        code: Any = 99
        try:
            self._become(name)
            self._run([words] if isinstance(words, str) else words)
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _become(self, name: str) -> None:
        """Give this fork an environment of its own, and let it strike if it is the one."""
        _end_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
        log = os.open(self._folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, own in ((null, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, own)
        os.environ.update(self._environment)
        if name != "client":
            os.environ[SHARDS] = str(self._scene.shards)
        if name == "worker":
            os.environ[WORKER] = str(os.getpid())
        if name == self._striker:
            os.environ[injection.VARIABLE] = "" if self._point is None else str(self._point)
            injection.arm()

    def _run(self, words: Sequence[str]) -> None:
        if len(words) == 1:
            getattr(importlib.import_module("tests.crash_points.programs"), words[0])()
            return
        sys.argv = ["evsched", *(word.format(queue=self._queue) for word in words)]
        run_command()
