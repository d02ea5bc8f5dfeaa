"""The grammar: sequences of scripts and commands, as one ACL user sends them, and their form as a text file.

The arguments of a script follow from its header: a name such as `worker` or `due` says what values it takes. There are
three kinds of values: valid ones; values of the right form that nobody needs, such as a lease of 1e18 s or an id with a
newline; and garbage. Garbage may be refused by an error that says what is wrong with it. Nothing else may be met by an
error that the header does not name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck
from hypothesis import strategies as st
from msgspec import Struct, msgpack

from evsched.client.edit import digest_of
from tests.support import hostile
from tests.support.headers import VERBS, read_header

QUEUE: Final = "fuzz"
OTHER: Final = "other"
"""A queue that no user of the fuzz may touch."""
ROOT: Final = hostile.root(QUEUE)
NOW: Final = 1_900_000_000

QUIET: Final = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
"""What Hypothesis is not to complain about: large values are what the fuzz is about."""

CORPUS: Final = Path(__file__).parent / "corpus"


class Step(Struct, frozen=True):
    """One command. With a verb, `words` are the arguments of its script."""

    verb: str
    words: tuple[bytes, ...]

    def __str__(self) -> str:
        return " ".join(
            [self.verb, *(repr(word)[1:] if len(word) < 100 else f"<{len(word)} bytes>" for word in self.words)]
        )


class Sequence(Struct, frozen=True):
    """What one user sends. `wild`: with garbage among the arguments."""

    role: str
    wild: bool
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        return f"{len(self.steps)} steps of the user {self.role}"


# The values of arguments, by their names in the headers: valid ones, and ones of the right form that nobody needs.

Values = tuple[list[bytes], list[bytes]]

INLINE: Final = {
    hashlib.sha1(member).hexdigest(): member
    for member in (b'{"task":"noop"}', b'{"task":"noop","args":[1]}', b'{"task":"noop","args":[2],"reply":true}')
}
"""Inline jobs by the ids that they get: one that runs at first, one that is ready, and one on the schedule."""
_RUNS_INLINE, *_ = _INLINE_IDS = [job.encode() for job in INLINE]
IDS: Final = [
    *b"a b c running running dead r1 g1 scheduled later r@1 e@1 e@2 row row2 new".split(),
    *_INLINE_IDS,
]
_BAD_IDS: Final = [
    b"",
    b"bad id",
    b"\xff\xfe",
    b"x" * 201,
    b"}:schedule",
    b"*",
    b"a\nb",
    b"e}:job:x",
    b"%f[a",
    b"y" * 250_000,
]
_INLINE: Final = [*INLINE.values(), b'{"task":"noop","id":"a","reply":true}']
_BAD_INLINE: Final = [b'{"task":"noop","id":"b","priority":1e400}', b'{"task":"', b"{" * 3000, b'{"id":{}}']
_MOMENTS: Final[Values] = (
    [b"%d" % NOW, b"%d.5" % (NOW + 1), b"%d" % (NOW - 60), b"%d" % (NOW + 50), b"%d.000000" % (NOW + 86400)],
    [b"0", b"-1", b"1", b"1e15", b"1e300", b"+inf", b"-inf", b"99999999999.5"],
)
_LENGTHS: Final[Values] = ([b"0", b"1", b"15", b"60.5", b"300"], [b"-1", b"1e-06", b"1e10", b"1e18", b"1e300"])
_COUNTS: Final[Values] = ([b"1", b"2", b"100", b"999"], [b"0", b"9007199254740993", b"250"])
_FLAGS: Final[Values] = ([b"", b"1"], [b"2", b"x"])
_NAMES: Final[Values] = ([b"r", b"paused", b"retired", b"kept", b"none"], [b"", b"}:job:a", b"a@b", b"x" * 1000, b"*"])
_GROUPS: Final[Values] = ([b"", b"g", b"h", b"task:noop"], [b"}:x", b"x" * 201, b"*", b"#", b"\n", b"@recurring"])
_TEXTS: Final[Values] = (
    [b"", b"x", b"it failed"],
    [b"x" * 5000, b"\x00\x1b[2J", b"%s%f[a", b"\xff\xfe", b"}", b"a b c", "\u202e".encode()],
)
_JSON: Final[Values] = (
    [b"1", b"null", b'{"a":[1]}'],
    [b"", b"{", b"[" * 5000, b"NaN", b"\x80\x04", b'"' + b"x" * 300_000 + b'"'],
)
_WORKERS: Final[Values] = ([b"w", b"v", b"u"], [b"", b"}:job:a", b"a b", b"*", b"x" * 300])
_PAYLOADS: Final[Values] = (
    [
        hostile.VALID,
        b'{"task":"noop","reply":true,"window":"night"}',
        b'{"task":"evsched.http","args":["https://a.test:443/x"]}',
        b'{"task":"evsched.forward","kwargs":{"to":"stream@news:x"}}',
    ],
    [b"", b"{", b"[]", b'{"task":1}', b'{"task":"\xff"}', b'{"task":"noop","args":' + b"[" * 5000 + b"]" * 5000 + b"}"],
)
_READ: Final = [
    digest_of({"payload": b'{"task":"noop","reply":true}', "created": b"%d" % created}).encode()
    for created in (NOW - 5, NOW)
]
"""The digests of jobs of the first state, as a client has read them."""
_RUNS: Final[Values] = (
    [b"1 %d.000000" % NOW, b"2 %d.000000" % NOW, b""],
    [b"x", b"1", b" ", b"1e300 1e300", b"0 0", b"-1 -1"],
)
_PLACES: Final[Values] = ([b"schedule", b"backlog", b"backlog:g", b"ready", b"dead"], [b"backlog:}:x"])
_FILTERS: Final[Values] = (
    [b"", b"{}", b'{"task":"noop"}', b'{"group":"g"}'],
    [b'{"task":""}', b'{"after":1e300}', b'{"x":{}}'],
)
_LIMITS: Final = (
    b"concurrency rate burst concurrency:g rate:g rate:* weight:g concurrency:task:noop concurrency:origin:* "
    b"rate:origin:stream@news"
).split()
_CODES: Final = [
    *(b"orphan", b"bad-id", b"parked", b"unparked", b"dead-without-record", b"stale-dead", b"record-expires", b"stuck"),
    *(b"no-record", b"in_flight", b"stranded", b"throttled", b"record-type", b"two-places"),
]

_BY_NAME: Final[dict[str, Values]] = {
    "now": ([b"%d" % (NOW + later) for later in (0, 0, 0, 1, 20, 100)], []),
    **dict.fromkeys(["due", "planned", "ends", "seen", "next", "unknown"], _MOMENTS),
    **dict.fromkeys(
        ["lease", "retention", "delay", "ahead", "calm", "within", "claim", "watch", "busy", "lead"], _LENGTHS
    ),
    "misfire_grace": _LENGTHS,
    **dict.fromkeys(["limit", "most", "hold", "offset", "number", "row", "above", "missed"], _COUNTS),
    **dict.fromkeys(["revision", "given", "known"], ([b"", b"1", b"2"], [b"0", b"9" * 15])),
    "ticket": ([b"", b"0", b"7"], _COUNTS[1]),
    **dict.fromkeys(["reply", "fresh", "began", "killed", "paused", "stay"], _FLAGS),
    "cap": ([b"262144", b"1000"], [b"0", b"9007199254740993"]),
    "id": (IDS, [*_BAD_IDS, *_INLINE]),
    "member": ([*IDS, *_INLINE], [*_BAD_IDS, *_BAD_INLINE]),
    "name": _NAMES,
    "group": _GROUPS,
    **dict.fromkeys(["worker", "parent"], _WORKERS),
    "strays": ([b"", b"ghost", b"ghost v"], [b"}:job:a", b"*", b" "]),
    "from": ([b"", b"processing:w", b"backlog:g"], [b"processing:}:x", b"backlog:", b"x"]),
    "payload": _PAYLOADS,
    **dict.fromkeys(["result", "progress"], _JSON),
    "run": _RUNS,
    "place": _PLACES,
    "cursor": ([b"0"], [b"7"]),
    "hour": ([b"%d" % (NOW // 3600), b"%d" % (NOW // 3600 - 1)], [b"0"]),
    "filter": _FILTERS,
    "act": ([b"", b'0 {"id":"1"}', b'1 {"id":"1"}', b'0 {"id":"2"}'], [b"x", b"1", b"0 ", b"9" * 400 + b" x"]),
    "priority": ([b"", b"0", b"5", b"9"], []),
    "queue": ([QUEUE.encode()], [OTHER.encode(), b"", b"}:x{"]),
    "to": ([b"fuzz:1"], [b"x y", b""]),
    "conflict": ([b"", b"keep"], []),
    "mark": ([b"1", b"alone", b"soon"], [b"", b"x"]),
    "outcome": ([b"dead", b"expired"], [b"x"]),
    "how": ([b"", b"killed", b"never"], [b"x"]),
    "into": ([b"stream", b"left", b"right", b"channel"], []),
    "code": (_CODES, [b"", b"x"]),
    "window": ([b"", b"night"], [b"}:x", b"x" * 300]),
    "report": ([b"1-1", b"1900000000000-0"], []),
    "signal": ([b"ok", b"ok", b"no", b"x" * 100], []),
    "timeout": ([b"", b"0", b"60"], _LENGTHS[1]),
}
"""What is not here is a text."""

_ENDS: Final = ("abort", "bury", "complete", "defer", "forward", "progress", "retry", "snooze", "begin", "requeue")
"""The verbs about runs: most of their calls are about one that the worker has."""

_ASKS: Final = ("keep", "recall", "wait_for")
"""The verbs by which a run asks about the data that its job has kept."""
_HELD: Final = [b"running", b"running", _RUNS_INLINE, b"r1", b"g0"]
"""Most of their calls are about a job that the worker has."""
_BATCHES: Final = (
    "batch_open",
    "batch_add",
    "batch_plan",
    "batch_close",
    "batch_pause",
    "batch_ask",
    "batch_revive",
    "batch_count",
    "batch_list",
)

_DUE: Final = b"%d" % (NOW + 50)
_CONTENTS: Final = [
    msgpack.encode([part if isinstance(part, (int, list)) else part.decode() for part in job])
    for job in (
        [_DUE],
        [_DUE, ["payload", '{"task":"noop"}', "priority", "7"], b"", -2, [0, 0, 0], b""],
        [_DUE, ["payload", '{"task":"noop"}', "group", "g"], b"1900000099", 5000, [1, 1, 0], b"night"],
        [_DUE, [], b"", -2, [0, 0, 0], b""],
    )
]

_OF: Final[dict[tuple[str, str], Values]] = {
    ("requeue", "lease"): ([b"", b"none", b"%d.000000" % (NOW + 15), b"%d" % (NOW + 99)], [b"x"]),
    ("declare", "field"): ([b"rule", b"payload", b"overlap", b"most", b"misfire"], [b"x", b"paused", b"current"]),
    ("declare", "value"): (
        [b"", b"@hourly", b"every 60", hostile.VALID, b"skip", b"wait", b"2"],
        [b"x", b"1e300", b"every 0"],
    ),
    ("limit", "field"): (_LIMITS, [b"x", b"concurrency:}", b"weight:" + b"x" * 300]),
    ("limit", "value"): ([b"", b"0", b"1", b"5", b"0.5", b"100"], [b"1e300", b"1e-300", b"-1"]),
    ("declare_limits", "field"): (_LIMITS, [b"x", b"concurrency:}", b"weight:" + b"x" * 300]),
    ("declare_limits", "value"): ([b"0", b"1", b"5", b"0.5"], [b"1e300", b"1e-300", b"-1"]),
    ("declare_limits", "whole"): ([b"", b"10"], [b"-1"]),
    ("find", "filter"): (_FILTERS[0][1:], _FILTERS[1]),
    ("dispatch", "limit"): ([b"1", b"2", b"100", b"999"], [b"9007199254740993"]),
    ("dispatch", "canary"): ([b""], []),
    ("arrive", "content"): (_CONTENTS, []),
    ("arrive", "number"): ([b"5", b"6", b"7"], [b"0"]),
    ("vacate", "number"): ([b"%d" % (NOW * 10**6)], [b"0", b"5"]),
    ("vacate", "token"): ([b"first"], [b"x"]),
    ("vacate", "member"): ([b"leaves", b"a"], _BAD_IDS),
    ("recur", "id"): ([b"r@%d" % NOW, b"r@%d" % (NOW + 50), b"e@%d" % NOW], [b"r@", b"x"]),
    ("recur", "seen"): ([b"0", b"%d" % (NOW + 9)], _MOMENTS[1]),
    ("revive", "id"): ([b"dead", b"dead", b"a"], _BAD_IDS),
    ("drop", "id"): ([b"dead", b"dead", b"a"], _BAD_IDS),
    ("relay", "row"): ([b"7", b"8", b"9", b"10"], [b"0"]),
    ("withdraw", "row"): ([b"7", b"8"], [b"9007199254740993"]),
    ("settle", "row"): ([b"7", b"8"], [b"9007199254740993"]),
    **{(verb, "worker"): ([b"w", b"w", b"w", b"v"], _WORKERS[1]) for verb in _ENDS},
    **{(verb, "id"): (_HELD, [*IDS, *_BAD_IDS]) for verb in _ENDS},
    **{(verb, "run"): ([_RUNS[0][0], _RUNS[0][0], _RUNS[0][0], *_RUNS[0][1:]], _RUNS[1]) for verb in _ENDS},
    ("arrive", "from"): ([b"fuzz:1"], [b"x"]),
    ("forward", "name"): ([b"evsched:{fuzz}:out"], [b"evsched:{fuzz}:limits", b"elsewhere"]),
    ("forward", "most"): ([b"", b"10"], [b"0"]),
    ("stand_by", "claim"): ([b"0", b"9"], _LENGTHS[1]),
    **{(verb, "worker"): ([b"w", b"w", b"w", b"v"], _WORKERS[1]) for verb in _ASKS},
    **{(verb, "id"): (_HELD, [*IDS, *_BAD_IDS]) for verb in _ASKS},
    **{(verb, "run"): ([_RUNS[0][0], _RUNS[0][0], _RUNS[0][0], *_RUNS[0][1:]], _RUNS[1]) for verb in _ASKS},
    ("keep", "name"): ([b'"one"', b'"two"', b'@"rows"'], [b"%", b"x" * 300, b"\xff"]),
    ("keep", "value"): ([b"1", b"[]", b'"' + b"x" * 100_000 + b'"'], [b"x", b"\xff\t"]),
    ("signal", "value"): ([b"1", b"null", b'"' + b"x" * 20_000 + b'"'], [b"x", b"\xff\t"]),
    ("snooze", "signal"): ([b"", b"", b"ok", b"no"], [b"x" * 101, b"a\tb"]),
    ("snooze", "due"): ([b"", *_MOMENTS[0]], _MOMENTS[1]),
    ("reschedule", "due"): ([b"", *_MOMENTS[0]], _MOMENTS[1]),
    ("reschedule", "delay"): ([b"0", b"9", b"0.5", b""], _LENGTHS[1]),
    ("reschedule", "edit"): ([b"", b"first", b"second"], [b"x" * 300]),
    ("reschedule", "was"): (_READ, [b"x"]),
    ("enqueue", "due"): ([b"", *_MOMENTS[0]], _MOMENTS[1]),
    ("replace", "due"): ([b"", *_MOMENTS[0]], _MOMENTS[1]),
    ("enqueue", "within"): ([b"", b"0", b"60"], _LENGTHS[1]),
    ("replace", "within"): ([b"", b"0", b"60"], _LENGTHS[1]),
    ("enqueue", "since"): ([b"", b"%d" % NOW], [b"0", b"-1", b"1e300"]),
    ("enqueue", "conflict"): ([b"", b"keep", b"node"], []),
    ("enqueue", "batch"): (
        [
            b"",
            b"",
            *(
                b"fuzz/b/%d/%d%s" % (at, NOW + 30, life)
                for at, life in ((0, b""), (0, b"/t"), (1, b"/u"), (1, b"/u/1"))
            ),
        ],
        [b"fuzz/b/0/0", b"fuzz/b/0/0/t", b"fuzz/b/0/%d/" % (NOW + 30)],
    ),
    **{(verb, "id"): ([b"b", b"g", b"c"], _BAD_IDS) for verb in _BATCHES},
    ("batch_open", "id"): ([b"b", b"g", b"c"], []),
    **{(verb, "token"): ([b"t", b"r"], []) for verb in _BATCHES},
    **{(verb, "done"): ([b"", b"r"], []) for verb in _BATCHES},
    ("batch_open", "expires"): ([b"", b"60"], _LENGTHS[1]),
    ("batch_open", "parent"): ([b"", b"fuzz/c/0"], []),
    ("batch_open", "field"): ([b"by", b"tags", b"complete_on", b"on_done", b"on_failed", b"on_progress"], []),
    ("batch_open", "value"): ([b"all", b"done", hostile.VALID], [b"", b"x"]),
    ("batch_add", "queue"): ([QUEUE.encode(), OTHER.encode()], []),
    ("batch_add", "count"): ([b"0", b"1"], []),
    ("batch_add", "settled"): ([b"60"], _LENGTHS[1]),
    ("batch_add", "member"): ([b"", b"0/", b"0/1"], [b"7/31"]),
    ("batch_plan", "first"): ([b"0", b"1", b"2", b"3"], [b"9007199254740993"]),
    ("batch_plan", "node"): ([b"{}", hostile.VALID], [b"", b"x"]),
    ("batch_plan", "job"): ([b"", b"n", b"/c"], _BAD_IDS),
    ("batch_plan", "after"): ([b"", b"0", b"0 1"], [b"9007199254740993", b"x"]),
    ("batch_plan", "despite"): ([b"", b"1"], [b"x"]),
    ("batch_close", "how"): ([b"", b"cancelled", b"expired"], []),
    ("batch_pause", "held"): ([b"1", b""], []),
    ("batch_pause", "ends"): ([b"", *_MOMENTS[0]], _MOMENTS[1]),
    ("batch_pause", "after"): ([b"0", b"5"], _LENGTHS[1]),
    ("batch_pause", "seen"): ([b"", b"%d000" % NOW], [b"0", b"x"]),
    ("batch_pause", "outer"): ([b"", b"fuzz/c/0 1", b"fuzz/c/0 2"], []),
    ("batch_hold", "latest"): ([b"%d" % (NOW + 30), b"%d" % (NOW - 1)], _LENGTHS[1]),
    ("batch_hold", "batch"): ([b"fuzz/b", b"fuzz/g", b"other/c"], []),
    ("batch_hold", "stamp"): ([b"1", b"%d000" % NOW], [b"0"]),
    ("batch_hold", "held"): ([b"1", b"", b"-"], []),
    ("batch_ask", "node"): ([b"0", b"1"], [b"9007199254740993"]),
    ("batch_revive", "node"): ([b"0", b"1"], [b"9007199254740993"]),
    ("batch_list", "start"): ([b"0", b"1"], [b"9007199254740993"]),
    ("batch_list", "field"): ([b"state", b"total", b"on_done"], [b"x"]),
    ("batch_count", "first"): ([b"0", b"1"], [b"9007199254740993"]),
    ("batch_count", "ends"): ([b"\x01", b"\x01\x02", b"\x08\x09"], [b"", b"\x00", b"\xff" * 999]),
    ("defer", "unknown"): ([b"", *_MOMENTS[0]], _MOMENTS[1]),
    ("hold", "ends"): ([b"", *_MOMENTS[0]], _MOMENTS[1]),
    ("pause", "ends"): ([b"", *_MOMENTS[0]], _MOMENTS[1]),
    ("requeue", "watch"): ([b"", b"60"], _LENGTHS[1]),
    ("cancel", "row"): (
        [b"", b"", b"", b"7", b"8", b"fuzz/b/0", b"fuzz/b/0/t", b"fuzz/b/1/u", b"fuzz/b/1/u/1"],
        [b"9007199254740993", b"fuzz/b", b"fuzz/b/0/", b"fuzz/b/0/t/1", b"/"],
    ),
    ("settle", "retention"): ([b"", b"0", b"60"], _LENGTHS[1]),
    ("recur", "misfire_grace"): ([b"", b"60"], _LENGTHS[1]),
    ("recur", "reason"): ([b"", b"", b"", b"x"], []),
    ("revive", "since"): ([b"", b"%d" % NOW], [b"0", b"-1", b"1e300"]),
    ("drop", "since"): ([b"", b"%d" % NOW], [b"0", b"-1", b"1e300"]),
    ("reseal", "kind"): ([b"job", b"inline", b"recurrence", b"node"], [b"x"]),
    ("reseal", "field"): ([b"payload", b"result", b"steps"], [b"x"]),
    ("forecast", "first"): ([b"", b"%d" % NOW], [b"-1", b"1e300"]),
    ("forecast", "length"): ([b"60", b"0.5"], [b"0", b"-1", b"1e300"]),
    ("forecast", "spans"): ([b"1", b"96"], [b"0", b"9007199254740993"]),
    ("roster", "start"): ([b"0", b"1"], [b"9007199254740993"]),
    ("roster", "field"): ([b"rule", b"paused", b"done"], [b"x"]),
    ("heartbeat", "busy"): ([b"", b"15"], _LENGTHS[1]),
}

GARBAGE: Final = [
    *(b"", b"abc", b"nan", b"-nan", b"inf", b"0x10", b" 1", b"1 ", b"1e", b"1,5", b"-5", b"1e400", b"9" * 400),
    *(b"\xff\xfe", b"\x00", b"{}", b"[]", b"null", b"}:schedule", b"x" * 100_000),
    b"3 r1",
    *(b'{"task":1}', b'{"before":"x"}', b'{"tags":[1]}', b'{"arguments":[1]}'),
]


_GARBAGE_WORDS: Final = st.one_of(st.sampled_from(GARBAGE), st.binary(max_size=12))


def _word(verb: str, name: str, level: int) -> st.SearchStrategy[bytes]:
    """Return the values of an argument. `level`: 0 = mostly valid, 1 = of the right form, 2 = garbage too."""
    valid, odd = _OF.get((verb, name)) or _BY_NAME.get(name, _TEXTS)
    found = [st.sampled_from(valid), st.sampled_from(valid), st.sampled_from(valid)]
    if level > 0 and odd:
        found.append(st.sampled_from(odd))
    if level > 1:
        found.append(_GARBAGE_WORDS)
    return st.one_of(found)


def _one_wrong(verb: str) -> st.SearchStrategy[Step]:
    """Return calls of which one word alone is garbage: nothing before it is refused."""

    def spoil(step: Step) -> st.SearchStrategy[Step]:
        def put(at: int, word: bytes) -> Step:
            return Step(verb, _at_most_one(verb, (*step.words[:at], word, *step.words[at + 1 :])))

        return st.builds(put, st.integers(0, len(step.words) - 1), _GARBAGE_WORDS)

    return calls_of(verb, 0).flatmap(spoil)


def calls_of(verb: str, level: int) -> st.SearchStrategy[Step]:
    _, _, names = read_header(verb)
    once = [_word(verb, name, level) for name in names["ARGV"]]
    row = st.tuples(*(_word(verb, name, level) for name in names.get("ROWS", ())))
    rows = st.lists(row, min_size=0 if level > 1 else 1, max_size=4) if "ROWS" in names else st.just([])
    words = st.tuples(st.tuples(*once), rows).map(lambda both: (*both[0], *(word for one in both[1] for word in one)))
    if level > 1:  # the wrong number of arguments too
        words = st.tuples(words, st.sampled_from([0, 0, 0, 0, 1, 2, 9])).map(lambda to: to[0][: len(to[0]) - to[1]])
    return words.map(lambda found: Step(verb, _at_most_one(verb, found)))


def _at_most_one(verb: str, words: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Leave the verbs that take several rows only with a filter one row without it, and an edit one.

    `cancel` takes several, too, if each of them names a row of the ledger or a member of a batch.
    """
    if verb == "cancel":
        return words[:5] if words[1:2] == (b"",) and b"" in words[4::2] else words
    if verb == "reschedule":
        return words[:11] if words[3:4] == (b"",) or words[5:6] != (b"",) else words
    return words


_ZSETS: Final = (
    b"schedule backlog backlog:g dead leases idle throttled recurrences pauses dead_workers parents apps requests:r "
    b"requested:r chores batches"
).split()
_HASHES: Final = (
    b"limits in_flight fair moving arrived busy_leases windows suspects declared_limits recurrence:r job:a job:running "
    b"batch:b batch_ids:b batch:g batch_nodes:g batch_sums seats"
).split()
_BROKEN: Final = {
    **dict.fromkeys(_ZSETS, b"zset"),
    **dict.fromkeys(_HASHES, b"hash"),
    **dict.fromkeys([b"ready", b"processing:w", b"processing:v"], b"list"),
    **dict.fromkeys([b"arrival", b"arrival:g"], b"string"),
    **dict.fromkeys([b"ends", b"audit"], b"stream"),
}
"""Keys that a sequence may replace by one of another type, and their own types: not the records of good jobs."""
_OTHERS: Final = {b"string": (b"SET", b"x"), b"list": (b"RPUSH", b"x"), b"hash": (b"HSET", b"x", b"y")}


def _break() -> st.SearchStrategy[Step]:
    def by(key: bytes) -> st.SearchStrategy[Step]:
        commands = [command for kind, command in _OTHERS.items() if kind != _BROKEN[key]]
        return st.sampled_from(commands).map(lambda to: Step("", (b"REPLACE", ROOT + key, *to)))

    return st.sampled_from([*_BROKEN]).flatmap(by)


def _damage() -> st.SearchStrategy[Step]:
    """Return commands that leave a job in no place, or in two, or counted wrongly: the audit finds and mends that."""
    job = st.sampled_from(IDS)
    score = st.sampled_from([b"1", b"%d" % NOW])
    return st.one_of(
        job.map(lambda one: (b"ZREM", ROOT + b"schedule", one)),
        job.map(lambda one: (b"LREM", ROOT + b"ready", b"0", one)),
        job.map(lambda one: (b"ZADD", ROOT + b"dead", b"%d" % NOW, one)),
        job.map(lambda one: (b"RPUSH", ROOT + b"processing:ghost", one)),
        job.map(lambda one: (b"PEXPIRE", ROOT + b"job:" + one, b"9999999")),
        job.map(lambda one: (b"HSET", ROOT + b"job:" + one, b"parked", b"h")),
        st.tuples(job, score).map(lambda to: (b"ZADD", ROOT + b"backlog:g", to[1], to[0])),
        st.tuples(job, score).map(lambda to: (b"HSET", ROOT + b"in_flight", to[0], b"g")),
        st.just((b"ZADD", ROOT + b"throttled", b"inf", b"nobody")),
        st.just((b"ZREM", ROOT + b"throttled", b"g")),
        st.just((b"ZREM", ROOT + b"leases", b"w")),
    ).map(lambda words: Step("", words))


def _commands() -> st.SearchStrategy[Step]:
    return hostile.commands(QUEUE, IDS, largest=50_000).map(lambda found: Step("", found[0]))


SCRIPTED: Final = ("client", "worker", "dispatcher", "ledger")
"""The users that may call every script, and write every key of the queue."""
READERS: Final = ("observer", "doctor")
"""Those that change nothing, whatever they call."""
ROLES: Final = ("producer", *SCRIPTED, *READERS)

_OFTEN: Final = (
    *_ENDS,
    *("dispatch", "dispatch", "start", "start", "enqueue", "cancel", "limit", "recur", "replace", "revive"),
)


@cache
def sequences(role: str) -> st.SearchStrategy[Sequence]:
    """Return the sequences of a user of redis.conf."""

    def of(wild: bool) -> st.SearchStrategy[Sequence]:
        level = 2 if wild else 1
        calls = st.one_of(*(calls_of(verb, level) for verb in VERBS))
        if wild:
            calls = st.one_of(calls, *(_one_wrong(verb) for verb in VERBS))
        often = st.one_of(*(calls_of(verb, 0) for verb in _OFTEN))
        if role == "producer":
            # What it sends comes between the calls of the other users, which the file names as those of `worker`.
            one = st.one_of(_commands(), _commands(), often)
        elif role in READERS:
            one = calls
        else:
            one = st.one_of(calls, calls, calls, often, often, often, _commands(), _damage(), _break())
        return st.lists(one, min_size=1, max_size=14).map(lambda steps: Sequence(role, wild, tuple(steps)))

    return of(False) if role == "producer" else of(False) | of(True)


# The form as text: one step a line, as JSON; bytes as characters up to 255, and repeated ones as [text, count].


def _pieces(word: bytes) -> Any:
    text = word.decode("latin-1")
    found: list[Any] = []
    for match in re.finditer(r"(.)\1{49,}|(?:(?!(.)\2{49}).)+", text, re.DOTALL):
        run = match[0]
        found.append([run[0], len(run)] if match[1] else run)
    return found[0] if len(found) == 1 and isinstance(found[0], str) else found


def _whole(pieces: Any) -> bytes:
    parts = [pieces] if isinstance(pieces, str) else pieces
    return "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts).encode("latin-1")


def write(sequence: Sequence, why: str) -> str:
    """Return a sequence as text. `why`: what it once broke."""
    lines: list[Any] = [{"role": sequence.role, "wild": sequence.wild, "why": why}]
    lines += [[step.verb, *map(_pieces, step.words)] for step in sequence.steps]
    return "".join(json.dumps(line) + "\n" for line in lines)


def read(text: str) -> Sequence:
    """Read what `write` returned."""
    head, *steps = map(json.loads, text.splitlines())
    return Sequence(head["role"], head["wild"], tuple(Step(verb, tuple(map(_whole, words))) for verb, *words in steps))


def corpus() -> Iterator[Path]:
    """Yield the files of the corpus."""
    yield from sorted(CORPUS.glob("*.txt"))
