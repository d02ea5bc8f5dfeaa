"""Workers of several releases of evsched: a deploy that is not complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evsched.diagnostics.finding import Finding
from evsched.errors import StoreRefused
from evsched.runtime.new_id import release_of
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender


async def releases(sender: BatchingSender, queues: Sequence[str]) -> list[Finding]:
    """Report that the workers of these queues, and parents that stand by, run several releases.

    Raises:
        StoreDown, StoreRefused
    """
    members = set[str]()
    for queue in queues:
        store = Store(queue)
        try:
            survey, parents = await sender.send_all([store.survey(), store.parents()])
        except StoreRefused as error:
            if "WRONGTYPE" not in str(error):
                raise
            continue  # the audit names the key
        members |= {lease.worker for lease in survey.leases} | {parent for parent, _ in parents}
    found = Counter(release_of(member) or "unknown" for member in members)
    if len(found) < 2:
        return []
    what = "workers of several releases run: " + ", ".join(f"{found[name]} of {name}" for name in sorted(found))
    mend = "restart those of the older release; `evsched workers` lists them, and docs/upgrade.md has the order"
    return [Finding("releases", "warning", what, "workers", mend)]
