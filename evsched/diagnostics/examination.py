"""An examination: all checks of the doctor, of Redis and of its queues, one after the other."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from msgspec import Struct

from evsched import keys
from evsched.diagnostics import server_checks
from evsched.diagnostics.acl import Role
from evsched.diagnostics.audit import Audit, OnProgress
from evsched.diagnostics.broken_recurrences import broken_recurrences
from evsched.diagnostics.cluster_checks import cluster_checks, no_slots, unanswered
from evsched.diagnostics.doctor import Doctor, queue_at
from evsched.diagnostics.finding import Finding
from evsched.diagnostics.incomplete_deploys import incomplete_deploys
from evsched.diagnostics.ledger_checks import ledger
from evsched.diagnostics.standstill import Standstill
from evsched.diagnostics.stray_jobs import stray_jobs
from evsched.errors import StoreDown, StoreError
from evsched.shards import NONE, Shards
from evsched.store import server
from evsched.transport.connection import primary
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import NO_SLOTS, topology

ShowProgress = Callable[[], AbstractContextManager[OnProgress]]
"""Shows the progress of the audit while its context is open."""


class Examined(Struct, frozen=True):
    """The result of an examination."""

    found: list[Finding]
    queues: list[str]
    seen: int
    """How many records and entries of places were checked."""


def _show_nothing() -> AbstractContextManager[OnProgress]:
    return nullcontext(lambda done, total: None)


def _no_queue(name: str, others: Iterable[str]) -> Finding:
    """Report a queue that is named and has no key. `others`: the queues that there are."""
    near = difflib.get_close_matches(name, others, n=3)
    hint = f": did you mean {', '.join(near)}?" if near else ""
    what = f"queue {name} has no jobs, no workers and no recurrences{hint}"
    mend = "correct the name; if the queue is new, this is gone with its first job or worker"
    return Finding("no-queue", "warning", what, f"queue {name}", mend)


async def _read_shards(sender: BatchingSender) -> Shards:
    """Return how many shards queues have; none if Redis does not say it: other checks report why."""
    try:
        return Shards(await sender.send(server.shards()))
    except StoreError:
        return NONE


async def examine(
    url: str,
    sender: BatchingSender,
    queues: Sequence[str] = (),
    role: Role | None = None,
    *,
    repair: bool = False,
    ledger_url: str | None = None,
    show: ShowProgress = _show_nothing,
) -> Examined:
    """Check Redis, and the queues that are named, with their shards, or all queues; and the ledger, if it is given.

    Raises:
        StoreDown, StoreRefused
    """
    found = list[Finding]()
    cluster = topology(url)
    try:
        nodes = await sender.nodes()
    except StoreDown as error:
        if error.kind != NO_SLOTS:
            raise
        return Examined([no_slots(error)], [], 0)
    down = await unanswered(sender, nodes)
    shards = NONE if await sender.node_of(keys.SHARDS) in down else await _read_shards(sender)
    # After the first call, by which the primary was found.
    found += [server_checks.sentinel(*one) for one in await primary(url).doubtful_sentinels()]
    if cluster is not None:
        found += await cluster_checks(sender, cluster, shards, down)
    nodes = [node for node in nodes if node not in down]
    parts = [part for name in queues for part in shards.all_of(name) if await sender.node_of(keys.root(part)) in nodes]
    if queues and not parts:
        return Examined(found, [], 0)
    for node in nodes:
        # Of a cluster, only the nodes of the queues that are named.
        if (queue := await queue_at(sender, node, parts)) is not None:
            found += await Doctor(url, sender, queue, node=node, repair=repair).run(role, all_queues=not queues)
    audit = Audit(sender, parts, down=down)
    try:
        if not any(finding.check == "cluster" for finding in found):
            with show() as report:
                violations = await audit.run(repair=repair, on_progress=report)
            found += await Standstill(sender, audit.queues, shards).run()
            found += await stray_jobs(sender, queues, shards, audit.met)
            found += await incomplete_deploys(sender, audit.queues)
            found += await broken_recurrences(sender, audit.queues)
            unused = [name for name in sorted({*queues}) if {*shards.all_of(name)} <= {*audit.empty}]
            found += [_no_queue(name, shards.wholes(audit.met)) for name in unused]
            found += violations
            if ledger_url is not None:
                found += await ledger(ledger_url, sender, repair=repair)
    except StoreError as error:
        if isinstance(error, StoreDown) and not down:
            raise
        what = f"the queues were not checked: {error}"
        mend = "fix the faults above; or use an administrator, or the user `doctor` of redis.conf"
        found.append(Finding("audit", "warning", what, "Redis", mend))
    return Examined(found, audit.queues, audit.seen)
