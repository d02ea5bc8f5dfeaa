"""A scene in which a clock jumps: jobs of each kind go through their steps, and at one of these the clock is set."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from tests.support.clock import SetClock, server_with_clock
from tests.support.clock_jobs import Line, read_lines
from tests.support.patience import NO_CAP, PATIENCE
from tests.support.plain import plain_client

WHOSE: Final = ("redis", "host", "both")
JUMPS: Final = (-86400, -3600, -1, 1, 3600, 86400)
"""Seconds."""
STEPS: Final = (
    "scheduled",
    "dispatched",
    "fetched",
    "started",
    "running",
    "retrying",
    "killed",
    "lease waiting",
    "ended",
)

LEASE: Final = 2.0
ROOT: Final = "evsched:{clocks}:"
_ROUNDING: Final = 0.001
"""Seconds. Times are rounded, and the host's clocks drift apart during a scene."""
_TICKS: Final = 25
"""Occurrences that may run besides one a second: those of the 15 s ahead, and what a jump of a second repeats."""


class Cell(NamedTuple):
    """Whose clock jumps, by how much, and at which step."""

    whose: str
    seconds: int
    step: str

    def __str__(self) -> str:
        return f"{self.whose} {self.seconds:+d} s, {self.step}"


class Recovery(NamedTuple):
    """Real seconds: from the death of a worker to the second start of its job, and of the whole scene."""

    killed: float
    whole: float


class ClockScene:
    """One cell: a server, a dispatcher and two workers of its own."""

    def __init__(self, folder: Path, cell: Cell) -> None:
        self._folder, self._cell = folder, cell
        self._children: list[subprocess.Popen[bytes]] = []
        self._host = SetClock(folder / "host")
        self._enqueued = set[str]()
        self._jumped: float | None = None
        """When, by the monotonic clock."""
        (folder / "oracle").touch()
        os.mkfifo(folder / "release")

    def run(self) -> Recovery:
        """Go through the steps, and check what is promised."""
        began = time.monotonic()
        with server_with_clock(self._folder, port=0) as (server, clock):
            self._url, self._server = server.url, clock
            self._client, self._raw = SyncClient(server.url), plain_client(server.url)
            address = self._raw.client_info()["addr"]
            self._offset = min(self._redis_now() - began for began in (time.monotonic() for _ in range(20)))
            self._set = [(-math.inf, 0)]
            with self._raw.monitor() as monitor:
                self._commands = (
                    line for line in monitor.listen() if f"{line['client_address']}:{line['client_port']}" != address
                )
                try:
                    killed = self._steps()
                finally:
                    for child in self._children:
                        child.kill()
                        child.wait()
                    self._client.close()
            self._raw.close()
        return Recovery(killed, time.monotonic() - began)

    # The scene.

    def _steps(self) -> float:
        raw = self._raw
        self._start("dispatcher")
        self._client.limit("clocks", group="g", concurrency=1)
        self._enqueue("work", "later", delay=1.0)
        self._at("scheduled")
        for n in range(3):
            self._enqueue("work", f"now-{n}")
            self._enqueue("work", f"group-{n}", group="g")
        self._enqueue("once", "once")
        self._until(lambda: raw.llen(f"{ROOT}ready") >= 5)
        self._at("dispatched")
        workers = [self._start("worker", "tests.support.clock_jobs:app") for _ in range(2)]
        self._until(lambda: raw.zcard(f"{ROOT}leases") == 2 and not self._unended())
        self._fetch(workers[1])
        holds = list[str]()
        while len({line.pid for line in self._lines("start") if line.id in holds}) < 2:
            holds.append(self._enqueue("hold", f"hold-{len(holds)}"))
            self._until(lambda: len(self._starts(holds[-1])) == 1)
            self._at("started")
        leases = raw.zrange(f"{ROOT}leases", 0, -1, withscores=True)
        self._until(lambda: raw.zrange(f"{ROOT}leases", 0, -1, withscores=True) != leases)
        self._at("running")
        self._enqueue("fail_once", "fails")
        self._enqueue("snooze_once", "snoozes")
        self._until(lambda: self._waits_again("fails") and self._waits_again("snoozes"))
        self._at("retrying")
        victims = [job for job in holds if self._starts(job)[0].pid == workers[1].pid]
        worker = raw.hget(f"{ROOT}job:{victims[0]}", "worker").decode()
        workers[1].kill()
        died = time.monotonic()
        self._at("killed")
        if self._cell.step == "lease waiting":
            self._until(lambda: raw.zscore(f"{ROOT}leases", worker) < self._redis_now() + LEASE / 2)
            self._at("lease waiting")
        self._until(lambda: all(len(self._starts(job)) == 2 for job in victims))
        recovered = self._starts(victims[0])[1].at - died
        with (self._folder / "release").open("w"):
            self._until(lambda: not self._unended())
        self._at("ended")
        self._enqueue("work", "after")
        self._until(lambda: not self._unended())
        jumped = self._jumped
        assert jumped is not None
        self._until(lambda: any("@" in line.id and line.at > jumped for line in self._lines("end")))
        self._check(victims, workers[1].pid)
        return recovered

    def _waits_again(self, job: str) -> bool:
        """Return whether a job that has run waits on the schedule, or has run again already."""
        starts = len(self._starts(job))
        return starts > 1 or (starts == 1 and self._raw.zscore(f"{ROOT}schedule", job) is not None)

    def _fetch(self, worker: subprocess.Popen[bytes]) -> None:
        """Have a job handed over to a stopped worker: its connection is still open, so Redis moves it into its list."""
        if self._cell.step != "fetched":
            return
        os.kill(worker.pid, signal.SIGSTOP)
        names = [name.decode() for name in self._raw.zrange(f"{ROOT}leases", 0, -1) if b"-%d-" % worker.pid in name]
        for n in range(4):
            job = self._enqueue("work", f"fetched-{n}")
            self._until(lambda job=job: self._starts(job) or self._is_held(names, job))
            if not self._starts(job):
                break
        self._at("fetched")
        os.kill(worker.pid, signal.SIGCONT)
        self._until(lambda: not self._unended())

    def _is_held(self, names: list[str], job: str) -> bool:
        """Return whether a job is in the list of one of these workers."""
        return any(job.encode() in self._raw.lrange(f"{ROOT}processing:{name}", 0, -1) for name in names)

    def _at(self, step: str) -> None:
        """Let the clock jump, if this is the step."""
        if step != self._cell.step or self._jumped is not None:
            return
        if self._cell.whose != "host":
            self._set_server(self._cell.seconds)
        if self._cell.whose != "redis":
            self._host.set(self._cell.seconds)
        self._jumped = time.monotonic()

    def _set_server(self, seconds: int) -> None:
        self._set.append((time.monotonic(), seconds))
        self._server.set(seconds)

    # What holds.

    def _check(self, victims: list[str], died: int) -> None:
        """Check that nothing is lost, early or twice. Jobs that the clock has put off run when it reaches their time.

        `victims`: the jobs that ran when a worker died. `died`: its pid. It may also have started another job then.
        """
        raw = self._raw
        due = [score for job, score in raw.zrange(f"{ROOT}schedule", 0, -1, withscores=True) if b"@" not in job]
        if due:
            self._set_server(math.ceil(max(due) - self._offset - time.monotonic()) + 1)
            self._until(lambda: not self._unended(all_of=True))
        lines = self._lines("start")
        set_by = lines[-1].wall - lines[-1].at - time.time() + time.monotonic()
        assert abs(set_by - (0 if self._cell.whose == "redis" else self._cell.seconds)) < 0.5, "the host's clock"
        wrong = [f"{line.id} early by {early:.3f} s" for line in lines if (early := self._early(line)) > _ROUNDING]
        twice = {"fails", "snoozes", *victims}
        jobs = {line.id for line in lines if "@" not in line.id}
        for job in jobs:
            pids = [line.pid for line in self._starts(job)]
            most = (2 if job in twice else 1) + (died in pids and job not in victims)
            if not (2 if job in twice else 1) <= len(pids) <= most:
                wrong.append(f"{job} started {len(pids)} times")
        if jobs != self._enqueued:
            wrong.append(f"lost: {self._enqueued - jobs}")
        if dead := raw.zrange(f"{ROOT}dead", 0, -1):
            wrong.append(f"dead: {dead}")
        ticks = [line.at for line in lines if "@" in line.id]
        if len(ticks) > max(ticks) - min(ticks) + _TICKS:
            wrong.append(f"{len(ticks)} occurrences in {max(ticks) - min(ticks):.1f} s")
        assert not wrong, f"{self._cell}: {wrong}"

    def _early(self, line: Line) -> float:
        """Return by how much a run was early, by the most advanced time that Redis's clock had shown by then."""
        until = [at for at, _ in self._set[1:]] + [math.inf]
        shown = [min(line.at, end) + ahead for (at, ahead), end in zip(self._set, until, strict=True) if at <= line.at]
        return line.due - self._offset - max(shown)

    def _unended(self, *, all_of: bool = False) -> set[str]:
        """Return the jobs that have not ended. Without `all_of`: of those that are due by Redis's clock."""
        ended = {line.id for line in self._lines("end")}
        left = self._enqueued - ended
        if all_of or not left:
            return left
        now = self._redis_now()
        scores = self._raw.zmscore(f"{ROOT}schedule", sorted(left))
        return {job for job, score in zip(sorted(left), scores, strict=True) if score is None or score <= now}

    def _lines(self, what: str) -> list[Line]:
        return [line for line in read_lines(self._folder) if line.what == what]

    def _starts(self, job: str) -> list[Line]:
        return [line for line in self._lines("start") if line.id == job]

    # Processes and Redis.

    def _enqueue(self, task: str, job: str, **options: Any) -> str:
        self._enqueued.add(job)
        self._client.enqueue("clocks", [new_job(task, (), {}, JobOptions(id=job, **options))])
        return job

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self._host.environment, "EVSCHED_URL": self._url, "EVSCHED_LEASE": str(LEASE)}
        environment |= {"CLOCK_SCENE": str(self._folder), "EVSCHED_TEST_SAFETY_CAP": str(NO_CAP)}
        command = [sys.executable, "-m", "evsched", *words, "--log-level", "CRITICAL"]
        child = subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[2])
        self._children.append(child)
        return child

    def _redis_now(self) -> float:
        seconds, micros = self._raw.time()
        return seconds + micros / 1e6

    def _until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds, checking it at each command that Redis receives from others."""
        end = time.monotonic() + PATIENCE
        while not condition():
            next(self._commands)
            assert time.monotonic() < end, f"{self._cell}: {read_lines(self._folder)}"
