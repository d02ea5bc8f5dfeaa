"""The calls about jobs by their ids: those of programs that schedule jobs, and of the commands about one job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Literal, cast

from msgspec import Struct, structs

from evsched import keys
from evsched.jobs.job import OnConflict
from evsched.jobs.record import JobStatus, Place, number, read_status
from evsched.jobs.redaction import Redactions
from evsched.store.gate_limits import Limits, read_declared, read_limits
from evsched.store.queue import (
    NO_EDIT,
    NO_REQUEST,
    IdempotentRequest,
    Queue,
    as_bool,
    as_fields,
    as_moment,
    as_struct,
    as_tuple,
    is_there,
    read_redactions,
)
from evsched.transport.call import Call, T, Word, raw, script, text, texts


class New(Struct, frozen=True):
    """A job to enqueue. `due` in Unix seconds, or `delay` in seconds from Redis's now."""

    id: str
    payload: bytes
    priority: int | None = None
    group: str | None = None
    due: float | None = None
    delay: float = 0.0


class Accepted(Struct, frozen=True):
    """The digest of the first request of a key, and the id and the due of each of its jobs."""

    asked: str
    jobs: list[tuple[str, float]]


class Edit(Struct, frozen=True):
    """Another description of a job, in place of the one that was read."""

    was: str
    """The digest of the fields that were read, as the script makes it."""
    payload: bytes
    priority: int | bytes | None
    group: str | bytes | None
    key: str
    """A random text: a call with the same one changes nothing."""
    changed: tuple[str, ...]
    """The names of what differs, for the audit trail; the values may be redacted."""


class Original(Struct, frozen=True):
    """A job as Redis has it, with its redacted values: it is for an edit, not for a reader."""

    status: JobStatus
    fields: dict[str, bytes]
    declared: Redactions


class Facts(Struct, frozen=True):
    """The facts about a job at one moment, for `evsched explain`. Times in Unix seconds."""

    now: float
    status: JobStatus | None
    limits: Limits
    parked: str | None
    """The group whose own limits hold the job back."""
    counts: dict[str, float]
    """The figures that lua/explain.lua returns."""
    holder: str | None


def _new_words(jobs: Iterable[New]) -> list[Word]:
    words: list[Word] = []
    for job in jobs:
        words += (
            job.id,
            job.payload,
            "" if job.priority is None else job.priority,
            job.group or "",
            "" if job.due is None else repr(job.due),
            repr(job.delay),
        )
    return words


def _length(within: float | None) -> str:
    return "" if within is None else repr(float(within))


def _dues(reply: list[bytes]) -> list[float]:
    return [float(due) for due in reply]


def _accepted(reply: bytes) -> Accepted:
    asked, *words = text(reply).split(" ")
    return Accepted(asked, [(words[at], float(words[at + 1])) for at in range(0, len(words) - 1, 2)])


class Cancelled(Struct, frozen=True):
    """The result of `cancel`."""

    place: Place
    """Where the job was; "processing" = its worker was asked to stop the run."""
    next_too: bool
    """Besides the run, a next run of the same id, which waited, was cancelled."""


Signaled = Literal["due", "kept", "known"]
"""The result of a signal. "due": the job waited for it, and is due now. "kept": it does not wait for it yet. "known": a
signal of that name has come before, which stays, and nothing was changed."""


def signal_script() -> str:
    """Return the script `signal`, for clients in other languages."""
    return script("signal").source


def _signaled(reply: bytes) -> Signaled:
    return cast(Signaled, text(reply))


class ClientCalls(Queue):
    """The calls about jobs by their ids; see `store.py`."""

    def enqueue(
        self, jobs: Iterable[New], *, keep: bool = False, within: float | None = None, batch: str = ""
    ) -> Call[list[float]]:
        """Put at most 1,000 jobs on the schedule; the reply is their dues.

        `keep`: if a job of the same id has not ended, it is kept, and the reply has its due. `within`: the jobs are
        unique; their ids are taken for this number of seconds, 0 = as long as they wait or run. `batch`: what they are
        members of, and their ordinals there: see lua/enqueue.lua.

        Raises (when sent):
            JobExists: a job of one of the ids has not ended, or the id is taken; then none was written.
            JobLate: the reservation of the ordinals is over; then none was written.
        """
        return self._put(_dues, jobs, "keep" if keep else None, within, batch=batch)

    def enqueue_nodes(self, jobs: Iterable[New], batch: str) -> Call[list[bool]]:
        """Put the jobs of nodes of a graph on the schedule; the reply says of which the id is taken by another job.

        A job that is there already stays, even if it has ended.

        Raises (when sent):
            JobLate: the reservation of the ordinals is over; then none was written.
        """
        return self._put(lambda reply: [due < 0 for due in _dues(reply)], jobs, "node", None, batch=batch)

    def replace(self, jobs: Iterable[New], *, within: float | None = None) -> Call[list[float]]:
        """Put at most 1,000 jobs on the schedule, replacing jobs of the same ids; the reply is their dues.

        `within`: as of `enqueue`. While an id is taken, its job is replaced only if it waits.
        """
        return self._put(_dues, jobs, "replace", within, IdempotentRequest(token_hex(8), ""))

    def enqueue_once(
        self,
        request: IdempotentRequest,
        jobs: Iterable[New],
        *,
        on_conflict: OnConflict | None = None,
        within: float | None = None,
        batch: str = "",
    ) -> Call[Accepted]:
        """As `enqueue` or `replace`, unless there was a request of the same key in the last 24 hours.

        Then nothing is written. The reply is that of the first request in either case: compare `asked` with yours.

        Raises (when sent):
            JobExists: as of `enqueue`. Nothing was written, and the key is not used up.
        """
        return self._put(_accepted, jobs, on_conflict, within, request, batch)

    def _put(
        self,
        read: Callable[[Any], T],
        jobs: Iterable[New],
        on_conflict: OnConflict | Literal["node"] | None,
        within: float | None,
        request: IdempotentRequest = NO_REQUEST,
        batch: str = "",
    ) -> Call[T]:
        words: list[Word] = [_length(within), self._by, request.key, request.asked]
        if on_conflict == "replace":
            call = self._verb("replace", read, self._now(), *words, *_new_words(jobs), again=lambda _: call)
            return call
        words.insert(0, on_conflict or "")
        # With a key, the script finds the first call by that.
        return self._enqueue(read, words, [batch, *_new_words(jobs)], known=bool(request.key))

    def _enqueue(
        self,
        read: Callable[[Any], T],
        settings: list[Word],
        jobs: list[Word],
        since: float | None = None,
        *,
        known: bool,
    ) -> Call[T]:
        """Make a call of `enqueue`; `since`: it is sent again, and this is when it was sent first.

        `jobs`: their batch, and then their rows.
        """
        again = partial(self._enqueue, read, settings, jobs, known=known)
        return self._verb(
            "enqueue", read, self._now(), *settings, "" if known else as_moment(since), *jobs, again=again
        )

    def cancel(self, job_id: str) -> Call[Cancelled]:
        """Delete a waiting job, or ask its worker to stop it and delete its next run.

        Raises (when sent):
            JobMissing: nothing was written.
        """
        act = self._act_text("cancel")
        return self._verb("cancel", as_struct(Cancelled, text, as_bool), self._now(), "", act, job_id, "")

    def cancel_waiting(self, ids: Sequence[str]) -> Call[list[bool]]:
        """Cancel the jobs that wait; the reply says which of them did."""
        rows = [word for job_id in ids for word in (job_id, "")]
        return self._verb("cancel", lambda reply: [place != b"" for place in reply], self._now(), "{}", "", *rows)

    def cancel_member(self, job_id: str, member: str) -> Call[Any]:
        """Cancel a member of a batch. If there is no such job, it has ended, and cannot be enqueued for a minute.

        `member`: `<home>/<batch>/<ordinal>`, and perhaps `/<life>` and `/<turn>`.
        """
        return self._verb("cancel", lambda _: None, self._now(), "", "", job_id, member)

    def reschedule(
        self, job_id: str, due: float | None, *, delay: float | None = 0.0, edit: Edit | None = None
    ) -> Call[float]:
        """Give a waiting job another due, None = `delay` seconds from now; the reply is the due.

        `edit`: the job's description changes too, and that of a dead job may. Then its due stays if both are None.

        Raises (when sent):
            JobMissing, JobRunning, JobChanged: nothing was written.
        """
        what = {"due": due, "delay": delay if due is None else None}
        given = "" if due is None else repr(due), "" if delay is None else repr(delay)
        if edit is None:
            act, new = self._act_text("reschedule", **what), NO_EDIT
        else:
            act = self._act_text("edit", changed=list(edit.changed), **what)
            priority = "" if edit.priority is None else edit.priority
            new = (edit.key, edit.was, edit.payload, priority, edit.group or "")
        words = (self._now(), *given, "", act, *new, job_id)
        return self._verb("reschedule", lambda reply: float(reply[0]), *words)

    def original(self, job_id: str) -> Call[Original | None]:
        """Read a job for an edit; None if there is none."""

        def read(reply: list[Any]) -> Original | None:
            _, place, score, flat, redactions = reply
            if not place:
                return None
            record, declared = as_fields(flat), read_redactions(redactions)
            status = read_status(self.queue, job_id, cast(Place, text(place)), text(score), record, declared)
            return Original(status, record, declared)

        return self._verb("look", read, self._now(), job_id)

    def signal(self, job_id: str, signal: str, value: bytes) -> Call[Signaled]:
        """Send a signal to a job, with a value as JSON; the reply is whether the job waited for it.

        Raises (when sent):
            JobMissing: there is no such job, it has ended or is dead, or its wait for the signal is over.
            ConfigError: the value is not JSON, or the job has no room for it.
        """
        act = self._act_text("signal", signal=signal)
        words = self._now(), job_id, signal, value, act
        call: Call[Signaled] = self._verb("signal", _signaled, *words, again=lambda _: call)
        return call

    def revive(self, ids: Sequence[str]) -> Call[list[str]]:
        """Put dead jobs back on the schedule, due now; the reply is their ids.

        Raises (when sent):
            JobMissing: one of the ids is not dead, or has no record; then none was revived.
        """
        return self._change_dead("revive", [self._now()], self._act_text("revive"), ids)

    def drop(self, ids: Sequence[str]) -> Call[list[str]]:
        """Delete dead jobs; the reply is their ids.

        Raises (when sent):
            JobMissing: one of the ids is not dead; then none was dropped.
        """
        return self._change_dead("drop", [], self._act_text("drop"), ids)

    def _change_dead(
        self, verb: str, clock: list[Word], act: str, ids: Sequence[str], since: float | None = None
    ) -> Call[list[str]]:
        """Make a call of `revive` or `drop`. `since`: it is sent again, and this is when it was sent first.

        Such a call leaves a job alone that has died once more since then. If it is refused, the first may have been
        done: so it has no `again`.
        """
        again = partial(self._change_dead, verb, clock, act, ids) if since is None else None
        return self._verb(verb, texts, *clock, "", act, as_moment(since), *ids, again=again)

    def traces(self, job_id: str) -> list[Call[bool]]:
        """Ask whether the queue has a record of a job, an inline job, or a light one.

        Much cheaper than `look`, and less exact.
        """
        record = ("EXISTS", f"{self._root}job:{job_id}")
        inline = ("ZSCORE", self._root + "schedule", job_id)
        light = ("HEXISTS", self._root + "light", job_id)
        return [self._call(record, bool), self._call(inline, is_there), self._call(light, bool)]

    def look(self, job_id: str) -> Call[JobStatus | None]:
        """Read where a job is, and its record, at the same moment."""

        def status(reply: list[Any]) -> JobStatus | None:
            _, place, score, flat, redactions = reply
            if not place:
                return None
            record, declared = as_fields(flat), read_redactions(redactions)
            return read_status(self.queue, job_id, cast(Place, text(place)), text(score), record, declared)

        return self._verb("look", status, self._now(), job_id)

    def payload(self, job_id: str) -> Call[bytes | None]:
        """Read the payload of a job that has ended, with its redacted values: it is for a copy, not for a reader."""
        return self._call(("HGET", keys.job(self.queue, job_id), "payload"), raw)

    def explain(self, job_id: str) -> Call[Facts]:
        """Read the facts about why a job has not run yet, at the same moment."""

        def facts(reply: list[Any]) -> Facts:
            moment, place, score, flat, limits, declared, named, redactions = reply
            record, hidden = as_fields(flat), read_redactions(redactions)
            figures = {text(named[i]): named[i + 1] for i in range(0, len(named), 2)}
            holder, parked = figures.pop("holder", None), record.get("parked")
            return Facts(
                float(moment),
                read_status(self.queue, job_id, cast(Place, text(place)), text(score), record, hidden)
                if place
                else None,
                structs.replace(read_limits(limits), declared=read_declared(declared)),
                None if parked is None else text(parked),
                {name: found for name, value in figures.items() if (found := number(value)) is not None},
                None if holder is None else text(holder),
            )

        return self._verb("explain", facts, self._now(), job_id)

    def ask(self, job_id: str) -> Call[tuple[str, bytes, str]]:
        """Ask that the job's end be pushed to its reply list.

        The reply is outcome, result (JSON) and reason of a job that has ended, else three empty ones.

        Raises (when sent):
            JobMissing: there is no such job, it was cancelled while it waited, or its retention is over.
        """
        return self._verb("ask", as_tuple(text, raw, text), job_id, again=lambda _: self.ask(job_id))

    def wait_reply(self, job_id: str, block: float) -> Call[bytes | None]:
        """Wait up to `block` seconds for a job's reply, and leave it there for other waiters (so not BLPOP)."""
        reply = keys.reply(self.queue, job_id)
        return self._call(("BLMOVE", reply, reply, "LEFT", "LEFT", block), raw)

    def replied(self, job_id: str) -> Call[bytes | None]:
        """Read a job's reply; None if there is none."""
        return self._call(("LINDEX", keys.reply(self.queue, job_id), 0), raw)

    def ids(self, cursor: int) -> Call[tuple[int, list[str]]]:
        """Read a slice of the ids that have a record; the reply has the next cursor, 0 after the last slice."""
        prefix = self._root + "job:"

        def read(reply: list[Any]) -> tuple[int, list[str]]:
            return int(reply[0]), [text(key)[len(prefix) :] for key in reply[1]]

        return self._call(("SCAN", cursor, "MATCH", prefix + "*", "COUNT", 1000), read)
