"""The store of one queue: one method per verb, and a few reads.

A method sends nothing: it returns the `Call` that a sender (sender.py) carries to Redis, alone or in a batch
with others, from a program with an event loop or without one. `now` is a test's clock; None is Redis's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from evsched import keys
from evsched.answers import Agenda, Census, Lease, New, Step, Take, Wrong
from evsched.call import Call, T, Word, raw, text, texts
from evsched.current import Progress
from evsched.explain import Facts
from evsched.job import Aborted, Buried, Deferred, Done, JobStatus, Place, Retried, Taken, encode, read_status
from evsched.limits import Limits, read_limits
from evsched.recurrence import Declared, Occurrence
from evsched.scripts import script


def _moment(unix: float | None) -> str:
    return "" if unix is None else f"{unix:.6f}"


def _pairs(flat: list[bytes]) -> list[tuple[str, str]]:
    return [(text(flat[i]), text(flat[i + 1])) for i in range(0, len(flat), 2)]


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


def _fields(flat: list[bytes]) -> dict[str, bytes]:
    return {text(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}


def _wrongs(met: bytes) -> Callable[[list[bytes]], list[Wrong]]:
    def read(flat: list[bytes]) -> list[Wrong]:
        return [Wrong(flat[i], text(flat[i + 1]), text(flat[i + 2]), met) for i in range(0, len(flat), 3)]

    return read


def _dues(reply: list[bytes]) -> list[float]:
    return [float(due) for due in reply]


class Store:
    """The calls of one queue. `clock` stands in for Redis's own: a test's.

    Raises:
        ConfigError: that is no name for a queue.
    """

    def __init__(self, queue: str, clock: Callable[[], float] | None = None) -> None:
        self.queue = keys.check_queue(queue)
        self._root = keys.root(queue)
        self._clock = clock

    def _stamp(self, now: float | None) -> str:
        if now is None and self._clock is not None:
            now = self._clock()
        return _moment(now)

    def _verb(self, verb: str, read: Callable[[Any], T], *arguments: Word) -> Call[T]:
        return Call((1, self._root, *arguments), read, script(verb))

    # The verbs, in the order of the state machine.

    def enqueue(self, jobs: Iterable[New], *, keep: bool = False, now: float | None = None) -> Call[list[float]]:
        """Put jobs on the schedule; the reply is their dues. At most 1,000 in one call.

        `keep`: a job of that id that has not ended is left as it is, and its due is the reply.

        Raises (when sent):
            JobExists: one of the ids is that of a job that has not ended; then none was written.
        """
        return self._verb("enqueue", _dues, self._stamp(now), "keep" if keep else "", *_new_words(jobs))

    def replace(self, jobs: Iterable[New], *, now: float | None = None) -> Call[list[float]]:
        """Put jobs on the schedule, in the place of those of their ids; the reply is their dues. At most 1,000."""
        return self._verb("replace", _dues, self._stamp(now), *_new_words(jobs))

    def dispatch(self, *, limit: int, cap: int, canary: str = "", now: float | None = None) -> Call[Step]:
        """Move what is due to the backlog and through the gate; tell how long to sleep.

        With a `canary`, a dispatcher's id, its subscription hears a message and a keyspace event.
        """

        def step(reply: list[Any]) -> Step:
            moment, sleep, moved, buried, missed = reply
            return Step(
                float(moment),
                float(sleep) if sleep else float("inf"),
                [float(due) for due in moved],
                _pairs(buried),
                texts(missed),
            )

        return self._verb("dispatch", step, self._stamp(now), limit, cap, canary)

    def take(self, worker: str, block: float) -> Call[str | None]:
        """Wait up to `block` seconds for a job and move it into the worker's list: BLMOVE, the first half of a take."""

        def one(reply: bytes | None) -> str | None:
            return None if reply is None else text(reply)

        return Call(
            ("BLMOVE", keys.ready(self.queue), keys.processing(self.queue, worker), "LEFT", "RIGHT", block), one
        )

    def start(
        self, worker: str, ids: Sequence[str], *, hold: int, lease: float, now: float | None = None
    ) -> Call[Take]:
        """Count the attempts of the jobs that BLMOVE took, take more up to `hold`, and hand them all out."""

        def take(reply: list[Any]) -> Take:
            moment, more, leased, flat, buried = reply
            jobs = [
                Taken(text(flat[i]), int(flat[i + 1]), float(flat[i + 2]), flat[i + 3], float(flat[i + 4]))
                for i in range(0, len(flat), 5)
            ]
            return Take(float(moment), more == b"1", leased == b"1", jobs, _pairs(buried))

        return self._verb("start", take, self._stamp(now), worker, lease, hold, *ids)

    def complete(self, worker: str, runs: Iterable[tuple[Taken, Done]], *, now: float | None = None) -> Call[list[str]]:
        """End runs that are done; the reply is the ids of those that were lost."""
        words: list[Word] = [self._stamp(now), worker]
        for job, done in runs:
            words += (job.id, job.attempt, done.result, f"{done.retention:g}", "1" if done.reply else "")
        return self._verb("complete", texts, *words)

    def retry(self, worker: str, runs: Iterable[tuple[Taken, Retried]], *, now: float | None = None) -> Call[list[str]]:
        """Put failed jobs back on the schedule; the reply is the ids of those that were lost."""
        words: list[Word] = [self._stamp(now), worker]
        for job, retried in runs:
            words += (job.id, job.attempt, f"{retried.delay:.6f}", retried.reason)
        return self._verb("retry", texts, *words)

    def bury(self, worker: str, runs: Iterable[tuple[Taken, Buried]], *, now: float | None = None) -> Call[list[str]]:
        """Give jobs up; the reply is the ids of those that were lost."""
        words: list[Word] = [self._stamp(now), worker]
        for job, buried in runs:
            words += (job.id, job.attempt, buried.reason, "1" if buried.reply else "", buried.outcome)
        return self._verb("bury", texts, *words)

    def defer(
        self, worker: str, runs: Iterable[tuple[Taken, Deferred]], *, now: float | None = None
    ) -> Call[list[str]]:
        """Put jobs back on the schedule that may not start now; the reply is the ids of those that were lost."""
        words: list[Word] = [self._stamp(now), worker]
        for job, deferred in runs:
            words += (job.id, job.attempt, repr(deferred.due), deferred.reason)
        return self._verb("defer", texts, *words)

    def abort(self, worker: str, runs: Iterable[tuple[Taken, Aborted]], *, now: float | None = None) -> Call[list[str]]:
        """End runs that were told to stop; the reply is the ids of those that were lost."""
        words: list[Word] = [self._stamp(now), worker]
        for job, aborted in runs:
            words += (job.id, job.attempt, f"{aborted.retention:g}", "1" if aborted.reply else "")
        return self._verb("abort", texts, *words)

    def requeue(
        self,
        worker: str,
        reason: str,
        *,
        ids: Sequence[str] = (),
        lease: bytes = b"",
        limit: int = 250,
        now: float | None = None,
    ) -> Call[tuple[Literal["moved", "more", "all"], list[str]]]:
        """Put what a worker holds back to the front of ready. `lease`: only if that still is its lease."""

        def put(reply: list[Any]) -> tuple[Literal["moved", "more", "all"], list[str]]:
            return cast(Literal["moved", "more", "all"], text(reply[0])), texts(reply[1])

        return self._verb("requeue", put, self._stamp(now), worker, lease, limit, reason, *ids)

    def beat(
        self, worker: str, lease: float, *, fresh: bool = False, now: float | None = None
    ) -> Call[tuple[bool, int, list[str]]]:
        """Renew a lease, or begin one.

        The reply: was it there, how many jobs the worker's list holds, and which of them are to stop.
        """

        def kept(reply: list[Any]) -> tuple[bool, int, list[str]]:
            return reply[0] == b"1", reply[1], texts(reply[2])

        return self._verb("beat", kept, self._stamp(now), worker, lease, "1" if fresh else "")

    def progress(self, worker: str, runs: Iterable[tuple[Taken, Progress]]) -> Call[int]:
        """Keep how far runs are; the reply is how many of them were still this worker's."""
        words: list[Word] = [worker]
        for job, progress in runs:
            words += (job.id, job.attempt, encode(progress))
        return self._verb("progress", int, *words)

    def cancel(self, job_id: str, *, now: float | None = None) -> Call[Place]:
        """Take a job that waits away, or tell its worker to stop it; the reply is the place where it was.

        Raises (when sent):
            JobMissing: nothing was written.
        """
        return self._verb("cancel", _place, self._stamp(now), job_id)

    def reschedule(self, job_id: str, due: float | None, *, now: float | None = None) -> Call[float]:
        """Give a job that waits another due, None = now; the reply is the due.

        Raises (when sent):
            JobMissing, JobRunning: nothing was written.
        """
        return self._verb("reschedule", float, self._stamp(now), job_id, "" if due is None else repr(due))

    def revive(
        self, ids: Sequence[str] = (), *, before: float | None = None, limit: int = 500, now: float | None = None
    ) -> Call[list[str]]:
        """Put dead jobs back on the schedule, due now: those, or the oldest that died up to `before`.

        Raises (when sent):
            JobMissing: one of the ids is not dead; then none was revived.
        """
        return self._verb("revive", texts, self._stamp(now), _moment(before), limit, *ids)

    def drop(self, ids: Sequence[str] = (), *, before: float | None = None, limit: int = 500) -> Call[list[str]]:
        """Delete dead jobs: those, or the oldest that died up to `before`.

        Raises (when sent):
            JobMissing: one of the ids is not dead; then none was dropped.
        """
        return self._verb("drop", texts, _moment(before), limit, *ids)

    def declare(self, recurrence: Declared, owner: str = "") -> Call[Literal["made", "changed", "same"]]:
        """Make a recurrence, or change one; the reply says which. `owner`: the app that declares it in its code."""

        def did(reply: bytes) -> Literal["made", "changed", "same"]:
            return cast(Literal["made", "changed", "same"], text(reply))

        words = [word for pair in recurrence.fields().items() for word in pair]
        return self._verb("declare", did, recurrence.name, owner, *words)

    def recur(
        self,
        name: str,
        seen: bytes,
        put: Iterable[Occurrence],
        *,
        next_: float | None,
        missed: int = 0,
        reason: str = "",
    ) -> Call[list[str] | None]:
        """Put occurrences on the schedule and move their recurrence on; None when it has been moved by another."""

        def ids(reply: list[bytes] | None) -> list[str] | None:
            return None if reply is None else texts(reply)

        words: list[Word] = [name, seen, "+inf" if next_ is None else repr(next_), missed, reason]
        for one in put:
            words += (one.id, repr(one.planned), repr(one.due), "" if one.grace is None else repr(one.grace))
        return self._verb("recur", ids, *words)

    def remove(self, name: str) -> Call[Any]:
        """Delete a recurrence, with what it has ahead on the schedule.

        Raises (when sent):
            JobMissing: there is none of that name.
        """
        return self._verb("remove", raw, name)

    def hold(self, name: str, paused: bool, *, now: float | None = None) -> Call[Any]:
        """Pause a recurrence, or let it go on from now.

        Raises (when sent):
            JobMissing: there is none of that name.
        """
        return self._verb("hold", raw, self._stamp(now), name, "1" if paused else "")

    def pause(self, *, limit: int = 500, now: float | None = None) -> Call[tuple[float, int, int]]:
        """Close the gate; the reply: since when it is, how many went back to the backlog, how many are still ready."""

        def told(reply: list[Any]) -> tuple[float, int, int]:
            return float(reply[0]), reply[1], reply[2]

        return self._verb("pause", told, self._stamp(now), limit)

    def resume(self, *, now: float | None = None) -> Call[float | None]:
        """Open the gate; the reply is since when it was closed, None = it was not."""

        def since(reply: bytes) -> float | None:
            return float(reply) if reply else None

        return self._verb("resume", since, self._stamp(now))

    def limit(self, limits: Mapping[str, float | None] | None = None, *, now: float | None = None) -> Call[Limits]:
        """Set limits by their field names (`limits.py`), None = no such limit; the reply is all there are."""
        words: list[Word] = [self._stamp(now)]
        for name, value in (limits or {}).items():
            words += (name, "" if value is None else f"{value:.12g}")
        return self._verb("limit", read_limits, *words)

    def mend(
        self, wrongs: Iterable[Wrong], *, strays: Iterable[str] = (), most: int = 10_000, now: float | None = None
    ) -> Call[list[tuple[bytes, str]]]:
        """Put right what is wrong, if it still is and needs no guess; the reply is (id, code) of what was mended."""

        def mended(flat: list[bytes]) -> list[tuple[bytes, str]]:
            return [(flat[i], text(flat[i + 1])) for i in range(0, len(flat), 2)]

        words: list[Word] = [self._stamp(now), most, " ".join(strays)]
        for wrong in wrongs:
            words += (wrong.id, wrong.code, wrong.met)
        return self._verb("mend", mended, *words)

    # What moves nothing.

    def audit(
        self, ids: Iterable[bytes], *, met: bytes = b"", strays: Iterable[str] = (), now: float | None = None
    ) -> Call[list[Wrong]]:
        """Tell what is wrong with jobs, at most 250. `met`: the key without the root where their ids were read.

        `strays`: the workers that have a list and no lease.
        """
        return self._verb("audit", _wrongs(met), self._stamp(now), met, " ".join(strays), *ids)

    def recount(
        self, groups: Iterable[bytes] = (), *, strays: Iterable[str] = (), most: int = 10_000
    ) -> Call[list[Wrong]]:
        """Tell what the gate has miscounted. `groups`: those that have a backlog of their own, under 1,000."""
        return self._verb("recount", _wrongs(b""), most, " ".join(strays), *groups)

    def members(self, place: bytes, cursor: int, count: int) -> Call[tuple[int, list[bytes]]]:
        """Read a slice of a place by its key without the root; the reply has the next cursor, 0 = it was the last.

        What moves meanwhile within a list may be left out.
        """
        key = self._root.encode() + place
        if place == b"ready" or place.startswith(b"processing:"):

            def items(reply: list[bytes]) -> tuple[int, list[bytes]]:
                return (cursor + count if len(reply) == count else 0), reply

            return Call(("LRANGE", key, cursor, cursor + count - 1), items)

        def pairs(reply: list[Any]) -> tuple[int, list[bytes]]:
            return int(reply[0]), reply[1][::2]

        return Call(("ZSCAN", key, cursor, "COUNT", count), pairs)

    def look(self, job_id: str, *, now: float | None = None) -> Call[JobStatus | None]:
        """Read where a job is, and its record, in one moment."""

        def status(reply: list[Any]) -> JobStatus | None:
            _, place, score, flat = reply
            if not place:
                return None
            return read_status(self.queue, job_id, _place(place), text(score), _fields(flat))

        return self._verb("look", status, self._stamp(now), job_id)

    def explain(self, job_id: str, *, now: float | None = None) -> Call[Facts]:
        """Read why a job has not run yet, in one moment."""

        def facts(reply: list[Any]) -> Facts:
            moment, place, score, flat, limits, named = reply
            fields = _fields(flat)
            told = {text(named[i]): named[i + 1] for i in range(0, len(named), 2)}
            holder, parked = told.pop("holder", None), fields.get("parked")
            return Facts(
                float(moment),
                read_status(self.queue, job_id, _place(place), text(score), fields) if place else None,
                read_limits(limits),
                None if parked is None else text(parked),
                {name: float(value) for name, value in told.items()},
                None if holder is None else text(holder),
            )

        return self._verb("explain", facts, self._stamp(now), job_id)

    def agenda(self, ahead: float, limit: int, *, now: float | None = None) -> Call[Agenda]:
        """Read the recurrences whose next planned time lies at most `ahead` seconds from now."""

        def read(reply: list[Any]) -> Agenda:
            moment, beyond, rows = reply
            due = [(text(rows[i]), rows[i + 1], _fields(rows[i + 2])) for i in range(0, len(rows), 3)]
            return Agenda(float(moment), float(beyond) if beyond else None, due)

        return self._verb("agenda", read, self._stamp(now), ahead, limit)

    def declared(self, owner: str) -> Call[list[str]]:
        """Read the names of the recurrences that an app declares in its code."""
        return Call(("SMEMBERS", f"{self._root}declared:{owner}"), texts)

    def recurrences(self, start: int, count: int) -> Call[list[tuple[str, float]]]:
        """Read a slice of the recurrences with their next planned times, the earliest first."""

        def read(reply: list[bytes]) -> list[tuple[str, float]]:
            return [(text(reply[i]), float(reply[i + 1])) for i in range(0, len(reply), 2)]

        return Call(("ZRANGE", self._root + "recurrences", start, start + count - 1, "WITHSCORES"), read)

    def recurrence(self, name: str) -> Call[dict[str, bytes]]:
        """Read a recurrence's record."""
        return Call(("HGETALL", f"{self._root}recurrence:{name}"), _fields)

    def window(self, name: str) -> Call[str | None]:
        """Read a named window."""

        def read(reply: bytes | None) -> str | None:
            return None if reply is None else text(reply)

        return Call(("HGET", f"{self._root}windows", name), read)

    def windows(self) -> Call[dict[str, str]]:
        """Read all named windows."""

        def read(reply: list[bytes]) -> dict[str, str]:
            return {name: text(value) for name, value in _fields(reply).items()}

        return Call(("HGETALL", f"{self._root}windows"), read)

    def set_window(self, name: str, window: str | None) -> Call[int]:
        """Keep a named window, None = no more; the reply is 1 when there was none, or when it was deleted."""
        key = f"{self._root}windows"
        return Call(("HDEL", key, name) if window is None else ("HSET", key, name, window), int)

    def ids(self, cursor: int) -> Call[tuple[int, list[str]]]:
        """Read a slice of the ids that have records."""
        prefix = self._root + "job:"

        def read(reply: list[Any]) -> tuple[int, list[str]]:
            return int(reply[0]), [text(key)[len(prefix) :] for key in reply[1]]

        return Call(("SCAN", cursor, "MATCH", prefix + "*", "COUNT", 1000), read)

    def ask(self, job_id: str) -> Call[tuple[str, bytes, str]]:
        """Ask for a reply; when the job has ended already: its outcome, result (JSON), reason, else three empty ones.

        Raises (when sent):
            JobMissing: the job never was, or its retention has ended.
        """

        def ended(reply: list[bytes]) -> tuple[str, bytes, str]:
            return text(reply[0]), reply[1], text(reply[2])

        return self._verb("ask", ended, job_id)

    def listen(self, job_id: str, block: float) -> Call[bytes | None]:
        """Wait up to `block` seconds for a job's reply, and leave it there for others who wait (so not BLPOP)."""
        reply = keys.reply(self.queue, job_id)
        return Call(("BLMOVE", reply, reply, "LEFT", "LEFT", block), raw)

    def replied(self, job_id: str) -> Call[bytes | None]:
        """Read a job's reply, if there is one."""
        return Call(("LINDEX", keys.reply(self.queue, job_id), 0), raw)

    def held(self, worker: str) -> Call[list[str]]:
        """Read the ids in a worker's list."""
        return Call(("LRANGE", keys.processing(self.queue, worker), 0, -1), texts)

    def survey(self, *, now: float | None = None) -> Call[list[Lease]]:
        """Read all leases of the queue, the earliest end first."""

        def read(reply: list[Any]) -> list[Lease]:
            return [
                Lease(text(reply[i]), reply[i + 1], float(reply[i + 2]), reply[i + 3]) for i in range(0, len(reply), 4)
            ]

        return self._verb("survey", read, self._stamp(now))

    def census(self, *, now: float | None = None) -> Call[Census]:
        """Count the jobs of each place, in one moment."""

        def read(reply: list[Any]) -> Census:
            moment, schedule, due, backlog, ready, processing, dead, workers, next_due, paused, front = reply
            return Census(
                float(moment),
                {
                    "schedule": schedule,
                    "backlog": backlog,
                    "ready": ready,
                    "processing": processing,
                    "dead": dead,
                },
                due,
                workers,
                float(next_due) if next_due else None,
                float(paused) if paused else None,
                max(0.0, float(moment) - float(front)) if front else 0.0,
            )

        return self._verb("census", read, self._stamp(now))

    def call_roll(self, asker: str) -> Call[int]:
        """Call the queue's workers; each answers to `asker`'s channel. The reply is how many have heard."""
        return Call(("PUBLISH", keys.roll(self.queue), keys.present(self.queue, asker)), int)

    def answer_roll(self, channel: str, presence: bytes) -> Call[int]:
        """Answer one who called the roll; the reply is how many have heard."""
        return Call(("PUBLISH", channel, presence), int)

    def front(
        self, place: Literal["schedule", "backlog", "dead"], limit: int, *, group: str | None = None
    ) -> Call[list[tuple[str, float]]]:
        """Read the first jobs of a place with their scores; of the backlog of a `group` that its limits hold back."""
        key = self._root + (place if group is None else f"{place}:{group}")

        def read(reply: list[bytes]) -> list[tuple[str, float]]:
            return [(text(reply[i]), float(reply[i + 1])) for i in range(0, len(reply), 2)]

        return Call(("ZRANGE", key, 0, limit - 1, "WITHSCORES"), read)

    def closed(self) -> Call[list[str]]:
        """Read the groups whose own limits hold jobs back."""
        return Call(("ZRANGE", self._root + "closed", 0, -1), texts)

    def line(self, limit: int) -> Call[list[str]]:
        """Read the first ids in ready."""
        return Call(("LRANGE", keys.ready(self.queue), 0, limit - 1), texts)


def _place(reply: bytes) -> Place:
    return cast(Place, text(reply))
