"""The calls of workers, and of their parents while these have no worker process. How runs end is in `run_ends.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from evsched import keys
from evsched.jobs.job import FetchedJob, Mark
from evsched.store.queue import (
    Announced,
    Queue,
    as_bool,
    as_fields,
    as_optional,
    as_pairs,
    as_scores,
    as_struct,
    is_there,
)
from evsched.transport.call import Call, Word, raw, text, texts


class Fetched(Struct, frozen=True):
    """The result of one `start`."""

    now: float
    more: bool
    """Ready holds more jobs: ask again when slots are free, without blocking."""
    waits: bool
    """The worker waits for a message from here on."""
    leased: bool
    """False: the worker's lease was gone, and the jobs that it held belong to others."""
    held: int
    """How many jobs the worker's list holds."""
    jobs: list[FetchedJob]
    buried: list[tuple[str, str]]


class Handed(Struct, frozen=True):
    """A job that a script has handed over to an idle worker: it is in the worker's list, and started."""

    ticket: int
    """The ticket of the seat that it was given."""
    now: float
    """When it was handed over, by Redis's clock."""
    more: bool
    """Ready holds more jobs."""
    job: FetchedJob


def read_handed(message: bytes) -> Handed:
    """Read the message of a hand-over.

    Raises:
        ValueError: this release does not know its form.
    """
    ticket, moment, more, job_id, attempt, due, planned, payload = message.split(b"\n", 7)
    run = text(attempt + b" " + moment)
    job = FetchedJob(text(job_id), int(attempt), float(due), payload, float(planned), run=run)
    return Handed(int(ticket), float(moment), more == b"1", job)


class Renewed(Struct, frozen=True):
    """The result of one `heartbeat`."""

    kept: bool
    """The lease was still there, or was begun."""
    held: int
    """How many jobs the worker's list holds."""
    stops: list[str]
    """Which of them are to stop."""
    declared: bool
    """False: Redis has lost the declarations of the worker's app, or they are to be made again."""
    waits: bool
    """The worker waits for a message that jobs are ready."""
    now: float
    """When it was renewed, by Redis's clock."""


class LastRun(Struct, frozen=True):
    """The fields of a record that are about its last run."""

    worker: str | None
    """Who runs the job, or ran it last; None: it was put back since."""
    run: str
    """The run, as `FetchedJob.run` names it."""
    outcome: str | None
    """How the job ended; None: it has not."""
    payload: bytes | None
    """The job's payload; None: there is no record."""
    now: float
    """When this was read, by Redis's clock."""


Need = Literal["ready", "undeclared", "sought", ""]
"""Why a queue needs a worker process: a job waits, Redis has lost the app's declarations, or workers seek a task that
the app has; empty = it needs none."""


class Stance(Struct, frozen=True):
    """The result of one `stand_by`."""

    need: Need
    claimed: bool
    """This parent is to start the process."""


_optional_text: Final = as_optional(text)


class WorkerCalls(Queue):
    """The calls of a worker, and of a parent without worker processes, which waits for jobs.

    A parent puts back with `held` and `requeue` the jobs of a process that has ended.
    """

    def fetch(self, worker: str, block: float) -> Call[str | None]:
        """Wait up to `block` seconds for a job and move it into the worker's list: BLMOVE, half of a fetch."""
        words = (keys.ready(self.queue), keys.processing(self.queue, worker), "LEFT", "RIGHT", block)
        return self._call(("BLMOVE", *words), _optional_text)

    def wake(self) -> Call[Any]:
        """Have each dispatcher look at the queue, also if it did not know it."""
        return self._call(("PUBLISH", keys.gate(self.queue), 0), raw)

    def start(
        self,
        worker: str,
        ids: Sequence[str],
        *,
        hold: int,
        lease: float,
        cap: int = 256 * 1024,
        ticket: int | None = None,
    ) -> Call[Fetched]:
        """Count the attempts of the jobs that BLMOVE moved, move more until `hold` are held, and hand them all out.

        Jobs beyond the worker's share, and those whose payloads do not fit in one reply, are left for the next call.
        `ticket`: if it may hold more and ready is empty, the worker gets a message when a job is ready: of the job,
        which is handed over with this ticket, or an empty one if it is 0. None = the worker does not wait.
        """

        def fetch(reply: list[Any]) -> Fetched:
            moment, more, waits, leased, held, flat, buried, suspects = reply
            jobs, last, run, attempt = list[FetchedJob](), b"", "", 0
            values = iter(flat)
            for job_id, name, due, payload, planned in zip(values, values, values, values, values, strict=True):
                if name != last:  # mostly one name for all
                    last, run, attempt = name, text(name), int(name.partition(b" ")[0])
                at = float(due)
                then = at if planned == due else float(planned)
                jobs.append(FetchedJob(text(job_id), attempt, at, payload, then, run=run))
            if suspects:
                suspicion = {text(suspects[i]): suspects[i + 1 : i + 4] for i in range(0, len(suspects), 4)}
                jobs = [
                    replace(job, deaths=of[0], doubts=of[1], counted=of[2]) if (of := suspicion.get(job.id)) else job
                    for job in jobs
                ]
            return Fetched(float(moment), more == b"1", waits == b"1", leased == b"1", held, jobs, as_pairs(buried))

        return self._verb("start", fetch, self._now(), worker, lease, hold, cap, "" if ticket is None else ticket, *ids)

    def is_idle(self, worker: str) -> Call[bool]:
        """Return whether the worker waits for a message."""
        return self._call(("ZSCORE", f"{self._root}idle", worker), is_there)

    def decline(self, worker: str = "") -> Call[bool]:
        """Stop waiting for a message; return whether the worker waited. If not, it was sent one, or was unknown.

        If it was sent an empty message, another worker is served. Without a worker: one did not come after its message,
        so all others are served.
        """
        return self._verb("decline", as_bool, self._now(), worker)

    def begin(self, worker: str, runs: Iterable[tuple[FetchedJob, Mark]]) -> Call[list[str]]:
        """Mark runs that have begun, or are about to; the reply is the ids of lost runs."""
        words: list[Word] = [worker]
        for job, mark in runs:
            words += (job.id, job.run, mark)
        return self._verb("begin", texts, *words)

    def heartbeat(
        self,
        worker: str,
        lease: float,
        *,
        busy: float | None = None,
        fresh: bool = False,
        announced: Announced = Announced(),  # noqa: B008 - it is frozen
    ) -> Call[Renewed]:
        """Renew a lease, or begin one.

        `busy`: the seconds of the lease that the worker has while it holds jobs. `announced`: the declarations of its
        app that the worker has written.
        """
        renewed = as_struct(Renewed, as_bool, int, texts, as_bool, as_bool, float)
        words = announced.owner, announced.content, announced.program
        return self._verb("heartbeat", renewed, self._now(), worker, lease, busy or "", "1" if fresh else "", *words)

    def set_program(self, program: str, tasks: Sequence[str]) -> Call[int]:
        """Write the names of the tasks of an app, one at least, under their digest."""
        return self._call(("SADD", f"{self._root}program:{program}", *tasks), int)

    def seek(self, task: str) -> Call[bool]:
        """Return whether a worker, or a parent that stands by, has a task that the caller does not know.

        If no worker has it, the task is noted as sought.
        """
        return self._verb("seek", as_bool, self._now(), task)

    def unknown_size(self, job_id: str) -> Call[int]:
        """Read how many bytes the field `unknown` of a record has, 0 = none: a producer may have written it."""
        return self._call(("HSTRLEN", f"{self._root}job:{job_id}", "unknown"), int)

    def unknown(self, job_id: str) -> Call[bytes | None]:
        """Read the field of a record that says since when workers have not known the task; see `unknown_since`."""
        return self._call(("HGET", f"{self._root}job:{job_id}", "unknown"), raw)

    def held(self, worker: str) -> Call[list[str]]:
        """Read the ids in a worker's list."""
        return self._call(("LRANGE", keys.processing(self.queue, worker), 0, -1), texts)

    def last_run(self, job_id: str) -> Call[LastRun]:
        """Read the fields of a job's record that are about its last run."""

        def last(reply: list[Any]) -> LastRun:
            record = as_fields(reply[3])
            worker, attempt, started, outcome = (
                _optional_text(record.get(name)) for name in ("worker", "attempt", "started", "outcome")
            )
            return LastRun(worker, f"{attempt or ''} {started or ''}", outcome, record.get("payload"), float(reply[0]))

        return self._verb("look", last, self._now(), job_id)

    def reply_status(self, channel: str, status: bytes) -> Call[int]:
        """Answer a status request; the reply is how many received it."""
        return self._call(("PUBLISH", channel, status), int)

    def await_ready(self, block: float) -> Call[bool]:
        """Wait up to `block` seconds until a job is ready, and leave it where it is; the reply is whether one is.

        BLMOVE from the front of ready to the front of ready. It is the only command that waits in Redis
        that removes nothing even if its reply is lost. Workers that wait for the same job get it all the same.
        """
        ready = keys.ready(self.queue)
        return self._call(("BLMOVE", ready, ready, "LEFT", "LEFT", block), is_there)

    def stand_by(self, parent: str, announced: Announced, *, lease: float, claim: float) -> Call[Stance]:
        """Register a parent for `lease` seconds; if a process is needed, claim its start for `claim` seconds.

        `claim`: 0 = it only registers.
        """
        words = announced.owner, announced.content, announced.program
        return self._verb("stand_by", as_struct(Stance, text, as_bool), self._now(), parent, lease, claim, *words)

    def stand_down(self, parent: str) -> Call[int]:
        """Remove a parent that has a worker process now, or ends."""
        return self._call(("ZREM", keys.parents(self.queue), parent), int)

    def prolong_start(self, seconds: float) -> Call[int]:
        """Prolong the claim of the start of a process, which has not ended yet."""
        return self._call(("PEXPIRE", keys.starting(self.queue), round(seconds * 1000)), int)

    def end_start(self) -> Call[int]:
        """End the claim of the start of a process."""
        return self._call(("DEL", keys.starting(self.queue)), int)

    def parents(self) -> Call[list[tuple[str, float]]]:
        """Read the parents that stand by, and when their registrations end, Unix seconds."""
        return self._call(("ZRANGE", keys.parents(self.queue), 0, -1, "WITHSCORES"), as_scores)
