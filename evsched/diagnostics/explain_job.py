"""Reads from Redis what the explanation of a job, or of a recurrence, is made of."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from evsched import keys
from evsched.client import spread
from evsched.client.kept_recurrences import find_standing, read_record
from evsched.client.operations import Operation, send
from evsched.client.spread import Parts
from evsched.diagnostics.audit import PLACES
from evsched.diagnostics.explain import Explanation, explain, is_waiting, missing, named_window
from evsched.diagnostics.explain_recurrence import explain_recurrence
from evsched.errors import JobMissing, StoreRefused
from evsched.jobs.job import JobStatus
from evsched.recurrence.windows import WINDOW_NAME
from evsched.shards import Shards
from evsched.store import server
from evsched.store.clients import Facts
from evsched.store.store import Store
from evsched.worker.demand import FetchPause


class Reading(Struct, frozen=True):
    """What was read about a job."""

    store: Store
    """Of the queue, or the shard, that has the job; of the queue itself if none has it."""
    facts: Facts
    window: str | None = None
    """The present definition of the window that the job names."""
    types: dict[str, str] | None = None
    """Of the keys on which the whole queue depends, if the job waits."""
    dispatchers: int | None = None
    """How many are connected; None = it was not asked, or this user may not."""

    @property
    def asks_workers(self) -> bool:
        """Whether the workers can say why the job has not begun."""
        status = self.facts.status
        return status is not None and status.place == "ready" and bool(self.facts.counts.get("workers"))

    def explain(self, shards: Shards, queue: str, job: str, pauses: Sequence[FetchPause | None] = ()) -> Explanation:
        """Explain why the job, which was found, has not run yet. `pauses`: as of `explain`."""
        shard = self.store.queue
        found = explain(job, shards.whole(shard), self.facts, (), self.window, self.types, self.dispatchers, pauses)
        if not shards.beyond(queue, [shard]):
            return found
        count = shards.counts[queue]
        why = f"; queue {queue} has {count} shards, and {shard} is none of them: evsched queues shard {queue} {count}"
        return structs.replace(found, sentence=found.sentence + why)


def read_job(shards: Shards, parts: Parts, queue: str, job: str) -> Operation[Reading]:
    """Read what explains a job. `parts`: where it may be."""
    store, facts = yield from _find(parts, queue, job)
    if facts.status is None:
        return Reading(store, facts)
    types = dict[str, str]()
    if is_waiting(facts.status, facts.now):
        for name in PLACES:
            types[name] = yield from send(server.kind(keys.root(queue) + name))
    return Reading(
        store,
        facts,
        (yield from window_of(shards, facts.status)),
        types or None,
        (yield from _dispatchers(store)) if facts.holder is not None else None,
    )


def _find(parts: Parts, queue: str, job: str) -> Operation[tuple[Store, Facts]]:
    home, *others = parts.stores
    facts = yield from send(home.explain(job))
    if facts.status is not None:
        return home, facts
    for store in others:
        found = yield from send(store.explain(job))
        if found.status is not None:
            return store, found
    for store in (yield from spread.unknown_parts(parts)):
        found = yield from send(store.explain(job))
        if found.status is not None:
            return store, found
    return Store(queue), facts


def window_of(shards: Shards, status: JobStatus) -> Operation[str | None]:
    """Return the present definition of the window that a job names; None if it names none, or one that is not there."""
    name = named_window(status)
    try:
        return (yield from send(Store(shards.whole(status.queue)).window(name))) if name else None
    except StoreRefused:  # the reason in the record says that the window cannot be read
        return None


def _dispatchers(store: Store) -> Operation[int | None]:
    try:
        return (yield from send(server.dispatchers(store.queue)))
    except StoreRefused:  # this user may not ask
        return None


def read_recurrence(store: Store, name: str) -> Operation[Explanation | None]:
    """Explain the recurrence of a name; None if there is none. For an occurrence without a job, explain its recurrence.

    Raises:
        JobMissing: it is an occurrence's id.
    """
    at = yield from send(store.next_planned(name))
    owner = name if at is not None else name.rpartition("@")[0]
    if at is None and owner:
        at = yield from send(store.next_planned(owner))
    if at is None:
        return None
    fields, requests = (yield from read_record(store, owner)), 0
    try:
        requests = yield from send(store.requests(owner))
    except StoreRefused:  # the key is of another type
        pass
    standing, window = (yield from find_standing(store, at, fields)), None
    named = fields.get("window", b"").decode(errors="backslashreplace")
    if WINDOW_NAME.fullmatch(named):
        try:
            window = yield from send(store.window(named))
        except StoreRefused:
            pass
    now, dispatchers = (yield from send(server.clock(keys.root(store.queue)))), (yield from _dispatchers(store))
    found = explain_recurrence(owner, store.queue, standing, fields, requests, now, dispatchers, window)
    if owner != name:
        raise JobMissing(f"{missing(name, store.queue)}; recurrence {owner}: {found.sentence}")
    return found
