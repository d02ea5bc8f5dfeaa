"""The calls of operators: limits, pauses, counts, changes of many jobs, and `evsched doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from evsched import keys
from evsched.jobs.record import number, unknown_since, whole
from evsched.shards import Share
from evsched.store.acts import ActName
from evsched.store.audit_trail import AuditTrail
from evsched.store.gate_limits import (
    DeclaredLimit,
    Limits,
    Reserved,
    as_limit,
    read_declared,
    read_limits,
)
from evsched.store.queue import (
    NO_EDIT,
    as_moment,
    as_optional,
    as_revision,
    as_scores,
    as_texts,
    as_tuple,
)
from evsched.transport.call import Call, Word, raw, text, texts


class BatchSums(Struct, frozen=True):
    """The batches of a queue."""

    open: int
    """How many have not ended."""
    jobs: int
    """How many of their jobs have not ended."""
    done: int
    """How many batches were done; one that fails again after a revive has failed twice."""
    failed: int
    cancelled: int


class QueueStats(Struct, frozen=True):
    """How many jobs a queue has, by place. Times in Unix seconds."""

    now: float
    places: dict[str, int]
    due: int
    """How many jobs on the schedule are due, but not dispatched yet."""
    workers: int
    next_due: float | None
    paused: float | None
    oldest: float
    """Seconds for which the first job in ready, else in the backlog, has been due; 0 if both are empty."""
    parents: int = 0
    """How many parents stand by: they have no worker process, and start one when a job waits."""
    paused_until: float | None = None
    """When the pause ends by itself."""
    paused_why: str | None = None
    batches: BatchSums | None = None
    """Counts of the batches whose home it is; None = there never was one."""
    wanted: int = 0
    """How many slots its jobs want: the jobs that run, and the jobs that wait and may start."""


def merged(parts: Sequence[QueueStats]) -> QueueStats:
    """Return the figures of several queues as one: of a queue and its shards, which the same workers serve.

    It counts as paused if one of them is: `evsched limits` says which.
    """
    if len(parts) == 1:
        return parts[0]
    nexts = [part.next_due for part in parts if part.next_due is not None]
    last = max(parts, key=lambda part: part.paused or 0.0)
    return QueueStats(
        now=max(part.now for part in parts),
        places={place: sum(part.places[place] for part in parts) for place in parts[0].places},
        due=sum(part.due for part in parts),
        workers=max(part.workers for part in parts),
        next_due=min(nexts, default=None),
        paused=last.paused,
        paused_until=last.paused_until,
        paused_why=last.paused_why,
        oldest=max(part.oldest for part in parts),
        parents=max(part.parents for part in parts),
        batches=next((part.batches for part in parts if part.batches is not None), None),
        wanted=sum(part.wanted for part in parts),
    )


_NOTHING: Final[list[Any]] = [0, 0, 0, 0, 0, 0, 0, b"", b"", b"", 0, b"", b"", [], 0]
"""The figures of a queue that has nothing."""


def _read_stats(now: float, figures: list[Any]) -> QueueStats:
    schedule, due, backlog, ready, processing, dead, workers, next_due, *more = figures or _NOTHING
    paused, front, parents, until, why, sums, wanted = more
    counts = (schedule, backlog, ready, processing, dead)
    return QueueStats(
        now,
        dict(zip(("schedule", "backlog", "ready", "processing", "dead"), counts, strict=True)),
        due,
        workers,
        number(next_due),
        number(paused),
        max(0.0, now - found) if (found := number(front)) is not None else 0.0,
        parents,
        number(until) if paused else None,
        text(why) or None if paused else None,
        BatchSums(*(max(0, whole(sum_)) for sum_ in sums)) if any(sums) else None,
        wanted,
    )


class WantedArgument(Struct, frozen=True, omit_defaults=True):
    """An argument of a filter. `position`, from 1: where it is if it was not passed by name. `positions`: by task."""

    name: str
    value: Any
    position: int | None = None
    positions: dict[str, int] = {}


def condition(
    *,
    task: str | None = None,
    group: str | None = None,
    reason: str | None = None,
    error: str | None = None,
    failed: bool = False,
    unknown: bool = False,
    tags: Sequence[str] = (),
    arguments: Sequence[WantedArgument] = (),
    after: float | None = None,
    before: float | None = None,
) -> bytes:
    """Return a filter as the scripts take it (lua/_match.lua). `after`, `before`: Unix seconds."""
    given = {
        "task": task,
        "group": group,
        # Lua lowers A to Z alone: so must this, or other letters would never be found.
        "reason": reason if reason is None else reason.encode().lower().decode(),
        "error": error,
        "failed": failed or None,
        "unknown": unknown or None,
        "tags": tags or None,
        "arguments": arguments or None,
        "after": after,
        "before": before,
    }
    return msgspec.json.encode({name: value for name, value in given.items() if value is not None})


class Match(Struct, frozen=True):
    """A job that was found. Times in Unix seconds."""

    place: str
    id: str
    """For an inline job, the whole member of the schedule."""
    at: float | None
    """When it is due, if it is on the schedule, or when it finished or died; None elsewhere."""
    task: str | None
    group: str | None
    created: float | None
    by: str | None
    reason: str | None
    error: str | None
    """The class of the exception in the last failed run."""
    tags: tuple[str, ...] = ()
    location: str | None = None
    """The line of the user's code that raised it."""
    unknown_since: float | None = None
    """Since when it has been returned to the schedule by workers that do not know its task. None: it is not."""


class Slice(Struct, frozen=True):
    """The result of one `find`."""

    cursor: str
    """Where the next slice begins; "0" = this was the last one."""
    left: list[bytes]
    """Ids that are to be examined before that slice."""
    found: list[Match]


class FindPart(Struct, frozen=True):
    """The jobs of a queue that `find` examines next: the slice where the cursor is, or `ids`."""

    queue: str
    cursor: str = "0"
    ids: Sequence[bytes | str] = ()


def _slice_words(part: FindPart) -> list[Word]:
    first, *others = part.ids or ("",)
    return [part.queue, part.cursor, first, *(word for one in others for word in ("", "", one))]


def _read_slice(place: str, reply: list[Any]) -> Slice:
    cursor, left, flat = reply
    found = list[Match]()
    for at in range(0, len(flat), 11):
        score = number(flat[at + 1]) if place in ("schedule", "finished", "dead") else None
        task, group, created, by, reason, error, tags, location = (
            text(value) or None for value in flat[at + 2 : at + 10]
        )
        moment = None if created is None else number(created.encode())
        job = text(flat[at])
        labels = tuple((tags or "").split())
        unknown = unknown_since(flat[at + 10], score) if place == "schedule" else None
        known = (task, group, moment, by, reason, error, labels, location, unknown)
        found.append(Match(place.partition(":")[0], job, score, *known))
    return Slice(text(cursor), left, found)


def _count(reply: list[bytes]) -> int:
    return sum(1 for one in reply if one)


KEY_TYPES: Final = {
    **dict.fromkeys(("schedule", "backlog", "dead", "leases", "idle", "throttled", "recurrences"), "zset"),
    **dict.fromkeys(("limits", "in_flight", "fair", "suspects", "light"), "hash"),
    "ready": "list",
}
"""The keys on which a whole queue depends, with their types."""


class Violation(Struct, frozen=True):
    """An inconsistency that the audit found in a queue."""

    id: bytes
    """The id of the job, or the name of the group or worker; empty for the queue."""
    code: str
    """The kind of violation, see diagnostics/audit.py."""
    where: str
    """The place, or a detail."""
    met: bytes = b""
    """The list where the id was found, if the record may not name it: `processing:<worker>` or `backlog:<group>`."""


def _read_violations(met: bytes) -> Callable[[list[bytes]], list[Violation]]:
    def read(flat: list[bytes]) -> list[Violation]:
        return [Violation(flat[i], text(flat[i + 1]), text(flat[i + 2]), met) for i in range(0, len(flat), 3)]

    return read


class OperatorCalls(AuditTrail):
    """The calls about a queue as a whole; see `store.py`.

    The calls whose names end with `_matching` change jobs by a filter, see `condition`. They take at most 1,000 ids,
    and leave a job unchanged if it no longer matches or is not where it was found: it has started, ended, or become
    another job. The reply is how many were changed.
    """

    def pause(self, *, until: float | None = None, why: str = "", limit: int = 500) -> Call[tuple[float, int, int]]:
        """Close the gate, until a moment or until `resume`.

        The reply: since when it is closed, how many jobs went back to the backlog, how many are still ready.
        """
        act = self._act_text("pause", until=until, why=why or None)
        return self._verb("pause", as_tuple(float, int, int), self._now(), limit, as_moment(until), why, act)

    def resume(self) -> Call[float | None]:
        """Open the gate; the reply is since when it was closed, None if it was open."""
        return self._verb("resume", number, self._now(), self._act_text("resume"))

    def limit(
        self, limits: Mapping[str, float | None] | None = None, *, whole: Mapping[str, float | None] | None = None
    ) -> Call[Limits]:
        """Set limits by their field names (`store/gate_limits.py`), None removes one; the reply is all limits.

        `whole`: the limits of the whole queue, of which these are the part of a shard.
        """
        words: list[Word] = [self._now(), self._act_text("limit", limits=whole or limits or {})]
        for name, value in (limits or {}).items():
            words += (name, "" if value is None else as_limit(value))
        return self._verb("limit", read_limits, *words)

    def reserve(self, reserved: Mapping[str, Reserved]) -> Call[Any]:
        """Replace the reservations: how much of which limits is not to be used yet."""
        value = msgspec.json.encode(reserved) if reserved else b""
        return self._verb("limit", raw, self._now(), "", "reserved", value)

    def in_flight(self) -> Call[dict[str, int]]:
        """Count the jobs in flight while a limit needs it: `*` -> all, `#<group>` -> the jobs of a group."""

        def read(reply: list[Any]) -> dict[str, int]:
            pairs = ((text(reply[at]), reply[at + 1]) for at in range(0, len(reply), 2))
            return {name: int(count) for name, count in pairs if name[:1] in "*#"}

        return self._call(("HGETALL", self._root + "in_flight"), read)

    def declare_limits(
        self, owner: str, revision: float | None, limits: Mapping[str, float | Share]
    ) -> Call[dict[str, str] | None]:
        """Set the limits that an app declares, all that it does, where the declaration has changed.

        `revision`: what `register` replied; None = older than any. The reply is the limits that were set, by
        field, "" if one was removed; None if the app has registered a newer revision, so nothing was set.
        """
        words = list[Word]()
        for name, value in limits.items():
            part, whole = value if isinstance(value, Share) else (value, None)
            words += (name, as_limit(part), "" if whole is None else as_limit(whole))
        return self._verb("declare_limits", as_optional(as_texts), self._now(), owner, as_revision(revision), *words)

    def declared_limits(self) -> Call[dict[str, DeclaredLimit]]:
        """Read the limits that apps declare, by their fields."""
        return self._call(("HGETALL", self._root + "declared_limits"), read_declared)

    def note_declared(self, limits: Mapping[str, DeclaredLimit]) -> Call[Any]:
        """Note limits that apps declare, besides those noted already: `limit` has set the limits accordingly."""
        words = [word for name, limit in limits.items() for word in (name, limit.as_text())]
        return self._call(("HSET", self._root + "declared_limits", *words), raw)

    def forget_declared(self, names: Sequence[str]) -> Call[Any]:
        """Forget limits that apps declare."""
        return self._call(("HDEL", self._root + "declared_limits", *names), raw)

    def limits(self) -> Call[Limits]:
        """Read all limits, without a script."""
        return self._call(("HGETALL", self._root + "limits"), read_limits)

    def queue_stats(self, lead: float = 0.0) -> Call[QueueStats]:
        """Count the jobs of each place, at the same moment.

        `lead`: seconds; `due`, `paused` and `wanted` are then what they will be that much later.
        """

        def read(reply: list[Any]) -> QueueStats:
            return _read_stats(float(reply[0]), reply[1][0])

        return self._verb("queue_stats", read, self._now(), f"{lead:.6f}", self.queue)

    def many_queue_stats(self, queues: Sequence[str]) -> Call[list[QueueStats | None]]:
        """Count the jobs of many queues in one call, as far as the reply goes; None = Redis refuses to read it.

        In a cluster, all are on the node of this one. `many_queues.py` sends it.
        """

        def read(reply: list[Any]) -> list[QueueStats | None]:
            return [None if one is None else _read_stats(float(reply[0]), one) for one in reply[1]]

        return self._verb("queue_stats", read, self._now(), 0, *queues)

    def forecast(self, first: float | None, length: float, spans: int) -> Call[tuple[float, list[int]]]:
        """Count the jobs on the schedule that are due in each of some spans of time, in seconds; under 1,000 spans.

        `first`: when the first one begins; None = with the next second. The reply begins with it.
        """
        begin = "" if first is None else f"{first:.6f}"
        return self._verb("forecast", as_tuple(float, raw), begin, f"{length:.6f}", spans)

    def request_status(self, asker: str) -> Call[int]:
        """Ask the queue's workers to publish their status to `asker`'s channel; the reply is how many were asked.

        In a cluster it counts only those whose subscriptions are at the node of the queue.
        """
        return self._call(("PUBLISH", keys.status_requests(self.queue), keys.status_replies(self.queue, asker)), int)

    def request_statuses(self, asker: str, queues: Sequence[str]) -> Call[list[int]]:
        """Ask the workers of many queues in one call, as `request_status`."""
        return self._verb("request_status", raw, asker, *queues)

    def request_stack(self, asker: str, job_id: str) -> Call[int]:
        """Ask the workers of the queue for the stack of a run; as `request_status`, but only its worker replies."""
        message = keys.stack_request(keys.status_replies(self.queue, asker), job_id)
        return self._call(("PUBLISH", keys.status_requests(self.queue), message), int)

    def order_worker(self, worker: str, order: str) -> Call[int]:
        """Send `keys.QUIET` or `keys.STOP` to a worker; the reply is how many received it, at one node of a cluster."""
        return self._call(("PUBLISH", keys.control(self.queue, worker), order), int)

    def front(
        self, place: Literal["schedule", "backlog", "dead"], limit: int, *, group: str | None = None, last: bool = False
    ) -> Call[list[tuple[str, float]]]:
        """Read the first jobs of a place with their scores; with `group`, of the backlog behind that group's limits.

        `last`: the last jobs instead, from the end.
        """
        key = self._root + (place if group is None else f"{place}:{group}")
        return self._call(("ZRANGE", key, 0, limit - 1, *(("REV",) if last else ()), "WITHSCORES"), as_scores)

    def dead(self) -> Call[int]:
        """Count the dead jobs."""
        return self._call(("ZCARD", self._root + "dead"), int)

    def throttled(self) -> Call[list[str]]:
        """Read the groups whose own limits hold jobs back."""
        return self._call(("ZRANGE", self._root + "throttled", 0, -1), texts)

    def workers(self) -> Call[list[str]]:
        """Read the workers that have a lease."""
        return self._call(("ZRANGE", self._root + "leases", 0, -1), texts)

    def line(self, limit: int) -> Call[list[str]]:
        """Read the first ids in ready."""
        return self._call(("LRANGE", keys.ready(self.queue), 0, limit - 1), texts)

    def find(
        self, place: str, matching: bytes, cursor: str = "0", *, limit: int = 250, ids: Sequence[bytes | str] = ()
    ) -> Call[Slice]:
        """Find jobs in a slice of a place, or among `ids`. `place`: a key without the root."""
        words = (place, matching, limit, *_slice_words(FindPart(self.queue, cursor, ids)))
        return self._verb("find", lambda reply: _read_slice(place, reply[0]), *words)

    def find_many(
        self, place: str, matching: bytes, parts: Sequence[FindPart], *, limit: int
    ) -> Call[list[Slice | None]]:
        """Find jobs in a slice of each of many queues, as `many_queue_stats`. `limit`: of all together."""

        def read(reply: list[Any]) -> list[Slice | None]:
            return [None if one is None else _read_slice(place, one) for one in reply]

        words = [word for part in parts for word in _slice_words(part)]
        return self._verb("find", read, place, matching, limit, *words)

    def cancel_matching(self, ids: Sequence[str], matching: bytes) -> Call[int]:
        """Cancel jobs that wait and match."""
        words = [word for job_id in ids for word in (job_id, "")]
        return self._verb("cancel", _count, self._now(), matching, self._act_matching("cancel", matching), *words)

    def reschedule_matching(
        self, ids: Sequence[str], matching: bytes, due: float | None, *, delay: float = 0.0
    ) -> Call[int]:
        """Give jobs that wait and match another due, None = `delay` seconds from now."""
        moment = "" if due is None else repr(due)
        act = self._act_matching("reschedule", matching, due=due, delay=delay if due is None else None)
        return self._verb("reschedule", _count, self._now(), moment, repr(delay), matching, act, *NO_EDIT, *ids)

    def revive_matching(self, ids: Sequence[str], matching: bytes) -> Call[int]:
        """Put jobs that are dead and match back on the schedule, due now."""
        return self._verb("revive", _count, self._now(), matching, self._act_matching("revive", matching), "", *ids)

    def drop_matching(self, ids: Sequence[str], matching: bytes) -> Call[int]:
        """Delete jobs that are dead and match."""
        return self._verb("drop", _count, matching, self._act_matching("drop", matching), "", *ids)

    def _act_matching(self, name: ActName, matching: bytes, **what: Any) -> str:
        found = msgspec.json.decode(matching, type=dict[str, msgspec.Raw])
        places = {"place": ",".join(self._act.places)} if self._act is not None and self._act.places else {}
        return self._act_text(name, filter={**found, **places}, **what)

    def audit(self, ids: Iterable[bytes], *, met: bytes = b"", strays: Iterable[str] = ()) -> Call[list[Violation]]:
        """Find violations of at most 250 jobs. `met`: where their ids were read, a key without the root.

        `strays`: the workers that have a processing list but no lease.
        """
        return self._verb("audit", _read_violations(met), self._now(), met, " ".join(strays), *ids)

    def recount(
        self, groups: Iterable[bytes] = (), *, strays: Iterable[str] = (), most: int = 10_000
    ) -> Call[list[Violation]]:
        """Find wrong counts of the gate. `groups`: the groups that have a backlog of their own, under 1,000."""
        return self._verb("recount", _read_violations(b""), most, " ".join(strays), *groups)

    def mend(
        self, violations: Iterable[Violation], *, strays: Iterable[str] = (), most: int = 10_000
    ) -> Call[list[tuple[bytes, str]]]:
        """Repair violations that are still there, if that needs no guess; the reply is (id, code) of each repair."""

        def mended(flat: list[bytes]) -> list[tuple[bytes, str]]:
            return [(flat[i], text(flat[i + 1])) for i in range(0, len(flat), 2)]

        words: list[Word] = [self._now(), most, " ".join(strays), self._act_text("mend")]
        for violation in violations:
            words += (violation.id, violation.code, violation.met)
        return self._verb("mend", mended, *words)

    def members(self, place: bytes, cursor: int, count: int) -> Call[tuple[int, list[bytes]]]:
        """Read a slice of the ids in a place, or of light jobs; the reply has the next cursor, 0 after the last slice.

        `place`: a key without the root.

        Ids that move within a list meanwhile may be missed.
        """
        key = self._root.encode() + place
        if place == b"ready" or place.startswith(b"processing:"):

            def items(reply: list[bytes]) -> tuple[int, list[bytes]]:
                return (cursor + count if len(reply) == count else 0), reply

            return self._call(("LRANGE", key, cursor, cursor + count - 1), items)

        def ids(reply: list[Any]) -> tuple[int, list[bytes]]:
            return int(reply[0]), reply[1][::2]  # each is followed by its score or text

        return self._call(("HSCAN" if place == b"light" else "ZSCAN", key, cursor, "COUNT", count), ids)
