"""The epoch: which data Redis has. Rows that were scheduled in another epoch are scheduled again.

It has two parts. The first is a key, made at random by the first relay that finds none: so it is another one after a
FLUSHALL, and on an empty server. The second is the `master_replid` of the server, which names one history of writes. A
server makes another one when it starts, and when it becomes a primary: after a restart, a failover or REPLICAOF NO ONE
it has the key, and may all the same lack what was written last. (`run_id` stays the same when a running server is given
other data.) It also makes one when its first replica connects, and when it has had none for `repl-backlog-ttl`: then
the relays look once at rows that Redis has.

REPLICAOF leaves connections open, but ends calls that wait with an error, so `ends.py` notices it at once. Each look of
`relay.py` reads the epoch; so a change that no call met is noticed after `safety_cap`.

The second part is that of the primary which serves the relays: behind Sentinel each has its own. In a cluster each
primary has one for its slots, so one epoch could not stand for all; the ledger refuses to start there.

A Redis belongs to the ledger of one database, the first whose relay finds it: two would take each other's ends, and
their jobs of the same ids for their own. A second key has the identity of that database.
"""

from __future__ import annotations

from typing import Final

from evsched import keys
from evsched.errors import StoreRefused
from evsched.runtime.loops import Runtime
from evsched.store.relay_calls import epoch_key, existing_epoch_key, existing_ledger_key, ledger_key
from evsched.store.server import info
from evsched.transport.senders import BatchingSender

OTHER: Final = "other-ledger"
"""The kind of the StoreRefused that says that Redis belongs to the ledger of another database."""


async def read_epoch(runtime: Runtime, identity: str) -> str:
    """Return the present epoch. `identity`: of the database.

    Raises:
        StoreDown, StoreRefused: also if Redis belongs to the ledger of another database.
    """
    owner, key, server = await runtime.sender.send_all([ledger_key(identity), epoch_key(), info("replication")])
    _check(owner, identity)
    return _epoch(key, server)


async def check_owner(runtime: Runtime, identity: str) -> None:
    """Check that Redis belongs to the ledger of this database. Raises as `read_epoch`."""
    _check(await runtime.sender.send(ledger_key(identity)), identity)


async def known_epoch(sender: BatchingSender, identity: str) -> str:
    """Return the present epoch if a relay has made its key, else an empty string; write nothing. Raises as above."""
    owner, key, server = await sender.send_all([existing_ledger_key(), existing_epoch_key(), info("replication")])
    if owner:
        _check(owner, identity)
    return _epoch(key, server) if key else ""


def _check(owner: str, identity: str) -> None:
    if owner != identity:
        raise StoreRefused(
            "this Redis belongs to the ledger of another database, and relays of two would take each other's jobs: "
            "give each ledger a Redis, or a database of Redis, of its own. If the other ledger is used no longer, stop "
            f"its relays, then: redis-cli DEL '{keys.LEDGER}'",
            kind=OTHER,
        )


def _epoch(key: str, server: dict[str, str]) -> str:
    history = server.get("master_replid", "")
    if not history:
        raise StoreRefused("INFO replication has no master_replid, so a change of Redis's data could not be noticed")
    return f"{key}-{history[:12]}"
