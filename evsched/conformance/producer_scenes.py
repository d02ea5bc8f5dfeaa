"""The scenes for producers: what a program writes is held to docs/protocol.md, and a worker of ours runs it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from hashlib import sha1
from types import TracebackType
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from evsched import keys
from evsched.client.option_values import id_of_arguments
from evsched.client.wire_schema import InlineJob, JobPayload
from evsched.conformance.kit import NotSupported, Scene, adding_to
from evsched.conformance.stage import PATIENCE, QUEUE, Stage, Unexpected, expect, require, words_of
from evsched.jobs.record import FIELDS
from evsched.transport.call import Call

_WORKER: Final = shlex.join([sys.executable, "-m", "evsched", "worker", "evsched.conformance.python_worker:app"])

_FAR: Final = 4_000_000_000.25
"""A due time at which nothing in the scenes is ready."""

_ALLOWED: Final = frozenset(field.name for field in FIELDS)


class WrittenJob(Struct, frozen=True):
    """A job on the schedule, as a producer has written it."""

    due: float
    payload: dict[str, Any]
    priority: int
    group: str
    inline: bool


class ProducerStage(Stage):
    """A stage whose workers are ours. `producer`: the command that starts the program under test."""

    def __init__(self, producer: str, lease: float) -> None:
        super().__init__(_WORKER, lease, EVSCHED_LOG_LEVEL="CRITICAL")
        self._command_of_producer = words_of(producer)
        self._asked: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._produced = set[str]()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_producer()
        super().__exit__(kind, error, trace)

    def start_over(self) -> None:
        self._end_producer()
        super().start_over()

    def check_after(self) -> None:
        """Expect that the queue has only jobs whose ids the program has replied."""
        members = self._redis("ZRANGE", keys.schedule(QUEUE), 0, -1)
        records = self._redis("KEYS", keys.job(QUEUE, "*"))
        found = {_id_of(member) if member.startswith(b"{") else member.decode(errors="replace") for member in members}
        found.update(record.decode(errors="replace").removeprefix(keys.job(QUEUE, "")) for record in records)
        others = sorted(found - self._produced)
        require(not others, f"jobs that it was not asked for ({len(others)}): {', '.join(others[:3]):.300}")

    def change_producer(self, producer: str) -> None:
        """Test another producer from now on."""
        self._end_producer()
        self._command_of_producer = words_of(producer)

    def _end_producer(self) -> None:
        """Kill the producer. The next request starts it again."""
        if self._asked is not None:
            self._kill(self._asked)
            self._asked.communicate()
            self._asked = None

    @staticmethod
    def _kill(program: subprocess.Popen[bytes]) -> None:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)

    def ask(self, verb: str, *, may_fail: bool = False, **more: Any) -> dict[str, Any]:
        """Have the producer do something; return its reply. `may_fail`: the reply may be an error.

        Raises:
            NotSupported: it cannot do that.
            Unexpected: it failed, or gave no reply.
        """
        reply = self._reply(
            verb, json.dumps({"verb": verb, **more}).encode()
        )  # ASCII: some readers end lines at U+2028
        if "unsupported" in reply:
            raise NotSupported(f"{reply['unsupported']!s:.200}")
        require(may_fail or "error" not in reply, f"it replied to {verb!r}: {reply.get('error')!s:.200}")
        if verb == "enqueue" and "id" in reply:
            self._produced.add(str(reply["id"]))
        return reply

    def _reply(self, verb: str, request: bytes) -> dict[str, Any]:
        if self._asked is None:
            with self.output.open("ab") as log:
                self._asked = subprocess.Popen(
                    self._command_of_producer, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=log, start_new_session=True,
                )  # fmt: skip
        program = self._asked
        assert program.stdin is not None
        assert program.stdout is not None
        limit = threading.Timer(PATIENCE, self._kill, [program])
        limit.start()
        try:
            program.stdin.write(request + b"\n")
            program.stdin.flush()
            line = program.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            limit.cancel()
        if not line:
            raise Unexpected(f"no reply to {verb!r}: it has ended, or printed no line within {PATIENCE:g} s (flush it)")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise Unexpected(f"its reply to {verb!r} is {line.decode(errors='replace')!r:.200}, not an object of JSON")
        return cast("dict[str, Any]", reply)

    def fresh(self, name: str = "job") -> str:
        """Return an id that no other job has."""
        self._count += 1
        return f"{name}-{self._count}"

    def produce(self, task: str, *args: Any, named: Mapping[str, Any] = {}, **options: Any) -> str:
        """Have the producer enqueue a job; return its id, as it says."""
        job = {"task": task, "args": args, "kwargs": named, **options}
        found = self.ask("enqueue", job=job).get("id")
        require(isinstance(found, str) and keys.NAME.fullmatch(found), f"its reply has no id, but {found!r:.200}")
        require(options.get("id") in (None, found), f"the id is {found!r}, not {options.get('id')!r}")
        return str(found)

    def written(self, job_id: str) -> WrittenJob:
        """Return a job that waits on the schedule, with a record or inline; it must be as docs/protocol.md says."""
        members = self._redis("ZRANGE", keys.schedule(QUEUE), 0, -1, "WITHSCORES")
        for member, due in zip(members[::2], members[1::2], strict=True):
            if member == job_id.encode():
                return self._with_record(job_id, float(due))
            if member.startswith(b"{") and _id_of(member) == job_id:
                payload = _checked(member, InlineJob)
                priority, group = payload.get("priority"), payload.get("group")
                return WrittenJob(float(due), payload, 5 if priority is None else priority, group or "", inline=True)
        raise Unexpected(f"{job_id} is not on the schedule, neither by its id nor inline")

    def _with_record(self, job_id: str, due: float) -> WrittenJob:
        found = self._redis("HGETALL", keys.job(QUEUE, job_id))
        record = {
            _text(name, "a field of the record"): value for name, value in zip(found[::2], found[1::2], strict=True)
        }
        require("payload" in record, f"{job_id} is on the schedule, and its record has no payload")
        require(record.keys() <= _ALLOWED, f"the record has unknown fields: {record.keys() - _ALLOWED}")
        priority, group = record.get("priority", b"5"), record.get("group", b"")
        require(len(priority) == 1 and priority.isdigit(), f"the priority is {priority!r}, not one digit")
        payload = _checked(record["payload"], JobPayload)
        return WrittenJob(due, payload, int(priority), _text(group, "the group"), inline=False)

    def is_scheduled(self, job_id: str) -> bool:
        try:
            self.written(job_id)
        except Unexpected:
            return False
        return True

    def lifetime(self, key: str) -> float:
        """Return in how many seconds a key expires; -1 = it does not, -2 = there is none."""
        milliseconds = self._redis("PTTL", key)
        return milliseconds if milliseconds < 0 else milliseconds / 1000

    def _redis(self, *words: str | int) -> Any:
        return self.client.send(Call(words, _raw, near=keys.root(QUEUE)))


def _raw(reply: Any) -> Any:
    return reply


def _id_of(member: bytes) -> str:
    try:
        named = json.loads(member).get("id")
    except (ValueError, RecursionError):
        named = None
    return sha1(member, usedforsecurity=False).hexdigest() if named is None else str(named)


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Unexpected(f"{name} is {value!r:.200}, not UTF-8") from None


def _checked(text: bytes, kind: type[JobPayload]) -> dict[str, Any]:
    """Return a payload, which must be valid by the JSON Schema: that is made of `kind`."""
    _text(text, "what it wrote")
    try:
        msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        of = "inline" if kind is InlineJob else "payload"
        raise Unexpected(f"what it wrote is not valid by `evsched schema {of}`: {error}: {text!r:.200}") from None
    return json.loads(text)


PRODUCER_SCENES: Final = list[Scene[ProducerStage]]()

_scene: Final = adding_to(PRODUCER_SCENES)


# Arguments. Each call is written for a far due time, where the kit reads it, and for now, so that a worker runs it.


def _arrive(stage: ProducerStage, *args: Any, **named: Any) -> None:
    payload = stage.written(stage.produce("call", *args, named=named, due=_FAR, id=stage.fresh())).payload
    expect(payload["task"], "call", "the task")
    written: Any = payload.get("args") or [], payload.get("kwargs") or {}  # PHP and Lua may write the other empty one
    expect(written, ([*args], named), "args and kwargs in Redis")
    status = stage.ended(stage.produce("call", *args, named=named, id=stage.fresh(), retention=3600))
    expect((status.outcome, status.result), ("done", {"args": [*args], "kwargs": named}), "the outcome of its run")


@_scene("args and kwargs are written as they were given, and a run gets them")
def arguments(stage: ProducerStage) -> None:
    _arrive(stage, 1, "b", [None], {"c": True}, x={"y": []}, **{"y z": False})


@_scene("a job may have no arguments")
def no_arguments(stage: ProducerStage) -> None:
    _arrive(stage)


@_scene("texts survive: other scripts, emoji, combining and control characters, quotes, line separators")
def unicode(stage: ProducerStage) -> None:
    text = "ä€ 你好 👩‍👩‍👧 e\u0301 \u0000\u001b\u007f \"'\\/ \r\n\t \u2028\u2029 \ufeff \U0010ffff"
    _arrive(stage, text, **{"ключ 🔑": "ß"})


@_scene("whole numbers up to 2^53 - 1 and floats survive")
def numbers(stage: ProducerStage) -> None:
    _arrive(stage, 0, -1, 2**53 - 1, 1 - 2**53, 0.1, -2.5, 1e300, 5e-324, 1.7976931348623157e308)


@_scene("nested and empty values survive")
def nested(stage: ProducerStage) -> None:
    deep: Any = "core"
    for _ in range(60):
        deep = {"a": [deep]}
    _arrive(stage, deep, {}, [], {"": {"": [[]]}}, True, False, None, "")


@_scene("an argument of 200 KB is written whole")
def long_argument(stage: ProducerStage) -> None:
    _arrive(stage, "0123456789" * 20_000)


# Ids.


@_scene("the job has the id that was asked for, whatever characters it has")
def ids(stage: ProducerStage) -> None:
    number = stage.fresh("")
    for job_id in (f"A-z.0_9:@{number}", f"...{number}", "x" * (200 - len(number)) + number, f"a..b{number}"):
        stage.written(stage.produce("call", id=job_id, due=_FAR))


@_scene("without an id the job gets one, another one for each call, under which it is found")
def own_id(stage: ProducerStage) -> None:
    found = {stage.produce("call", stage.fresh(), due=_FAR) for _ in range(3)}
    expect(len(found), 3, "the number of ids of three jobs")
    for job_id in found:
        stage.written(job_id)


@_scene("an id that is enqueued twice while its job waits is one job; the second call may be refused")
def id_twice(stage: ProducerStage) -> None:
    job_id = stage.produce("call", 1, id=stage.fresh(), due=_FAR)
    if stage.written(job_id).inline:
        raise NotSupported("two inline jobs are two members: evsched refuses the second one when it is due")
    again: dict[str, Any] = {"task": "call", "args": [2], "kwargs": {}, "id": job_id, "due": _FAR + 1}
    reply = stage.ask("enqueue", may_fail=True, job=again)
    found = stage.written(job_id)
    wanted = ([1], _FAR) if "error" in reply else ([2], _FAR + 1)
    expect((found.payload.get("args"), found.due), wanted, f"arguments and due, since the second reply was {reply}")


@_scene("the id of a job that has ended is used again: the new record does not expire with the old one")
def id_again(stage: ProducerStage) -> None:
    job_id = stage.produce("call", 1, id=stage.fresh(), retention=3600)
    stage.ended(job_id)
    stage.produce("call", 2, id=job_id, due=_FAR)
    found = stage.written(job_id)
    expect(found.payload.get("args"), [2], "the arguments")
    left = stage.lifetime(keys.job(QUEUE, job_id))
    require(found.inline or left == -1, f"the record expires in {left:g} s, before the job is due: PERSIST it")


def _unique(stage: ProducerStage, **unique: Any) -> str:
    """Enqueue a unique job twice; the second time, its id is taken. Return the id."""
    args, kwargs = [stage.fresh(), "ß"], {"b": 1, "a": [2]}
    call: dict[str, Any] = {"task": "call", "args": args, "kwargs": kwargs, "due": _FAR, "unique": unique}
    wanted = id_of_arguments("call", args, kwargs)
    expect(stage.ask("enqueue", job=call).get("id"), wanted, "the id, which is made of the arguments")
    stage.ask("enqueue", may_fail=True, job=call | {"due": _FAR + 1})
    expect(stage.written(wanted).due, _FAR, "the due time after the second call")
    return wanted


@_scene("a unique job has the id that is made of its task and arguments, and is there once")
def unique(stage: ProducerStage) -> None:
    _unique(stage)


@_scene("the id of a unique job is taken for as long as was asked for")
def unique_within(stage: ProducerStage) -> None:
    left = stage.lifetime(f"{keys.root(QUEUE)}unique:{_unique(stage, within=3600)}")
    require(3600 - 2 * PATIENCE < left <= 3600, f"the key `unique:ID` expires in {left:g} s, not in 3600 s")


# Times.


@_scene("the score is the due time in Unix seconds, with its milliseconds")
def due(stage: ProducerStage) -> None:
    for moment in (1_900_000_000, 1_900_000_000.25, 1_893_456_000.123, 4_294_967_296.5, 4_102_444_800.999):
        found = stage.written(stage.produce("call", id=stage.fresh(), due=moment)).due
        require(abs(found - moment) < 0.001, f"the score is {found:.6f}, not {moment:.6f}")


@_scene("a job without a due time, or with one in the past, runs at once")
def due_now(stage: ProducerStage) -> None:
    moments: list[dict[str, Any]] = [{}, {"due": 1}, {"due": 1_700_000_000.5}]
    for options in moments:
        status = stage.ended(stage.produce("echo", 1, id=stage.fresh(), retention=3600, **options))
        expect((status.outcome, status.result), ("done", 1), "outcome and result")


# Options.


def _option(name: str, expected: str, *values: Any) -> None:
    def play(stage: ProducerStage) -> None:
        for value in values:
            options = {} if value is None else {name: value}
            job_id = stage.produce("call", 1, id=stage.fresh(), due=_FAR, **options)
            seen = stage.written(job_id).payload.get(name)
            expect(_asked_for(seen, value), value, f"the {name} in the payload")

    PRODUCER_SCENES.append(Scene(name, expected, play))


def _asked_for(seen: Any, wanted: Any) -> Any:
    """Return the fields of an object that were asked for: a tracer adds to `meta`, and a policy may be whole.

    None was asked for: false and an empty value are the same.
    """
    if wanted is None:
        return seen or None
    if isinstance(seen, dict) and isinstance(wanted, dict):
        found = cast("dict[str, Any]", seen)
        return {name: found.get(name) for name in cast("dict[str, Any]", wanted)}
    return cast(Any, seen)


_option("timeout", "the seconds that a run may take are written", 0.5, 3600)
_option(
    "retry",
    "the retry policy is written, also values of 0",
    {"attempts": 1},
    {"attempts": 1000, "interval": 0, "factor": 1, "max_interval": 0.25, "jitter": 0},
)
_option("retention", "the seconds for which the record is kept are written, also 0", 0, 86_400.5)
_option("expires", "the moment after which the job does not start is written in Unix seconds", 1_950_000_000.25)
_option("reply", "a job that asks for a reply says so, and no other does", True, None)
_option("meta", "the data for the handler is written as it is", {"ä": [1, {"b": None}], "traceparent": "00-1-2-01"})
_option("window", "the window in which the job may start is written", "mon-fri 08:00-18:00 Europe/Berlin")
_option("tags", "tags are written", ["patient:42", "x" * 64])
_option("redact", "the arguments that readers do not get are named", ["1"])


@_scene("the priority is one digit, from 0 to 9")
def priority(stage: ProducerStage) -> None:
    for value in (0, 5, 9):
        job_id = stage.produce("call", id=stage.fresh(), due=_FAR, priority=value)
        expect(stage.written(job_id).priority, value, "the priority")


@_scene("the group is written, whatever characters it has")
def group(stage: ProducerStage) -> None:
    for value in ("alice", "kunde 7/ä€", "x" * 200):
        expect(stage.written(stage.produce("call", id=stage.fresh(), due=_FAR, group=value)).group, value, "the group")


# Jobs that are changed, and their ends.


@_scene("a job that is cancelled before it is due is gone, and so is its record")
def cancel(stage: ProducerStage) -> None:
    job_id = stage.produce("call", id=stage.fresh(), due=_FAR)
    stage.ask("cancel", id=job_id)
    require(not stage.is_scheduled(job_id), "the job is still on the schedule")
    expect(stage.lifetime(keys.job(QUEUE, job_id)), -2, "the lifetime of the record (-2 = there is none)")


@_scene("to cancel a job that has ended changes nothing, and does not delete its record")
def cancel_ended(stage: ProducerStage) -> None:
    job_id = stage.produce("echo", 7, id=stage.fresh(), retention=3600)
    before = stage.ended(job_id)
    stage.ask("cancel", may_fail=True, id=job_id)
    expect(stage.status(job_id), before, "the job")


@_scene("a job gets another due time, and keeps its arguments")
def reschedule(stage: ProducerStage) -> None:
    job_id = stage.produce("call", 1, id=stage.fresh(), due=_FAR)
    stage.ask("reschedule", id=job_id, due=_FAR + 60.125)
    found = stage.written(job_id)
    require(abs(found.due - _FAR - 60.125) < 0.001, f"the score is {found.due:.6f}, not {_FAR + 60.125:.6f}")
    expect(found.payload.get("args"), [1], "the arguments")


@_scene("another due time for a job that has ended does not run it again (ZADD with XX)")
def reschedule_ended(stage: ProducerStage) -> None:
    job_id = stage.produce("echo", 7, id=stage.fresh(), retention=3600)
    stage.ended(job_id)
    stage.ask("reschedule", may_fail=True, id=job_id, due=_FAR)
    require(not stage.is_scheduled(job_id), "the job is on the schedule again")


@_scene("the outcome of a job is read: its result, or that it is dead")
def result(stage: ProducerStage) -> None:
    value = {"ä": [1, None, 0.5]}
    job_id = stage.produce("echo", value, id=stage.fresh(), reply=True, retention=3600)
    expect(_end_of(stage, job_id), ("done", value), "outcome and result")
    job_id = stage.produce("give_up", "no", id=stage.fresh(), reply=True)
    expect(_end_of(stage, job_id)[0], "dead", "the outcome of a job that gave up")


def _end_of(stage: ProducerStage, job_id: str) -> tuple[Any, Any]:
    reply = stage.ask("result", id=job_id)
    return reply.get("outcome"), reply.get("result")
