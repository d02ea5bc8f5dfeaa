"""Pauses of batches: the home of a batch says that it is paused, and the gates of its queues hold its jobs back.

A pause at the home has a stamp. It is applied in each queue in which the batch has jobs, and to each batch among its
members. A program that pauses a batch does that itself, so the pause holds when it returns. If it dies, a keeper does
it by the chore `hold`. A queue ignores a call with an older stamp than its last one, so calls may come in any order.

A program that adds jobs to a batch that is paused tells their queue first. So the jobs wait even if nobody knew of that
queue when the batch was paused: their ordinals are reserved at the home, which lists the queue, and says whether the
batch is paused. In the same way, a batch that is opened in another one is paused with it: it is listed, then it is
opened, and then the other one is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, NamedTuple

from evsched import keys
from evsched.client.gate import check_pause
from evsched.client.operations import Operation, send
from evsched.client.option_values import unix
from evsched.client.spread import MakeStore, read_all_shards
from evsched.errors import JobLate, JobMissing, StoreDown, StoreError, StoreRefused
from evsched.shards import Shards
from evsched.store.batch_pauses import HOLD_WITHIN, BatchPause, Hold, InnerBatch
from evsched.store.server import clock
from evsched.store.store import Store

_AFTER: Final = 5.0
"""Seconds after which a keeper applies a pause that the program has not, since it died."""

_STOPS: Final = "it is being cancelled"

SLICE: Final = 100
"""Queues, and batches in a batch, that one step reads."""


class ShardFinder(NamedTuple):
    """Makes the calls of queues, and knows shards of them."""

    make: MakeStore
    shards: Shards


def pause(
    home: Store, queues: ShardFinder, batch: str, until: datetime | float | None = None, why: str = ""
) -> Operation[BatchPause]:
    """Pause a batch: none of its jobs starts from then on.

    Raises:
        ConfigError: the moment has passed, or the reason is too long.
        JobMissing: there is no such batch.
        JobLate: it has ended.
    """
    end = None if until is None else unix("until", until)
    yield from check_pause(home, end, why)
    paused = yield from send(home.batch_pause(batch, held=True, after=_AFTER, until=end, why=why))
    yield from _apply_all(home, queues, batch, paused, why)
    return paused


def resume(home: Store, queues: ShardFinder, batch: str) -> Operation[BatchPause]:
    """Resume a batch.

    Raises:
        JobMissing: there is no such batch.
    """
    resumed = yield from send(home.batch_pause(batch, held=False, after=_AFTER))
    yield from _apply_all(home, queues, batch, resumed, "")
    return resumed


def cancel(
    home: Store, queues: ShardFinder, batch: str, how: Literal["cancelled", "expired"] = "cancelled"
) -> Operation[str]:
    """Cancel a batch, and return its state. Its jobs are cancelled some at a time, so it is paused as well.

    Raises:
        JobMissing: there is no such batch.
    """
    state = yield from send(home.batch_close(batch, how=how))
    if state != "running":
        return state
    try:
        paused = yield from send(home.batch_pause(batch, held=True, after=_AFTER, why=_STOPS, is_act=False))
        yield from _apply_all(home, queues, batch, paused, _STOPS)
    except (JobLate, StoreDown, StoreRefused):
        pass  # it has ended; or a queue does not answer: a keeper does the rest
    return state


def _apply_all(home: Store, queues: ShardFinder, batch: str, paused: BatchPause, why: str) -> Operation[None]:
    """Apply a pause, or its end, in all queues of a batch, and in all batches in it."""
    left = [(home, batch, paused)]
    while left:
        home, batch, paused = left.pop()
        first, is_more = 0, paused.stamp > 0
        while is_more:
            is_more, inner = yield from apply(home, queues, batch, paused, first, why, after=_AFTER)
            left += inner
            first += SLICE
        yield from send(home.end_chores([f"hold {batch} {paused.stamp} 0"]))


def apply(
    home: Store, queues: ShardFinder, batch: str, paused: BatchPause, first: int, why: str = "", *, after: float = 0.0
) -> Operation[tuple[bool, list[tuple[Store, str, BatchPause]]]]:
    """Apply a pause, or its end, in some queues of a batch, from a rank on, and to some of the batches in it.

    Return whether there are more, and these batches, which have a chore `hold` from then on. `after`: as of
    `batch_pause`.
    """
    last = first + SLICE - 1
    parts = yield from send(home.batch_parts(batch, first, last))
    yield from tell(home, queues, batch, paused, (queue for _, _, queue in parts))
    inner, followed = (yield from send(home.inner_batches(batch, first, last))), list[tuple[Store, str, BatchPause]]()
    for one in inner:
        if keys.NAME.fullmatch(one.queue) and keys.NAME.fullmatch(one.batch):
            follows = yield from follow(queues.make(one.queue), one, paused, why, after=after)
            followed += [] if follows is None else [(queues.make(one.queue), one.batch, follows)]
    return max(len(parts), len(inner)) == SLICE, followed


def follow(
    home: Store, inner: InnerBatch, paused: BatchPause, why: str = "", *, after: float = 0.0
) -> Operation[BatchPause | None]:
    """Pause or resume a batch as the one that it is in; None: there is no such batch, or it is not open yet."""
    try:
        outer = inner.parent, paused.stamp
        return (
            yield from send(home.batch_pause(inner.batch, held=paused.is_paused, after=after, why=why, outer=outer))
        )
    except JobMissing:
        return None


def present(home: Store, batch: str) -> Operation[BatchPause]:
    """Return whether a batch is paused. Its stamp is 0 if there is no such batch."""
    now = yield from send(clock(keys.root(home.queue)))
    return (yield from send(home.batch_pause_of(batch)))._replace(now=now)


def tell(home: Store, queues: ShardFinder, batch: str, paused: BatchPause, names: Iterable[str]) -> Operation[None]:
    """Tell queues, and all shards of each, whether a batch is paused.

    A shard that is made meanwhile copies what its queue knows, when its number is written. So the numbers are read
    again: the shard knows it from here, or from its queue.

    Raises:
        StoreDown, StoreRefused: a queue was not reached; or the clocks of two servers differ too much.
    """
    wanted, told, shards = sorted({*names}), set[str](), Shards(queues.shards.counts)
    failed: StoreError | None = None
    while True:
        shards.grow((yield from read_all_shards()).counts)
        left = [shard for name in wanted if keys.NAME.fullmatch(name) for shard in shards.all_of(name)]
        left = [shard for shard in left if shard not in told]
        if not left:
            break
        for shard in left:
            told.add(shard)
            try:
                paused = yield from _tell_one(home, queues.make(shard), batch, paused)
            except StoreError as error:  # the others do not wait for it
                failed = failed or error
    if failed is not None:
        raise failed


def _tell_one(home: Store, store: Store, batch: str, paused: BatchPause) -> Operation[BatchPause]:
    for _ in range(2):
        hold = Hold(f"{home.queue}/{batch}", paused.stamp, "1" if paused.is_paused else "")
        if (yield from send(store.batch_hold(paused.now + HOLD_WITHIN, [hold]))):
            return paused
        paused = yield from present(home, batch)  # it took long
    raise StoreRefused(
        f"queue {store.queue} cannot be told that batch {batch} is paused: its server's clock differs by "
        f"{HOLD_WITHIN:g} s or more from that of queue {home.queue}"
    )


def forget(home: Store, queues: ShardFinder, batch: str, stamp: int) -> Operation[None]:
    """Have all queues of a batch forget its pauses. It has ended so long ago that no call about it comes any more."""
    first, told = 0, set[str]()
    while parts := (yield from send(home.batch_parts(batch, first, first + 10 * SLICE - 1))):
        shards = Shards(queues.shards.counts)
        shards.grow((yield from read_all_shards()).counts)
        new = {queue for _, _, queue in parts if keys.NAME.fullmatch(queue)} - told
        for shard in (shard for queue in sorted(new) for shard in shards.all_of(queue)):
            now = yield from send(clock(keys.root(shard)))
            hold = Hold(f"{home.queue}/{batch}", stamp, "-")
            yield from send(queues.make(shard).batch_hold(now + HOLD_WITHIN, [hold]))
        told |= new
        first += len(parts)
