"""The ends of runs: the verb for each outcome, with hooks and the last progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, Protocol, TypeVar, cast

from msgspec import Struct

from evsched.jobs.current_job import Progress
from evsched.jobs.job import (
    Aborted,
    Buried,
    Deferred,
    Done,
    FetchedJob,
    Forwarded,
    Outcome,
    Requeued,
    Retried,
    Snoozed,
    encode,
)
from evsched.jobs.kept import Keep, KeptAnswer, Question, Recall, WaitFor
from evsched.jobs.tasks import Hook, Hooks
from evsched.store.queue import Queue, as_struct
from evsched.transport.call import Call, Word, text, texts

NO_LEASE: Final = b"none"
"""The lease of a worker that has none, for `requeue`."""


class PutBack(Struct, frozen=True):
    """The result of `requeue`."""

    rest: Literal["moved", "more", "all"]
    """Whether the worker holds more. "moved": its lease has changed, and nothing was done."""
    ids: list[str]
    """The jobs that were put back."""
    cancelled: list[str]
    """The jobs that were to stop, and ended as cancelled."""


class NotEnded(Struct, frozen=True):
    """The runs that a call of `end_runs` did not end; nothing was written for them."""

    lost: list[str]
    """The ids of runs that no longer belonged to the worker."""
    refused: dict[str, str] = {}
    """Why Redis refused the message of a run, by id. The worker still holds these runs."""


class EndedRun(Protocol):
    """A run, as `end_runs` takes it."""

    @property
    def job(self) -> FetchedJob: ...

    @property
    def outcome(self) -> Outcome | None: ...

    @property
    def hooks(self) -> Hooks | None:
        """The hooks of its task, if it has any."""
        ...

    @property
    def progress(self) -> Progress | None:
        """The handler's last report, if it is not written yet."""
        ...

    @property
    def positions(self) -> dict[str, bytes] | None:
        """The handler's last positions that are not written yet."""
        ...


R = TypeVar("R", bound=EndedRun)


class RunEnds(Queue):
    """The calls that end the runs of a worker."""

    def end_runs(self, worker: str, ended: Iterable[R]) -> list[tuple[Call[NotEnded], list[R]]]:
        """Return the calls that write the outcomes of runs, each with the runs that it ends.

        There is one call for each kind of outcome, and for each hook that such outcomes call. The reply to each is the
        runs that it did not end.
        """
        kinds: dict[tuple[type[Outcome], Hook | None], list[R]] = {}
        reported, placed = list[tuple[FetchedJob, Progress]](), list[R]()
        for run in ended:
            if run.outcome is not None:
                hook = None if run.hooks is None else run.hooks.after(run.outcome)
                kinds.setdefault((type(run.outcome), hook), []).append(run)
            if run.progress is not None:
                reported.append((run.job, run.progress))
            if run.positions and not isinstance(run.outcome, Done | Aborted):
                placed.append(run)
        calls = list[tuple[Call[NotEnded], list[R]]]()
        for (kind, hook), runs in kinds.items():
            rows = [(run.job, run.outcome) for run in runs]
            verb = _ENDS[kind]
            call = verb(self, worker, rows) if hook is None else verb(self, worker, rows, hook)
            calls.append((_not_ended(call), runs))
        # First: the scripts accept the progress and the positions of a run only while the worker holds it.
        if placed:
            calls[:0] = self.keep_positions(worker, placed)
        return [(_not_ended(_losing_none(self.progress(worker, reported))), []), *calls] if reported else calls

    def keep_positions(self, worker: str, runs: Iterable[R]) -> list[tuple[Call[NotEnded], list[R]]]:
        """Return the call that writes the last positions of runs, if there are any, as `end_runs` returns its calls."""
        words = list[Word]()
        for run in runs:
            for name, value in dict(run.positions or {}).items():  # a copy: a thread may note the next one
                words += (run.job.id, run.job.run, name, value)
        call = self._verb("keep", texts, self._now(), worker, *words)
        return [(_not_ended(_losing_none(call)), [])] if words else []

    def keep(self, worker: str, job: FetchedJob, name: str, value: bytes) -> Call[KeptAnswer]:
        """Keep the result of a step of a run, or a position; the answer is "kept", "full" or "lost"."""
        words = self._now(), worker, job.id, job.run, name, value
        return self._verb("keep", lambda reply: _kept_answer([reply[0], b""]), *words)

    def recall(self, worker: str, job: FetchedJob) -> Call[KeptAnswer]:
        """Read the data that earlier runs of the job have kept; the answer is "kept" or "lost"."""
        return self._verb("recall", _kept_answer, worker, job.id, job.run)

    def answer(self, worker: str, job: FetchedJob, question: Question) -> Call[KeptAnswer]:
        """Answer a question of a run."""
        match question:
            case Recall():
                return self.recall(worker, job)
            case Keep():
                return self.keep(worker, job, question.name, question.value)
            case WaitFor():
                return self.wait_for(worker, job, question.signal, question.timeout)

    def wait_for(self, worker: str, job: FetchedJob, signal: str, timeout: float | None) -> Call[KeptAnswer]:
        """Ask for a signal to the job of a run; the answer is "come", "over", "waits", "full" or "lost"."""
        words = self._now(), worker, job.id, job.run, signal, "" if timeout is None else repr(timeout)
        return self._verb("wait_for", _kept_answer, *words)

    def progress(self, worker: str, runs: Iterable[tuple[FetchedJob, Progress]]) -> Call[int]:
        """Write how far runs are; the reply is how many of them were still this worker's."""
        words: list[Word] = [worker]
        for job, progress in runs:
            words += (job.id, job.run, encode(progress))
        return self._verb("progress", int, *words)

    def complete(
        self, worker: str, runs: Iterable[tuple[FetchedJob, Done]], hook: Hook | None = None
    ) -> Call[list[str]]:
        """End runs that are done, all with the same hook; the reply is the ids of lost runs."""
        runs = list(runs)
        words: list[Word] = [self._now(), worker, *_words(hook), _plain(runs)]
        for job, done in runs:
            words += (job.id, job.run, done.result, _seconds(done.retention), "1" if done.reply else "", done.label)
        return self._verb("complete", texts, *words)

    def forward(
        self, worker: str, runs: Iterable[tuple[FetchedJob, Forwarded]], hook: Hook | None = None
    ) -> Call[NotEnded]:
        """End runs that are done, all with the same hook, and send their messages; the reply is what did not end."""
        runs = list(runs)
        words: list[Word] = [self._now(), worker, *_words(hook), _plain(runs)]
        for job, done in runs:
            message = done.message
            words += (job.id, job.run, done.result, _seconds(done.retention), "1" if done.reply else "", done.label)
            words += (message.into, message.name, "" if message.most is None else message.most, message.text)

        def read(reply: list[list[bytes]]) -> NotEnded:
            lost, refused = texts(reply[0]), texts(reply[1])
            return NotEnded(lost, dict(zip(refused[::2], refused[1::2], strict=True)))

        return self._verb("forward", read, *words)

    def retry(self, worker: str, runs: Iterable[tuple[FetchedJob, Retried]]) -> Call[list[str]]:
        """Put failed jobs back on the schedule; the reply is the ids of lost runs."""
        words: list[Word] = [self._now(), worker]
        for job, retried in runs:
            words += (job.id, job.run, f"{retried.delay:.6f}", retried.reason)
            how = "unsure" if retried.unsure else "1" if retried.killed else ""
            words += (how, retried.traceback, retried.error, retried.location)
        return self._verb("retry", texts, *words)

    def bury(self, worker: str, runs: Iterable[tuple[FetchedJob, Buried]], hook: Hook | None = None) -> Call[list[str]]:
        """Give jobs up, all with the same hook; the reply is the ids of lost runs."""
        words: list[Word] = [self._now(), worker, *_words(hook)]
        for job, buried in runs:
            words += (job.id, job.run, buried.reason, "1" if buried.reply else "", buried.outcome)
            how = "killed" if buried.killed else "" if buried.began else "never"
            words += (how, buried.traceback, buried.error, buried.location)
        return self._verb("bury", texts, *words)

    def defer(self, worker: str, runs: Iterable[tuple[FetchedJob, Deferred]]) -> Call[list[str]]:
        """Put jobs back on the schedule that may not start now; the reply is the ids of lost runs."""
        words: list[Word] = [self._now(), worker]
        for job, deferred in runs:
            text = "" if deferred.elsewhere else deferred.text
            words += (job.id, job.run, repr(deferred.due), deferred.reason, deferred.window, text)
            words.append("" if deferred.unknown_since is None else repr(deferred.unknown_since))
        return self._verb("defer", texts, *words)

    def snooze(self, worker: str, runs: Iterable[tuple[FetchedJob, Snoozed]]) -> Call[list[str]]:
        """Put jobs back on the schedule whose handlers asked for it; the reply is the ids of lost runs."""
        words: list[Word] = [self._now(), worker]
        for job, snoozed in runs:
            due = "" if snoozed.until is None else f"{snoozed.until:.6f}"
            words += (job.id, job.run, due, f"{snoozed.delay:.6f}", snoozed.reason, snoozed.signal)
        return self._verb("snooze", texts, *words)

    def abort(self, worker: str, runs: Iterable[tuple[FetchedJob, Aborted]]) -> Call[list[str]]:
        """End runs whose jobs were cancelled; the reply is the ids of lost runs."""
        words: list[Word] = [self._now(), worker]
        for job, aborted in runs:
            words += (job.id, job.run, f"{aborted.retention:g}", "1" if aborted.reply else "")
            words.append("1" if aborted.began else "")
        return self._verb("abort", texts, *words)

    def requeue_runs(self, worker: str, runs: Sequence[tuple[FetchedJob, Requeued]]) -> Call[list[str]]:
        """Put jobs back to the front of ready that could not begin here."""
        rows = [(job.id, job.run) for job, _ in runs]
        return _losing_none(self.requeue(worker, runs[0][1].reason, runs=rows))

    def requeue(
        self,
        worker: str,
        reason: str,
        *,
        runs: Iterable[tuple[str, str]] = (),
        lease: bytes = b"",
        watch: float | None = None,
        limit: int = 250,
        ticket: int | None = None,
    ) -> Call[PutBack]:
        """Return the jobs of a worker to the front of ready.

        `runs`: only these; each is the id and `FetchedJob.run`, "" = the worker has not started the job. `lease`: the
        worker has died, and nothing is done unless it still has this one, or `NO_LEASE`. `watch`: seconds for which
        its list is watched from then on. `ticket`: only the job that was handed over with this ticket and has not
        begun; if none was, the worker stops waiting.
        """
        put, rows = as_struct(PutBack, text, texts, texts), [word for run in runs for word in run]
        more = ("" if watch is None else watch, "" if ticket is None else ticket)
        return self._verb("requeue", put, self._now(), worker, lease, limit, reason, *more, *rows)


_ENDS: Final[dict[type[Outcome], Callable[..., Call[list[str]] | Call[NotEnded]]]] = {
    Done: RunEnds.complete,
    Forwarded: RunEnds.forward,
    Retried: RunEnds.retry,
    Buried: RunEnds.bury,
    Aborted: RunEnds.abort,
    Deferred: RunEnds.defer,
    Snoozed: RunEnds.snooze,
    Requeued: RunEnds.requeue_runs,
}
"""The verb that ends a run with each outcome."""


def _kept_answer(reply: list[bytes]) -> KeptAnswer:
    return KeptAnswer(cast(Any, text(reply[0])), reply[1])


@lru_cache(maxsize=1000)
def _seconds(length: float) -> str:
    """Return a length of time as text. A cache, because most jobs have the same retention, and the format is slow."""
    return f"{length:g}"


def _words(hook: Hook | None) -> tuple[str, str]:
    return ("", "") if hook is None else (hook.task, hook.of)


_PLAIN: Final = re.compile(r"[A-Za-z0-9._:@-]*")
"""Ids one after the other, none of which JSON writes in another way. Another client may use any characters."""


def _plain(runs: Sequence[tuple[FetchedJob, Outcome]]) -> str:
    return "1" if _PLAIN.fullmatch("".join([job.id for job, _ in runs])) else ""


def _not_ended(call: Call[list[str]] | Call[NotEnded]) -> Call[NotEnded]:
    """Return a call whose reply is the runs that it did not end, also if the verb refuses none."""

    def read(reply: Any) -> NotEnded:
        found = call.read(reply)
        return found if isinstance(found, NotEnded) else NotEnded(found)

    return Call(call.words, read, call.script, call.near)


def _losing_none(call: Call[Any]) -> Call[list[str]]:
    """Return a call that reports no run as lost, whatever its reply is."""
    return Call(call.words, lambda _: [], call.script, call.near)
