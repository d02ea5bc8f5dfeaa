"""Run a job once more that has ended: a copy of it, with an id of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from evsched.client import spread
from evsched.client.new_job import random_id
from evsched.client.operations import Operation, send
from evsched.client.sealing import copied_for
from evsched.client.spread import Parts
from evsched.errors import JobExists, JobMissing
from evsched.store.client_calls import New
from evsched.store.store import Store

_OWN: Final = ("id", "priority", "group")
"""Fields of a payload that describe an inline job: a record has them beside its payload."""


def run_again(parts: Parts, home: Callable[[str], Store], job_id: str, payload_cap: int) -> Operation[str]:
    """Enqueue a copy of a job that has ended, due now, and return its id.

    The copy has the payload, the priority and the group of the record. It is not a run of the recurrence that made the
    job, nor tied to its row in a ledger; and a time `expires` that has passed is left out. `home`: returns the store
    where a job of an id belongs.

    Raises:
        JobExists: the job has not ended.
        JobMissing: its record is not kept any more.
        ConfigError: its arguments are sealed for this job, and this client cannot open them.
    """
    found = yield from spread.search(parts, lambda store: send(store.look(job_id)))
    if found is None:
        raise JobMissing(f"queue {parts.queue} keeps no record of job {job_id:.200}: it cannot run again")
    store, status = found
    if status.place != "finished":
        raise JobExists(f"job {job_id:.200} has not ended: it is in {status.place}")
    payload = yield from send(store.payload(job_id))
    if payload is None:
        raise JobMissing(f"the record of job {job_id:.200} has no payload: it cannot run again")
    copy = random_id()
    text = yield from copied_for(_copied(payload), job_id, copy, payload_cap)
    job = New(copy, text, status.priority, status.group)
    yield from send(home(copy).enqueue([job]))
    if (note := home(copy).note_act("again", [copy], job=job_id)) is not None:
        yield from send(note)
    return copy


def _copied(payload: bytes) -> bytes:
    """Return a payload for a copy: the same, without the fields that belong to one job."""
    try:
        fields = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        expires = msgspec.json.decode(fields.get("expires", b"null"))
    except (msgspec.MsgspecError, RecursionError):
        return payload  # a worker refuses it, as it did the first
    past = isinstance(expires, int | float) and expires <= time.time()
    dropped = {*_OWN, *(["expires"] if past else [])}
    if dropped.isdisjoint(fields):
        return payload
    return msgspec.json.encode({name: value for name, value in fields.items() if name not in dropped})
