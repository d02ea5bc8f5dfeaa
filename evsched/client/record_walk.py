"""The jobs that have finished, by a filter: no key lists them, so the keys of each node are walked for their records.

All queues that are asked for share one walk. It examines the records of a queue when it has met enough for a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from evsched import keys
from evsched.client.operations import Operation, node_of
from evsched.store import server
from evsched.store.operator_calls import Match
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.call import Call

_KEYS: Final = 1000
"""Keys that a call scans: 0.3 ms of Redis's time."""

_SLICE: Final = 150
"""Records that a call examines: about 2 ms of Redis's time."""

SendStep = Callable[[Call[Any]], Operation[Any]]


class RecordWalk:
    """One walk over the keys of all nodes that have these queues.

    `condition`: returns the filter of a queue as its script takes it.
    """

    def __init__(self, stores: Sequence[Store], condition: Callable[[Store], Operation[bytes]]) -> None:
        self._stores, self._condition = {store.queue: store for store in stores}, condition
        self._conditions = dict[str, bytes]()
        self._nodes = list[Host | None]()
        """Those that are not walked yet."""
        self._begun = False
        self.examined = self.total = 0
        """About how many keys were walked, and how many there are."""
        self.restart()

    def restart(self) -> None:
        """Begin again: a server that has restarted passes over keys if a scan is continued."""
        self._begun, self._cursor = False, 0
        self._met = dict[str, list[str | bytes]]()
        """The ids of the records that were met and are not examined yet, by queue."""
        self._seen = set[tuple[str, str]]()
        """Redis may return a key twice."""
        self.found = list[tuple[str, Match]]()
        """With their queues."""
        self.examined = self.total = 0

    def step(self, send: SendStep) -> Operation[bool]:
        """Walk over some keys, or examine some records; return whether there is more to do."""
        if not self._begun:
            yield from self._begin(send)
        queue = max(self._met, key=lambda name: len(self._met[name]), default=None)
        if queue is not None and (not self._nodes or len(self._met[queue]) >= _SLICE):
            yield from self._examine(send, self._stores[queue])
        else:
            yield from self._scan(send)
        return bool(self._nodes or self._met)

    def _begin(self, send: SendStep) -> Operation[None]:
        nodes = dict[Host | None, None]()
        for queue in self._stores:
            nodes[(yield from node_of(keys.root(queue)))] = None
        self._nodes, self.total = [*nodes], 0
        for node in self._nodes:
            self.total += yield from send(server.size().at(node))
        self._begun = True

    def _scan(self, send: SendStep) -> Operation[None]:
        only = next(iter(self._stores)) if len(self._stores) == 1 else None
        self._cursor, met = yield from send(server.scan_records(self._cursor, only, _KEYS).at(self._nodes[0]))
        self.examined = min(self.total, self.examined + _KEYS)
        for queue, job in met:
            if queue in self._stores:
                self._met.setdefault(queue, []).append(job)
        if not self._cursor:
            self._nodes.pop(0)

    def _examine(self, send: SendStep, store: Store) -> Operation[None]:
        queue = store.queue
        if queue not in self._conditions:
            self._conditions[queue] = yield from self._condition(store)
        ids = self._met[queue]
        some, rest = ids[:_SLICE], ids[_SLICE:]
        part = yield from send(store.find("finished", self._conditions[queue], limit=_SLICE, ids=some))
        self._met[queue] = [*part.left, *rest]
        if not self._met[queue]:
            del self._met[queue]
        new = {job.id: job for job in part.found if (queue, job.id) not in self._seen}
        self._seen.update((queue, job) for job in new)
        self.found += [(queue, job) for job in new.values()]
