"""The epoch: which data Redis has. Rows that were scheduled in another epoch are scheduled again.

It has two parts. The first is a key, made at random by the first relay that finds none: so it is another one after a
FLUSHALL, and on an empty server. The second is the `run_id` of the server process: a server that was restarted, or to
which a failover has led, has the key, and may all the same lack what was written last.
"""

from __future__ import annotations

from evsched.errors import StoreRefused
from evsched.runtime.runtime import Runtime
from evsched.store.ledger import epoch_key, existing_epoch_key
from evsched.store.server import info
from evsched.transport.senders import BatchingSender


async def read_epoch(runtime: Runtime) -> str:
    """Return the present epoch.

    Raises:
        StoreDown, StoreRefused
    """
    return _epoch(*await runtime.sender.send_all([epoch_key(), info()]))


async def known_epoch(sender: BatchingSender) -> str:
    """Return the present epoch if a relay has made its key, else an empty string; write nothing.

    Raises:
        StoreDown, StoreRefused
    """
    key, server = await sender.send_all([existing_epoch_key(), info()])
    return _epoch(key, server) if key else ""


def _epoch(key: str, server: dict[str, str]) -> str:
    run = server.get("run_id", "")
    if not run:
        raise StoreRefused("INFO server has no run_id, so a restart of Redis could not be noticed")
    return f"{key}-{run[:12]}"
