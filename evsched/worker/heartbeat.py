"""The heartbeat: renews a worker's leases, from a thread and a connection of its own.

So a handler that blocks the event loop costs no lease: the other jobs keep theirs, and nothing starts twice. A process
whose loop is blocked by a job past its timeout and kill grace is ended from here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from evsched.config import Config
from evsched.errors import StoreDown, StoreRefused
from evsched.events import Event
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnects
from evsched.store.announced import Announced
from evsched.store.store import Store
from evsched.transport.redis_errors import reconnect_delay
from evsched.transport.senders import SyncSender


class HeartbeatListener(Protocol):
    """What the heartbeat asks and reports. All of it is called in the heartbeat's thread."""

    def busy(self) -> bool:
        """Return whether the worker holds jobs."""
        ...

    def lease_lost(self, queue: str) -> None:
        """Note that the lease had ended. The worker has a new one."""
        ...

    def announced(self, queue: str) -> Announced:
        """Return what the worker has written of its app there."""
        ...

    def undeclared(self, queue: str) -> None:
        """Note that what the worker's app declared there is to be declared again."""
        ...

    def counted(self, queue: str, count: int, *, waits: bool) -> None:
        """Note how many jobs the worker's list holds, and whether the worker waits for a message."""
        ...

    def cancelled(self, queue: str, ids: list[str]) -> None:
        """Note which of the worker's jobs are to stop."""
        ...

    def end_if_stuck(self, sender: SyncSender) -> None:
        """End the process if a job blocks its event loop beyond its bounds."""
        ...

    def failed(self, error: BaseException) -> None:
        """Note that the heartbeat has ended by an error, and renews no more."""
        ...

    def emit(self, event: Event) -> None:
        """Pass on an event."""
        ...


class Heartbeat(threading.Thread):
    """Renews the leases while the worker lives. A lease that Redis refuses to renew costs no other queue its lease."""

    def __init__(self, config: Config, worker: str, stores: Sequence[Store], listener: HeartbeatListener) -> None:
        super().__init__(name="evsched-heartbeat", daemon=True)
        self._config = config
        self._worker = worker
        self._stores = list(stores)
        self._listener = listener
        self._sender = SyncSender(config.url, reply_timeout=config.reply_timeout)
        self._reconnects = Reconnects("heartbeat", listener.emit)
        self.pulse = Pulse("heartbeat")
        self._wake = threading.Event()
        self._stopping = False
        self._soon = False
        """The next heartbeat is due soon: since the last one the worker received jobs, or Redis refused a lease."""
        self._short = False
        """The leases that were set last are the short ones, and have to be renewed soon."""

    def add(self, store: Store) -> None:
        """Renew the lease of one more queue, from the next heartbeat on. For any thread."""
        self._stores.append(store)

    def attend(self) -> None:
        """Note that the worker holds jobs from now on. The next heartbeat comes soon, even if it holds none by then.

        The start has made its lease the short one, and only a heartbeat makes it long again.
        """
        self._soon = True
        self._wake.set()

    def stop(self) -> None:
        """End the thread soon; its leases run on."""
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        """Renew the leases until stopped."""
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - a thread that ends in silence leaves a worker without a lease
            self._listener.failed(error)
        finally:
            self.pulse.rest()
            self._sender.close()

    def _run(self) -> None:
        failures = 0
        last = time.monotonic()
        while not self._stopping:
            rest = last + self._interval() - time.monotonic()
            self.pulse.expect(max(0.0, rest))
            if rest > 0 and self._wake.wait(rest):
                self._wake.clear()
                continue
            if self._stopping:
                break
            self._soon, self._short = False, self._listener.busy()
            try:
                self._renew_all()
                failures = 0
                last = time.monotonic()
            except StoreDown:
                # Not reported: the worker's own loop says that Redis is down.
                failures += 1
                if not self._stopping:
                    self._wake.wait(reconnect_delay(failures))
            self._listener.end_if_stuck(self._sender)

    def _renew_all(self) -> None:
        """Renew the lease of each queue, whatever Redis refuses of another.

        Raises:
            StoreDown: the queue that failed comes last the next time, since its node of a cluster may be down alone.
        """
        for store in list(self._stores):
            reconnect = self._reconnects.of(store.queue)
            try:
                self.step(store)
            except StoreRefused as error:
                self._soon = True
                reconnect.failed(error)
            except StoreDown:
                self._stores.remove(store)
                self._stores.append(store)
                raise
            else:
                reconnect.passed()

    def step(self, store: Store) -> None:
        """Renew one lease.

        Raises:
            StoreDown, StoreRefused
        """
        lease = self._config.lease if self._short else self._config.idle_lease
        announced = self._listener.announced(store.queue)
        found = self._sender.send(store.heartbeat(self._worker, lease, announced=announced))
        if not found.kept:
            self._listener.lease_lost(store.queue)
            self._sender.send(store.heartbeat(self._worker, lease, fresh=True))
        if not found.declared:
            self._listener.undeclared(store.queue)
        self._listener.counted(store.queue, found.held, waits=found.waits)
        if found.stops:
            self._listener.cancelled(store.queue, found.stops)

    def _interval(self) -> float:
        return self._config.heartbeat if self._soon or self._short else self._config.idle_heartbeat
