"""evsched under a fault: services that run jobs, a producer that enqueues them meanwhile, and the account of both.

The jobs are those of tests/chaos/app.py. Each notes its start and its end in a file outside Redis. A job was accepted
if the call that enqueued it returned; one whose call failed may have been accepted or not, and is not in the account.
"""

from __future__ import annotations

import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psycopg

from bench.figures import Failed, Figures
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.errors import StoreError
from evsched.store.client_calls import New
from tests.chaos.conftest import Fleet

QUEUE: Final = "chaos"
DISPATCHER: Final = ("dispatcher",)
WORKER: Final = ("worker", "tests.chaos.app:app", "--concurrency", "20")
PARENT: Final = (*WORKER, "--processes", "2")

_LENGTH: Final = 0.1
"""Seconds that a job runs."""

_AHEAD: Final = 3.0
"""Jobs are due now, or at most so many seconds later."""

_PAUSE: Final = 0.02
"""Seconds from one enqueue to the next."""

_LIMIT: Final = 120.0
"""Seconds after the last fault in which all jobs must have ended; a job that has not is counted as lost."""

_SETTLING: Final = 16.0
"""Seconds after all jobs have ended, longer than a lease: a run whose end Redis does not know of is made again."""

Enqueue = Callable[[New], float]
"""Enqueues a job, and returns when it is due, in Unix seconds. Raises StoreError if it was perhaps not accepted."""


@contextmanager
def through_client(url: str) -> Generator[Enqueue]:
    """Enqueue with evsched's client."""
    client = SyncClient(url)

    def enqueue(job: New) -> float:
        (due,) = client.enqueue(QUEUE, [job])
        return due

    try:
        yield enqueue
    finally:
        client.close()


@contextmanager
def in_transactions(url: str) -> Generator[Enqueue]:
    """Enqueue by a row in the ledger of this URL, in a transaction of its own."""
    insert = (
        "INSERT INTO evsched_job (queue, id, payload, due) VALUES (%s, %s, %s, now() + make_interval(secs => %s)) "
        "RETURNING extract(epoch FROM due)::float8"
    )
    with psycopg.connect(url, autocommit=True) as connection:

        def enqueue(job: New) -> float:
            row = connection.execute(insert, [QUEUE, job.id, job.payload.decode(), job.delay]).fetchone()
            assert row is not None
            return row[0]

        yield enqueue


class Producer:
    """Enqueues jobs from a thread of its own, and knows when each that was accepted is due."""

    def __init__(self, enqueue: Enqueue) -> None:
        self.dues: dict[str, float] = {}
        self.refused = 0
        self._enqueue = enqueue
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rng, number = random.Random(5), 0
        while not self._stopping.wait(_PAUSE):
            number += 1
            delay = rng.choice([0.0, rng.uniform(0, _AHEAD)])
            job = new_job("work", (_LENGTH,), {}, JobOptions(id=f"job-{number}", delay=delay))
            try:
                self.dues[job.id] = self._enqueue(job)
            except StoreError:
                self.refused += 1

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class Scene:
    """Services, a producer, and what happened to the jobs. `kill` and `stop_for` are faults of processes."""

    def __init__(self, fleet: Fleet, commands: Sequence[Sequence[str]], settings: Mapping[str, str]) -> None:
        self.rng = random.Random(7)
        self._fleet = fleet
        self._settings = settings
        self._services = [(words, fleet.start(*words, **settings)) for words in commands]

    def begin(self, enqueue: Enqueue) -> None:
        """Wait until a job has run, and let the producer enqueue."""
        self.producer = Producer(enqueue)
        until = time.monotonic() + _LIMIT
        while not any(what == "end" for what, *_ in self._fleet.lines()):
            if time.monotonic() > until:
                raise Failed("no job ran")
            time.sleep(0.1)

    def kill(self, role: str) -> None:
        """Kill one of the services that run this command, and start another."""
        at = self._one_of(role)
        words, child = self._services[at]
        child.kill()
        child.wait()
        self._services[at] = words, self._fleet.start(*words, **self._settings)

    def stop_for(self, role: str, seconds: float) -> None:
        """Stop one of them with SIGSTOP, and continue it."""
        _, child = self._services[self._one_of(role)]
        child.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        child.send_signal(signal.SIGCONT)

    def _one_of(self, role: str) -> int:
        return self.rng.choice([at for at, (words, _) in enumerate(self._services) if words[0] == role])

    def account(self, faults: int) -> Figures:
        """Stop the producer, wait until all jobs have ended, and return the figures."""
        self.producer.stop()
        dues, until = self.producer.dues, time.monotonic() + _LIMIT
        while lost := dues.keys() - {job for what, job, *_ in self._fleet.lines() if what == "end"}:
            if time.monotonic() > until:
                break
            time.sleep(0.2)
        time.sleep(_SETTLING)
        starts, ends = dict[str, list[float]](), Counter[str]()
        for what, job, _, _, at in self._fleet.lines():
            if what == "start":
                starts.setdefault(job, []).append(at)
            else:
                ends[job] += 1
        began = {job: min(starts[job]) - due for job, due in dues.items() if job in starts}
        if not began:
            raise Failed("no job was accepted and run")
        return {
            "faults": faults,
            "accepted": len(dues),
            "not accepted": self.producer.refused,
            "lost": len(lost),
            "early": sum(late < 0 for late in began.values()),
            "cut short and run again": sum(len(starts[job]) - ends[job] for job in dues if ends[job]),
            "ended twice": sum(ends[job] > 1 for job in dues),
            "longest delay, s": round(max(began.values()), 2),
        }


@contextmanager
def scene(
    url: str, commands: Sequence[Sequence[str]], enqueue: Enqueue | None = None, **settings: str
) -> Generator[Scene]:
    """Start services with these settings, and yield them when they run jobs; without `enqueue`, those of a client."""
    with tempfile.TemporaryDirectory(prefix="bench-scene-") as folder, ExitStack() as stack:
        fleet = Fleet(url, Path(folder) / "oracle")
        stack.callback(fleet.stop)
        made = Scene(fleet, commands, settings)
        made.begin(enqueue or stack.enter_context(through_client(url)))
        stack.callback(made.producer.stop)
        yield made
