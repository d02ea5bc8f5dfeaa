"""What the audit may find wrong: how bad it is, what it means, and what to do. Pure: code -> finding."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from evsched import keys
from evsched.diagnostics.finding import Finding, Level
from evsched.store.replies import Violation
from evsched.transport.call import text


class _Rule(Struct, frozen=True):
    level: Level
    what: str
    mend: str
    """`{repair}`, where `--repair` does it."""


_REPAIR: Final = "evsched doctor --queue {q} --repair"

_RULES: Final[dict[str, _Rule]] = {
    "orphan": _Rule(
        "fault",
        "a job that has not ended is in no place: it never runs",
        f"{_REPAIR} puts it back on the schedule at its due; if it was cancelled by a bare ZREM: DEL {{record}}",
    ),
    "unscheduled": _Rule(
        "warning",
        "a record that is in no place and was never due: its job was cancelled by a bare ZREM, or never scheduled",
        "DEL {record}, or schedule it: ZADD {root}schedule 0 {id}",
    ),
    "no-record": _Rule(
        "fault",
        "an id in {where} has no record, or one without a payload: it goes to dead when it is its turn",
        f"HSET {{record}} payload '{{{{...}}}}' before that; or {_REPAIR} puts it into dead now",
    ),
    "record-type": _Rule(
        "fault", "the key of a record is not a hash", "DEL {record}, and schedule the job again if it is wanted"
    ),
    "two-places": _Rule(
        "fault",
        "an id is in two places, {where}: its job may run twice",
        "evsched cancel {id} --queue {q} takes it out of the line, then schedule it again",
    ),
    "parked": _Rule("fault", "a record says that group {where} holds its job back, which it does not", _REPAIR),
    "unparked": _Rule(
        "warning", "group {where} holds a job back whose record does not say so: no cancel finds it", _REPAIR
    ),
    "dead-without-record": _Rule("warning", "a dead id has no record: there is nothing to revive", _REPAIR),
    "stale-dead": _Rule(
        "fault", "an id is in dead, but its job is not ({where}): `evsched dead revive` would run it again", _REPAIR
    ),
    "record-expires": _Rule(
        "fault",
        "a record expires before its job can have ended: the job would be lost",
        f"{_REPAIR}, or PERSIST {{record}}",
    ),
    "no-ttl": _Rule("warning", "the record of a job that has ended is kept for ever", "EXPIRE {record} 300"),
    "stuck": _Rule("fault", "an occurrence of recurrence {where} waits for an end that has been", _REPAIR),
    "stray": _Rule(
        "fault",
        "worker {id} has a list and no lease: no janitor looks at what it holds",
        f"{_REPAIR} gives it a lease, so that a dispatcher puts the jobs back; or start a dispatcher anew",
    ),
    "in_flight": _Rule("fault", "the gate has miscounted what passed it ({where}): limits do not hold", _REPAIR),
    "uncounted": _Rule("info", "{where} entries are to be counted again, too many for one step: it is left out", ""),
    "stranded": _Rule("fault", "what the limits of group {id} held back is never looked at again", _REPAIR),
    "throttled": _Rule("warning", "group {id} counts as held back, and no job of it is", _REPAIR),
    "place-type": _Rule(
        "fault", "the key of a place is {where}: nothing of the queue moves", "RENAME or DEL {root}{id}"
    ),
    "key-type": _Rule("fault", "a key is {where}: what it is for does not work", "RENAME or DEL {root}{id}"),
    "refused": _Rule("fault", "Redis refuses the audit: {where}", "look at the types of the keys {root}*"),
    "more": _Rule("info", "more than {where} things are wrong", "mend these, and look again"),
}  # fmt: skip

_KEY_MOST: Final = 240
"""Characters of a key that are told, when its queue's name may be of any length."""

_OF_GROUPS: Final = ("stranded", "throttled", "stray", "place-type", "key-type")
_MAY_COME: Final = "schedule"


def describe(queue: str, wrong: Violation, *, repaired: bool = False) -> Finding:
    """Say what is wrong."""
    rule, job_id, root = _RULES[wrong.code], text(wrong.id), keys.root(queue)
    names = {"q": queue, "id": job_id, "where": wrong.where, "root": root, "record": f"{root}job:{job_id}"}
    # What is scheduled may get its record until it is due.
    level = "warning" if wrong.code == "no-record" and wrong.where == _MAY_COME else rule.level
    if not job_id:
        where = f"queue {queue}"
    else:
        where = f"queue {queue}, {job_id}" if wrong.code in _OF_GROUPS else f"queue {queue}, job {job_id}"
    return Finding(wrong.code, level, rule.what.format_map(names), where, rule.mend.format_map(names), repaired)


def misnamed(key: bytes) -> Finding:
    """Say that a key is of a queue whose name no queue may have."""
    shown = text(key)
    if len(shown) > _KEY_MOST:
        shown = f"{shown[:_KEY_MOST]}... ({len(key)} bytes)"
    what = "jobs of a queue whose name no queue may have: no dispatcher looks there, and they never run"
    return Finding(
        "queue-name", "fault", what, shown, f"{keys.QUEUE_RULE}: schedule them under such a name, and DEL it"
    )
