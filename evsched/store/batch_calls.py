"""The calls about batches, in the queue that is the home of a batch, and about chores: see lua/_batches.lua."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from evsched import keys
from evsched.jobs.job import decode
from evsched.jobs.record import number, whole
from evsched.store.queue import Queue, as_fields, as_optional, as_scores, as_struct
from evsched.transport.call import Call, Word, raw, text, texts

BatchState = Literal["open", "running", "done", "failed", "cancelled"]
"""open: jobs are being added; running: it is closed, and jobs of it have not ended; and how it has ended."""

SETTLED: Final = 60.0
"""Seconds after a reservation from which jobs that are not enqueued are missing."""

RESERVED: Final = 30.0
"""Seconds after a reservation until which jobs may be enqueued by it. The difference is for clocks that differ."""


LIFE: Final = 8
"""Characters of the token of a batch that tell it from an earlier one of the same id."""


class Reservation(Struct, frozen=True):
    """The result of `batch_add`."""

    now: float
    first: int | None
    """The first ordinal; None: nothing was reserved."""
    refusal: str
    """Why not; empty if none was asked for."""
    paused: int
    """The stamp of the pause of the batch; 0 = it is not paused."""

    def address(self, home: str, batch: str, at: int = 0) -> str:
        """Return the argument `batch` of `enqueue` for the jobs from the one at `at` on."""
        return f"{home}/{batch}/{(self.first or 0) + at}/{self.now + RESERVED:.6f}"


class Membership(NamedTuple):
    """The member of a batch that a job is, as its record says."""

    member: bytes
    """`<home>/<batch>/<ordinal>`, and perhaps `/<turn>`; empty if there is no record."""
    life: str
    created: float | None

    def is_of(self, address: bytes, life: str, opened: float) -> bool:
        """Return whether it is the member that an address names, and not one of an earlier batch of the same id.

        A record without a life is too old if it was made before the batch was opened; clocks may differ.
        """
        if self.member != address and not self.member.startswith(address + b"/"):
            return False
        return self.life == life if self.life else self.created is None or self.created > opened - RESERVED


class Counted(NamedTuple):
    """A batch that has ended by a call of `batch_count`, or of whose graph nodes were released."""

    batch: str
    state: str
    starts: str = ""
    """The ordinals of released nodes: the nodes of one chore with commas between them, the chores with spaces."""


class Callback(Struct, frozen=True):
    """A job that a batch enqueues."""

    outcome: Literal["done", "failed", "progress"]
    """When: once it is done, has failed, or another tenth of its jobs has ended."""
    task: str
    queue: str


class BatchRecord(Struct, frozen=True):
    """A batch, as its home has it. Times in Unix seconds."""

    id: str
    queue: str
    """Its home."""
    state: BatchState
    created: float
    total: int
    """How many jobs it has, without the jobs that were never enqueued."""
    done: int
    dead: int
    cancelled: int
    expired: int
    stopped: int = 0
    """How many nodes of its graph do not run, since one before them has failed."""
    nodes: int = 0
    """How many nodes its graph has: the first of its ordinals. 0 = it has no order."""
    finished: float | None = None
    closed: float | None = None
    stop: str | None = None
    """cancelled or expired, if its jobs were, or are being, cancelled."""
    round: int = 0
    """How often it has ended: once more each time that it had failed and a dead job of it was revived."""
    adding: int = 0
    """Calls that are adding jobs to it."""
    ordinals: int = 0
    """How many ordinals are reserved; those of jobs that were never enqueued are among them."""
    complete_on: str = "done"
    by: str | None = None
    tags: str | None = None
    parent: str | None = None
    paused: float | None = None
    """Since when it is paused; None = it is not."""
    paused_until: float | None = None
    """When it is resumed by itself; None = it is not."""
    paused_why: str | None = None
    stamp: int = 0
    """The number of its last pause or resume, which rises; 0 = it was never paused."""
    callbacks: tuple[Callback, ...] = ()

    @property
    def open(self) -> int:
        """How many of its jobs have not ended."""
        return self.total - self.done - self.dead - self.cancelled - self.expired - self.stopped


def _record(queue: str, batch: str, fields: dict[str, bytes]) -> BatchRecord | None:
    state, created = text(fields.get("state", b"")), number(fields.get("created"))
    if state not in ("open", "running", "done", "failed", "cancelled") or created is None:
        return None
    total, missing, done, dead, cancelled, expired, stopped, nodes, again, adding = (
        whole(fields.get(name))
        for name in (
            *("total", "missing", "done", "dead", "cancelled", "expired", "stopped", "nodes", "round", "adding"),
        )
    )
    return BatchRecord(
        *(batch, queue, state, created, total - missing, done, dead, cancelled, expired, stopped, nodes),
        finished=number(fields.get("finished")),
        closed=number(fields.get("closed")),
        stop=_optional(fields, "stop"),
        round=again,
        adding=adding,
        ordinals=total,
        complete_on=_optional(fields, "complete_on") or "done",
        by=_optional(fields, "by"),
        tags=_optional(fields, "tags"),
        parent=_optional(fields, "parent"),
        paused=number(fields.get("paused")),
        paused_until=number(fields.get("paused_until")),
        paused_why=_optional(fields, "paused_why"),
        stamp=whole(fields.get("stamp")),
        callbacks=_callbacks(fields),
    )


def _callbacks(fields: dict[str, bytes]) -> tuple[Callback, ...]:
    found = list[Callback]()
    for outcome in ("done", "failed", "progress"):
        try:
            call: Any = decode(fields.get(f"on_{outcome}", b"null"))
            found.append(Callback(outcome, *map(_named, (call["payload"]["task"], call["queue"]))))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
            continue  # there is none, or it is malformed
    return tuple(found)


def _named(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _optional(fields: dict[str, bytes], name: str) -> str | None:
    return text(fields[name]) if name in fields else None


class PlanRow(Struct, frozen=True):
    """A node of a graph, as `batch_plan` takes it."""

    node: bytes
    """JSON, see batches/node.py."""
    job: str
    """The id of its job; "" = `<batch>.<ordinal>`. That of a batch has a slash before it."""
    queue: str
    after: Sequence[int] = ()
    """The ordinals of the nodes before it."""
    despite: bool = False
    """Whether it also runs if they fail."""

    def words(self) -> tuple[Word, ...]:
        after = " ".join(map(str, self.after))
        return self.node, self.job, self.queue, after, "1" if self.despite else ""


LISTED: Final = (
    *("state", "created", "closed", "finished", "stop", "complete_on", "round", "adding", "by", "tags", "parent"),
    *("total", "missing", "done", "dead", "cancelled", "expired", "stopped", "nodes"),
    *("paused", "paused_until", "paused_why"),
)
"""The fields that lists need. Those of callbacks may be long."""


class BatchSlice(Struct, frozen=True):
    """A part of the batches of a queue, the newest first."""

    now: float
    total: int
    """How many batches the queue has."""
    read: int
    """How many were read. A malformed one is not among the batches."""
    batches: list[BatchRecord]


class BatchCalls(Queue):
    """The calls of batches whose home is the queue, and of its chores."""

    def batch_open(
        self,
        batch: str,
        token: str,
        *,
        retention: float,
        expires: float | None = None,
        parent: str = "",
        fields: Mapping[str, Word] | None = None,
    ) -> Call[bool]:
        """Open a batch; the reply is False if a call with the same token has opened it before. `token`: at random.

        Raises (when sent):
            JobExists: there is a batch of that id.
        """
        given = {"by": self._by, **(fields or {})}
        rows = [word for pair in given.items() if pair[1] != "" for word in pair]
        end = "" if expires is None else repr(float(expires))
        return self._verb("batch_open", bool, self._now(), batch, token, repr(float(retention)), end, parent, *rows)

    def batch_add(
        self,
        batch: str,
        token: str,
        count: int,
        queue: str = "",
        *,
        ids: Sequence[str] = (),
        member: str = "",
        confirms: str = "",
    ) -> Call[Reservation]:
        """Reserve ordinals for jobs that go to `queue`; with 0, only confirm the reservation whose token is `confirms`.

        `ids`: those of the jobs; none = `<batch>.<ordinal>`. `member`: of the batch, by its ordinal and turn, whose run
        adds the jobs.

        Raises (when sent):
            JobMissing: there is no such batch.
        """
        read = as_struct(Reservation, float, lambda first: int(first) if first else None, text, whole)
        words = (self._now(), batch, token, count, queue, SETTLED, member, confirms)
        return self._verb("batch_add", read, *words, *ids)

    def batch_plan(self, batch: str, first: int, rows: Iterable[PlanRow]) -> Call[int]:
        """Write nodes of a graph, from an ordinal on; the reply is how many nodes it has. A second call writes nothing.

        Raises (when sent):
            JobMissing: there is no such batch.
            JobLate: it is closed, or was cancelled.
            ConfigError: the first row is not the next node, or a row is not valid.
        """
        words = (word for row in rows for word in row.words())
        return self._verb("batch_plan", int, batch, first, *words)

    def batch_close(
        self, batch: str, *, confirms: str = "", how: Literal["", "cancelled", "expired"] = ""
    ) -> Call[str]:
        """Close a batch, or cancel its jobs too; the reply is its state.

        Raises (when sent):
            JobMissing: there is no such batch.
        """
        act = self._act_text("cancel", batch=batch) if how == "cancelled" else ""
        return self._verb("batch_close", text, self._now(), batch, confirms, how, act)

    def batch_ask(self, batch: str, node: int) -> Call[bool]:
        """Request that clients that wait hear of the end of a node; the reply is whether it has ended.

        Raises (when sent):
            JobMissing: there is no such batch, or no such node.
        """
        return self._verb("batch_ask", bool, batch, node)

    def batch_revive(self, batch: str, node: int) -> Call[bool]:
        """Start a node again that failed without a job; the reply is False if that was done before.

        Raises (when sent):
            JobMissing: there is no such node, or it did not fail without a job.
            JobLate: the graph is done, was cancelled or has expired.
        """
        return self._verb("batch_revive", bool, self._now(), batch, node, self._act_text("revive"))

    def batch_count(self, ends: Iterable[tuple[str, int, bytes]]) -> Call[list[Counted]]:
        """Count ends of members: batch, ordinal, and a byte for each ordinal from there on.

        The reply: the batches of which something follows.
        """

        def read(flat: list[bytes]) -> list[Counted]:
            return [Counted(*map(text, flat[at : at + 3])) for at in range(0, len(flat), 3)]

        return self._verb("batch_count", read, self._now(), *(word for row in ends for word in row))

    def batch(self, batch: str) -> Call[BatchRecord | None]:
        """Read a batch; None if there is none."""
        return self._call(("HGETALL", self._batch(batch)), lambda reply: _record(self.queue, batch, as_fields(reply)))

    def batch_expires(self, batch: str) -> Call[float | None]:
        """Read when a batch has taken too long; None = it may take any time, or has ended."""
        return self._call(("ZSCORE", keys.chores(self.queue), f"expire {batch}"), as_optional(float))

    def batch_field(self, batch: str, field: str) -> Call[bytes | None]:
        return self._call(("HGET", self._batch(batch), field), raw)

    def is_child(self, batch: str, address: str) -> Call[bool]:
        """Read whether there is a batch that is the member which an address names, and not another of its id."""
        return self._call(("HGET", self._batch(batch), "parent"), lambda parent: text(parent or b"") == address)

    def batch_life(self, batch: str) -> Call[str]:
        """Read what tells a batch from an earlier one of the same id; "" if there is none."""
        return self._call(("HGET", self._batch(batch), "token"), lambda token: text(token or b"")[:LIFE])

    def batch_opened(self, batch: str) -> Call[float]:
        """Read when a batch was opened; 0 if there is none."""
        return self._call(("HGET", self._batch(batch), "created"), lambda created: number(created) or 0.0)

    def batch_ends(self, batch: str, first: int, last: int) -> Call[bytes]:
        """Read the bytes of ordinals, as far as there are any."""
        return self._call(("GETRANGE", self._batch(batch, "ends"), first, last), raw)

    def batch_parts(self, batch: str, first: int, last: int) -> Call[list[tuple[int, int, str]]]:
        """Read in which queues the ordinals are: first ordinal, how many, queue."""

        def read(reply: list[bytes]) -> list[tuple[int, int, str]]:
            found = (text(part).split(" ", 2) for part in reply)
            return [(int(start), int(count), queue) for start, count, queue in found]

        return self._call(("LRANGE", self._batch(batch, "parts"), first, last), read)

    def batch_ids(self, batch: str, ordinals: Sequence[int]) -> Call[list[str]]:
        """Read the ids of members by their ordinals; that of a batch has a slash before it."""

        def read(reply: list[bytes | None]) -> list[str]:
            found = zip(ordinals, reply, strict=True)
            return [f"{batch}.{at}" if name is None else text(name) for at, name in found]

        return self._call(("HMGET", self._batch(batch, "ids"), *ordinals), read)

    def batch_nodes(self, batch: str, ordinals: Sequence[int]) -> Call[list[bytes | None]]:
        """Read nodes of a graph."""
        return self._call(("HMGET", self._batch(batch, "nodes"), *ordinals), list)

    def batch_befores(self, batch: str, ordinals: Sequence[int]) -> Call[list[list[int]]]:
        """Read the ordinals of the nodes before some nodes."""

        def read(reply: list[bytes | None]) -> list[list[int]]:
            return [[int(word) for word in (befores or b"").split() if word.isdigit()] for befores in reply]

        return self._call(("HMGET", self._batch(batch, "nodes"), *(f"<{at}" for at in ordinals)), read)

    def batch_beside(self, batch: str, ordinal: int) -> Call[tuple[list[int] | None, list[int]]]:
        """Read the ordinals of the nodes before a node and after it. The first list is None if it is not a node."""

        def read(reply: list[Any]) -> tuple[list[int] | None, list[int]]:
            before, after = ([int(word) for word in re.findall(rb"\b\d{1,5}\b", field or b"")] for field in reply)
            return None if reply[0] is None else before, after

        return self._call(("HMGET", self._batch(batch, "nodes"), f"<{ordinal}", f">{ordinal}"), read)

    def batch_failures(self, batch: str, ordinals: Sequence[int]) -> Call[list[str | None]]:
        """Read why the jobs of some nodes were not enqueued; None = they were, or will be."""

        def read(reply: list[bytes | None]) -> list[str | None]:
            return [None if why is None else text(why) for why in reply]

        return self._call(("HMGET", self._batch(batch, "nodes"), *(f"?{at}" for at in ordinals)), read)

    def fail_node(self, batch: str, ordinal: int, why: str) -> Call[Any]:
        """Note why the job of a node is not enqueued."""
        return self._call(("HSET", self._batch(batch, "nodes"), f"?{ordinal}", why), raw)

    def batch_list(self, start: int, limit: int) -> Call[BatchSlice]:
        """Read a slice of the batches, the newest first, without their callbacks; `limit` under 1000."""

        def read(reply: list[Any]) -> BatchSlice:
            now, total, listed = reply
            found = list[BatchRecord]()
            for at in range(0, len(listed), 2):
                given = zip(LISTED, listed[at + 1], strict=False)
                fields = {name: value for name, value in given if isinstance(value, bytes)}
                if (record := _record(self.queue, text(listed[at]), fields)) is not None:
                    found.append(record)
            return BatchSlice(float(now), int(total), len(listed) // 2, found)

        return self._verb("batch_list", read, self._now(), start, limit, *LISTED)

    def batch_names(self, first: int, last: int) -> Call[list[str]]:
        """Read the ids of batches, the newest first."""
        return self._call(("ZRANGE", f"{self._root}batches", first, last, "REV"), texts)

    def wait_for_batch(self, batch: str, block: float, node: int | None = None) -> Call[bytes | None]:
        """Wait up to `block` seconds until a batch has ended; with a `node`, until that has: see `batch_ask`."""
        over = self._batch(batch if node is None else f"{batch}/{node}", "over")
        return self._call(("BLMOVE", over, over, "LEFT", "LEFT", block), raw)

    def forget_batch(self, batch: str) -> list[Call[Any]]:
        """Delete a batch. It is out of the list last, so that it is deleted again if this was not finished."""
        found = [self._batch(batch, name) for name in ("", "ends", "parts", "ids", "inner", "over", "nodes", "ripple")]
        return [
            self._call(("UNLINK", *found), raw),
            self._call(("ZREM", f"{self._root}batches", batch), raw),
        ]

    def member_of(self, job_id: str) -> Call[bytes | None]:
        """Read which member of a batch a job is, as its record says; None if it has none, or there is no record."""
        return self._call(("HGET", keys.job(self.queue, job_id), "batch"), raw)

    def membership_of(self, job_id: str) -> Call[Membership]:
        """Read which member of a batch a job is, and of which life of that."""

        def read(reply: list[bytes | None]) -> Membership:
            member, life, created = reply
            return Membership(member or b"", text(life or b""), number(created))

        return self._call(("HMGET", keys.job(self.queue, job_id), "batch", "life", "created"), read)

    def result_of(self, job_id: str) -> Call[bytes | None]:
        """Read the result of a job, JSON; None if it is not done, or there is no record."""

        def read(reply: list[bytes | None]) -> bytes | None:
            outcome, result = reply
            return result if outcome == b"done" else None

        return self._call(("HMGET", keys.job(self.queue, job_id), "outcome", "result"), read)

    def shorten_record(self, job_id: str, length: float) -> Call[Any]:
        """Keep the record of a job that has ended for no more than `length` seconds. Others have no expiry."""
        return self._call(("PEXPIRE", keys.job(self.queue, job_id), f"{1000 * length:.0f}", "XX", "LT"), raw)

    def chores(self, limit: int) -> Call[list[tuple[str, float]]]:
        """Read the first chores of the queue, and when they are to be done."""
        return self._call(("ZRANGE", keys.chores(self.queue), 0, limit - 1, "WITHSCORES"), as_scores)

    def end_chores(self, steps: Sequence[str]) -> Call[Any]:
        return self._call(("ZREM", keys.chores(self.queue), *steps), raw)

    def delay_chores(self, steps: Sequence[str], until: float) -> Call[Any]:
        """Do chores later, unless they are done by now."""
        moment = f"{until:.6f}"
        words = [word for step in steps for word in (moment, step)]
        return self._call(("ZADD", keys.chores(self.queue), "XX", *words), raw)

    def add_chore(self, step: str, at: float) -> Call[Any]:
        return self._call(("ZADD", keys.chores(self.queue), f"{at:.6f}", step), raw)

    def worker_of(self, job_id: str) -> Call[bytes | None]:
        """Read which worker runs a job; None if none does."""
        return self._call(("HGET", keys.job(self.queue, job_id), "worker"), raw)

    def _batch(self, batch: str, part: str = "") -> str:
        return f"{self._root}batch_{part}:{batch}" if part else f"{self._root}batch:{batch}"
