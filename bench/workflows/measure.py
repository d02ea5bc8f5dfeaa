"""The programs, whose worker is killed in the middle: whether they end, and how often their jobs run."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from bench.environments import programs
from bench.figures import Failed, Figures, Table
from bench.processes import CHECKOUT, Child, running, tree
from bench.server import Server, server, until
from bench.workflows import runs

_JOBS: Final = 1000
"""Jobs of the import and of the chord."""

_LIMIT: Final = 200.0
"""Seconds after the kill in which a program must have ended."""

_MIDDLE: Final = {"import": _JOBS // 2, "chord": _JOBS // 2, "chain": 2}
"""How many different jobs have run when the worker is killed."""


class System(Struct, frozen=True):
    """A scheduler with its settings."""

    scheduler: str
    """The name of its environment."""
    module: str
    """The programs."""
    worker: tuple[str, ...]
    dispatcher: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}


_CELERY: Final = ("celery", "--app", "bench.workflows.on_celery", "worker", "--loglevel", "CRITICAL")

SYSTEMS: Final = {
    "evsched": System(
        "evsched",
        "bench.workflows.on_evsched",
        ("evsched", "worker", "bench.workflows.on_evsched:app", "--concurrency", "2"),
        ("evsched", "dispatcher"),
    ),
    "celery": System("celery", "bench.workflows.on_celery", _CELERY),
    "celery, late acks": System("celery", "bench.workflows.on_celery", _CELERY, variables={"BENCH_CAREFUL": "1"}),
}


class _Scene:
    """A scheduler on a server of its own."""

    def __init__(self, system: System, where: Server, path: Path) -> None:
        self._system = system
        self._path = path
        self._folder = programs(system.scheduler)
        self._variables = {
            "BENCH_REDIS": where.url,
            "EVSCHED_URL": where.url,
            "EVSCHED_LOG_LEVEL": "CRITICAL",
            "PYTHONPATH": str(CHECKOUT),
            runs.VARIABLE: str(path),
            **system.variables,
        }

    def run(self, program: str, *words: str) -> AbstractContextManager[Child]:
        return running((str(self._folder / program), *words), self._variables)

    def worker(self) -> AbstractContextManager[Child]:
        return self.run(*self._system.worker)

    def dispatcher(self) -> AbstractContextManager[Child]:
        return self.run(*(self._system.dispatcher or ("python", "-c", "import time; time.sleep(1e6)")))

    def start(self, program: str) -> AbstractContextManager[Child]:
        """Start a program; the process remains until the context ends."""
        return self.run("python", "-m", self._system.module, program, str(_JOBS))

    def ran(self, kind: str) -> list[int]:
        """Return how often each job, or each callback, has run."""
        return [times for name, times in runs.count(self._path).items() if name.startswith(kind)]


def _killed(program: str, system: System) -> Figures:
    with server() as where, tempfile.NamedTemporaryFile() as file:
        scene = _Scene(system, where, Path(file.name))
        with scene.dispatcher():
            with scene.worker() as victim, scene.start(program):
                until(lambda: len(scene.ran("job")) >= _MIDDLE[program])
                before = len(scene.ran("job"))
                for pid in tree(victim.pid):
                    os.kill(pid, signal.SIGKILL)
            killed = time.time()
            with scene.worker():
                try:
                    until(lambda: bool(scene.ran("callback")), _LIMIT)
                except Failed:
                    ended = None
                else:
                    ended = time.time() - killed
                    time.sleep(5)  # whether it comes again
        expected = 2 if program == "chain" else _JOBS
        return {
            "jobs begun before": before,
            "jobs lost": expected - len(scene.ran("end")),
            "jobs begun twice": sum(times > 1 for times in scene.ran("job")),
            "callbacks": sum(scene.ran("callback")),
            "callback after, s": ended,
        }


def tables() -> dict[str, Table]:
    """Return the table of each program."""
    titles = {
        "import": f"An import of {_JOBS} rows with a summary",
        "chord": f"A total of the results of {_JOBS} jobs",
        "chain": "A chain of three jobs",
    }
    return {
        f"workflow-{program}": Table(
            f"{title}: its worker is killed in the middle, and another one starts",
            {name: partial(_killed, program, system) for name, system in SYSTEMS.items()},
        )
        for program, title in titles.items()
    }
