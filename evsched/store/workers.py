"""What workers call: fetch, start, heartbeat, and the verb that ends a run with each outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from evsched import keys
from evsched.jobs.current_job import Progress
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Mark, Outcome, Requeued, Retried, encode
from evsched.store.queue import Queue, as_pairs
from evsched.transport.call import Call, Word, raw, text, texts


class Fetched(Struct, frozen=True):
    """What one `start` handed to a worker."""

    now: float
    more: bool
    """Ready holds more jobs: ask again when slots are free, without blocking."""
    leased: bool
    """False: the worker's lease was gone, and what it held before belongs to others."""
    jobs: list[FetchedJob]
    buried: list[tuple[str, str]]


class PutBack(Struct, frozen=True):
    """What one `requeue` did."""

    rest: Literal["moved", "more", "all"]
    """Whether the worker holds more. "moved": its lease has changed, and nothing was done."""
    ids: list[str]
    """The jobs that were put back."""
    cancelled: list[str]
    """The jobs that were told to stop, and ended as cancelled."""


class EndedRun(Protocol):
    """What `end_runs` needs to know of a run."""

    @property
    def job(self) -> FetchedJob: ...

    @property
    def outcome(self) -> Outcome | None: ...

    @property
    def progress(self) -> Progress | None:
        """What the handler reported last, if it is not written yet."""
        ...


R = TypeVar("R", bound=EndedRun)


class Workers(Queue):
    """The calls of a worker."""

    def fetch(self, worker: str, block: float) -> Call[str | None]:
        """Wait up to `block` seconds for a job and move it into the worker's list: BLMOVE, half of a fetch."""

        def one(reply: bytes | None) -> str | None:
            return None if reply is None else text(reply)

        return Call(
            ("BLMOVE", keys.ready(self.queue), keys.processing(self.queue, worker), "LEFT", "RIGHT", block), one
        )

    def wake(self) -> Call[Any]:
        """Have each dispatcher look at the queue, also if it did not know it."""
        return Call(("PUBLISH", keys.gate(self.queue), 0), raw)

    def start(
        self,
        worker: str,
        ids: Sequence[str],
        *,
        hold: int,
        lease: float,
        cap: int = 256 * 1024,
        now: float | None = None,
    ) -> Call[Fetched]:
        """Count the attempts of the jobs that BLMOVE moved, move more until `hold` are held, and hand them all out.

        Jobs whose payloads do not fit in one reply are left for the next call.
        """

        def fetch(reply: list[Any]) -> Fetched:
            moment, more, leased, flat, buried, suspects = reply
            jobs = [
                FetchedJob(text(flat[i]), int(flat[i + 1]), float(flat[i + 2]), flat[i + 3], float(flat[i + 4]))
                for i in range(0, len(flat), 5)
            ]
            if suspects:
                suspicion = {text(suspects[i]): suspects[i + 1 : i + 4] for i in range(0, len(suspects), 4)}
                jobs = [
                    replace(job, deaths=of[0], doubts=of[1], counted=of[2]) if (of := suspicion.get(job.id)) else job
                    for job in jobs
                ]
            return Fetched(float(moment), more == b"1", leased == b"1", jobs, as_pairs(buried))

        return self._verb("start", fetch, self._stamp(now), worker, lease, hold, cap, *ids)

    def begin(self, worker: str, runs: Iterable[tuple[FetchedJob, Mark]]) -> Call[list[str]]:
        """Mark runs that have begun, or are about to; the reply is the ids of those that were lost."""
        words: list[Word] = [worker]
        for job, mark in runs:
            words += (job.id, job.attempt, mark)
        return self._verb("begin", texts, *words)

    def end_runs(self, worker: str, ended: Iterable[R]) -> list[tuple[Call[list[str]], list[R]]]:
        """Return the calls that write the outcomes of runs, each with the runs that it ends: one call for each kind.

        The reply to each is the ids of the runs that were lost.
        """
        kinds: dict[type[Outcome], list[R]] = {}
        reported = list[tuple[FetchedJob, Progress]]()
        for run in ended:
            if run.outcome is not None:
                kinds.setdefault(type(run.outcome), []).append(run)
            if run.progress is not None:
                reported.append((run.job, run.progress))
        calls = [
            (_ENDS[kind](self, worker, [(run.job, run.outcome) for run in runs]), runs) for kind, runs in kinds.items()
        ]
        # First: the script accepts the progress of a run only while the worker holds it.
        return [(_losing_none(self.progress(worker, reported)), []), *calls] if reported else calls

    def complete(
        self, worker: str, runs: Iterable[tuple[FetchedJob, Done]], *, now: float | None = None
    ) -> Call[list[str]]:
        """End runs that are done; the reply is the ids of those that were lost."""
        words: list[Word] = [self._stamp(now), worker]
        for job, done in runs:
            words += (job.id, job.attempt, done.result, f"{done.retention:g}", "1" if done.reply else "")
        return self._verb("complete", texts, *words)

    def retry(
        self, worker: str, runs: Iterable[tuple[FetchedJob, Retried]], *, now: float | None = None
    ) -> Call[list[str]]:
        """Put failed jobs back on the schedule; the reply is the ids of those that were lost."""
        words: list[Word] = [self._stamp(now), worker]
        for job, retried in runs:
            words += (job.id, job.attempt, f"{retried.delay:.6f}", retried.reason)
            words += ("1" if retried.killed else "", retried.traceback)
        return self._verb("retry", texts, *words)

    def bury(
        self, worker: str, runs: Iterable[tuple[FetchedJob, Buried]], *, now: float | None = None
    ) -> Call[list[str]]:
        """Give jobs up; the reply is the ids of those that were lost."""
        words: list[Word] = [self._stamp(now), worker]
        for job, buried in runs:
            words += (job.id, job.attempt, buried.reason, "1" if buried.reply else "", buried.outcome)
            words += ("killed" if buried.killed else "" if buried.began else "never", buried.traceback)
        return self._verb("bury", texts, *words)

    def defer(
        self, worker: str, runs: Iterable[tuple[FetchedJob, Deferred]], *, now: float | None = None
    ) -> Call[list[str]]:
        """Put jobs back on the schedule that may not start now; the reply is the ids of those that were lost."""
        words: list[Word] = [self._stamp(now), worker]
        for job, deferred in runs:
            words += (job.id, job.attempt, repr(deferred.due), deferred.reason, deferred.window, deferred.text)
        return self._verb("defer", texts, *words)

    def abort(
        self, worker: str, runs: Iterable[tuple[FetchedJob, Aborted]], *, now: float | None = None
    ) -> Call[list[str]]:
        """End runs whose jobs were cancelled; the reply is the ids of those that were lost."""
        words: list[Word] = [self._stamp(now), worker]
        for job, aborted in runs:
            words += (job.id, job.attempt, f"{aborted.retention:g}", "1" if aborted.reply else "")
            words.append("1" if aborted.began else "")
        return self._verb("abort", texts, *words)

    def requeue_runs(self, worker: str, runs: Sequence[tuple[FetchedJob, Requeued]]) -> Call[list[str]]:
        """Put jobs back to the front of ready that could not begin here."""
        reason, ids = runs[0][1].reason, [job.id for job, _ in runs]
        return _losing_none(self.requeue(worker, reason, ids=ids))

    def requeue(
        self,
        worker: str,
        reason: str,
        *,
        ids: Sequence[str] = (),
        lease: bytes = b"",
        limit: int = 250,
        now: float | None = None,
    ) -> Call[PutBack]:
        """Put what a worker holds back to the front of ready. `lease`: only if that still is its lease."""

        def put(reply: list[Any]) -> PutBack:
            return PutBack(cast(Literal["moved", "more", "all"], text(reply[0])), texts(reply[1]), texts(reply[2]))

        return self._verb("requeue", put, self._stamp(now), worker, lease, limit, reason, *ids)

    def heartbeat(
        self, worker: str, lease: float, *, fresh: bool = False, now: float | None = None
    ) -> Call[tuple[bool, int, list[str]]]:
        """Renew a lease, or begin one.

        The reply: whether it was still there, how many jobs the worker's list holds, and which of them are to stop.
        """

        def kept(reply: list[Any]) -> tuple[bool, int, list[str]]:
            return reply[0] == b"1", reply[1], texts(reply[2])

        return self._verb("heartbeat", kept, self._stamp(now), worker, lease, "1" if fresh else "")

    def progress(self, worker: str, runs: Iterable[tuple[FetchedJob, Progress]]) -> Call[int]:
        """Write how far runs are; the reply is how many of them were still this worker's."""
        words: list[Word] = [worker]
        for job, progress in runs:
            words += (job.id, job.attempt, encode(progress))
        return self._verb("progress", int, *words)

    def held(self, worker: str) -> Call[list[str]]:
        """Read the ids in a worker's list."""
        return Call(("LRANGE", keys.processing(self.queue, worker), 0, -1), texts)

    def reply_status(self, channel: str, status: bytes) -> Call[int]:
        """Answer a status request; the reply is how many received it."""
        return Call(("PUBLISH", channel, status), int)


_ENDS: Final[dict[type[Outcome], Callable[[Workers, str, Any], Call[list[str]]]]] = {
    Done: Workers.complete,
    Retried: Workers.retry,
    Buried: Workers.bury,
    Aborted: Workers.abort,
    Deferred: Workers.defer,
    Requeued: Workers.requeue_runs,
}
"""The verb that ends a run with each outcome."""


def _losing_none(call: Call[Any]) -> Call[list[str]]:
    """Return a call that reports no run as lost, whatever its reply is."""
    return Call(call.words, lambda _: [], call.script)
