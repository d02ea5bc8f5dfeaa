"""The findings of the audit by their codes: how bad each is, what it means, and what to do. Pure."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from evsched import keys
from evsched.diagnostics.finding import Finding, Level
from evsched.store.operator_calls import Violation
from evsched.transport.call import text


class _Rule(Struct, frozen=True):
    level: Level
    what: str
    mend: str
    """It names `--repair` only if that repairs it."""


_REPAIR: Final = "evsched doctor --queue {q} --repair"

_ID_RULE: Final = "1 to 200 of A-Z a-z 0-9 . _ : @ -"

_RULES: Final[dict[str, _Rule]] = {
    "orphan": _Rule(
        "fault",
        "a job that has not ended is in no place: it will never run",
        f"if Redis evicted its place (see evicted-keys): {_REPAIR} schedules it at its due time; if a client cancelled "
        "it with ZREM alone: DEL {record}",
    ),
    "unscheduled": _Rule(
        "warning",
        "a record whose job is in no place and was never due: cancelled with ZREM alone, never scheduled, or Redis "
        "evicted its place",
        "if it was cancelled: DEL {record}; if not, schedule it: ZADD {root}schedule 0 {id}; the finding "
        "evicted-keys tells whether Redis evicted keys",
    ),
    "bad-id": _Rule(
        "fault",
        f"an id that is not valid ({_ID_RULE}) is in {{where}}: no job can run under it",
        f"{_REPAIR} puts it into the dead-letter set as bad-<SHA-1>, or bad-<SHA-1>-2, up to 100; or type RENAME "
        "{record} {root}job:ID and ZADD {root}schedule 0 ID, with a valid ID, or DEL {record}; then repair",
    ),
    "no-record": _Rule(
        "fault",
        "an id in {where} has no record, or one without a payload: it will go to the dead-letter set",
        f"HSET {{record}} payload '{{{{...}}}}' before it is due; or {_REPAIR} puts it into the dead-letter set now",
    ),
    "record-type": _Rule(
        "fault", "the key of a record is not a hash", "DEL {record}; then schedule the job again if you still want it"
    ),
    "two-places": _Rule(
        "fault",
        "an id is in two places, {where}: its job may run twice",
        "evsched cancel {id} --queue {q}, then schedule it again",
    ),
    "parked": _Rule(
        "fault", "the record says that a limit of group {where} holds the job back, but none does", _REPAIR
    ),
    "unparked": _Rule(
        "warning",
        "a limit of group {where} holds a job back, but its record does not say so: it cannot be cancelled",
        _REPAIR,
    ),
    "dead-without-record": _Rule("warning", "a dead job has no record, so it cannot be revived", _REPAIR),
    "stale-dead": _Rule(
        "fault",
        "an id is in the dead-letter set, but its job is not dead ({where}): reviving it would run it again",
        _REPAIR,
    ),
    "record-expires": _Rule(
        "fault",
        "the record expires before the job can end: the job would be lost",
        f"{_REPAIR}, or PERSIST {{record}}",
    ),
    "no-ttl": _Rule("warning", "the record of a job that has ended never expires", "EXPIRE {record} 300"),
    "stuck": _Rule("fault", "an occurrence of recurrence {where} waits for a run that has already ended", _REPAIR),
    "stray": _Rule(
        "fault",
        "worker {id} holds jobs but has no lease: no dispatcher will put them back",
        f"{_REPAIR} gives it a lease; when that ends, a dispatcher puts the jobs back; or restart a dispatcher",
    ),
    "in_flight": _Rule(
        "fault", "the count of jobs in flight is wrong ({where}): concurrency limits do not hold", _REPAIR
    ),
    "uncounted": _Rule(
        "info", "the jobs in flight were not checked: {where} entries are too many to count in one step", ""
    ),
    "stranded": _Rule("fault", "the jobs that a limit of group {id} holds back will never continue", _REPAIR),
    "throttled": _Rule("warning", "group {id} counts as held back, but none of its jobs is", _REPAIR),
    "stuck-move": _Rule(
        "fault",
        "jobs have been on their way to another shard for {where}: none of them runs until they are there",
        "run a dispatcher: it finishes the move; its log says what hinders it, such as a node that is down",
    ),
    "place-type": _Rule("fault", "a key of the queue is {where}: no job of the queue moves", "RENAME or DEL {key}"),
    "key-type": _Rule("fault", "a key is {where}: the feature that uses it does not work", "RENAME or DEL {key}"),
    "refused": _Rule("fault", "Redis refused to check this queue: {where}", "check the types of the keys {root}*"),
    "more": _Rule("info", "there are more than {where} findings", "repair these, then run the doctor again"),
}

CODES: Final = frozenset(_RULES)
"""The codes of all violations."""

_HELD: Final = {
    "bad-id": "wait until its worker has ended it; if it stays: LREM {root}processing:WORKER 0 {id}, then " + _REPAIR,
    "no-record": "HSET {record} payload '{{...}}'; otherwise its worker puts it into the dead-letter set",
}
"""What to do if a worker holds the job: `--repair` leaves it alone."""

_KEY_MOST: Final = 240
"""Characters of a key or an id that say where a finding is: they may have any length."""

_NOT_ABOUT_JOBS: Final = ("stranded", "throttled", "stray", "place-type", "key-type")
"""The violations whose id is that of a group, a worker or a key."""

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
    """Return a key or an id of `size` bytes, or its beginning if it is long."""
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
