"""Signals to jobs: send one, and say why a node of a graph cannot take one yet."""

from __future__ import annotations

from typing import Any, Final

from evsched.client.operations import Operation, send
from evsched.client.option_values import signal_value
from evsched.client.spread import Parts, of_job
from evsched.errors import JobMissing
from evsched.store.client_calls import Signaled
from evsched.store.store import Store

_SLICE: Final = 1000
"""Nodes whose ids one call reads."""

_NO_JOB: Final = {0: "its job is about to be enqueued", 6: "a node before it has failed", 7: "it waits for other nodes"}
"""Why a node has no job yet, by how it has ended: see lua/_batches.lua."""


def signal(parts: Parts, job_id: str, signal: str, value: Any) -> Operation[Signaled]:
    """Send a signal to a job. Raises as `of_job`; ConfigError if the name or the value is not valid."""
    text = signal_value(signal, value)
    try:
        return (yield from of_job(parts, lambda store: send(store.signal(job_id, signal, text))))
    except JobMissing:
        why = yield from _why_no_job(parts.make(parts.queue), job_id)
        if why is None:
            raise
        raise JobMissing(why) from None


def _why_no_job(home: Store, job_id: str) -> Operation[str | None]:
    """Say why a node of a graph whose home is this queue has no job yet; None if there is no such node."""
    batch = job_id.rpartition(".")[0]
    record = (yield from send(home.batch(batch))) if batch else None
    for first in range(0, 0 if record is None else record.nodes, _SLICE):
        assert record is not None
        ordinals = range(first, min(first + _SLICE, record.nodes))
        ids = yield from send(home.batch_ids(batch, ordinals))
        if job_id in ids:
            at = ordinals[ids.index(job_id)]
            code = (yield from send(home.batch_ends(batch, at, at)))[:1]
            why = _NO_JOB.get(code[0] % 8 if code else 0)
            return why and f"{job_id} has no job yet: {why}; send the signal when graph {batch} has started it"
    return None
