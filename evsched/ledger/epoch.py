"""The epoch: which data Redis has. Rows that were scheduled in another epoch are scheduled again.

It has two parts. The first is a key, made at random by the first relay that finds none: so it is another one after a
FLUSHALL, and on an empty server. The second is the `run_id` of the server process: a server that was restarted, or to
which a failover has led, has the key, and may all the same lack what was written last.
"""

from __future__ import annotations

from evsched.errors import StoreRefused
from evsched.runtime.runtime import Runtime
from evsched.store.ledger import epoch_key
from evsched.store.server import info


async def read_epoch(runtime: Runtime) -> str:
    """Return the present epoch.

    Raises:
        StoreDown, StoreRefused
    """
    key, server = await runtime.sender.send_all([epoch_key(), info()])
    run = server.get("run_id", "")
    if not run:
        raise StoreRefused("INFO server has no run_id, so a restart of Redis could not be noticed")
    return f"{key}-{run[:12]}"
