"""The epoch: which data Redis has. Rows that were scheduled in another epoch are scheduled again.

It has two parts. The first is a key, made at random by the first relay that finds none: so it is another one after a
FLUSHALL, and on an empty server. The second is the `run_id` of the server process: a server that was restarted, or to
which a failover has led, has the key, and may all the same lack what was written last.

A Redis belongs to the ledger of one database, the first whose relay finds it: two would take each other's ends, and
their jobs of the same ids for their own. A second key has the identity of that database.
"""

from __future__ import annotations

from typing import Final

from evsched import keys
from evsched.errors import StoreRefused
from evsched.runtime.runtime import Runtime
from evsched.store.ledger import epoch_key, existing_epoch_key, existing_ledger_key, ledger_key
from evsched.store.server import info
from evsched.transport.senders import BatchingSender

OTHER: Final = "other-ledger"
"""The kind of the StoreRefused that says that Redis belongs to the ledger of another database."""


async def read_epoch(runtime: Runtime, identity: str) -> str:
    """Return the present epoch. `identity`: of the database.

    Raises:
        StoreDown, StoreRefused: also if Redis belongs to the ledger of another database.
    """
    owner, key, server = await runtime.sender.send_all([ledger_key(identity), epoch_key(), info()])
    _check(owner, identity)
    return _epoch(key, server)


async def check_owner(runtime: Runtime, identity: str) -> None:
    """Check that Redis belongs to the ledger of this database. Raises as `read_epoch`."""
    _check(await runtime.sender.send(ledger_key(identity)), identity)


async def known_epoch(sender: BatchingSender, identity: str) -> str:
    """Return the present epoch if a relay has made its key, else an empty string; write nothing. Raises as above."""
    owner, key, server = await sender.send_all([existing_ledger_key(), existing_epoch_key(), info()])
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
    run = server.get("run_id", "")
    if not run:
        raise StoreRefused("INFO server has no run_id, so a restart of Redis could not be noticed")
    return f"{key}-{run[:12]}"
