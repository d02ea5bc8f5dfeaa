"""The findings of the audit by their codes: how bad each is, what it means, and what to do. Pure."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from evsched import keys
from evsched.diagnostics.finding import Finding, Level
from evsched.store.audits import Violation
from evsched.transport.call import text


class _Rule(Struct, frozen=True):
    level: Level
    what: str
    mend: str
    """It names `--repair` only if that repairs it."""


_REPAIR: Final = "evsched doctor --queue {q} --repair"

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
    "no-record": _Rule(
        "fault",
        "an id in {where} has no record, or one without a payload: it will go to the dead-letter set",
        f"HSET {{record}} payload '{{{{...}}}}' before it is due; or {_REPAIR} puts it into the dead-letter set now",
    ),
    "record-type": _Rule(
        "fault", "the key of a record is not a hash", "DEL {record}, and schedule the job again if you still want it"
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
    "place-type": _Rule(
        "fault", "a key of the queue is {where}: no job of the queue moves", "RENAME or DEL {root}{id}"
    ),
    "key-type": _Rule("fault", "a key is {where}: the feature that uses it does not work", "RENAME or DEL {root}{id}"),
    "refused": _Rule("fault", "Redis refused to check this queue: {where}", "check the types of the keys {root}*"),
    "more": _Rule("info", "there are more than {where} findings", "repair these, then run the doctor again"),
}

_KEY_MOST: Final = 240
"""Characters of a key that are shown: the name of its queue may have any length."""

_NOT_ABOUT_JOBS: Final = ("stranded", "throttled", "stray", "place-type", "key-type")
"""The violations whose id is that of a group, a worker or a key."""


def describe(queue: str, violation: Violation, *, repaired: bool = False) -> Finding:
    """Return the finding about a violation."""
    code, job_id, root = violation.code, text(violation.id), keys.root(queue)
    rule = _RULES[code]
    names = {"q": queue, "id": job_id, "where": violation.where, "root": root, "record": f"{root}job:{job_id}"}
    # A client may still write the record of a scheduled job, until the job is due.
    level = "warning" if code == "no-record" and violation.where == "schedule" else rule.level
    if not job_id:
        where = f"queue {queue}"
    else:
        where = f"queue {queue}, {job_id}" if code in _NOT_ABOUT_JOBS else f"queue {queue}, job {job_id}"
    return Finding(code, level, rule.what.format_map(names), where, rule.mend.format_map(names), repaired)


def misnamed(key: bytes) -> Finding:
    """Return the finding about a key of a queue whose name is not allowed."""
    shown = text(key)
    if len(shown) > _KEY_MOST:
        shown = f"{shown[:_KEY_MOST]}... ({len(key)} bytes)"
    what = "jobs of a queue whose name is not allowed: no dispatcher serves it, so they will never run"
    return Finding(
        "queue-name", "fault", what, shown, f"{keys.QUEUE_RULE}: schedule the jobs under such a name, and DEL this key"
    )
