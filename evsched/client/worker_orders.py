"""The orders of operators to workers: fetch no more jobs, or end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evsched import keys
from evsched.client import spread
from evsched.client.operations import Operation, nodes, send
from evsched.client.queue_names import find_queues
from evsched.client.spread import MakeStore
from evsched.errors import EvschedError
from evsched.shards import Shards
from evsched.store.acts import ActName
from evsched.store.store import Store

_NAMES: Final[dict[str, ActName]] = {keys.QUIET: "quiet", keys.STOP: "stop"}
"""The names of the acts in the audit trail."""


def order(shards: Shards, make: MakeStore, worker: str, message: str, queues: Sequence[str]) -> Operation[list[str]]:
    """Send a message to a worker, and note the act in each queue that it serves; return these queues.

    It is sent in the first queue that brings it to a worker: a worker hears all of its queues alike.

    Raises:
        EvschedError: no worker of this name serves one of the queues, or it has ended.
    """
    known = Shards(shards.counts)
    known.grow((yield from spread.read_all_shards()).counts)
    names = known.wholes(queues or (yield from find_queues()))
    served, heard = dict[str, Store](), False
    for store in (make(part) for queue in names for part in known.all_of(queue)):
        if worker in (yield from send(store.workers())):
            served.setdefault(known.whole(store.queue), store)
            heard = heard or bool((yield from send(store.order_worker(worker, message))))
    if not served:
        raise EvschedError(f"no worker {worker:.200} serves {', '.join(queues) or 'any queue'}: see `evsched workers`")
    # A node of a cluster passes the message on to the others, and counts the receivers that it has itself.
    if not heard and (yield from nodes()) == [None]:
        raise EvschedError(f"worker {worker:.200} does not listen: it has ended, or its connection is lost just now")
    for store in served.values():
        if (note := store.note_act(_NAMES[message], worker=worker)) is not None:
            yield from send(note)
    return sorted(served)
