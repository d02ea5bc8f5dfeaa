"""The arena: a server of its own, a queue with a job in every place, and the rules that hold after any sequence.

A rule that is broken raises `Broken`, an AssertionError. The rules:

* Each reply is one of the script's, or an error that its header names, or about a key of the wrong type. Garbage may
  also be refused by an error that says so. After an error, nothing was written.
* A user writes nothing beyond its rights: an observer nothing at all, everyone else nothing in another queue.
* Readers cope with the state: each verb that reads replies, and Python reads its reply.
* No script takes more than 50 ms of Redis's time.
* When wrong keys are gone and the audit has repaired what it can, the jobs that nobody named end, and nothing is left.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from evsched.diagnostics.audit import Audit
from evsched.errors import EvschedError, JobMissing
from evsched.jobs.job import Buried, Done
from evsched.recurrence.recurrence import Declared, Occurrence
from evsched.store.batch_calls import PlanRow
from evsched.store.client_calls import New
from evsched.store.moves import Arrival
from evsched.store.operator_calls import condition
from evsched.store.queue import Announced
from evsched.store.relay_calls import RowJob
from evsched.store.store import Store
from evsched.transport.call import Call, script
from evsched.transport.embedded import EmbeddedRedis, ServerBinary
from evsched.transport.senders import BatchingSender, SyncSender
from tests.fuzz.sequences import INLINE, NOW, OTHER, QUEUE, READERS, ROLES, ROOT, Sequence, Step
from tests.support import hostile
from tests.support.headers import read_header
from tests.support.plain import plain_client

SLOW: Final = 0.05
"""Seconds of processor time that no call may take."""
_GOOD_INLINE: Final = [b'{"task":"noop","args":["good",%d]}' % n for n in range(2)]
GOOD: Final = [f"good-{n}" for n in range(6)] + [hashlib.sha1(member).hexdigest() for member in _GOOD_INLINE]
"""Ids of jobs that no sequence names."""
CAP: Final = 262_144
LATER: Final = NOW + 1e6
"""When all jobs are brought to their ends."""

ASIDE: Final = b"aside:"
"""Before the name of a key that was replaced by one of another type. An operator puts it back when that one is gone."""

LOOKALIKES: Final = ("}:schedule", "}:job:x")
"""How keys end that a producer may write though they are none of its own: docs/rights.md."""

_NO_RIGHT: Final = ("The user executing the script can't", "ACL failure in script")
"""What Redis and Valkey reply to a script that lacks a right for one of its commands."""

_RULES: Final = re.compile(r"^# user (\w+) (.*)$", re.MULTILINE)
_TYPES: Final = {
    **dict.fromkeys(["schedule", "backlog", "dead", "leases", "idle", "throttled", "recurrences", "pauses"], b"zset"),
    **dict.fromkeys(["dead_workers", "parents", "apps", "chores", "batches"], b"zset"),
    **dict.fromkeys(
        ["limits", "in_flight", "fair", "moving", "arrived", "busy_leases", "windows", "suspects"], b"hash"
    ),
    **dict.fromkeys(["declared_limits", "batch_sums", "seats"], b"hash"),
    **dict.fromkeys(["arrival"], b"string"),
    **dict.fromkeys(["ready"], b"list"),
    **dict.fromkeys(["ends", "audit"], b"stream"),
}
"""The types of the keys that belong to the whole queue."""
_TYPES_OF: Final = {
    **dict.fromkeys(["backlog", "requests", "requested", "deferred"], b"zset"),
    **dict.fromkeys(["job", "recurrence", "batch", "batch_ids", "batch_nodes"], b"hash"),
    **dict.fromkeys(["processing", "reply", "batch_parts", "batch_over", "batch_ripple"], b"list"),
    **dict.fromkeys(["arrival", "unique", "batch_ends"], b"string"),
}
"""Those that belong to one job, worker, group or recurrence, by what stands before the name."""


class Broken(AssertionError):
    """A rule does not hold."""


class Arena:
    """Runs sequences, each from the same state."""

    def __init__(self, server: ServerBinary | None = None) -> None:
        self._server = EmbeddedRedis(server, save="", appendonly="no", enable_debug_command="yes")
        self.done = Counter[str]()
        """How many sequences and commands were run, and how many of the commands were refused."""

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._raw: Any = plain_client(self._server.url)
        self._sender = SyncSender(self._server.url, reply_timeout=60.0)
        self._loop = asyncio.new_event_loop()
        self._store = Store(QUEUE)
        rules = dict(_RULES.findall(hostile.CONF.read_text(encoding="utf-8")))
        self._users: dict[str, Any] = {}
        for role in ROLES:
            # To this queue alone, as docs/rights.md says. A producer may also write keys that only look like its own.
            rule = rules[role] if role == "producer" else rules[role].replace("{*}", f"{{{QUEUE}}}")
            words = re.findall(r"\([^)]*\)|\S+", rule)
            self._raw.execute_command("ACL", "SETUSER", role, *words)
            self._users[role] = plain_client(self._server.url.replace("unix://", f"unix://{role}:change-me@"))
        self._seed()
        self._dump = {key: self._raw.dump(key) for key in self._raw.scan_iter(count=1000)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in (*self._users.values(), self._raw):
            client.close()
        self._sender.close()
        self._loop.close()
        self._server.__exit__(kind, error, trace)

    def grant(self, role: str, *rules: str) -> None:
        """Widen the rights of a user."""
        self._raw.execute_command("ACL", "SETUSER", role, *rules)

    # The state from which each sequence begins.

    def _seed(self) -> None:
        send, store = self._sender.send, self._store
        due = b'{"task":"noop","reply":true}'

        def put(*ids: str, **more: Any) -> None:
            send(store.at(NOW - 5).enqueue([New(job_id, due, due=NOW - 5, **more) for job_id in ids]))
            send(store.at(NOW).dispatch(limit=100, cap=CAP))

        put("dead")
        (run,) = send(store.at(NOW).start("w", (), hold=1, lease=99)).jobs
        send(store.at(NOW).bury("w", [(run, Buried("x", False))]))
        send(store.at(NOW).limit({"concurrency": 9, "rate": 1000, "concurrency:g": 1, "rate:g": 1, "weight:g": 2}))
        put("g0", "g1", "good-0", "good-1", group="g")
        put("running", "good-2")
        send(store.at(NOW).start("w", (), hold=4, lease=99))
        put("r1", "r2", "good-3")
        self._seed_inline()
        send(store.ask("running"))
        send(store.at(NOW).start("v", (), hold=1, lease=99, ticket=0))
        send(store.declare(Declared(name="r", payload=due, rule="@hourly")))
        send(store.recur("r", b"0", [Occurrence("r@1", NOW - 1, NOW - 1, None)], next_=NOW + 9))
        send(store.at(NOW).register("app", "content", given=1))
        for name in ("retired", "kept"):
            send(store.declare(Declared(name=name, payload=due, rule="@hourly"), "app", 1))
        send(store.at(NOW).retire("retired", "app", 1))
        for planned in (NOW - 99, NOW - 98):
            send(store.at(NOW).backfill("r", [f"{planned:.0f}"]))
        send(store.declare(Declared(name="paused", payload=due, rule="@hourly")))
        send(store.at(NOW - 9).hold("paused", True, until=NOW - 5))
        send(store.set_window("night", "22:00-06:00"))
        send(store.at(NOW).enqueue([New(job_id, due, due=NOW - 1) for job_id in ("scheduled", "good-4")]))
        send(store.at(NOW).enqueue([New(job_id, due, due=NOW + 50) for job_id in ("later", "good-5", "leaves")]))
        send(store.at(NOW).depart("fuzz:1", "first", [b"leaves"], calm=9.0))
        send(store.follow_ends())
        send(
            store.at(NOW).relay([RowJob(job, due, None, None, NOW + 20, row) for job, row in (("row", 7), ("row2", 8))])
        )
        send(store.declare(Declared(name="e", payload=due, rule="every 60", overlap="wait", window="night")))
        send(
            store.recur("e", b"0", [Occurrence("e@1", NOW, NOW, 5.0), Occurrence("e@2", NOW, NOW, 5.0)], next_=NOW + 9)
        )
        send(store.at(NOW).stand_by("p", Announced("app", "content", "d"), lease=9, claim=9))
        send(store.at(NOW).batch_open("b", "t", retention=9, expires=9, fields={"on_failed": due, "on_progress": due}))
        send(store.at(NOW).batch_add("b", "r", 3, QUEUE, ids=["y"]))
        send(store.at(NOW).batch_open("g", "t", retention=9))
        send(store.batch_plan("g", 0, [PlanRow(b"{}", "", QUEUE), PlanRow(b"{}", "", QUEUE, [0])]))
        send(Store(OTHER).at(NOW).enqueue([New("a", due, due=NOW), New("b", due, due=NOW + 50)]))
        self._raw.set("elsewhere", "x")

    def _seed_inline(self) -> None:
        """Schedule inline jobs: one that worker "w" runs, two that are ready, and two that are due later."""
        send, store, schedule = self._sender.send, self._store.at(NOW), f"{ROOT.decode()}schedule"
        (runs, *_), (member, waits, later) = INLINE, INLINE.values()
        self._raw.zadd(schedule, {member: NOW - 5})
        send(store.dispatch(limit=100, cap=CAP))
        assert (
            self._raw.lmove(f"{ROOT.decode()}ready", f"{ROOT.decode()}processing:w", "RIGHT", "RIGHT") == runs.encode()
        )
        send(store.start("w", (runs,), hold=1, lease=99))
        self._raw.zadd(schedule, {waits: NOW - 5, _GOOD_INLINE[0]: NOW - 4, later: NOW + 50, _GOOD_INLINE[1]: NOW + 50})
        send(store.dispatch(limit=100, cap=CAP))

    def _restore(self) -> None:
        pipe = self._raw.pipeline(transaction=False)
        pipe.flushall()
        pipe.config_resetstat()  # so that it counts the keys that expire in this sequence
        for key, value in self._dump.items():
            pipe.restore(key, 0, value)
        pipe.execute()

    def _digest(self, *others: bytes) -> bytes:
        """Return the digest of all keys, or of those outside the queue."""
        if not others:
            return self._raw.execute_command("DEBUG", "DIGEST")
        return b"".join(self._raw.execute_command("DEBUG", "DIGEST-VALUE", *others))

    # One sequence.

    @contextmanager
    def _quick(self, what: str) -> Generator[None]:
        """Measure the processor time of Redis's main thread. The slow log measures a busy machine too."""
        usage = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/schedstat")
        before = int(usage.read_text().split()[0]) if usage.exists() else 0
        yield
        if before and (took := int(usage.read_text().split()[0]) - before) > SLOW * 1e9:
            raise Broken(f"{what} takes {took / 1e6:.0f} ms of Redis's time")

    def run(self, sequence: Sequence) -> None:
        """Run a sequence and check every rule.

        Raises:
            Broken: a rule does not hold; the message says which.
        """
        self._restore()
        outside = [key for key in self._dump if not key.startswith(ROOT)]
        before = self._digest(*outside), self._raw.dbsize() if sequence.role in READERS else 0
        whole = self._digest() if sequence.role in READERS else b""
        self.done["sequences"] += 1
        for number, step in enumerate(sequence.steps):
            try:
                self._step(sequence, step)
            except Broken as broken:
                raise Broken(f"{broken}\n  step {number}: {step}") from None
        if sequence.role in READERS and self._digest() != whole:
            raise Broken(f"the user {sequence.role} has written")
        if self._digest(*outside) != before[0]:
            raise Broken("another queue or key was changed")
        known = (ROOT, ASIDE)
        foreign = [
            one for one in self._raw.scan_iter(count=1000) if not one.startswith(known) and one not in self._dump
        ]
        if foreign:
            raise Broken(f"keys were made outside the queue: {foreign[:5]}")
        if sequence.role not in READERS:
            self._read_all()
            self._heal(sequence)

    def _step(self, sequence: Sequence, step: Step) -> None:
        self.done["commands"] += 1
        if not step.verb:
            self._command(sequence.role, step.words)
            return
        role = "worker" if sequence.role == "producer" else sequence.role
        user, found, before = self._users[role], script(step.verb), self._digest()
        try:
            with self._quick(step.verb):
                try:
                    user.execute_command("EVALSHA", found.sha, 1, ROOT, *step.words)
                except NoScriptError:
                    user.execute_command("EVAL", found.source, 1, ROOT, *step.words)
        except ResponseError as error:
            self.done["refused"] += 1
            lacks = isinstance(error, NoPermissionError) or any(text in str(error) for text in _NO_RIGHT)
            if lacks:
                return
            if not _documented(step.verb, str(error)) and not (sequence.wild and _is_clear(str(error))):
                raise Broken(f"{step.verb} fails: {_plain(error)}") from None
            if self._digest() != before and not self._raw.info("stats")["expired_keys"]:
                raise Broken(f"{step.verb} writes before it is refused: {_plain(error)}") from None

    def _command(self, role: str, words: tuple[bytes, ...]) -> None:
        user = self._users[role]
        try:
            if words[0] == b"REPLACE":
                if self._raw.exists(words[1]):
                    self._raw.renamenx(words[1], ASIDE + words[1])
                user.execute_command("DEL", words[1])
                words = (words[2], words[1], *words[3:])
            user.execute_command(*words)
        except NoPermissionError:
            raise Broken(f"{role} lacks the right to {words[:2]}") from None
        except ResponseError:
            self.done["refused"] += 1  # by Redis itself

    # What holds afterwards.

    def _send(self, call: Call[Any]) -> Any:
        """Send a call of the store, which may meet a key of the wrong type."""
        try:
            with self._quick(call.name):
                return self._sender.send(call)
        except JobMissing:
            return None
        except EvschedError as error:
            if "WRONGTYPE" in str(error):
                return None
            raise Broken(f"{call.name} of the store fails: {error}") from None

    def _read_all(self) -> None:
        store = self._store.at(NOW + 1)
        ids = ["a", "b", "running", "dead", "r1", "g1", "r@1", "new", *INLINE, *GOOD]
        calls: list[Call[Any]] = [store.queue_stats(), store.survey(), store.agenda(99, 9), store.glance([QUEUE])]
        calls += [store.roster(0, 9, ["rule", "paused", "ahead"]), store.forecast(NOW, 60.0, 9)]
        calls += [store.batch_list(0, 9), store.batch("b")]
        calls += [store.recurrence_stats()]
        calls += [store.recount([b"g"]), store.audit([job.encode() for job in ids]), store.limits()]
        calls += [store.find(place, condition(task="noop")) for place in ("schedule", "backlog", "ready", "dead")]
        calls += [read(job) for job in ids for read in (store.look, store.explain)]
        for call in calls:
            try:
                self._send(call)
            except Broken:
                raise
            except Exception as error:  # whatever Python finds wrong with the reply
                raise Broken(f"the reply of {call.name} cannot be read: {error!r}") from error

    def _heal(self, sequence: Sequence) -> None:
        """Do what an operator does, run all jobs, and check that nothing is lost or left."""
        store, send = self._store, self._send
        names = [key[len(ROOT) :] for key in self._raw.scan_iter(match=ROOT + b"*", count=1000)]
        self._delete_mistyped(names)
        for key in self._raw.scan_iter(match=ASIDE + b"*", count=1000):
            self._raw.renamenx(key, key.removeprefix(ASIDE))
            self._raw.delete(key)
        self._delete_mistyped(names)  # a key that was replaced twice is of a wrong type aside too
        self._raw.delete(ROOT + b"limits")
        if (batch := send(store.depart()).batch) is not None:
            send(store.vacate(batch, Arrival(True, 0, [])))
        self._audit(repair=True)
        for name in names:
            if name.startswith(b"processing:"):
                worker: Any = name.removeprefix(b"processing:")  # as the bytes that it is
                send(store.at(LATER).requeue(worker, "x", limit=250))
        send(store.at(LATER).resume())
        for n in range(40):  # a requested run brings the next one when it ends
            now = LATER + 9999 * n
            send(store.at(now).dispatch(limit=999, cap=CAP))
            jobs = send(store.at(now).start("last", (), hold=500, lease=99)).jobs
            if not all(math.isfinite(job.due) and job.attempt >= 1 for job in jobs):
                raise Broken(f"a run is not valid: {jobs}")
            lost = send(store.at(now).complete("last", [(job, Done(b"1", 300.0, False)) for job in jobs]))
            if lost:
                raise Broken(f"runs were lost: {lost}")
            if not jobs:
                break
        for job in GOOD:
            status = send(store.at(LATER).look(job))
            if (
                status is None
                or status.place not in ("finished", "dead")
                or (status.place == "dead" and not status.reason)
            ):
                raise Broken(f"{job} is lost: {status}")
        self._nothing_is_left()
        if found := self._audit():
            raise Broken(f"the audit finds {found[:3]}")

    def _delete_mistyped(self, names: list[bytes]) -> None:
        for name in names:
            key, (kind, _, of) = ROOT + name, name.partition(b":")
            right = (_TYPES_OF if of else _TYPES).get(kind.decode(errors="replace"))
            if right is not None and self._raw.type(key) != right:
                self._raw.delete(key)

    def _audit(self, *, repair: bool = False) -> list[str]:
        async def run() -> list[str]:
            sender = BatchingSender(self._server.url)
            try:
                found = await Audit(sender, [QUEUE], pause=0.0).run(repair=repair)
            finally:
                await sender.close()
            seen = [one for one in found if one.level == "fault" and not one.where.endswith(LOOKALIKES)]
            return [f"{one.check} {one.where}: {one.what}" for one in seen]

        with self._quick("the audit"):
            return self._loop.run_until_complete(run())

    def _nothing_is_left(self) -> None:
        left: dict[str, Callable[[bytes], Any]] = {
            "ready": lambda key: self._raw.lrange(key, 0, 9),
            "backlog": lambda key: self._raw.zrange(key, 0, 9),
            "throttled": lambda key: self._raw.zrange(key, 0, 9),
            "processing": lambda key: self._raw.lrange(key, 0, 9),
            "in_flight": lambda key: self._raw.hgetall(key),
            "moving": lambda key: self._raw.hgetall(key),
        }
        for key in self._raw.scan_iter(match=ROOT + b"*", count=1000):
            name = key[len(ROOT) :].partition(b":")[0].decode(errors="replace")
            if name in left and not key.endswith(tuple(map(str.encode, LOOKALIKES))):
                found = left[name](key)
                if name == "in_flight" and found == {b"*": b"0"}:
                    continue
                raise Broken(f"{key!r} is left: {found}")


def _documented(verb: str, error: str) -> bool:
    """Return whether a script's header names an error, or it is about a key of the wrong type."""
    _, _, names = read_header(verb)
    return error.startswith((*(f"{code} " for code in names["FAILS"] if code != "none"), "WRONGTYPE "))


def _is_clear(error: str) -> bool:
    """Return whether a script has refused an argument, and says so."""
    return "so nothing was written" in error


def _plain(error: Exception) -> str:
    """Return an error without the SHA of the script."""
    return re.sub(r" ?script: \w+, on ", " ", str(error))[:300]
