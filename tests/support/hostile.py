"""Hostile writes: records that once stopped a queue, and a grammar of all that a producer's rights allow.

Each command is one that the ACL user `producer` of redis.conf may send: `producer` makes a client under that user, so a
test that sends them through it shows that they are allowed. The queue is a parameter, so the same grammar serves tests
of single scripts and of a whole system.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from tests.support.plain import plain_client

Command = tuple[bytes, ...]

CONF: Final = Path(__file__).parents[2] / "redis.conf"
_RULES: Final = re.search(r"^# user producer (.*)$", CONF.read_text(encoding="utf-8"), re.MULTILINE)

FIELDS: Final = (
    b"payload priority group due attempt worker started reason outcome result finished planned again awaited parked "
    b"stop recurrence misfire_grace reply progress member begun suspect traceback error snoozes unknown"
).split()
"""Every field that a script or a worker reads in a job's record, the contract's first."""

VALID: Final = b'{"task":"noop"}'
"""A payload of a task without arguments, which the test's app should have."""

_NUMBERS: Final = (
    b"0 1 -1 2 1.5 -0.0 1e308 1e309 -1e308 9007199254740993 1e18 99999999999999999999 0x10 0x1p3 inf -inf nan 1_0"
)
_NUMBERS_TOO: Final = [
    b"",
    b" 1 ",
    b"1\n",
    b"+1",
    b".5",
    b"5.",
    b"1e",
    b"abc",
    b"\xd9\xa1",
    b"1,5",
    b"--1",
    b"0b1",
    b"1e400",
]
_TEXTS: Final = [
    b"w",
    b"e}:schedule",
    b"}:job:x",
    b"}",
    b"}:reply:x",
    b".-.-.-.-.-.-.-.-.-",
    b"%",
    b"[",
    b"(",
    b"%f[a",
    b"a b",
    b"a\nb",
    b"\x00",
    b"\x1b[2J",
    b"\xff\xfe",
    "\u202e\u2028".encode(),
    b"*",
    b"#a",
    b"../x",
    b"@recurring",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"{",
]
_PAYLOADS: Final = [
    VALID,
    b'{"task":"nowhere"}',
    b'{"task":"noop","args":[1],"kwargs":[]}',
    b'{"task":1}',
    b'{"task":"noop","retry":{"attempts":1e18,"interval":0}}',
    b'{"task":"noop","retry":{"attempts":-1,"interval":1e308,"factor":1e308}}',
    b'{"task":"noop","timeout":1e308,"retention":1e308,"expires":-1e308}',
    b'{"task":"noop","timeout":-1,"retention":-1}',
    b'{"task":"noop","window":"%s"}' % (b" " * 2000),
    b'{"task":"noop","reply":"yes"}',
    b'{"task":"\xff\xfe"}',
    b'{"task":"\\ud800"}',
    b'{"task":"noop","args":%s1%s}' % (b"[" * 5000, b"]" * 5000),
    b'{"task":"noop","meta":{"a":NaN}}',
    b'{"task":"noop"',
    b"\x80\x04\x95",
    b"[]",
    b"null",
    b"",
]
_INLINE: Final = [
    b'{"task":"noop","id":"%s"}',
    b'{"task":"noop","id":"%s","priority":1e400}',
    b'{"task":"noop","id":"%s","priority":"7"}',
    b'{"task":"noop","id":"%s","priority":[1]}',
    b'{"task":"noop","id":"%s","group":"}:job:x"}',
    b'{"task":"noop","id":"%s","group":7}',
    b'{"task":"noop","id":["%s"]}',
    b'{"task":"noop","id":"%s","id":{}}',
    b'{"task":"%s"',
    b"{%s",
    b'{"task":"noop","id":"%s","args":' + b"[" * 2000 + b"]" * 2000 + b"}",
]
_SCORES: Final = [b"0", b"-inf", b"+inf", b"1", b"-1e308", b"1e308", b"1e15", b"0.5"]


def root(queue: str) -> bytes:
    return f"evsched:{{{queue}}}:".encode()


def hset(queue: str, job_id: bytes, *pairs: bytes) -> Command:
    return (b"HSET", root(queue) + b"job:" + job_id, *pairs)


def zadd(queue: str, score: bytes, member: bytes, *options: bytes) -> Command:
    return (b"ZADD", root(queue) + b"schedule", *options, score, member)


def producer(raw: Any, url: str) -> Any:
    """Make the user `producer` as redis.conf has it, and return a client of that user. `url`: of a Unix socket."""
    assert _RULES is not None
    raw.execute_command("ACL", "SETUSER", "producer", *re.findall(r"\([^)]*\)|\S+", _RULES[1]))
    return plain_client(url.replace("unix://", "unix://producer:change-me@"))


def _job(**fields: bytes) -> Callable[[str], list[Command]]:
    """Return a function that writes a record with a valid payload and these fields, and schedules its job as due."""

    def write(queue: str) -> list[Command]:
        pairs = [part for name, value in fields.items() for part in (name.encode(), value)]
        return [hset(queue, b"bad", b"payload", VALID, *pairs), zadd(queue, b"1", b"bad")]

    return write


def _after(first: Callable[[str], Command], write: Callable[[str], list[Command]]) -> Callable[[str], list[Command]]:
    return lambda queue: [first(queue), *write(queue)]


WAYS: Final[dict[str, Callable[[str], list[Command]]]] = {
    "attempt-text": _job(attempt=b"abc"),
    "attempt-fraction": _job(attempt=b"1.5"),
    "attempt-huge": _job(attempt=b"1e308"),
    "attempt-negative": _job(attempt=b"-5"),
    "attempt-nan": _job(attempt=b"nan"),
    "planned-text": _job(planned=b"abc"),
    "planned-hexadecimal": _job(planned=b"0x10"),
    "planned-nan": _job(planned=b"nan"),
    "again-text": _job(again=b"abc"),
    "awaited-due-hexadecimal": _job(awaited=b"1", due=b"0x10"),
    "awaited-due-text": _job(awaited=b"1", due=b"abc"),
    "awaited-text": _job(awaited=b"abc"),
    "awaited-far": lambda queue: [hset(queue, b"bad", b"awaited", b"1e300"), zadd(queue, b"1", b"bad")],
    "due-text": _job(due=b"abc"),
    "worker-without-list": _job(worker=b"nobody"),
    "worker-schedule": _after(
        lambda queue: (b"ZADD", root(queue) + b"processing:e}:schedule", b"1", b"x"), _job(worker=b"e}:schedule")
    ),
    "worker-job": _after(
        lambda queue: (b"HSET", root(queue) + b"processing:}:job:x", b"a", b"1"), _job(worker=b"}:job:x")
    ),
    "parked-schedule": _after(
        lambda queue: (b"ZADD", root(queue) + b"backlog:e}:schedule", b"1", b"bad"), _job(parked=b"e}:schedule")
    ),
    "parked-job": _after(
        lambda queue: (b"HSET", root(queue) + b"backlog:}:job:x", b"a", b"1"), _job(parked=b"}:job:x")
    ),
    "group-job": _after(
        lambda queue: (b"HSET", root(queue) + b"backlog:}:job:x", b"a", b"1"),
        _job(group=b"}:job:x", parked=b"}:job:x"),
    ),
    "recurrence-schedule": _after(
        lambda queue: (b"ZADD", root(queue) + b"recurrence:e}:schedule", b"1", b"x"), _job(recurrence=b"e}:schedule")
    ),
    "recurrence-job": _after(
        lambda queue: (b"HSET", root(queue) + b"recurrence:}:job:x", b"runs", b"abc", b"missed", b"abc"),
        _job(recurrence=b"}:job:x", planned=b"1", misfire_grace=b"0"),
    ),
    "finished": _job(finished=b"1"),
    "finished-text": _job(finished=b"abc", outcome=b"done", result=b"{"),
    "stop": _job(stop=b"1"),
    "reply": _job(reply=b"1"),
    "priority-pattern": _job(priority=b".-.-.-.-.-.-.-.-.-"),
    "misfire_grace-text": _job(misfire_grace=b"abc", recurrence=b"r", planned=b"0x10"),
    "internals-text": _job(begun=b"abc", suspect=b"abc", traceback=b"\xff", started=b"abc", snoozes=b"-1e9"),
    "suspect-most": _job(suspect=b"999 999"),
    "suspect-huge": _job(suspect=b"1e308 1e308"),
    "not-utf8": _job(reason=b"\xff\xfe", worker=b"\xff", group=b"\xff\xfe", planned=b"\xff", attempt=b"\xff"),
}
"""By name, each known way to write a malformed job "bad". The other jobs of the queue must run all the same."""

ON_RUNNING: Final[dict[str, list[bytes]]] = {
    "finished": [b"finished", b"1"],
    "stop": [b"stop", b"1"],
    "again": [b"again", b"abc"],
    "again-hexadecimal": [b"again", b"0x10"],
    "attempt": [b"attempt", b"abc"],
    "attempt-other": [b"attempt", b"7"],
    "worker": [b"worker", b"e}:schedule"],
    "worker-other": [b"worker", b"nobody"],
    "recurrence": [b"recurrence", b"}:job:x"],
    "parked": [b"parked", b"}:job:x"],
    "reply": [b"reply", b"1"],
    "planned": [b"planned", b"abc"],
    "begun": [b"begun", b"alone"],
    "suspect": [b"suspect", b"999 999"],
    "suspect-text": [b"suspect", b"abc", b"begun", b"\xff"],
    "started": [b"started", b"abc", b"due", b"abc"],
}
"""By name, fields that a producer may write into the record of a running job. Its end must still be written."""

INVALID_COUNTS: Final = [b"abc", b"0x10", b"nan", b"1.5", b"", b" 1", b"9" * 30, b"\xff"]
"""Invalid values for the counters in a recurrence's record. Writing them takes rights that a producer lacks."""


def values(largest: int = 100_000) -> st.SearchStrategy[bytes]:
    """Values of a field: some look like numbers, some like names, some are long, some are any bytes."""
    return st.one_of(
        st.sampled_from([*_NUMBERS.split(), *_NUMBERS_TOO]),
        st.sampled_from(_TEXTS),
        st.binary(max_size=20),
        st.sampled_from([201, 5_000, largest]).map(lambda size: b"9" * size),
        st.sampled_from([201, 5_000, largest]).map(lambda size: b"x" * size),
    )


def payloads(largest: int = 300_000) -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.just(VALID),
        st.sampled_from(_PAYLOADS),
        st.binary(max_size=30),
        st.sampled_from([262_000, largest]).map(
            lambda size: json.dumps({"task": "noop", "meta": {"x": "y" * size}}).encode()
        ),
    )


def _records(largest: int) -> st.SearchStrategy[list[bytes]]:
    fields = st.dictionaries(st.sampled_from(FIELDS[1:]), values(largest), max_size=6)
    return st.tuples(st.one_of(st.none(), payloads(largest)), fields).map(
        lambda both: [
            *([b"payload", both[0]] if both[0] is not None else []),
            *(part for pair in both[1].items() for part in pair),
        ]
    )


def commands(queue: str, ids: Sequence[bytes], *, largest: int = 100_000) -> st.SearchStrategy[list[Command]]:
    """Commands of a producer about the jobs `ids`: records, dues, inline jobs, and keys that only look like its own.

    `largest`: bytes of the longest values.
    """
    key = root(queue)
    job_id = st.sampled_from([*ids, *ids, *ids, b"", b"bad id", b"\xff", b"x" * 201, b"}:schedule"])
    score = st.sampled_from(_SCORES)
    name = st.sampled_from([b"e", b"", b"x", *ids])
    record = st.tuples(job_id, _records(largest).filter(bool)).map(lambda to: hset(queue, to[0], *to[1]))
    due = st.tuples(job_id, score, st.sampled_from([(), (), (), (b"XX",), (b"NX",), (b"GT",), (b"XX", b"INCR")])).map(
        lambda to: zadd(queue, to[1], to[0], *to[2])
    )
    inline = st.tuples(st.sampled_from(_INLINE), st.sampled_from(list(ids)), score).map(
        lambda to: zadd(queue, to[2], to[0].replace(b"%s", to[1]))
    )
    remove = job_id.map(lambda one: (b"ZREM", key + b"schedule", one))
    place = st.sampled_from(
        [b"processing:", b"backlog:", b"recurrence:", b"arrival:", b"declared:", b"job:", b"reply:"]
    )
    as_schedule = st.tuples(place, name, job_id).map(
        lambda to: (b"ZADD", key + to[0] + to[1] + b"}:schedule", b"1", to[2])
    )
    as_record = st.tuples(place, name, _records(5_000).filter(bool)).map(
        lambda to: (b"HSET", key + to[0] + to[1] + b"}:job:x", *to[2])
    )
    return st.lists(
        st.one_of(record, record, record, due, due, due, inline, remove, as_schedule, as_record),
        min_size=1,
        max_size=12,
    )
