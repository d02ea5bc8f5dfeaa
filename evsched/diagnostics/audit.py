"""The audit: every id in exactly one place, every record in a place, every count right.

It reads a live system in slices. One script checks a slice in one atomic step, so a job that moves meanwhile is not
reported. A violation is checked again after a pause, because a client may write a record after its ZADD. The
table of rules has, for each code of a finding, its severity, its meaning and the remedy.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from evsched import keys
from evsched.diagnostics.finding import Finding, Level
from evsched.display import format_duration
from evsched.errors import WRONG_TYPE, StoreRefused
from evsched.store import server
from evsched.store.acts import Act
from evsched.store.dispatcher_calls import Survey
from evsched.store.operator_calls import KEY_TYPES, Violation
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.call import Call, text
from evsched.transport.senders import BatchingSender

_REPAIR: Final = "evsched doctor --queue {q} --repair"

_ID_RULE: Final = "1 to 200 of A-Z a-z 0-9 . _ : @ -"


class _Rule(Struct, frozen=True):
    what: str
    mend: str = _REPAIR
    """It names `--repair` only if that repairs it."""
    level: Level = "fault"


_RULES: Final[dict[str, _Rule]] = {
    "orphan": _Rule(
        "a job that has not ended is in no place: it will never run",
        f"if Redis evicted its place (see evicted-keys): {_REPAIR} schedules it at its due time; if a client cancelled "
        "it with ZREM alone: DEL {record}",
    ),
    "unscheduled": _Rule(
        "a record whose job is in no place and was never due: cancelled with ZREM alone, never scheduled, or Redis "
        "evicted its place",
        "if it was cancelled: DEL {record}; if not, schedule it: ZADD {root}schedule 0 {id}; the finding "
        "evicted-keys tells whether Redis evicted keys",
        "warning",
    ),
    "bad-id": _Rule(
        f"an id that is not valid ({_ID_RULE}) is in {{where}}: no job can run under it",
        f"{_REPAIR} puts it into the dead-letter set as bad-<SHA-1>, or bad-<SHA-1>-2, up to 100; or type RENAME "
        "{record} {root}job:ID and ZADD {root}schedule 0 ID, with a valid ID, or DEL {record}; then repair",
    ),
    "no-record": _Rule(
        "an id in {where} has no record, or one without a payload: it will go to the dead-letter set",
        f"HSET {{record}} payload '{{{{...}}}}', at once if it is due; or {_REPAIR} puts it into the dead-letter set",
    ),
    "record-type": _Rule(
        "the key of a record is not a hash", "DEL {record}; then schedule the job again if you still want it"
    ),
    "two-places": _Rule(
        "an id is in two places, {where}: its job may run twice",
        "evsched cancel {id} --queue {q}, then schedule it again",
    ),
    "parked": _Rule("the record says that a limit of group {where} holds the job back, but none does"),
    "unparked": _Rule(
        "a limit of group {where} holds a job back, but its record does not say so: it cannot be cancelled",
        level="warning",
    ),
    "dead-without-record": _Rule("a dead job has no record, so it cannot be revived", level="warning"),
    "stale-dead": _Rule(
        "an id is in the dead-letter set, but its job is not dead ({where}): reviving it would run it again"
    ),
    "record-expires": _Rule(
        "the record expires before the job can end: the job would be lost", f"{_REPAIR}, or PERSIST {{record}}"
    ),
    "no-ttl": _Rule("the record of a job that has ended never expires", "EXPIRE {record} 300", "warning"),
    "stuck": _Rule("an occurrence of recurrence {where} waits for a run that has already ended"),
    "stray": _Rule(
        "worker {id} holds jobs but has no lease: no dispatcher will put them back",
        f"{_REPAIR} gives it a lease; when that ends, a dispatcher puts the jobs back; or restart a dispatcher",
    ),
    "in_flight": _Rule("the count of jobs in flight is wrong ({where}): concurrency limits do not hold"),
    "uncounted": _Rule(
        "the jobs in flight were not checked: {where} entries are too many to count in one step", "", "info"
    ),
    "stranded": _Rule("the jobs that a limit of group {id} holds back will never continue"),
    "throttled": _Rule("group {id} counts as held back, but none of its jobs is", level="warning"),
    "stuck-move": _Rule(
        "jobs have been on their way to another shard for {where}: none of them runs until they are there",
        "run a dispatcher: it finishes the move; its log names the obstacle, such as a node that is down",
    ),
    "place-type": _Rule("a key of the queue is {where}: no job of the queue moves", "RENAME or DEL {key}"),
    "key-type": _Rule("a key is {where}: the feature that uses it does not work", "RENAME or DEL {key}"),
    "refused": _Rule("Redis refused to check this queue: {where}", "check the types of the keys {root}*"),
    "more": _Rule("there are more than {where} findings", "repair these, then run the doctor again", "info"),
}

CODES: Final = frozenset(_RULES)
"""The codes of all violations."""

_HELD: Final = {
    "bad-id": "wait until its worker has ended it; if it stays: LREM {root}processing:WORKER 0 {id}, then " + _REPAIR,
    "no-record": "HSET {record} payload '{{...}}'; otherwise its worker puts it into the dead-letter set",
}
"""The advice if a worker holds the job: `--repair` leaves it alone."""

_KEY_MOST: Final = 240
"""Characters of a key or an id that say where a finding is: they may have any length."""

_NOT_ABOUT_JOBS: Final = ("stranded", "throttled", "stray", "place-type", "key-type")
"""The violations whose id names a group, a worker or a key."""

_ABOUT_THE_QUEUE: Final = ("in_flight", "uncounted", "stuck-move", "refused", "more")
"""The violations that, without an id, concern the whole queue."""

_PLAIN: Final = re.compile(rb"[!#-&(-\[\]-~]+")
"""Words that redis-cli reads without quotes: printable ASCII without space, quotes and backslash."""


def describe(queue: str, violation: Violation, *, repaired: bool = False) -> Finding:
    """Return the finding about a violation."""
    code, root = violation.code, keys.root(queue)
    rule = _RULES[code]
    shown = text(violation.id) if code in _NOT_ABOUT_JOBS else _typed(violation.id)
    names = {
        "q": queue,
        "id": shown,
        "where": violation.where,
        "root": root,
        "record": _typed(keys.job(queue, "").encode() + violation.id),
        "key": _typed(root.encode() + violation.id),
    }
    mend = _HELD.get(code, rule.mend) if violation.where == "processing" else rule.mend
    # A client may still write the record of a scheduled job, until the job is due. A dead job is not lost.
    mild = (code, violation.where) in (("no-record", "schedule"), ("bad-id", "schedule"), ("bad-id", "dead"))
    level = "warning" if mild else rule.level
    shown = _shortened(shown, len(violation.id))
    if not violation.id and code in _ABOUT_THE_QUEUE:
        where = f"queue {queue}"
    else:
        where = f"queue {queue}, {shown}" if code in _NOT_ABOUT_JOBS else f"queue {queue}, job {shown}"
    return Finding(code, level, rule.what.format_map(names), where, mend.format_map(names), repaired)


def _typed(word: bytes) -> str:
    """Return a key or an id as it is typed in redis-cli: in quotes and with escapes, unless it needs none."""
    if _PLAIN.fullmatch(word):
        return word.decode()
    escaped = (chr(byte) if _PLAIN.fullmatch(bytes([byte])) or byte == ord(" ") else f"\\x{byte:02x}" for byte in word)
    return '"' + "".join(escaped) + '"'


def _shortened(shown: str, size: int) -> str:
    return shown if len(shown) <= _KEY_MOST else f"{shown[:_KEY_MOST]}... ({size} bytes)"


def misnamed(key: bytes) -> Finding:
    """Return the finding about a key of a queue whose name is not allowed."""
    what = "jobs of a queue whose name is not allowed: no dispatcher serves it, so they will never run"
    return Finding(
        "queue-name",
        "fault",
        what,
        _shortened(text(key), len(key)),
        f"{keys.QUEUE_RULE}: schedule the jobs under such a name, and DEL this key",
    )


def shared_mistyped(key: str, where: str) -> Finding:
    """Return the finding about a key of no queue that is of a wrong type."""
    what = f"a key that all processes share is {where}: the feature that uses it does not work"
    return Finding("key-type", "fault", what, key, f"RENAME or DEL {key}")


SLICE: Final = 250
"""Ids that one script checks: about 1.2 ms of Redis's time."""

PAUSE: Final = 2.5
"""Seconds before the second check: a record may come 2 s after its ZADD."""

_MOST: Final = 10_000
"""The most violations that are kept of a queue: repair these first, then run the audit again."""

_MOVE: Final = 300.0
"""Seconds after which a batch should have moved to another shard: dispatchers finish it after a minute or two."""

_LEASE: Final = 14.0
"""Seconds of the lease that a worker without one is given. When it ends, a janitor puts the worker's jobs back."""

TYPES: Final = KEY_TYPES | {
    "apps": "set",
    "arrival": "string",
    "arrived": "hash",
    "audit": "stream",
    "batch_holds": "hash",
    "batch_sums": "hash",
    "batches": "zset",
    "busy_leases": "hash",
    "calendars": "hash",
    "canary": "zset",
    "chores": "zset",
    "dead_workers": "zset",
    "declared_limits": "hash",
    "ends": "stream",
    "history": "stream",
    "moving": "hash",
    "newly_paused": "set",
    "parents": "zset",
    "pauses": "zset",
    "programs": "zset",
    "redactions": "hash",
    "seats": "hash",
    "sought": "zset",
    "starting": "string",
    "tasks": "hash",
    "windows": "hash",
    "arrival:": "string",
    "backlog:": "zset",
    "batch:": "hash",
    "batch_ends:": "string",
    "batch_ids:": "hash",
    "batch_inner:": "list",
    "batch_nodes:": "hash",
    "batch_over:": "list",
    "batch_parts:": "list",
    "batch_ripple:": "list",
    "declared:": "set",
    "deferred:": "zset",
    "hour:": "hash",
    "processing:": "list",
    "program:": "set",
    "recurrence:": "hash",
    "reply:": "list",
    "requested:": "zset",
    "requests:": "zset",
    "revisions:": "zset",
    "unique:": "string",
    "workers:": "zset",
}
"""The types of a queue's keys; with a colon at the end, of the many keys that begin with that. The script itself checks
`job:`. The queue as a whole depends only on those of KEY_TYPES."""

_SHARED: Final = {
    keys.audit(""): "stream",
    keys.CONSOLE_SECRET: "string",
    keys.CONSOLE_TOKENS: "hash",
    keys.EPOCH: "string",
    keys.LAYOUT_KEY: "string",
    keys.LEASE: "string",
    keys.LEDGER: "string",
    keys.QUEUES: "set",
    keys.SHARDS: "zset",
}
"""The types of the keys that belong to no queue."""

OnProgress = Callable[[int, int], None]
"""Receives the progress: how many were checked, of about how many."""


_NOTHING: Final = Survey([], None)


class _Queue:
    """The result of the audit of one queue."""

    def __init__(self, name: str, act: Act | None = None) -> None:
        self.store = Store(name, act=act)
        self.has_keys = False
        self.lists = set[str]()
        """The workers that have a list."""
        self.strays = list[str]()
        """The workers that have a list and no lease."""
        self.groups = set[bytes]()
        """The groups that have a backlog of their own."""
        self.suspects: dict[tuple[bytes, str], Violation] = {}
        self.met: dict[bytes, bytes] = {}
        """By id: the list or group's backlog where a suspect was found. Its record need not name that place."""
        self.refused = ""
        self.mistyped = False
        """Whether it has a key of a wrong type."""
        self.blocked = False
        """Whether that is a key on which all of its jobs depend."""

    def places(self) -> list[bytes]:
        lists = [f"processing:{worker}".encode() for worker in sorted(self.lists)]
        return [
            b"schedule",
            b"backlog",
            *(b"backlog:" + group for group in self.groups),
            b"ready",
            b"dead",
            b"light",
            *lists,
        ]

    def suspect(self, violations: Iterable[Violation]) -> None:
        for violation in violations:
            if len(self.suspects) < _MOST:
                self.suspects[violation.id, violation.code] = violation
                if violation.met:
                    self.met[violation.id] = violation.met


class Audit:
    """One audit of the queues that are named, or of all. `down`: the primaries of a cluster that are not asked.

    `act`: the act of the operator who has it repair what it finds.
    """

    def __init__(
        self,
        sender: BatchingSender,
        queues: Sequence[str] = (),
        *,
        pause: float = PAUSE,
        down: Collection[Host] = (),
        act: Act | None = None,
    ) -> None:
        self._sender = sender
        self._act = act
        self._down = down
        self._named = frozenset(queues)
        self._queues = {name: _Queue(name, act) for name in queues}
        self._pause = pause
        self._about_keys: dict[bytes, Finding] = {}
        """By key: that its queue's name is not allowed, or that it is of a wrong type."""
        self.met = set[str]()
        """The queues whose keys it has met, also if they are not to be checked."""
        self.seen = 0
        """How many records and entries of places it has checked."""

    @property
    def queues(self) -> list[str]:
        return sorted(self._queues)

    @property
    def unblocked(self) -> list[str]:
        """The queues whose jobs can move: no key on which all of them depend has a wrong type."""
        return [name for name, queue in sorted(self._queues.items()) if not queue.blocked]

    @property
    def empty(self) -> list[str]:
        """The named queues that have no key: the name is misspelt, or the queue has not been used yet."""
        return [name for name, queue in sorted(self._queues.items()) if not queue.has_keys]

    async def run(self, *, repair: bool = False, on_progress: OnProgress = lambda done, total: None) -> list[Finding]:
        """Check all places and records; with `repair`, repair what can be repaired in only one way.

        Raises:
            StoreDown, StoreRefused
        """
        await self._walk(on_progress)
        suspicious = [queue for queue in self._queues.values() if queue.suspects]
        if suspicious:
            await asyncio.sleep(self._pause)
        found = [finding for _, finding in sorted(self._about_keys.items())]
        for queue in suspicious:
            violations = await self._check_again(queue)
            repaired = await self._repair(queue, violations) if repair else set[tuple[bytes, str]]()
            found += [describe(queue.store.queue, v, repaired=(v.id, v.code) in repaired) for v in violations]
            if len(queue.suspects) == _MOST:
                found.append(describe(queue.store.queue, Violation(b"", "more", str(_MOST))))
        for queue in self._queues.values():
            if queue.refused and not queue.mistyped:
                found.append(describe(queue.store.queue, Violation(b"", "refused", queue.refused)))
        return found

    # The first check: all keys once, then the places that they show.

    async def _walk(self, on_progress: OnProgress) -> None:
        # Each job is checked twice: by its record, and in its place.
        nodes = [node for node in await self._sender.nodes() if node not in self._down]
        total = 2 * sum(await self._sender.send_all([server.size().at(node) for node in nodes]))
        for node in nodes:
            await self._walk_keys(node, lambda: on_progress(self.seen, total))
        for queue in self._queues.values():
            survey = await self._ask(queue, queue.store.survey(), _NOTHING)
            queue.strays = sorted(queue.lists - {lease.worker for lease in survey.leases} - {*survey.died})
            queue.suspect(Violation(worker.encode(), "stray", worker) for worker in queue.strays)
            queue.suspect(_stuck_move(survey))
        total = max(total, 2 * self.seen)
        for queue in self._queues.values():
            for place in queue.places():
                await self._walk_place(queue, place, lambda: on_progress(min(self.seen, total), total))
            queue.suspect(await self._recount(queue))
        on_progress(total, total)

    async def _walk_keys(self, node: Host | None, on_progress: Callable[[], None]) -> None:
        """Check the keys of one node, and note the queues and places that they show."""
        cursor = None
        while cursor != 0:
            cursor, found = await self._sender.send(server.scan_all(cursor or 0).at(node))
            if not self._named and len(self._about_keys) < _MOST:
                self._about_keys |= {key: misnamed(key) for key in found if keys.is_misnamed(key)}
            for queue, ids in (await self._sort(found)).items():
                await self._check(queue, ids)
            on_progress()

    async def _sort(self, found: Iterable[bytes]) -> dict[_Queue, list[bytes]]:
        """Note the queues and places that keys show, and the keys of a wrong type; return the ids of the records."""
        split = [(key, *parts) for key in found if (parts := keys.split(key)) is not None]
        self.met.update(name for _, name, _ in split)
        split = [one for one in split if not self._named or one[1] in self._named]
        wanted = {key: _SHARED[name] for key in found if (name := text(key)) in _SHARED}
        wanted |= {key: kind for key, _, rest in split if (kind := _wanted(text(rest))) is not None}
        kinds = dict(zip(wanted, await self._sender.send_all([server.kind(key) for key in wanted]), strict=True))
        mistyped = {
            key: f"a {kind}, not a {wanted[key]}" for key, kind in kinds.items() if kind not in ("none", wanted[key])
        }
        for key in mistyped:
            if text(key) in _SHARED:
                self._about_keys[key] = shared_mistyped(text(key), mistyped[key])
        ids = defaultdict[_Queue, list[bytes]](list)
        for key, name, rest in split:
            if (queue := self._queues.get(name)) is None:
                queue = self._queues[name] = _Queue(name, self._act)
            queue.has_keys = True
            if key in mistyped:
                code = "place-type" if text(rest) in KEY_TYPES else "key-type"
                self._about_keys[key] = describe(name, Violation(rest, code, mistyped[key]))
                queue.mistyped = True
                queue.blocked |= code == "place-type"
            elif rest.startswith(b"job:"):
                ids[queue].append(rest[4:])
            elif rest.startswith(b"processing:") and keys.NAME.fullmatch(text(rest[11:])):
                queue.lists.add(text(rest[11:]))
            elif rest.startswith(b"backlog:"):
                queue.groups.add(rest[8:])
        return ids

    async def _walk_place(self, queue: _Queue, place: bytes, on_progress: Callable[[], None]) -> None:
        met = place if b":" in place else b""
        cursor = 0
        while True:
            cursor, ids = await self._ask(queue, queue.store.members(place, cursor, SLICE), (0, []))
            if place == b"schedule":  # an inline job has no record until it is due
                ids = [id_ for id_ in ids if not id_.startswith(b"{")]
            await self._check(queue, ids, met)
            on_progress()
            if cursor == 0:
                break

    async def _check(self, queue: _Queue, ids: Iterable[bytes], met: bytes = b"") -> None:
        """Check jobs by their ids. `met`: the place in which they were found, if a queue has many of its kind."""
        for part in _parts(ids):
            self.seen += len(part)
            queue.suspect(await self._ask(queue, queue.store.audit(part, met=met, strays=queue.strays)))

    async def _recount(self, queue: _Queue) -> list[Violation]:
        groups = sorted(queue.groups)[:900]
        return await self._ask(queue, queue.store.recount(groups, strays=queue.strays))

    async def _ask(self, queue: _Queue, call: Call[Any], empty: Any = ()) -> Any:
        """Send a call, unless one of this queue was refused: a place of the wrong type makes Redis refuse them all."""
        if queue.refused:
            return empty
        try:
            return await self._sender.send(call)
        except StoreRefused as error:
            queue.refused = str(error)
            if error.kind != WRONG_TYPE:
                raise
            return empty

    # The second check, and the repairs.

    async def _check_again(self, queue: _Queue) -> list[Violation]:
        """Return the violations that a second check finds too."""
        first = queue.suspects
        survey = await self._ask(queue, queue.store.survey(), _NOTHING)
        leased = {*survey.died, *(lease.worker for lease in survey.leases)}
        queue.strays = [worker for worker in queue.strays if worker not in leased]
        violations = [v for v in (*await self._recount(queue), *_stuck_move(survey)) if (v.id, v.code) in first]
        held = {worker: await self._ask(queue, queue.store.held(worker)) for worker in queue.strays}
        violations += [first[worker.encode(), "stray"] for worker, ids in held.items() if ids]
        by_place = defaultdict[bytes, list[bytes]](list)
        for violation in first.values():
            if violation.code not in (*_NOT_ABOUT_JOBS, *_ABOUT_THE_QUEUE):
                by_place[queue.met.get(violation.id, b"")].append(violation.id)
        for met, ids in by_place.items():
            for part in _parts(dict.fromkeys(ids)):
                again = await self._ask(queue, queue.store.audit(part, met=met, strays=queue.strays))
                violations += [v for v in again if (v.id, v.code) in first]
        return list({(v.id, v.code): v for v in violations}.values())

    async def _repair(self, queue: _Queue, violations: list[Violation]) -> set[tuple[bytes, str]]:
        """Repair violations that have only one remedy; return the ids and codes of the repaired ones."""
        repaired = set[tuple[bytes, str]]()
        for violation in violations:
            if violation.code == "stray":
                await self._ask(queue, queue.store.heartbeat(violation.where, _LEASE, fresh=True))
                if not queue.refused:
                    repaired.add((violation.id, violation.code))
        for part in _parts([v for v in violations if v.code != "stray"]):
            repaired.update(await self._ask(queue, queue.store.mend(part, strays=queue.strays)))
        return repaired


def _stuck_move(survey: Survey) -> list[Violation]:
    """Return the violation that a batch of jobs has been on its way to another shard for too long, if one has."""
    since = survey.moving or 0.0
    return [Violation(b"", "stuck-move", format_duration(since))] if since > _MOVE else []


def _wanted(rest: str) -> str | None:
    """Return the type that a key must have, by its name without the root; None if it is not checked here."""
    return TYPES.get(rest) or TYPES.get(rest[: rest.find(":") + 1])


def _parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while part := list(islice(rest, SLICE)):
        yield part
