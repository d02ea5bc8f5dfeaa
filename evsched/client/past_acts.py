"""Searches the audit trails for acts of operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from evsched import keys
from evsched.client.operations import Operation, send
from evsched.client.option_values import Past, past_moment
from evsched.errors import StoreRefused
from evsched.jobs import option_checks as check
from evsched.jobs.redaction import is_member, redacted_member
from evsched.store import server
from evsched.store.acts import ACTS, AuditedAct, AuditEntry, as_acts, stream_position
from evsched.store.audit_trail import AuditTrail, DeploymentTrail
from evsched.store.store import Store


class ActFilter(Struct, frozen=True):
    """Which acts of the audit trail. All conditions that are given must hold."""

    since: Past | None = None
    until: Past | None = None
    who: str | None = None
    act: str | None = None
    id: str | None = None
    """The id of a job, or the name of a recurrence or of a user, that was changed."""

    def __post_init__(self) -> None:
        for name, value in (("who", self.who), ("id", self.id)):
            if value is not None:
                check.text(name, value)
        if self.act is not None:
            check.one_of(*ACTS)("act", self.act)

    def takes(self, entry: AuditEntry) -> bool:
        """Return whether an entry is of such an act, whatever it changed."""
        return self.who in (None, entry.known.who) and self.act in (None, entry.known.act)

    def is_about(self, one: AuditEntry | AuditedAct) -> bool:
        return self.id is None or self.id in (*one.ids, one.what.get("recurrence"), one.what.get("user"))


_ENTRIES: Final = 100
"""Entries of an audit trail that a call reads: less than 1 ms of Redis's time, also if each has 4 KiB of ids."""


def redactions(stores: Sequence[Store], ids: Iterable[str]) -> Operation[dict[str, tuple[str, ...]]]:
    """Return the redacted arguments that workers have declared, by task; none if none of these ids needs them."""
    found = dict[str, tuple[str, ...]]()
    if any(map(is_member, ids)):
        for store in stores:
            try:
                found |= yield from send(store.redactions())
            except StoreRefused:
                pass  # the key is of another type
    return found


def read_acts(queue: str, stores: Sequence[Store], wanted: ActFilter, limit: int) -> Operation[list[AuditedAct]]:
    """Return what operators did to a queue and its shards, the latest first. `stores`: theirs.

    Raises:
        ConfigError: a time or the limit is not valid.
    """
    acts = yield from _read_trails(queue, stores, wanted, limit)
    declared = yield from redactions(stores, [job for act in acts for job in act.ids])
    return [replace(act, ids=[redacted_member(job, declared) for job in act.ids]) for act in acts]


def read_deployment_acts(wanted: ActFilter, limit: int) -> Operation[list[AuditedAct]]:
    """Return what operators did that is about no queue. Raises as `read_acts`."""
    return (yield from _read_trails("", [DeploymentTrail()], wanted, limit))


def _read_trails(
    queue: str, trails: Sequence[AuditTrail], wanted: ActFilter, limit: int
) -> Operation[list[AuditedAct]]:
    check.count("limit", limit)
    found, now = list[AuditEntry](), 0.0
    if isinstance(wanted.since, timedelta) or isinstance(wanted.until, timedelta):
        now = yield from send(server.clock(keys.root(trails[-1].queue)))
    since = None if wanted.since is None else past_moment("since", wanted.since, now)
    until = "+" if wanted.until is None else stream_position(past_moment("until", wanted.until, now))
    for trail in trails:
        before, left = until, limit
        while before is not None and left > 0:
            read = yield from send(trail.acts(before, since, _ENTRIES))
            part = [entry for entry in read.entries if entry is not None and wanted.takes(entry)]
            before = read.before
            left -= sum(map(wanted.is_about, part))
            found += part
    return [act for act in as_acts(queue, found) if wanted.is_about(act)][:limit]
