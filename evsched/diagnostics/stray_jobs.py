"""Jobs in shards beyond the number of shards that their queue has: no worker serves those."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evsched.diagnostics.finding import Finding
from evsched.errors import StoreRefused
from evsched.shards import Shards
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender


async def stray_jobs(
    sender: BatchingSender, queues: Sequence[str], shards: Shards, names: Iterable[str]
) -> list[Finding]:
    """Report the jobs in shards of these queues, or of all, beyond the number of shards. `names`: the queues there are.

    Raises:
        StoreDown, StoreRefused
    """
    found, known = list[Finding](), {*names}
    for queue in queues or sorted(shards.counts):
        for name in shards.beyond(queue, known):
            found += await _look(sender, queue, shards.counts[queue], name)
    return found


async def _look(sender: BatchingSender, queue: str, count: int, name: str) -> list[Finding]:
    try:
        stats = await sender.send(Store(name).queue_stats())
    except StoreRefused as error:
        if "WRONGTYPE" not in str(error):
            raise
        return []  # the audit names the key
    jobs = sum(stats.places.values()) - stats.places["dead"]
    if not jobs or stats.workers or stats.parents:
        return []
    what = f"{jobs} job{'' if jobs == 1 else 's'} in a shard that no worker serves: queue {queue} has {count} shards"
    mend = (
        f"have all programs that enqueue name {count} shards, then move the jobs: evsched queues shard {queue} {count}"
    )
    return [Finding("stray-jobs", "warning", what, f"queue {name}", mend)]
