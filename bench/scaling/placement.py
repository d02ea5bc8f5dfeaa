"""How evenly the slots of shards lie on primaries that have as many slots each. Calculated for many names of queues."""

from __future__ import annotations

import random
import statistics
import string
from typing import Final

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from bench.figures import number
from evsched import keys
from evsched.shards import shard

_NAMES: Final = 200


def _busiest(queue: str, shards: int, primaries: int) -> int:
    """Return how many shards the primary has that has most."""
    slots, found = -(-REDIS_CLUSTER_HASH_SLOTS // primaries), [0] * primaries
    for n in range(shards):
        found[key_slot(keys.root(shard(queue, n)).encode()) // slots] += 1
    return max(found)


def lines() -> list[list[str]]:
    """Return the table: for each number of primaries and shards the median over names, the best and the worst."""
    rng = random.Random(1)
    names = ["".join(rng.choices(string.ascii_lowercase, k=8)) for _ in range(_NAMES)]
    rows = [["primaries", "shards", "even", "median of 200 names", "best name", "worst name"]]
    for primaries in (3, 6, 15):
        for each in (1, 4, 16):
            found = [_busiest(name, each * primaries, primaries) for name in names]
            counts = each, statistics.median(found), min(found), max(found)
            rows.append([number(primaries), number(each * primaries), *map(number, counts)])
    return rows
