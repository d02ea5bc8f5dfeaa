"""The check of batches: one is stuck if jobs of it are gone, so that nothing will ever report their ends.

That is done by a hand that deletes keys, by an eviction, or by a failover that loses writes. A few calls for each batch
that has not ended look at its first open jobs.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from evsched import keys
from evsched.batches.member import CODES, Member, are_there, ends, with_codes
from evsched.client import operations
from evsched.client.operations import Operation, Send, SendMany, Step, send
from evsched.diagnostics.finding import Finding
from evsched.errors import StoreError
from evsched.jobs.record import whole
from evsched.shards import Shards
from evsched.store.batch_calls import BatchRecord
from evsched.store.many_queues import read_hashes
from evsched.store.queue import as_fields
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_BATCHES: Final = 1000
"""Batches of a queue that are looked at: the newest ones."""

_AT_ONCE: Final = 200
"""Batches that one call reads: 2 ms."""

_MEMBERS: Final = 250
"""Open jobs of a batch that are looked at."""

_CHORES: Final = 1000
"""Chores of a queue that are read. If there are more, the others may be ends, so nothing is reported."""

_STEPS: Final = ("start", "restart", "ripple", "settle", "cancel")
"""The chores of a batch after which its open jobs may be others."""


async def stuck_batches(sender: BatchingSender, queues: Sequence[str], shards: Shards) -> list[Finding]:
    """Return a finding for each closed batch of the queues that cannot end, because jobs of it are gone.

    Raises:
        StoreDown, StoreRefused
    """
    found = list[Finding]()
    sums = await read_hashes(sender.send, sender.node_of, [(queue, "batch_sums") for queue in queues], as_fields)
    for (queue, _), fields in sums.items():
        if whole(fields.get("live")) > 0:
            try:
                found += await operations.run(operations.once(_of_queue(Store(queue), shards)), _Performing(sender))
            except StoreError:
                continue  # a key of a wrong type, or a node that is down: other checks report that
    return found


class _Performing:
    """Performs the steps of operations by a sender."""

    def __init__(self, sender: BatchingSender) -> None:
        self._sender = sender

    async def __call__(self, step: Step) -> Any:
        if isinstance(step, SendMany):
            return await self._sender.send_all(step.calls)
        assert isinstance(step, Send | operations.Sleep)
        return await (self._sender.send(step.call) if isinstance(step, Send) else asyncio.sleep(step.seconds))


def _of_queue(home: Store, shards: Shards) -> Operation[list[Finding]]:
    found, read = list[Finding](), 0
    while read < _BATCHES:
        part = yield from send(home.batch_list(read, _AT_ONCE))
        for batch in part.batches:
            if batch.state == "running" and not batch.adding:
                lost = yield from _lost(home, batch, shards)
                found += [_describe(batch, lost)] if lost else []
        read += part.read
        if not part.read or read >= part.total:
            break
    return found


def _lost(home: Store, batch: BatchRecord, shards: Shards) -> Operation[list[Member]]:
    """Return the jobs of a batch that are gone, although they have not ended, and no report of their ends is there.

    An end is counted before its report is removed. So one that has come meanwhile is seen in the end.
    """
    open_ones = yield from with_codes(home, batch.id, batch.ordinals, [CODES["o"]], _MEMBERS)
    lost = list[Member]()
    for queue, some in groupby(sorted(open_ones, key=_by_queue), _by_queue):
        stores = [Store(name) for name in shards.all_of(queue)]
        mine = list(some)
        jobs = [member for member in mine if member.batch is None]
        there = (yield from are_there(stores, home, batch.id, jobs)) if jobs else []
        gone = [member for member, is_there in zip(jobs, there, strict=True) if not is_there]
        for member in mine:
            if member.batch is not None:
                address = f"{home.queue}/{batch.id}/{member.ordinal}"
                is_there = yield from send(Store(queue).is_child(member.batch, address))
                gone += [] if is_there else [member]
        if gone and not (yield from _is_reported(stores, f"end {home.queue}/{batch.id} ")):
            lost += gone
    starts = tuple(f"{step} {batch.id} " for step in _STEPS)
    if not lost or (yield from _is_reported([home], *starts)):
        return []
    lost.sort(key=lambda member: member.ordinal)
    codes = yield from ends(home, batch.id, lost[0].ordinal, lost[-1].ordinal)
    return [member for member in lost if codes[member.ordinal - lost[0].ordinal] == CODES["o"]]


def _by_queue(member: Member) -> str:
    return member.queue


def _is_reported(stores: Sequence[Store], *beginnings: str) -> Operation[bool]:
    """Return whether a queue has a chore that begins like one of these, or may have one."""
    for store in stores:
        chores = yield from send(store.chores(_CHORES))
        if len(chores) == _CHORES or any(step.startswith(beginnings) for step, _ in chores):
            return True
    return False


def _describe(batch: BatchRecord, lost: Sequence[Member]) -> Finding:
    count = f"{len(lost)} of its jobs {'is' if len(lost) == 1 else 'are'} gone"
    name, queue = shlex.quote(batch.id), batch.queue
    what = f"batch {batch.id} cannot end: {count}, and did not end: {', '.join(_named(lost))}"
    settle = f"settle {batch.id} 0 {batch.ordinals - 1} -"
    mend = (
        f"cancel it: evsched batches cancel {name} --queue {queue}; or have it end without them: ZADD "
        f"{keys.root(queue)}chores 0 '{settle}'"
    )
    return Finding("batch-stuck", "fault", what, f"queue {queue}, batch {batch.id}", mend)


def _named(lost: Sequence[Member], most: int = 5) -> Iterator[str]:
    for member in lost[:most]:
        yield f"{member.batch or member.id} of queue {member.queue}"
    if len(lost) > most:
        yield f"and {len(lost) - most} more"
